"""The SIMD backend where lanes are pixels of a row and windows slide over copied rows.

fprop, and dgrad, channels first, of few channels or into numbers that leave vectors half empty;
dgrad with strides phase by phase.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from dense import problem
from layers import Call
from targets import every_target, integers

import torch_ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
PLAN = "pixels of a row in lanes"
PHASES = PLAN + ", phases in turn"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_rows_of_every_kind(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for what, partial, channels, pixels, kernel, attributes in (
            ("one axis", "fprop", 3, (301,), (7,), {}),
            ("one axis of several boxes", "fprop", 2, (20000,), (5,), {"pad": 2}),
            ("one axis of stride 2", "dgrad", 3, (90,), (4,), {"pad": 1}),
            ("three axes", "fprop", 1, (5, 6, 32), (2, 3, 3), {"pad": 1}),
            ("three axes of stride 2", "fprop", 2, (9, 10, 64), (3, 4, 3), {"stride": 2, "pad": 1}),
            ("three axes of dgrad", "dgrad", 3, (5, 6, 32), (2, 3, 3), {"pad": 1}),
            ("rows of stride 2", "fprop", 3, (30, 64), (4, 4), {"stride": 2, "pad": 1}),
            ("columns of stride 2", "fprop", 3, (17, 64), (3, 5), {"stride": (1, 2), "pad": 2}),
            ("rows alone of stride 3", "fprop", 3, (31, 48), (5, 3), {"stride": (3, 1), "pad": 1}),
            ("patches", "fprop", 3, (12, 64), (4, 4), {"stride": 4}),
            ("patches of odd pixels", "fprop", 2, (10, 163), (5, 5), {"stride": 5}),
            ("patches of three axes", "fprop", 2, (6, 6, 96), (3, 3, 3), {"stride": 3}),
            ("columns of stride 3", "fprop", 4, (9, 96), (2, 3), {"stride": (1, 3)}),
            ("columns of stride 7", "fprop", 2, (9, 226), (1, 9), {"stride": (1, 7), "pad": 1}),
            ("one axis of stride 8", "fprop", 2, (2050,), (16,), {"stride": 8, "pad": 5}),
            ("one axis of stride 20", "fprop", 2, (2000,), (40,), {"stride": 20, "pad": 3}),
            ("dealt dilated taps", "fprop", 2, (9, 130), (1, 5), {"stride": (1, 4), "dilation": 3}),
            ("dilated rows", "fprop", 4, (20, 48), (3, 5), {"dilation": 3, "pad": 4}),
            ("dealt dilated rows", "fprop", 2, (9, 96), (3, 4), {"stride": (1, 2), "dilation": 3}),
            ("groups", "fprop", 2, (9, 34), (3, 3), {"groups": 3}),
            ("groups of dgrad", "dgrad", 3, (9, 64), (3, 3), {"groups": 2, "pad": 1}),
            ("sums that are folded", "fprop", 20, (6, 62), (1, 31), {}),
            ("many channels", "fprop", 64, (9, 65), (5, 2), {}),
            ("several boxes", "fprop", 3, (70, 1300), (3, 5), {"pad": 1}),
            ("several parts", "dgrad", 2, (9, 64), (3, 3), {"into": 301, "pad": 1}),
            ("one window a row", "fprop", 1, (9, 20), (3, 2), {"into": 4}),
        ):
            into = attributes.get("into", 17)  # vectors of any width end with few
            call = problem(
                *(partial, channels, pixels, kernel), dtype=dtype, **attributes | {"into": into}
            )
            assert torch.equal(call.run(), call.exact()), what
            if (target, dtype) != ("generic", torch.float64):  # 2 lanes are full of any channels
                assert PLAN in call.kernel(), (what, call.kernel())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_target
def test_every_number_of_channels_and_pixels(target: str, dtype: torch.dtype) -> None:
    """Tiles of any rows and vectors, rows that end within one; odd numbers of channels."""
    served = 0
    with torch_ops.backends.use("simd", target):
        for into in range(3, 47):
            for partial, channels in (("fprop", 1 + into % 5), ("dgrad", 1 + into * 3 % 7)):
                pixels = (5, 14 + into * 7 % 67)
                call = problem(partial, channels, pixels, (3, 2), into=into, dtype=dtype)
                assert torch.equal(call.run(), call.exact()), (partial, channels, into, pixels)
                served += PLAN in call.kernel()
    assert served > 30


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_target
def test_every_stride_of_a_row(target: str, dtype: torch.dtype) -> None:
    """Rows that begin and end within a turn of their parts, windows that share pixels or do not."""
    served = 0
    with torch_ops.backends.use("simd", target):
        for stride in range(3, 24):
            for more, pad in ((0, 0), (1, 0), (stride % 7, stride % 5), (stride, stride - 1)):
                kernel = stride + more
                pixels = 32 * stride + kernel - 2 * pad + stride % 3
                call = problem(
                    *("fprop", 2, (2, pixels), (1, kernel)),
                    **{"into": 17, "stride": (1, stride), "pad": (0, pad), "dtype": dtype},
                )
                assert torch.equal(call.run(), call.exact()), (stride, more, pad)
                served += PLAN in call.kernel()
    assert served > 60


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_bias(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for channels, into, stride in itertools.product((1, 2, 3, 8), (7, 36), (1, 2, 3)):
            call = problem(
                *("fprop", channels, (9, 96), (3, 3)), into=into, stride=stride, dtype=dtype
            )
            call = call.with_bias(integers(into, dtype=dtype))
            assert torch.equal(call.run(), call.exact()), (channels, into, stride)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_target
def test_any_strides_of_images_channels_and_rows(target: str, dtype: torch.dtype) -> None:
    """Overlapping and unaligned ones, and such as repeat a channel or a row."""
    memory = integers(9000, dtype=dtype)
    with torch_ops.backends.use("simd", target):
        for strides in ((1, 2, 3, 1), (7, 3, 2, 1), (0, 0, 0, 1), (901, 300, 33, 1), (1, 0, 90, 1)):
            for offset, channels, stride in itertools.product((0, 3), (3, 4), (1, 3)):
                pixels = (9, 32 * stride)
                call = problem(
                    *("fprop", channels, pixels, (3, 3)),
                    **{"into": 17, "pad": 1, "stride": stride, "dtype": dtype},
                )
                x = memory.as_strided((2, channels, *pixels), strides, offset)
                call = type(call)(call.name, (x, call.operands[1]), call.attributes)
                assert PLAN in call.kernel()
                assert torch.equal(call.run(), call.exact()), (strides, offset, channels, stride)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_target
def test_what_is_not_finite_reaches_its_own_results_alone(
    target: str, dtype: torch.dtype, value: float
) -> None:
    """In the last channel, which pairs have alone, and in vectors that end behind the row."""
    with torch_ops.backends.use("simd", target):
        for channels, stride in itertools.product((1, 3), (1, 2, 3)):
            kernel = (3, 3) if stride == 3 else (2, 3)
            call = problem("fprop", channels, (5, 37), kernel, stride=stride, pad=1, dtype=dtype)
            x, w = call.operands
            w.fill_(1)
            for pixel in (0, 1, 15, 16, 30, 31, 32, 35, 36):
                x.zero_()
                x[1, -1, 1, pixel] = value
                assert call.is_exact(), (channels, stride, pixel)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_phases_of_every_stride(target: str, dtype: torch.dtype) -> None:
    """Results that end within a stride, windows that overlap, touch or reach beyond the ends."""
    with torch_ops.backends.use("simd", target):
        for stride in range(2, 9):
            for more, pad, rest in ((0, 0, 0), (1, 1, 1), (stride, stride - 1, 0), (1, 0, 2)):
                call = problem(
                    *("dgrad", 3, (7, 32 * stride - rest % stride), (3, stride + more)),
                    **{"into": 17, "stride": (2, stride), "pad": (1, pad), "dtype": dtype},
                )
                assert torch.equal(call.run(), call.exact()), (stride, more, pad, rest)
                assert PHASES in call.kernel(), (stride, more, call.kernel())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_phases_of_every_kind(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for what, channels, pixels, kernel, attributes in (
            ("one axis", 3, (320,), (16,), {"stride": 8, "pad": 4}),
            ("one axis of several boxes", 2, (40000,), (5,), {"stride": 2, "pad": 2}),
            ("three axes", 2, (5, 7, 64), (3, 2, 4), {"stride": 2, "pad": 1}),
            ("three axes, one with a stride", 2, (3, 4, 96), (2, 1, 3), {"stride": (1, 1, 3)}),
            ("columns alone", 4, (9, 64), (3, 3), {"stride": (1, 2), "pad": 1}),
            ("rows alone", 4, (9, 64), (3, 3), {"stride": (2, 1), "pad": 1}),
            ("planes alone", 3, (5, 4, 32), (3, 2, 2), {"stride": (3, 1, 1)}),
            ("rows of no window", 3, (3, 64), (7, 2), {"stride": (5, 2), "pad": (3, 0)}),
            ("groups", 3, (9, 64), (3, 4), {"stride": 2, "groups": 3}),
            ("sums that are folded", 31, (9, 64), (7, 5), {"stride": 2}),
            ("several boxes", 3, (70, 1300), (3, 5), {"stride": 2, "pad": 1}),
            ("several parts", 2, (9, 96), (3, 3), {"stride": 3, "into": 301}),
        ):
            call = problem(
                *("dgrad", channels, pixels, kernel), dtype=dtype, **{"into": 17} | attributes
            )
            assert torch.equal(call.run(), call.exact()), what
            assert PHASES in call.kernel(), (what, call.kernel())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_target
def test_phases_of_every_number_of_channels_and_windows(target: str, dtype: torch.dtype) -> None:
    served = 0
    with torch_ops.backends.use("simd", target):
        for into in range(3, 47):
            channels, pixels = 1 + into * 3 % 7, (5, 25 + into * 7 % 67)
            call = problem("dgrad", channels, pixels, (3, 4), stride=2, into=into, dtype=dtype)
            assert torch.equal(call.run(), call.exact()), (channels, into, pixels)
            served += PHASES in call.kernel()
    assert served > 15


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_bias_of_phases(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for channels, into in itertools.product((1, 2, 3, 8), (7, 37)):
            backward = problem("dgrad", channels, (8, 64), (4, 4), stride=2, into=into, dtype=dtype)
            attributes = {k: v for k, v in backward.attributes.items() if k != "src_shape"}
            attributes["weights_format"] = "IOX"
            call = Call("conv_transpose", backward.operands, attributes)
            call = call.with_bias(integers(into, dtype=dtype))
            assert torch.equal(call.run(), call.exact()), (channels, into)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_target
def test_phases_of_any_strides_of_images_channels_and_rows(target: str, dtype: torch.dtype) -> None:
    memory = integers(9000, dtype=dtype)
    with torch_ops.backends.use("simd", target):
        for strides in ((1, 2, 3, 1), (7, 3, 2, 1), (0, 0, 0, 1), (901, 300, 33, 1), (1, 0, 90, 1)):
            for offset, channels in itertools.product((0, 3), (3, 4)):
                call = problem(
                    "dgrad", channels, (9, 64), (3, 4), into=17, pad=1, stride=2, dtype=dtype
                )
                y, w = call.operands
                y = memory.as_strided(y.shape, strides, offset)
                call = Call(call.name, (y, w), call.attributes)
                assert PHASES in call.kernel()
                assert torch.equal(call.run(), call.exact()), (strides, offset, channels)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_target
def test_what_is_not_finite_reaches_results_of_its_phases_alone(
    target: str, dtype: torch.dtype, value: float
) -> None:
    with torch_ops.backends.use("simd", target):
        for channels, kernel in itertools.product((1, 3), ((3, 4), (2, 3))):
            call = problem("dgrad", channels, (9, 74), kernel, stride=2, pad=1, dtype=dtype)
            y, w = call.operands
            w.fill_(1)
            for pixel in (0, 1, 15, 16, 31, 32, 35, y.shape[-1] - 1):
                y.zero_()
                y[1, -1, 1, pixel] = value
                assert call.is_exact(), (channels, kernel, pixel)
