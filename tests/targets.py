"""Problems of small integers, whose sums have the same bits in every order, on simd's targets."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from forcing import supported_targets
from torch import Tensor

import torch_ops
from torch_ops import backends

# What says itself where it runs need not be forced from outside.
every_target = pytest.mark.parametrize(
    "target", [pytest.param(target, marks=pytest.mark.unforced) for target in supported_targets()]
)
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


@cache
def pairs_of(target: str) -> str:
    """How a target multiplies pairs of bfloat16 in a dense layer; empty: it does not."""
    src, weights = (torch.empty(shape, dtype=torch.bfloat16) for shape in ((1, 32, 9), (32, 32, 3)))
    geometry = {"strides": [1], "pads_begin": [0], "pads_end": [0], "dilations": [1]}
    with backends.use("simd", target):
        kernel = backends.explain(
            "convolution", src, weights, **geometry, data_format="NCX", weights_format="OIX"
        ).kernel
    _, found, how = kernel.rpartition("bf16 pairs")
    return found + how if found else ""


def multiplies_pairs(target: str) -> bool:
    """Whether bfloat16 is multiplied in pairs; in portable code for the sake of tests."""
    return bool(pairs_of(target))


def multiplies_lane_pairs(target: str) -> bool:
    """The same where lanes are channels of the operand."""
    return pairs_of(target) == "bf16 pairs"


def matrix_targets() -> list[str]:
    """Those that multiply in matrix registers."""
    return [target for target in supported_targets() if "matrix" in pairs_of(target)]


def integers(*extents: int, dtype: torch.dtype = torch.float32) -> Tensor:
    # Mostly zeros: sums stay exact in bfloat16's 8 bits.
    values = torch.randint(-2, 3, extents) * (torch.rand(extents) < 0.3)
    return values.to(dtype)


def partials(
    x: Tensor, w: Tensor, y: Tensor, stride: int, pad: int, groups: int = 1
) -> dict[str, Tensor]:
    """fprop, dgrad and wgrad of a convolution (NCX, OIX) with equal attributes on every axis."""
    axes = x.dim() - 2
    attributes = {
        "strides": [stride] * axes,
        "pads_begin": [pad] * axes,
        "pads_end": [pad] * axes,
        "dilations": [1] * axes,
        "groups": groups,
        "data_format": "NCX",
        "weights_format": "OIX",
    }
    return {
        "fprop": torch_ops.convolution(x, w, **attributes),
        "dgrad": torch_ops.convolution_backward_data(y, w, src_shape=list(x.shape), **attributes),
        "wgrad": torch_ops.convolution_backward_weights(
            x, y, weights_shape=list(w.shape), **attributes
        ),
    }


def exact(
    x: Tensor, w: Tensor, y: Tensor, stride: int, pad: int, groups: int = 1
) -> dict[str, Tensor]:
    """The same by torch, in float64."""
    x, w, y = (t.double().contiguous() for t in (x, w, y))
    axes = x.dim() - 2
    geometry = ([stride] * axes, [pad] * axes, [1] * axes)
    dgrad, wgrad, _ = torch.ops.aten.convolution_backward(
        y, x, w, None, *geometry, False, [0] * axes, groups, [True, True, False]
    )
    fprop = torch.ops.aten.convolution(x, w, None, *geometry, False, [0] * axes, groups)
    return {"fprop": fprop, "dgrad": dgrad, "wgrad": wgrad}


def wrong(
    what: object,
    extents: tuple[tuple[int, ...], tuple[int, ...]],
    stride: int,
    pad: int,
    groups: int,
    dtype: torch.dtype,
    channels_last: bool = False,
) -> list[str]:
    """Names of the partials that differ, for x and w of these extents."""
    x, w = (integers(*e, dtype=dtype) for e in extents)
    spatial = [
        (a + 2 * pad - k) // stride + 1 for a, k in zip(x.shape[2:], w.shape[2:], strict=True)
    ]
    y = integers(x.shape[0], w.shape[0], *spatial, dtype=dtype)
    if channels_last:
        x, y = (t.movedim(1, -1).contiguous().movedim(-1, 1) for t in (x, y))
    found = partials(x, w, y, stride, pad, groups)
    expected = exact(x, w, y, stride, pad, groups)
    return [
        f"{name} of {what}"
        for name in found
        if not torch.equal(found[name].double(), expected[name])
    ]
