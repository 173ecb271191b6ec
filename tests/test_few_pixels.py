"""The SIMD backend where few pixels of y leave the weights where they lie."""

from __future__ import annotations

import pytest
import torch
from dense import problem
from layers import Call
from targets import every_target, integers, multiplies_pairs

import torch_ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
PLAN = "weights read in place"
ORDERS = {  # from OIX
    "OIX": lambda w: w,
    "XIO": lambda w: w.movedim((1, 0), (-2, -1)),
    "XOI": lambda w: w.movedim((0, 1), (-2, -1)),
    "IOX": lambda w: w.movedim(0, 1),
}


def ordered(call: Call, weights_format: str) -> Call:
    data, w = call.operands
    w = ORDERS[weights_format](w).contiguous()
    return Call(call.name, (data, w), call.attributes | {"weights_format": weights_format})


@pytest.mark.parametrize("weights_format", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_windows_of_every_kind(target: str, dtype: torch.dtype, weights_format: str) -> None:
    pairs = dtype == torch.bfloat16 and multiplies_pairs(target)
    with torch_ops.backends.use("simd", target):
        for what, channels, pixels, kernel, attributes in (
            ("one window", 40, (3, 4), (3, 4), {}),
            ("one tap", 37, (1, 1), (1, 1), {"into": 21}),
            ("a window that misses taps", 40, (2, 2), (4, 4), {"stride": 2, "pad": 1}),
            ("four windows", 200, (4, 4), (3, 3), {"stride": 2, "pad": 1, "into": 64}),
            ("overlapping windows", 200, (2, 2), (3, 3), {"pad": 1, "into": 64}),
            ("one axis", 30, (9,), (3,), {"stride": 5, "dilation": 2}),
            ("three axes", 24, (3, 2, 4), (2, 2, 3), {"stride": 2}),
            ("windows that leave positions out", 24, (9, 2), (2, 2), {"stride": 7}),
            ("windows in padding alone", 24, (2, 2), (2, 2), {"pad": 5, "stride": 12}),
            ("long sums", 1600, (1, 1), (1, 1), {}),
        ):
            for partial in ("fprop", "dgrad"):
                for data_format in ("NCX", "NXC"):
                    call = problem(
                        *(partial, channels, pixels, kernel),
                        **{"dtype": dtype, "data_format": data_format} | attributes,
                    )
                    call = ordered(call, weights_format)
                    assert torch.equal(call.run(), call.exact()), (what, partial, data_format)
                    if weights_format != "IOX" and not (pairs and "windows" in what):
                        assert PLAN in call.kernel(), (what, partial, call.kernel())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_more_windows_that_meet_little_of_x_together(target: str, dtype: torch.dtype) -> None:
    pairs = dtype == torch.bfloat16 and multiplies_pairs(target)
    with torch_ops.backends.use("simd", target):
        for pixels, kernel, windows, attributes in (
            ((8, 8), (4, 4), 50, {}),
            ((11, 11), (7, 5), 24, {"stride": 2}),
            ((5, 4, 5), (3, 2, 4), 36, {}),
            ((64,), (33,), 64, {}),
        ):
            for weights_format in ("OIX", "XIO", "XOI"):
                for more, served in ((0, not pairs), (-1, False)):
                    call = problem(
                        *("dgrad", 3 * windows + more, pixels, kernel),
                        **{"into": 33, "dtype": dtype} | attributes,
                    )
                    call = ordered(call, weights_format)
                    assert torch.equal(call.run(), call.exact()), (pixels, weights_format)
                    assert (PLAN in call.kernel()) == served, (pixels, more)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_bias(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for weights_format in ("OIX", "XIO", "XOI"):
            for pixels, stride in (((4, 4), 1), ((3, 3), 2), ((1, 1), 12)):
                call = problem(
                    "fprop", 40, pixels, (4, 4), stride=stride, pad=1 if stride < 12 else 6,
                    dtype=dtype,
                )  # fmt: skip
                call = ordered(call, weights_format).with_bias(integers(20, dtype=dtype))
                assert call.is_exact(), (weights_format, pixels)


@every_target
def test_threads_change_no_bit(target: str) -> None:
    with torch_ops.backends.use("simd", target):
        for weights_format in ("OIX", "XIO", "XOI"):
            for partial in ("fprop", "dgrad"):
                call = problem(partial, 300, (2, 2), (4, 4), into=70, stride=2, pad=1)
                operands = tuple(torch.randn(t.shape) for t in call.operands)
                call = ordered(Call(call.name, operands, call.attributes), weights_format)
                assert PLAN in call.kernel()
                before, results = torch.get_num_threads(), []
                for threads in (1, 2, 3, 4, 8):
                    torch.set_num_threads(threads)
                    results.append(call.run())
                torch.set_num_threads(before)
                assert all(torch.equal(results[0], other) for other in results[1:])


@every_target
def test_many_pixels_are_served_otherwise(target: str) -> None:
    with torch_ops.backends.use("simd", target):
        call = problem("fprop", 64, (9, 9), (3, 3), dtype=torch.float32)
        assert PLAN not in call.kernel()
