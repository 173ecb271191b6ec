"""The SIMD backend where its blocks end: remainders, odd strides, threads, memory, rounding.

Every geometry on every target is in test_exact.py; here are sizes chosen by what the kernels do.
Integers are small enough that every order of summation gives the same bits.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from dense import problem
from targets import DTYPES, every_target, exact, integers, partials, supported_targets, wrong

import torch_ops
from torch_ops.bench_accuracy import errors
from torch_ops.bench_cases import FORMATS, PARTIALS, Case
from torch_ops.bench_shapes import Shape


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
@every_target
def test_every_number_of_channels(target: str, dtype: torch.dtype, channels_last: bool) -> None:
    """From 1 to two tiles and one more, on both sides; the other side few and many."""
    found = []
    with torch_ops.backends.use("simd", target):
        for channels in range(1, 130):
            for other in (1, 3, 20):
                for c, q in ((channels, other), (other, channels)):
                    shape = ((2, c, 5, 6), (q, c, 2, 3))
                    found += wrong((c, q), shape, 1, 1, 1, dtype, channels_last)
    assert not found


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_target
def test_sums_of_many_channels_are_rounded_once(
    target: str, dtype: torch.dtype, channels_last: bool
) -> None:
    """Partial sums of a few thousand need more bits than elements have."""
    with torch_ops.backends.use("simd", target):
        for channels, images, extent, taps in ((3003, 1, 2, 1), (4095, 2, 3, 3), (4095, 1, 30, 1)):
            many = torch.ones(images, channels, extent, extent, dtype=dtype)
            if channels_last:
                many = many.contiguous(memory_format=torch.channels_last)
            few = many[:, :20]
            w = torch.ones(20, channels, taps, taps, dtype=dtype)
            w[:, channels // 2 + 1 :] = -1  # one less than the others
            for part, *tensors in (
                ("fprop", many, w, few),
                ("dgrad", few, w.transpose(0, 1).contiguous(), many),
            ):
                found = partials(*tensors, 1, taps // 2)[part]
                expected = exact(*tensors, 1, taps // 2)[part]
                assert torch.equal(found.double(), expected), (part, channels)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_every_number_of_pixels_and_taps(target: str, dtype: torch.dtype) -> None:
    found = []
    with torch_ops.backends.use("simd", target):
        for channels in (2, 5, 19):
            for pixels in range(1, 70, 3):
                for taps in (1, 2, 3, 5, 8):
                    shape = ((1, channels, pixels), (channels, channels, taps))
                    found += wrong((channels, pixels, taps), shape, 1, taps // 2, 1, dtype)
            for width in (17, 34):
                shape = ((1, channels, 9, width), (channels, channels, 4, 4))
                found += wrong((channels, width), shape, 2, 1, 1, dtype)
    assert not found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_few_channels_in_rows_of_every_kind(target: str, dtype: torch.dtype) -> None:
    found = []
    with torch_ops.backends.use("simd", target):
        for what, shape, stride, pad in (
            ("more taps than are summed at once", ((1, 3, 300), (2, 3, 250)), 1, 100),
            ("a kernel beyond the row", ((1, 2, 300), (3, 2, 700)), 1, 500),
            ("phases longer than a row of results", ((1, 2, 7000), (3, 2, 1501)), 1400, 7),
            ("rows of several boxes", ((1, 3, 3, 700), (20, 3, 3, 5)), 1, 2),
            ("long sums", ((1, 2, 5, 40), (131, 2, 3, 4)), 2, 1),
            ("windows without pixels", ((1, 3, 6), (7, 3, 3)), 1, 40),
            ("rows of windows without pixels", ((2, 3, 6, 9), (20, 3, 3, 3)), 1, 8),
            ("long sums of rows that miss taps", ((1, 2, 7, 40), (131, 2, 6, 4)), 2, 3),
            ("planes and rows that miss taps", ((1, 3, 6, 5, 9), (33, 3, 4, 4, 5)), 1, 3),
        ):
            found += wrong(what, shape, stride, pad, 1, dtype)
    assert not found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_channels_in_lanes_where_sums_of_pixels_would_be_short(
    target: str, dtype: torch.dtype
) -> None:
    """Few channels, whose lanes would be pixels if more were summed over; windows of one row."""
    with torch_ops.backends.use("simd", target):
        for channels, into in ((1, 3), (1, 5), (1, 8), (2, 6), (3, 11)):
            for partial in ("fprop", "dgrad"):
                call = problem(
                    partial, channels, (3, 70), (1, 31), into=into, pad=(0, 15),
                    data_format="NXC", dtype=dtype,
                )  # fmt: skip
                assert "channels in lanes" in call.kernel(), (partial, into, call.kernel())
                assert call.is_exact(), (partial, channels, into)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_lanes_of_taps_and_channels(target: str, dtype: torch.dtype) -> None:
    """wgrad of ragged channels on both sides: lanes end anywhere in a window's row."""
    found = []
    with torch_ops.backends.use("simd", target):
        for what, shape, stride, pad, groups in (
            ("wide windows", ((1, 21, 70, 75), (21, 21, 16, 16)), 8, 4, 1),
            ("overlapping windows", ((2, 9, 12, 33), (9, 9, 3, 3)), 1, 1, 1),
            ("odd rows", ((3, 10, 5, 19), (10, 10, 3, 5)), 1, 2, 1),
            ("windows that are apart", ((1, 6, 13, 41), (6, 6, 2, 4)), 9, 0, 1),
            ("many boxes", ((2, 5, 40, 200), (5, 5, 3, 3)), 1, 1, 1),
            ("many lanes", ((1, 33, 3, 90), (33, 33, 1, 31)), 1, 15, 1),
            ("three axes", ((1, 5, 4, 5, 21), (9, 5, 2, 3, 3)), 1, 1, 1),
            ("groups", ((2, 18, 60), (30, 9, 7)), 2, 3, 2),
        ):
            for channels_last in (False, True):
                found += wrong(what, shape, stride, pad, groups, dtype, channels_last)
        plan = torch_ops.backends.explain(
            "convolution_backward_weights",
            *(integers(1, 9, 20, dtype=dtype) for _ in "xy"),
            strides=[1], pads_begin=[1], pads_end=[1], dilations=[1], data_format="NCX",
            weights_format="OIX", weights_shape=[9, 9, 3],
        )  # fmt: skip
    joined = "x in lanes, taps joined with channels" in plan.kernel
    assert joined == ((target, dtype) != ("generic", torch.float64)), plan.kernel
    assert not found


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
@every_target
def test_windows_that_share_nothing(target: str, dtype: torch.dtype) -> None:
    """wgrad has the windows of each tap side by side, over one axis or several."""
    found = []
    with torch_ops.backends.use("simd", target):
        for what, shape, stride, pad, groups in (
            ("2x2", ((2, 17, 20, 34), (21, 17, 2, 2)), 2, 0, 1),
            ("2x2, windows at every edge", ((1, 20, 19, 31), (9, 20, 2, 2)), 2, 1, 1),
            ("4x4, few windows are whole", ((1, 9, 10, 11), (8, 9, 4, 4)), 4, 3, 1),
            ("many boxes", ((1, 8, 200, 300), (9, 8, 2, 2)), 2, 0, 1),
            ("rows of several boxes", ((1, 12, 4, 3000), (9, 12, 2, 2)), 2, 0, 1),
            ("three axes", ((2, 33, 6, 8, 18), (10, 33, 2, 2, 2)), 2, 0, 1),
            ("one axis", ((3, 40, 105), (24, 40, 5)), 5, 2, 1),
            ("one tap along rows", ((2, 19, 20, 17), (9, 19, 3, 1)), 3, 0, 1),
            ("windows share rows alone", ((2, 19, 20, 34), (9, 19, 5, 2)), 2, 1, 1),
            ("windows share columns alone", ((2, 19, 20, 34), (9, 19, 2, 5)), 2, 1, 1),
            ("pixels are left out", ((2, 19, 20, 34), (9, 19, 2, 2)), 3, 1, 1),
            ("groups", ((2, 34, 12, 18), (42, 17, 3, 3)), 3, 0, 2),
        ):
            for channels_last in (False, True):
                found += wrong(what, shape, stride, pad, groups, dtype, channels_last)
    assert not found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_every_number_of_groups(target: str, dtype: torch.dtype) -> None:
    """Depthwise, with a channel multiplier, and small groups."""
    found = []
    with torch_ops.backends.use("simd", target):
        for groups in range(2, 36):
            for c, q in ((1, 1), (1, 2), (3, 1), (4, 4), (9, 2)):
                shape = ((2, groups * c, 6, 5), (groups * q, c, 3, 2))
                found += wrong((groups, c, q), shape, 1, 1, groups, dtype)
        for taps in range(1, 40):
            shape = ((1, 18, 41), (18, 1, taps))
            found += wrong(("taps", taps), shape, 1 + taps % 3, taps // 2, 18, dtype)
        found += wrong("3-D", ((2, 20, 5, 6, 7), (20, 1, 3, 3, 3)), 2, 1, 20, dtype)
    assert not found


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_groups_of_many_boxes(target: str, dtype: torch.dtype, channels_last: bool) -> None:
    """Box after box or group after group; and more weights than are packed at once."""
    found = []
    with torch_ops.backends.use("simd", target):
        for extents, stride, groups in (
            (((2, 63, 40, 41), (72, 21, 3, 3)), 1, 3),
            (((3, 40, 29, 33), (36, 10, 4, 4)), 2, 4),
            (((1, 34, 9, 17, 18), (36, 17, 3, 3, 3)), 1, 2),
            (((2, 768, 9, 8), (1536, 128, 3, 3)), 1, 6),
        ):
            found += wrong(extents, extents, stride, 1, groups, dtype, channels_last)
    assert not found


@every_target
def test_any_strides(target: str) -> None:
    """Overlapping, unaligned, reversed-order and zero strides are read where they lie."""
    memory = {d: integers(4000, dtype=d) for d in (torch.float32, torch.bfloat16)}
    views = [
        ((2, 6, 9, 11), (1, 1, 1, 1), 3),  # every element of the view overlaps others
        ((2, 6, 9, 11), (7, 3, 2, 1), 1),
        ((2, 6, 9, 11), (700, 1, 70, 6), 1),  # channels last, rows apart
        ((2, 6, 9, 11), (1, 2, 200, 18), 5),
        ((2, 6, 9, 11), (0, 0, 0, 0), 9),
        ((2, 6, 9, 11), (0, 99, 11, 1), 0),
        ((2, 6, 9, 11), (594, 0, 11, 1), 0),
    ]
    with torch_ops.backends.use("simd", target):
        for dtype, numbers in memory.items():
            for extents, strides, offset in views:
                x = numbers.as_strided(extents, strides, offset)
                for q in (1, 5, 18):
                    w = integers(q, 6, 3, 3, dtype=dtype)
                    y = integers(2, q, 9, 11, dtype=dtype)
                    strided = partials(x, w, y, 1, 1)
                    plain = partials(x.contiguous(), w, y, 1, 1)
                    for name in plain:
                        assert torch.equal(strided[name], plain[name]), (name, strides, q, dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
@every_target
def test_one_tap_with_channels_first(target: str, dtype: torch.dtype) -> None:
    """Rows of a tile and one more, odd numbers of channels, partial vectors, long sums."""
    found = []
    with torch_ops.backends.use("simd", target):
        for channels in (1, 2, 3, 8, 13, *range(16, 44)):
            for other in (1, 7, 32):
                for c, q in ((channels, other), (other, channels)):
                    found += wrong((c, q), ((2, c, 7, 9), (q, c, 1, 1)), 1, 0, 1, dtype)
        for pixels in (*range(1, 100), 511, 513, 1100):
            found += wrong(pixels, ((2, 33, pixels), (27, 33, 1)), 1, 0, 1, dtype)
        found += wrong("3-D", ((1, 20, 3, 5, 7), (40, 20, 1, 1, 1)), 1, 0, 1, dtype)
        found += wrong("groups", ((3, 57, 6, 8), (66, 19, 1, 1)), 1, 0, 3, dtype)
        found += wrong("long sums", ((2, 700, 4, 12), (650, 700, 1, 1)), 1, 0, 1, dtype)
    assert not found


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_half_vectors_are_named(dtype: str) -> None:
    """AVX2's kernels are a part of the target avx512 where its vectors would be emptier."""
    if "avx512" not in supported_targets():
        pytest.skip("the CPU has no AVX-512")
    kernels = set()
    with torch_ops.backends.use("simd", "avx512"):
        for channels in range(17, 41):
            shape = Shape("half", False, 1, 30, channels, (20, 20), 5)
            name, args, attributes = Case(shape, "NCX", dtype, "forward").our_call()
            plan = torch_ops.backends.explain(name, *args, **attributes)
            assert plan.target == "avx512"
            kernels.add((24 < channels <= 32, "f32 of 8 lanes" in plan.kernel))
    # Where half a vector is as slow as a whole one, it never serves.
    assert kernels in ({(False, True), (True, False)}, {(False, False), (True, False)})


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
@every_target
def test_one_tap_of_every_second_pixel(target: str, dtype: torch.dtype) -> None:
    found = []
    with torch_ops.backends.use("simd", target):
        for pixels in (*range(1, 70), 300, 301):
            found += wrong(pixels, ((2, 35, pixels), (27, 35, 1)), 2, 0, 1, dtype)
        for channels in range(1, 36):
            found += wrong(channels, ((2, channels, 5, 41), (40, channels, 1, 1)), 2, 0, 1, dtype)
        found += wrong("3-D", ((1, 20, 3, 5, 38), (40, 20, 1, 1, 1)), 2, 0, 1, dtype)
        found += wrong("groups", ((3, 57, 6, 37), (66, 19, 1, 1)), 2, 0, 3, dtype)
    assert not found


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
@every_target
def test_one_tap_with_few_channels_on_one_side(
    target: str, dtype: torch.dtype, channels_last: bool
) -> None:
    """Any numbers of rows and lanes, pieces of images, partial vectors."""
    found = []

    def check(what: object, *extents: tuple[int, ...], groups: int = 1) -> None:
        nonlocal found
        found += wrong(what, extents, 1, 0, groups, dtype, channels_last)

    with torch_ops.backends.use("simd", target):
        for channels in (*range(1, 36), 64, 65):
            for few in (1, 2, 3, 4, 5, 7, 16):
                for c, q in ((channels, few), (few, channels)):
                    check((c, q), (2, c, 5, 7), (q, c, 1, 1))
        for pixels in (*range(1, 70), 511, 1023, 1025, 3001):
            check(pixels, (2, 19, pixels), (3, 19, 1))
            check(pixels, (1, 2, pixels), (33, 2, 1))
        check("groups", (3, 96, 6, 8), (9, 32, 1, 1), groups=3)
        check("depthwise", (3, 40, 6, 8), (80, 1, 1, 1), groups=40)
        check("3-D", (2, 3, 5, 7, 9), (24, 3, 1, 1, 1))
        check("long sums", (1, 300, 1100), (2, 300, 1))
    assert not found


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
@every_target
def test_one_tap_adds_the_bias_of_each_group(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for groups, c, q, pixels in (
            (1, 95, 40, 64),
            (1, 96, 41, 79),
            (2, 33, 26, 700),
            (2, 33, 3, 79),
            (2, 3, 33, 1100),
        ):
            x = integers(2, groups * c, pixels, dtype=dtype)
            w = integers(groups * q, c, 1, dtype=dtype)
            bias = integers(groups * q, dtype=dtype) + 1
            found = torch_ops.convolution(
                x,
                w,
                bias,
                strides=[1],
                pads_begin=[0],
                pads_end=[0],
                dilations=[1],
                groups=groups,
                data_format="NCX",
                weights_format="OIX",
            )
            expected = torch.nn.functional.conv1d(
                x.double(), w.double(), bias.double(), groups=groups
            )
            assert torch.equal(found.double(), expected)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
@every_target
def test_one_window_over_an_axis(target: str, dtype: torch.dtype, channels_last: bool) -> None:
    """Taps become channels: of all axes or one, in groups, from views with gaps, with a bias."""
    found = []
    with torch_ops.backends.use("simd", target):
        for images in (1, 2, 7, 40):
            for c, q in ((1, 1), (3, 2), (17, 1), (1, 33), (24, 40)):
                for k in ((6,), (4, 4), (1, 5), (2, 3, 4)):
                    extents = ((images, c, *k), (q, c, *k))
                    found += wrong((images, c, q, k), extents, 1, 0, 1, dtype, channels_last)
        for extents, groups in (
            (((3, 6, 2, 3), (9, 2, 2, 3)), 3),
            (((3, 20, 2, 3), (40, 1, 2, 3)), 20),
            (((2, 5, 4, 9), (7, 5, 4, 3)), 1),
            (((2, 5, 9, 4), (7, 5, 3, 4)), 1),
        ):
            found += wrong(extents, extents, 1, 0, groups, dtype, channels_last)

        gaps = integers(5, 7, 6, 5, dtype=dtype)[:, 1:, ::2, :4]
        w, y = integers(9, 6, 3, 4, dtype=dtype), integers(5, 9, 1, 1, dtype=dtype)
        for x in (gaps, gaps.transpose(0, 1)[:5].transpose(0, 1), gaps[:, :1].expand(5, 6, 3, 4)):
            weights = w[:, : x.shape[1]]
            results, expected = partials(x, weights, y, 1, 0), exact(x, weights, y, 1, 0)
            found += [n for n in results if not torch.equal(results[n].double(), expected[n])]

        for groups, c, q in ((1, 3, 40), (1, 40, 2), (3, 2, 8)):
            src = integers(6, groups * q, 1, 1, dtype=dtype)
            weights = integers(groups * q, c, 3, 4, dtype=dtype)
            bias = integers(groups * c, dtype=dtype) + 1
            result = torch_ops.functional.conv_transpose2d(src, weights, bias, groups=groups)
            expected = torch.nn.functional.conv_transpose2d(
                src.double(), weights.double(), bias.double(), groups=groups
            )
            found += [] if torch.equal(result.double(), expected) else [f"bias of {groups} groups"]
    assert not found


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
@every_target
def test_windows_that_tile_the_last_axis(target: str, dtype: torch.dtype) -> None:
    """Taps become channels where few are computed, channels last: with a bias, in any rank."""
    found = []
    for c, q, spatial, k in (
        *((c, q, (9,), (k,)) for c in (1, 2, 3, 8) for q in (2, 20) for k in (2, 3, 4, 16)),
        *((c, q, (3, 5), (k, k)) for c in (1, 3, 4) for q in (2, 40) for k in (2, 4, 16)),
        (3, 21, (7, 30), (2, 4)),
        (3, 7, (5, 1), (4, 4)),
        (2, 7, (1, 6), (3, 8)),
        (4, 5, (2, 3, 4), (3, 2, 4)),
    ):
        src, weights = integers(3, *spatial, q, dtype=dtype), integers(*k, c, q, dtype=dtype)
        attributes = {
            "strides": list(k), "pads_begin": [0] * len(k), "pads_end": [0] * len(k),
            "dilations": [1] * len(k), "data_format": "NXC", "weights_format": "XOI",
        }  # fmt: skip
        for bias in (None, integers(c, dtype=dtype) + 1):
            operands = (src, weights, bias)
            with torch_ops.backends.use("reference"):
                expected = torch_ops.conv_transpose(*operands, **attributes)
            with torch_ops.backends.use("simd", target):
                result = torch_ops.conv_transpose(*operands, **attributes)
            if not torch.equal(result, expected):
                found.append((c, q, spatial, k, bias))
    assert not found


def test_one_window_over_all_axes_is_one_tap() -> None:
    x, w, y = integers(64, 3, 4, 5), integers(2, 3, 4, 5), integers(64, 2, 1, 1)
    with torch_ops.backends.use("simd"):
        report = torch_ops.backends.explain(
            torch.ops.aten.convolution_backward,
            *(y, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False]),
        )
    assert "in place" in report.kernel


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
@every_target
def test_what_lies_in_a_stride_of_a_signal_is_channels(target: str, dtype: torch.dtype) -> None:
    """Of windows of whole strides; with a bias, from views with gaps, and where strides are not."""
    found = []
    with torch_ops.backends.use("simd", target):
        for stride, strides, pad, more in itertools.product((32, 45), (2, 3, 5), (0, 1, 2), (0, 1)):
            shape = ((2, 1, 9 * stride + more), (21, 1, strides * stride))
            for channels_last in (False, True):
                found += wrong(shape, shape, stride, pad * stride, 1, dtype, channels_last)
        src, weights = integers(2, 21, 14, dtype=dtype)[..., ::2], integers(21, 1, 96, dtype=dtype)
        bias = integers(1, dtype=dtype) + 1
        result = torch_ops.functional.conv_transpose1d(src, weights, bias, stride=32)
        expected = torch.nn.functional.conv_transpose1d(
            src.double(), weights.double(), bias.double(), stride=32
        )
        assert torch.equal(result.double(), expected)
        for partial, channels, into in (("fprop", 1, 20), ("dgrad", 20, 1)):
            call = problem(partial, channels, (320,), (96,), into=into, stride=32, dtype=dtype)
            assert "channels in lanes" in call.kernel(), call.kernel()
            assert call.is_exact()
    assert not found


@every_target
def test_one_tap_reads_any_strides(target: str) -> None:
    with torch_ops.backends.use("simd", target):
        for dtype in (torch.float32, torch.bfloat16):
            memory = integers(9000, dtype=dtype)
            # Strides of images and channels; every view ends where the memory does.
            for batch, channel in ((1, 3), (0, 0), (3, 1), (0, 64), (4468, 68)):
                for pixels, q in ((64, 27), (79, 27), (79, 3)):
                    shape = (2, 35, pixels)
                    offset = len(memory) - (batch + 34 * channel + pixels)
                    x = memory.as_strided(shape, (batch, channel, 1), offset)
                    w, y = integers(q, 35, 1, dtype=dtype), integers(2, q, pixels, dtype=dtype)
                    found, expected = partials(x, w, y, 1, 0), exact(x, w, y, 1, 0)
                    for name in found:
                        assert torch.equal(found[name].double(), expected[name]), (name, channel)


@pytest.mark.unforced
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dimension", [0, 1, 2, 3])
def test_strides_beyond_two_to_the_31(dimension: int, dtype: torch.dtype) -> None:
    """Over memory that is reserved and, but for a few pages, never touched."""
    far = 2**31 + 5
    extents = [2, 3, 4, 5]
    strides = [60, 20, 5, 1]
    extents[dimension] = 2
    strides[dimension] = far
    x = torch.empty(far + 1000, dtype=dtype).as_strided(extents, strides)
    x.copy_(integers(*extents, dtype=dtype))
    w, y = integers(18, x.shape[1], 2, 2, dtype=dtype), integers(2, 18, *x.shape[2:], dtype=dtype)
    y = y[..., : x.shape[2] - 1, : x.shape[3] - 1]
    with torch_ops.backends.use("simd"):
        far_away = partials(x, w, y, 1, 0)
        near = partials(x.contiguous(), w, y, 1, 0)
    for name in near:
        assert torch.equal(far_away[name], near[name]), name


@pytest.fixture
def restored_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@every_target
@pytest.mark.parametrize(
    "shape",
    [
        Shape("dense", False, 4, 40, 48, (18, 18), 3, padding=1),
        Shape("strided", True, 3, 48, 24, (12, 12), 4, stride=2, padding=1),
        Shape("few", True, 4, 32, 3, (20, 20), 4, stride=2, padding=1),
        Shape("depthwise", False, 4, 40, 40, (30, 30), 5, padding=2, groups=40),
        Shape("planes", False, 4, 5, 5, (40, 40), 3, padding=1, groups=5),
        Shape("windows", True, 2, 5, 5, (20, 20), 16, stride=8, padding=4, groups=5),
        Shape("pointwise", False, 3, 40, 72, (24, 26), 1),
        Shape("pointwise_few", False, 3, 40, 3, (61, 67), 1),
        Shape("many_weights", False, 2, 160, 160, (6, 6), 3, padding=1),
        Shape("several_parts", False, 1, 136, 203, (9, 9), 5, padding=2),
        Shape("copied_once", False, 2, 130, 200, (14, 14), 2, stride=2),
    ],
    ids=lambda shape: shape.name,
)
def test_bits_do_not_depend_on_threads(shape: Shape, target: str, dtype: torch.dtype) -> None:
    name = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float64: "f32"}[dtype]
    for data_format in FORMATS:
        for partial in PARTIALS:
            case = Case(shape, data_format, name, partial)
            if dtype == torch.float64:
                case.ours = tuple(t.double() for t in case.ours)
            run = case.our_run()
            results = []
            for threads in (1, 2, 3, 4, 8):
                torch.set_num_threads(threads)
                with torch_ops.backends.use("simd", target):
                    results.append(run())
            assert all(torch.equal(r, results[0]) for r in results), (data_format, partial)


_PEAK = """
import resource, sys, torch, torch_ops
from torch_ops import backends
from torch_ops.bench_cases import Case
from torch_ops.bench_shapes import Shape, MEASURED
torch.set_num_threads(2)
shapes = {s.name: s for s in MEASURED}
shapes["large_3d"] = Shape("large_3d", True, 1, 64, 32, (40, 40, 40), 3, stride=2, padding=1)
shapes["warm"] = Shape("warm", True, 1, 8, 8, (8, 8), 2, stride=2)
name, data_format, backend = sys.argv[1:]
def highest():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def run(name):
    case = Case(shapes[name], data_format, "f32", "weights")
    call = case.our_run()
    if backend == "auto":
        return call
    def forced():
        with backends.use(backend):
            return call()
    return forced
run("warm")()
call = run(name)
case_bytes = highest()
# What making the data needed beyond the data is filled, so that the call alone can raise the peak.
with open("/proc/self/status") as status:
    now = next(int(l.split()[1]) * 1024 for l in status if l.startswith("VmRSS"))
filler = torch.ones(max(0, case_bytes - now) // 4)
before = highest()
result = call()
print(highest() - before - result.nbytes)
"""


@pytest.mark.parametrize("backend", [pytest.param("simd", marks=pytest.mark.unforced), "auto"])
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("name", ["unet_up4", "large_3d"])
def test_weights_gradient_needs_16_megabytes_beside_its_result(
    name: str, data_format: str, backend: str
) -> None:
    child = subprocess.run(
        [sys.executable, "-P", "-c", _PEAK, name, data_format, backend],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) <= 16 << 20


@pytest.mark.unforced
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize(
    "shape",
    [
        Shape("wgrad_long", True, 32, 32, 16, (32, 32), 4, stride=2, padding=1),
        Shape("fprop_long", False, 1, 512, 32, (8, 8), 3, padding=1),
        Shape("few", False, 8, 3, 32, (64, 64), 7, stride=2, padding=3),
        Shape("pointwise", False, 8, 128, 32, (28, 28), 1),
        Shape("pointwise_few", False, 8, 128, 3, (64, 64), 1),
        Shape("depthwise", False, 8, 32, 32, (56, 56), 5, padding=2, groups=32),
    ],
    ids=lambda shape: shape.name,
)
def test_rounding_error_is_that_of_a_blocked_gemm(shape: Shape, data_format: str) -> None:
    with torch_ops.backends.use("simd"):
        for partial in PARTIALS:
            found = errors(Case(shape, data_format, "f32", partial), True, True)
            ours, theirs, gemm = (found[f"error_{name}"] for name in ("ours", "torch", "gemm"))
            assert ours <= max(theirs, 1.25 * gemm), (partial, found)
