"""Layers of small groups, their three partials, and the exact values of these."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from targets import integers
from torch import Tensor

import torch_ops

PARTIALS = ("fprop", "dgrad", "wgrad")


@dataclass(frozen=True)
class Layer:
    """A convolution of groups of as many channels on either side; depthwise, if not told."""

    extents: tuple[int, ...]  # of x: images, channels, pixels
    kernel: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    data_format: str = "NCX"
    group: int = 1
    results: int = 0  # channels of y in a group, if not as many

    def attributes(self) -> dict[str, object]:
        ones = (1,) * len(self.kernel)
        return {
            "strides": [*(self.stride or ones)],
            "pads_begin": [*self.padding],
            "pads_end": [*self.padding],
            "dilations": [*(self.dilation or ones)],
            "groups": self.extents[1] // self.group,
            "data_format": self.data_format,
            "weights_format": "OIX",
        }

    def operands(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """x, w and y, of integers so small that sums are exact in any order and dtype."""
        images, channels, *pixels = self.extents
        extents = (channels, *pixels) if self.data_format == "NCX" else (*pixels, channels)
        x = integers(images, *extents, dtype=dtype)
        results = channels // self.group * (self.results or self.group)
        w = integers(results, self.group, *self.kernel, dtype=dtype)
        shape = torch_ops.convolution(x, w, **self.attributes()).shape
        return x, w, integers(*shape, dtype=dtype)


@dataclass(frozen=True)
class Call:
    name: str
    operands: tuple[Tensor, ...]
    attributes: dict[str, object]

    def run(self) -> Tensor:
        return getattr(torch_ops, self.name)(*self.operands, **self.attributes)

    def exact(self) -> Tensor:
        """By the reference, in float64; of the operands' dtype."""
        attributes = {
            name: value.double() if isinstance(value, Tensor) else value
            for name, value in self.attributes.items()
        }
        doubles = Call(self.name, tuple(t.double() for t in self.operands), attributes)
        with torch_ops.backends.use("reference"):
            return doubles.run().to(self.operands[0].dtype)

    def is_exact(self) -> bool:
        """Whether it yields what is exact, NaN where that is NaN."""
        found, expected = (t.nan_to_num(nan=77) for t in (self.run(), self.exact()))
        return torch.equal(found, expected)

    def kernel(self) -> str:
        return torch_ops.backends.explain(self.name, *self.operands, **self.attributes).kernel

    def with_bias(self, bias: Tensor) -> Call:
        return Call(self.name, self.operands, self.attributes | {"bias": bias})

    def assert_exact_of(self, memory: Tensor, plan: str, *strides: tuple[int, ...]) -> None:
        """That the plan yields what is exact of operands in memory, with each of these strides."""
        first, *others = self.operands
        for each in strides:
            operands = (memory.as_strided(first.shape, each, 3), *others)
            call = Call(self.name, operands, self.attributes)
            assert plan in call.kernel(), each
            assert torch.equal(call.run(), call.exact()), each


def call_of(partial: str, x: Tensor, w: Tensor, y: Tensor, layer: Layer) -> Call:
    attributes = layer.attributes()
    if partial == "fprop":
        return Call("convolution", (x, w), attributes)
    if partial == "dgrad":
        return Call("convolution_backward_data", (y, w), attributes | {"src_shape": [*x.shape]})
    attributes["weights_shape"] = [*w.shape]
    return Call("convolution_backward_weights", (x, y), attributes)
