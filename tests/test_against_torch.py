"""Random data against torch.nn.functional: forward, our gradient operators, and our autograd."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pytest
import torch
import torch.nn.functional as F
from forcing import run_forced

import torch_ops

ops = torch.ops.convtbw
T = TypeVar("T")
TORCH = {
    "convolution": {1: F.conv1d, 2: F.conv2d, 3: F.conv3d},
    "conv_transpose": {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d},
}
# Formats in which torch keeps its own weights.
WEIGHTS_FORMAT = {"convolution": "OIX", "conv_transpose": "IOX"}


@dataclass(frozen=True)
class Case:
    family: str
    groups: int
    channels: tuple[int, int]  # per group, of the forward operator's src and dst
    extent: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...] | None = None
    batch: int = 2

    @property
    def rank(self) -> int:
        return len(self.extent)

    def attributes(self) -> dict[str, object]:
        named: dict[str, object] = {
            "strides": self.stride,
            "dilations": self.dilation,
            "pads_begin": self.padding,
            "pads_end": self.padding,
            "groups": self.groups,
            "data_format": "NCX",
        }
        if self.family == "conv_transpose":
            named["output_padding"] = self.output_padding
        return named

    def operands(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        i, o = self.channels
        w_shape = (i * self.groups, o) if self.family == "conv_transpose" else (o * self.groups, i)
        return (
            torch.randn(self.batch, i * self.groups, *self.extent, dtype=dtype),
            torch.randn(*w_shape, *self.kernel, dtype=dtype),
            torch.randn(o * self.groups, dtype=dtype),
        )

    def torch(self, src: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        function = TORCH[self.family][self.rank]
        if self.family == "convolution":
            return function(src, w, b, self.stride, self.padding, self.dilation, self.groups)
        op = self.output_padding or 0
        return function(src, w, b, self.stride, self.padding, op, self.groups, self.dilation)

    def ours(self, src: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        operator = getattr(ops, self.family)
        return operator(src, w, b, **self.attributes(), weights_format=WEIGHTS_FORMAT[self.family])


def cases() -> list[Case]:
    found = []
    shapes = (
        ((9,), (3,), (2,), (1,), (1,)),
        ((8,), (4,), (4,), (0,), (1,)),
        ((9,), (3,), (1,), (2,), (3,)),
        ((7, 6), (3, 2), (1, 2), (1, 0), (1, 1)),
        ((6, 8), (2, 2), (2, 2), (0, 0), (1, 1)),
        ((8, 7), (3, 3), (2, 1), (2, 2), (2, 3)),
        ((5, 9), (1, 1), (1, 2), (0, 0), (1, 1)),
        ((9, 5), (5, 3), (3, 1), (2, 1), (1, 2)),
        ((4, 5, 3), (3, 2, 1), (1, 2, 1), (1, 0, 0), (1, 1, 1)),
        ((5, 4, 6), (2, 2, 3), (2, 1, 3), (1, 1, 0), (2, 1, 1)),
    )
    grouped = ((1, (4, 6)), (1, (3, 16)), (2, (3, 5)), (12, (1, 1)), (4, (2, 1)))
    for family, shape, (groups, channels) in itertools.product(TORCH, shapes, grouped):
        found.append(Case(family, groups, channels, *shape))
    paddings = (
        ((6,), (3,), (2,), (1,), (1,), (1,)),
        ((5, 4), (3, 3), (2, 3), (1, 1), (1, 1), (1, 2)),
        ((5, 4), (2, 3), (1, 2), (1, 1), (3, 4), (2, 3)),  # op >= stride where dilation is larger
        ((7,), (2,), (1,), (0,), (4,), (3,)),
        ((3, 4, 2), (2, 2, 3), (2, 1, 2), (0, 1, 1), (1, 3, 1), (1, 2, 0)),
    )
    for shape, (groups, channels) in itertools.product(paddings, grouped):
        found.append(Case("conv_transpose", groups, channels, *shape))
    return found


def compare(label: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    # The longest sum here has about 400 terms of size 1: float32 errs by about 1e-5.
    tight = ours.dtype == torch.float64
    bounds = {"rtol": 1e-12, "atol": 1e-12} if tight else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(ours, theirs, **bounds, msg=lambda m: f"{label}: {m}")


def check(case: Case, dtype: torch.dtype, backend: str | None) -> None:
    def run(fn: Callable[[], T]) -> T | None:  # unforced when there is no backend
        return fn() if backend is None else run_forced(backend, fn)

    src, w, b = case.operands(dtype)
    leaves = [t.double().requires_grad_() for t in (src, w, b)]
    out = case.torch(*leaves)
    cotangent = torch.randn(out.shape, dtype=dtype)
    gradients = [g.to(dtype) for g in torch.autograd.grad(out, leaves, cotangent.to(torch.float64))]
    without_bias = case.torch(src.double(), w.double(), None).to(dtype)

    attributes = case.attributes()
    letters = WEIGHTS_FORMAT[case.family]
    backward = {**attributes, "weights_format": letters}
    if case.family == "convolution":
        backward["src_shape"] = src.shape
    data_gradient = getattr(ops, f"{case.family}_backward_data")
    weights_gradient = getattr(ops, f"{case.family}_backward_weights")
    filters_gradient = getattr(ops, f"{case.family}_backprop_filters")

    def autograd() -> tuple[torch.Tensor, ...]:
        ours = [t.clone().requires_grad_() for t in (src, w, b)]
        return torch.autograd.grad(case.ours(*ours), ours, cotangent)

    rows = {
        "forward": (lambda: case.ours(src, w, None), without_bias),
        "forward with bias": (lambda: case.ours(src, w, b), out.detach().to(dtype)),
        "backward_data": (lambda: data_gradient(cotangent, w, **backward), gradients[0]),
        "backward_weights": (
            lambda: weights_gradient(
                src, cotangent, **attributes, weights_format=letters, weights_shape=w.shape
            ),
            gradients[1],
        ),
        "backprop_filters": (
            lambda: filters_gradient(
                src, cotangent, **attributes, filter_format=letters, filter_shape=w.shape
            ),
            gradients[1],
        ),
    }
    for name, (fn, expected) in rows.items():
        result = run(fn)
        if result is not None:
            compare(f"{case} {name} {backend}", result, expected)
    result = run(autograd)
    for n, ours in enumerate(result or ()):
        name = ("src", "weights", "bias")[n]
        compare(f"{case} autograd of {name} {backend}", ours, gradients[n])


@pytest.mark.parametrize("family", TORCH)
def test_float32(backend: str, family: str) -> None:
    for case in cases():
        if case.family == family:
            check(case, torch.float32, backend)


@pytest.mark.unforced
@pytest.mark.parametrize("family", TORCH)
def test_float64_on_reference(family: str) -> None:
    with torch_ops.backends.use("reference"):
        for case in cases():
            if case.family == family:
                check(case, torch.float64, "reference")


@pytest.mark.parametrize("family", TORCH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_unforced(family: str, dtype: torch.dtype) -> None:
    for case in cases():
        if case.family == family:
            check(case, dtype, None)
