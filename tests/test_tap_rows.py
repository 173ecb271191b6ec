"""The SIMD backend where all taps of few channels are rows of tiles, and lanes pixels."""

from __future__ import annotations

import pytest
import torch
from dense import problem
from layers import Call
from targets import every_target, integers

import torch_ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
PLAN = "taps in rows"


def fill_vectors(channels: int, target: str, dtype: torch.dtype) -> bool:
    """Whether so many channels may be lanes instead: a vector has two."""
    return channels == 2 and (target, dtype) == ("generic", torch.float64)


def layer(
    partial: str,
    channels: int,
    into: int,
    pixels: tuple[int, ...],
    kernel: tuple[int, ...],
    **of,
) -> Call:
    return problem(partial, channels, pixels, kernel, into=into, **of)


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_windows_of_every_kind(target: str, dtype: torch.dtype, data_format: str) -> None:
    """Channels last, with so few taps, are those of three axes; others are lanes there."""
    with torch_ops.backends.use("simd", target):
        for what, partial, channels, into, pixels, kernel, attributes in (
            ("one channel", "fprop", 140, 1, (2, 13, 17), (3, 3, 3), {"pad": 1}),
            ("no padding", "fprop", 141, 1, (3, 13, 17), (2, 3, 3), {}),
            ("all the padding there can be", "fprop", 140, 1, (2, 5, 6), (3, 3, 3), {"pad": 2}),
            ("windows larger than x", "fprop", 160, 1, (2, 3, 4), (2, 4, 4), {"pad": (1, 2, 2)}),
            ("two channels", "fprop", 150, 2, (4, 6, 9), (2, 2, 3), {"pad": (1, 0, 1)}),
            ("dilation", "fprop", 99, 1, (3, 25, 33), (2, 3, 3), {"pad": 1, "dilation": (1, 2, 2)}),
            ("more than one part", "fprop", 420, 1, (2, 9, 21), (2, 3, 3), {"pad": (0, 1, 1)}),
            ("groups", "fprop", 100, 1, (3, 7, 11), (2, 3, 3), {"pad": (0, 1, 1), "groups": 3}),
            ("many planes", "fprop", 90, 1, (70, 3, 5), (2, 2, 2), {}),
            ("many rows", "fprop", 150, 1, (3, 140, 30), (3, 3, 3), {"pad": 1}),
            ("no stride", "dgrad", 140, 1, (3, 13, 17), (3, 3, 3), {"pad": 1}),
            ("stride 2", "dgrad", 140, 1, (4, 26, 34), (3, 3, 3), {"pad": 1, "stride": 2}),
            ("windows that tile", "dgrad", 140, 2, (4, 12, 18), (2, 2, 3), {"stride": (2, 2, 3)}),
            ("rows more", "dgrad", 150, 1, (5, 11, 14), (2, 4, 3), {"stride": (2, 3, 2), "pad": 1}),
            ("strides of one axis", "dgrad", 140, 1, (3, 9, 40), (2, 2, 5), {"stride": (1, 1, 4)}),
            ("few pixels", "dgrad", 160, 1, (3, 2, 2), (2, 3, 3), {"pad": (0, 1, 1)}),
            ("taps outside", "fprop", 140, 1, (4, 13, 17), (3, 3, 3), {"weights_format": "XIO"}),
        ):  # fmt: skip
            call = layer(
                partial, channels, into, pixels, kernel, dtype=dtype, data_format=data_format,
                **attributes,
            )  # fmt: skip
            planned = PLAN in call.kernel() or fill_vectors(into, target, dtype)
            assert planned, (what, call.kernel())
            assert torch.equal(call.run(), call.exact()), what


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_fewer_axes(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for what, partial, channels, into, pixels, kernel, attributes in (
            ("2-D", "fprop", 70, 1, (31, 33), (4, 4), {"pad": 1}),
            ("2-D, of one image a box", "fprop", 70, 1, (200, 201), (3, 3), {"pad": 1}),
            ("2-D, few rows a box", "fprop", 70, 1, (60, 1900), (3, 3), {"pad": 1}),
            ("2-D, stride 2", "dgrad", 70, 1, (62, 66), (4, 4), {"pad": 1, "stride": 2}),
            ("1-D", "fprop", 70, 2, (3001,), (7,), {"pad": 3}),
            ("1-D, dilation", "fprop", 70, 1, (3001,), (7,), {"pad": 9, "dilation": 3}),
            ("1-D, stride 8", "dgrad", 70, 1, (8 * 501,), (16,), {"pad": 4, "stride": 8}),
            ("1-D, fewer pixels than lanes", "fprop", 70, 1, (3,), (3,), {"pad": 1}),
        ):
            call = layer(partial, channels, into, pixels, kernel, dtype=dtype, **attributes)
            planned = PLAN in call.kernel() or fill_vectors(into, target, dtype)
            assert planned, (what, call.kernel())
            assert torch.equal(call.run(), call.exact()), what


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_bias(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for groups in (1, 2):
            call = layer("fprop", 70, 2, (9, 33), (3, 3), pad=1, groups=groups, dtype=dtype)
            call = call.with_bias(integers(2 * groups, dtype=dtype))
            assert PLAN in call.kernel() or fill_vectors(2, target, dtype)
            assert torch.equal(call.run(), call.exact())


@every_target
def test_which_have_the_plan(target: str) -> None:
    with torch_ops.backends.use("simd", target):
        for what, has, partial, channels, into, pixels, kernel, attributes in (
            ("as many taps as may be", True, "fprop", 75, 1, (20, 30), (5, 5), {"pad": 2}),
            ("from few channels", False, "fprop", 40, 1, (20, 30), (5, 5), {"pad": 2}),
            ("into many", False, "fprop", 500, 30, (20, 30), (2, 2), {}),
            ("one tap", False, "fprop", 75, 1, (20, 30), (1, 1), {}),
            ("strides of fprop", False, "fprop", 75, 1, (20, 30), (3, 3), {"stride": 2}),
            ("results without taps", False, "dgrad", 75, 1, (20, 30), (2, 2), {"stride": 3}),
            ("padding beyond the windows", False, "fprop", 75, 1, (20, 30), (3, 3), {"pad": 3}),
            ("rows so long that few fit", False, "fprop", 75, 1, (15, 900), (5, 5), {"pad": 2}),
        ):
            call = layer(partial, channels, into, pixels, kernel, dtype=torch.float32, **attributes)
            assert (PLAN in call.kernel()) == has, (what, call.kernel())
            assert torch.equal(call.run(), call.exact()), what


@every_target
def test_tensors_of_other_strides(target: str) -> None:
    """Rows must follow each other; channels and images may lie anywhere, pixels apart."""
    with torch_ops.backends.use("simd", target):
        call = layer("fprop", 70, 1, (12, 20), (3, 3), pad=1, dtype=torch.float32)
        values = integers(90000)
        call.assert_exact_of(values, PLAN, (9, 500, 40, 2), (3, 301, 20, 1), (0, 0, 60, 3))


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@every_target
def test_what_is_not_finite_reaches_its_own_results_alone(target: str, value: float) -> None:
    """Neither the next row's pixels, nor those of the row before, nor padding."""
    with torch_ops.backends.use("simd", target):
        call = layer("fprop", 70, 1, (9, 17), (3, 3), pad=1, dtype=torch.float32)
        x, w = call.operands
        w.fill_(1)
        assert PLAN in call.kernel()
        for row, column in ((0, 0), (0, 16), (3, 16), (4, 0), (8, 16), (5, 8)):
            x.zero_()
            x[1, 1, row, column] = value
            assert call.is_exact(), (row, column)
        x.fill_(1)
        w[0, 3, 0, 2] = value
        assert call.is_exact()
