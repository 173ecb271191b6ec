"""The SIMD backend where the data are one element, expanded to all, as the gradient of a sum is."""

from __future__ import annotations

import pytest
import torch
from layers import PARTIALS, Call, Layer, call_of
from targets import every_target, integers
from torch import Tensor

import torch_ops

PLAN = "of one value, "
LAYERS = {
    "dense": Layer((2, 24, 9, 10), (3, 3), (1, 1), group=24),
    "dense, channels last": Layer((2, 24, 9, 10), (3, 3), (1, 1), data_format="NXC", group=24),
    "one channel": Layer((3, 1, 20, 21), (4, 4), (1, 1), (2, 2), results=19),
    "into one channel": Layer((3, 19, 20, 21), (3, 3), (1, 1), group=19, results=1),
    "three channels": Layer((2, 3, 20, 33), (4, 4), (1, 1), (2, 2), group=3, results=40),
    "into three channels": Layer((2, 40, 9, 70), (3, 3), (1, 1), group=40, results=3),
    "one tap": Layer((2, 33, 6, 7), (1, 1), (0, 0), group=33, results=18),
    "depthwise": Layer((2, 35, 12, 13), (3, 3), (1, 1)),
    "depthwise, channels last": Layer((2, 35, 12, 13), (4, 4), (1, 1), (2, 2), data_format="NXC"),
    "groups": Layer((2, 24, 8, 9), (3, 3), (2, 2), dilation=(2, 2), group=4),
    "groups, channels last": Layer((2, 30, 8, 9), (3, 3), (1, 1), data_format="NXC", group=5),
    "one axis": Layer((2, 17, 300), (8,), (2,), (4,), group=17, results=9),
    "three axes": Layer((1, 18, 5, 6, 7), (2, 3, 3), (0, 1, 1), group=18, results=20),
    "a window that covers x": Layer((3, 20, 4, 4), (4, 4), (0, 0), group=20, results=24),
    "one pixel": Layer((1, 20, 1, 1), (1, 1), (0, 0), group=20, results=24),
}


def expanded(t: Tensor) -> Tensor:
    return t.new_full((), 2).expand(t.shape)


def calls_of(partial: str, layer: Layer, dtype: torch.dtype) -> list[Call]:
    x, w, y = layer.operands(dtype)
    if partial == "fprop":
        return [call_of(partial, expanded(x), w, y, layer)]
    if partial == "dgrad":
        return [call_of(partial, x, w, expanded(y), layer)]
    return [
        call_of(partial, x, w, expanded(y), layer),
        call_of(partial, expanded(x), w, y, layer),
        call_of(partial, expanded(x), w, expanded(y), layer),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("partial", PARTIALS)
@every_target
def test_values_of_every_layer(target: str, partial: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for what, layer in LAYERS.items():
            for call in calls_of(partial, layer, dtype):
                assert call.is_exact(), what
                assert PLAN in call.kernel(), (what, call.kernel())


@every_target
def test_a_row_too_long_to_repeat(target: str) -> None:
    layer = Layer((1, 1, 40_000), (5,), (2,), results=4)
    x, w, y = layer.operands(torch.float32)
    with torch_ops.backends.use("simd", target):
        call = call_of("fprop", expanded(x), w, y, layer)
        assert PLAN not in call.kernel()
        assert call.is_exact()


def test_the_gradient_of_a_sum() -> None:
    x, w = integers(2, 6, 9, 9).requires_grad_(), integers(6, 4, 3, 3).requires_grad_()
    ours, theirs = (
        torch.autograd.grad(convolution(x, w, stride=2).sum(), (x, w))
        for convolution in (torch_ops.functional.conv_transpose2d, torch.conv_transpose2d)
    )
    for found, expected in zip(ours, theirs, strict=True):
        assert torch.equal(found, expected)


@every_target
def test_images_of_several_slices(target: str) -> None:
    x, w, y = LAYERS["depthwise"].operands(torch.float32)
    call = call_of("wgrad", x, w, y, LAYERS["depthwise"])

    def run(x: Tensor, y: Tensor) -> Tensor:
        return torch_ops.convolution_backward_weights(x, y, **call.attributes)

    several = torch.stack([x, 2 * x])
    with torch_ops.backends.use("simd", target):
        found = torch.vmap(run)(several, expanded(torch.stack([y, y])))
        each = run(x, expanded(y))
    assert torch.equal(found, torch.stack([each, 2 * each]))
