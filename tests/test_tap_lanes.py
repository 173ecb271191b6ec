"""The SIMD backend where lanes are taps and channels of the result.

fprop of stride 1 and dgrad, channels last, into few channels.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from dense import problem
from targets import every_target, integers

import torch_ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
PLAN = "taps and channels in lanes"


def serves(target: str, dtype: torch.dtype) -> bool:
    """With 16 lanes, 16 bits gain nothing."""
    return not target.endswith(("512", "amx")) or dtype in (torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_windows_of_every_kind(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for what, partial, channels, pixels, kernel, attributes in (
            ("3x3", "fprop", 96, (9, 20), (3, 3), {"pad": 1}),
            ("4x4 of stride 2", "dgrad", 96, (18, 34), (4, 4), {"stride": 2, "pad": 1}),
            ("3x3 of stride 2", "dgrad", 96, (18, 35), (3, 3), {"stride": 2, "pad": 1}),
            ("rows alone are odd", "dgrad", 96, (18, 34), (3, 4), {"stride": 2, "pad": 1}),
            ("2x2 of stride 2", "dgrad", 96, (18, 34), (2, 2), {"stride": 2}),
            ("windows leave results out", "dgrad", 96, (20, 36), (3, 3), {"stride": 3, "pad": 1}),
            ("windows beyond the edge", "dgrad", 96, (13, 9), (4, 4), {"stride": 2, "pad": 3}),
            ("padding beyond the window", "fprop", 96, (5, 7), (2, 2), {"pad": 4}),
            ("an operand of one row", "dgrad", 96, (5, 26), (4, 4), {"stride": 4}),
            ("many images", "fprop", 96, (3, 3), (2, 3), {"pad": 1}),
            ("several boxes of rows", "fprop", 96, (140, 9), (3, 3), {"pad": 1}),
            ("several boxes of columns", "fprop", 96, (5, 3000), (3, 3), {"pad": 1}),
            ("boxes beyond the windows", "fprop", 96, (40,), (2,), {"pad": 9000}),
            ("sums that are folded", "fprop", 301, (5, 9), (3, 3), {"pad": 1}),
            ("groups", "fprop", 96, (9, 20), (3, 3), {"groups": 2, "pad": 1}),
            ("one tap a row", "fprop", 96, (9, 20), (3, 1), {}),
        ):
            for into in (1, 3):
                call = problem(
                    *(partial, channels, pixels, kernel),
                    **{"dtype": dtype, "into": into, "data_format": "NXC"} | attributes,
                )
                assert torch.equal(call.run(), call.exact()), (what, into)
                if serves(target, dtype):
                    assert PLAN in call.kernel(), (what, into, call.kernel())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_target
def test_every_number_of_channels_and_pixels(target: str, dtype: torch.dtype) -> None:
    """Tiles of any rows, slots that end within a vector or fill several."""
    served = 0
    with torch_ops.backends.use("simd", target):
        for into, taps, stride in itertools.product(range(1, 8), (2, 3, 4), (1, 2, 3)):
            channels, pixels = 96 + into * taps, (4 + stride, 9 + into * 7 % 23 + 5 * stride)
            call = problem(
                *("dgrad", channels, pixels, (taps, taps)), into=into, stride=stride, dtype=dtype,
                data_format="NXC",
            )  # fmt: skip
            assert torch.equal(call.run(), call.exact()), (into, taps, stride)
            served += PLAN in call.kernel()
    assert served > 10 or not serves(target, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_bias(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for into, groups in itertools.product((1, 2, 3), (1, 2)):
            call = problem(
                *("fprop", 96, (9, 17), (3, 3)), into=into, pad=1, groups=groups, dtype=dtype,
                data_format="NXC",
            )  # fmt: skip
            call = call.with_bias(integers(groups * into, dtype=dtype))
            assert torch.equal(call.run(), call.exact()), (into, groups)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_target
def test_any_strides_of_images_rows_and_pixels(target: str, dtype: torch.dtype) -> None:
    """Overlapping and unaligned ones, and such as repeat a row or a pixel."""
    memory = integers(30000, dtype=dtype)
    with torch_ops.backends.use("simd", target):
        for strides in ((1, 2, 3, 1), (0, 0, 0, 1), (12000, 0, 96, 1), (9000, 900, 97, 1)):
            call = problem(
                "fprop", 96, (9, 12), (3, 3), into=3, pad=1, dtype=dtype, data_format="NXC"
            )
            x = memory.as_strided((2, 9, 12, 96), strides, 3)
            call = type(call)(call.name, (x, call.operands[1]), call.attributes)
            assert PLAN in call.kernel() or not serves(target, dtype)
            assert torch.equal(call.run(), call.exact()), strides


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_target
def test_what_is_not_finite_reaches_its_own_results_alone(
    target: str, dtype: torch.dtype, value: float
) -> None:
    """Vectors of sums reach into the next taps'."""
    with torch_ops.backends.use("simd", target):
        for into, taps, stride in itertools.product((1, 3), (2, 3, 4), (1, 2, 3)):
            call = problem(
                *("dgrad", 96, (9, 19), (taps, taps)), into=into, stride=stride, dtype=dtype,
                data_format="NXC",
            )  # fmt: skip
            y, w = call.operands
            w.fill_(1)
            for pixel in (0, 2, y.shape[2] - 1):
                y.zero_()
                y[1, 1, pixel, 5] = value
                assert call.is_exact(), (into, taps, stride, pixel)
