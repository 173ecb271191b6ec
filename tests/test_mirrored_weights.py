"""The SIMD backend where a weights gradient is that of x and y exchanged, taps in reverse."""

from __future__ import annotations

import pytest
import torch
from dense import problem
from layers import Call
from targets import every_target, integers

import torch_ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
PLAN = "mirrored"


def layer(channels: int, into: int, pixels: tuple[int, ...], kernel: tuple[int, ...], **of) -> Call:
    """The weights gradient of a convolution of two images."""
    forward = problem("fprop", channels, pixels, kernel, into=into, **of)
    x, w = forward.operands
    y = integers(*torch_ops.convolution(x, w, **forward.attributes).shape, dtype=x.dtype)
    attributes = forward.attributes | {"weights_shape": [*w.shape]}
    return Call("convolution_backward_weights", (x, y), attributes)


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_windows_of_every_kind(target: str, dtype: torch.dtype, data_format: str) -> None:
    with torch_ops.backends.use("simd", target):
        for what, channels, into, pixels, kernel, attributes in (
            ("one channel", 37, 1, (9, 11), (3, 3), {"pad": 1}),
            ("two", 64, 2, (13, 12), (3, 3), {"pad": 1}),
            ("three", 33, 3, (13, 12), (5, 5), {"pad": 2}),
            ("no padding", 20, 3, (20, 24), (3, 3), {}),
            ("all the padding there can be", 20, 3, (6, 7), (4, 3), {"pad": (3, 2)}),
            ("an even window", 40, 3, (13, 15), (4, 2), {"pad": 1}),
            ("rows alone", 40, 3, (13, 15), (1, 7), {"pad": (0, 3)}),
            ("other axes have dilations", 40, 3, (23, 15), (3, 3), {"pad": 1, "dilation": (2, 1)}),
            ("one axis", 32, 1, (513,), (7,), {"pad": 3}),
            ("long rows", 24, 2, (4001,), (31,), {"pad": 15}),
            ("three axes", 17, 1, (5, 6, 7), (3, 3, 3), {"pad": 1}),
            ("many boxes", 16, 3, (70, 75), (3, 3), {"pad": 1}),
            ("groups", 32, 2, (13, 12), (3, 3), {"pad": 1, "groups": 3}),
            ("many channels", 512, 1, (15, 15), (4, 4), {"pad": 1}),
            ("taps outside", 40, 3, (13, 12), (3, 3), {"pad": 1, "weights_format": "XIO"}),
            ("some channels", 64, 5, (40, 41), (3, 3), {"pad": 1}),
            ("eleven", 32, 11, (40, 41), (3, 5), {"pad": (1, 2)}),
        ):
            call = layer(
                channels, into, pixels, kernel, dtype=dtype, data_format=data_format, **attributes
            )
            assert call.kernel().startswith(PLAN), (what, call.kernel())
            assert torch.equal(call.run(), call.exact()), what


@every_target
def test_which_are_mirrored(target: str) -> None:
    with torch_ops.backends.use("simd", target):
        for what, mirrored, channels, into, pixels, kernel, attributes in (
            ("few channels", True, 32, 3, (12, 12), (3, 3), {"pad": 1}),
            ("no fewer than of x", False, 3, 3, (12, 12), (3, 3), {"pad": 1}),
            ("strides", False, 32, 3, (12, 12), (3, 3), {"pad": 1, "stride": 2}),
            ("one tap a row", False, 32, 3, (12, 12), (3, 1), {"pad": (1, 0)}),
            ("taps of a row apart", False, 32, 3, (12, 12), (3, 3), {"pad": 2, "dilation": 2}),
            ("padding beyond the windows", False, 32, 3, (12, 12), (3, 3), {"pad": (3, 1)}),
            ("hardly more windows", True, 32, 3, (13, 13), (3, 3), {}),  # 169 for 121
            ("many more windows", False, 32, 3, (12, 12), (3, 3), {}),  # 144 for 100
            ("some channels", True, 32, 11, (32, 32), (3, 3), {"pad": 1}),
            ("of few pixels", False, 32, 11, (31, 32), (3, 3), {"pad": 1}),
            ("more channels", False, 64, 12, (32, 32), (3, 3), {"pad": 1}),
            ("lanes are empty", False, 17, 11, (32, 32), (3, 3), {"pad": 1}),
            ("more windows", False, 32, 11, (36, 36), (3, 3), {}),  # 1296 for 1156
            ("as many rows of taps as may be", True, 32, 8, (8, 300), (1, 31), {"pad": (0, 15)}),
            ("too many", False, 32, 8, (8, 300), (1, 33), {"pad": (0, 16)}),
        ):
            call = layer(channels, into, pixels, kernel, dtype=torch.float32, **attributes)
            assert call.kernel().startswith(PLAN) == mirrored, (what, call.kernel())
            assert torch.equal(call.run(), call.exact()), what


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@every_target
def test_what_is_not_finite_reaches_its_own_taps_alone(target: str, value: float) -> None:
    """The border of x meets zeros where y ends."""
    with torch_ops.backends.use("simd", target):
        for groups in (1, 2):
            call = layer(32, 2, (14, 16), (3, 3), groups=groups, dtype=torch.float32)
            x, y = call.operands
            y.fill_(1)
            for row, column in ((0, 0), (0, 15), (13, 0), (13, 7), (6, 7)):
                x.zero_()
                x[1, 1, row, column] = value
                assert call.is_exact(), (row, column)
        assert call.kernel().startswith(PLAN)


@pytest.mark.parametrize("held", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_added_to_what_memory_holds(target: str, dtype: torch.dtype, held: torch.dtype) -> None:
    """In memory of their own first: what is not finite is computed, but not added, twice."""
    if held not in (dtype, torch.float32) or (dtype, held) == (torch.float64, torch.float32):
        return
    with torch_ops.backends.use("simd", target):
        call = layer(32, 2, (14, 16), (3, 3), groups=2, dtype=dtype)
        x, y = call.operands
        shape = call.attributes["weights_shape"]
        attributes = {k: v for k, v in call.attributes.items() if k != "weights_shape"}
        for value in (0.0, float("inf")):
            x[0, 0, 0, 0] = value
            y[0, :, 0, 0] = 1
            for filled, memory in (
                (True, integers(*shape, dtype=held)),
                (True, integers(*shape, dtype=held).movedim(1, -1).contiguous().movedim(-1, 1)),
                (False, integers(*shape[:-1], 2 * shape[-1], dtype=held)[..., ::2]),
            ):
                expected = memory + call.exact().to(held)
                named = "convolution_backward_weights_add_"
                plan = torch_ops.backends.explain(named, memory, x, y, **attributes)
                assert plan.kernel.startswith(PLAN) == filled, plan.kernel
                torch_ops.convolution_backward_weights_add_(memory, x, y, **attributes)
                assert memory.isfinite().all() == (value == 0)
                assert torch.equal(memory.nan_to_num(nan=77), expected.nan_to_num(nan=77))
