"""The SIMD backend where lanes are the channels of all groups: depthwise, channels last."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from layers import PARTIALS, Layer, call_of
from targets import every_target, integers, multiplies_lane_pairs

import torch_ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
CHANNELS = 21  # a vector of any target, and some more


def last(*extents: int, kernel: tuple[int, ...], **layer: tuple[int, ...]) -> Layer:
    layer.setdefault("padding", (0,) * len(kernel))
    return Layer(extents, kernel, **layer, data_format="NXC")


LAYERS = (
    # Pixels that share what they read: in every number of pieces of taps and of pixels.
    *(last(1, CHANNELS, 3, 3 + taps * 3, kernel=(2, taps)) for taps in range(1, 14)),
    *(last(2, CHANNELS, 4, 2 + pixels, kernel=(3, 3)) for pixels in range(1, 30)),
    # With padding: windows of fewer taps at each end.
    *(last(2, CHANNELS, 6, 15, kernel=(3, k), padding=(1, k // 2)) for k in (3, 5, 7, 11)),
    last(1, CHANNELS, 4, 3, kernel=(5, 9), padding=(4, 8)),
    # Strides and dilations: neighbours share every second tap, or none.
    *(last(1, CHANNELS, 9, 40, kernel=(3, k), stride=(2, 2)) for k in (2, 5, 6, 7, 8)),
    *(last(1, CHANNELS, 9, 50, kernel=(2, k), padding=(1, 3), stride=(1, 3)) for k in (3, 7, 10)),
    last(1, CHANNELS, 33, 41, kernel=(16, 16), padding=(4, 4), stride=(8, 8)),
    last(1, CHANNELS, 8, 30, kernel=(3, 4), padding=(1, 2), dilation=(1, 2)),
    # Rows too short, so that columns or images are neighbours instead.
    last(1, CHANNELS, 40, 2, kernel=(5, 1), padding=(2, 0)),
    last(20, CHANNELS, 3, 3, kernel=(3, 3), padding=(1, 1)),
    # Pixels are a multiple of 512 bytes apart.
    last(1, 256, 5, 14, kernel=(3, 3), padding=(1, 1)),
    last(1, CHANNELS, 300, kernel=(31,), padding=(15,)),
    last(1, CHANNELS, 5, 6, 17, kernel=(3, 3, 4), padding=(1, 1, 1)),
    # Many windows meet the same taps and miss others; a result of dgrad meets one of many.
    last(1, CHANNELS, 33, 26, kernel=(3, 3), padding=(12, 9), dilation=(12, 9)),
    last(1, CHANNELS, 14, 15, kernel=(5, 5), padding=(8, 8), dilation=(4, 4)),
    last(2, CHANNELS, 9, 8, 7, kernel=(3, 3, 3), padding=(3, 3, 3), dilation=(3, 3, 3)),
    last(2, CHANNELS, 22, 30, kernel=(22, 1)),
    # Windows of which few fit with all channels.
    last(1, 160, 9, 10, kernel=(29, 27), padding=(14, 13)),
    last(1, 300, 12, 7, kernel=(27, 13), padding=(13, 6)),
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_values(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for layer in LAYERS:
            operands = layer.operands(dtype)
            for partial in PARTIALS:
                call = call_of(partial, *operands, layer)
                assert "channels of all groups in lanes" in call.kernel(), (layer, call.kernel())
                assert torch.equal(call.run(), call.exact()), (layer, partial)


OVERLAPPING = (
    # Every number of positions, so that rows begin and end with either column, or none is there.
    *(
        last(2, CHANNELS, 12, 12 + n, kernel=(4, 4), padding=(1, p), stride=(2, 2))
        for n in range(5)
        for p in range(4)
    ),
    *(
        last(1, CHANNELS, 12 + n, 13, kernel=(6, 6), padding=(2, n), stride=(3, 3))
        for n in range(6)
    ),
    # Pieces of rows, of several channels; of lines and images.
    last(1, 64, 9, 170, kernel=(4, 4), padding=(1, 1), stride=(2, 2)),
    last(1, 256, 40, 75, kernel=(4, 8), padding=(1, 3), stride=(2, 4)),
    last(40, CHANNELS, 8, 8, kernel=(4, 4), padding=(1, 1), stride=(2, 2)),
    # The axis before meets one tap; more axes.
    last(2, CHANNELS, 7, 30, kernel=(1, 4), padding=(0, 1), stride=(1, 2)),
    last(2, CHANNELS, 500, kernel=(8,), padding=(2,), stride=(4,)),
    last(1, CHANNELS, 9, 12, 14, kernel=(3, 4, 4), padding=(1, 1, 1), stride=(1, 2, 2)),
    # Transposed first, in several boxes.
    Layer((6, 40, 24, 26), (4, 4), (1, 1), stride=(2, 2)),
    Layer((1, 40, 9, 20, 30), (4, 4, 4), (1, 1, 1), stride=(2, 2, 2)),
)


SLIDING = (
    # Every number of taps in a piece, and of rows; windows that begin and end beyond the row.
    *(
        last(2, CHANNELS, 7, 15 + p, kernel=(rows, taps), padding=(rows // 2, p))
        for rows, taps, p in itertools.product((2, 3, 5, 7), (2, 3, 5, 6, 7, 8, 15), (0, 2))
        if 15 + p - taps >= 6
    ),
    # A single row of taps, met by several windows at a time: every number of both in a block.
    *(
        last(3, CHANNELS, 12 + taps, kernel=(taps,), padding=(p,))
        for taps in range(5, 14)
        for p in (0, 4)
    ),
    *(last(1, CHANNELS, 20 + n, kernel=(10,), padding=(9,)) for n in range(8)),
    *(last(1, CHANNELS, 300, kernel=(taps,), padding=(taps // 2,)) for taps in (31, 44)),
    # Five taps of two vectors together: in long rows, and where rows do not stay in the first-level
    # cache; each window and position at the ends.
    *(
        last(1, CHANNELS, 4, 44 + n, kernel=(3, 5), padding=(1, p))
        for n in range(4)
        for p in range(6)
    ),
    *(
        last(1, 520, 3, 16 + n, kernel=(2, taps), padding=(0, 2))
        for n in range(3)
        for taps in (5, 7)
    ),
    last(1, 72, 3, 300, kernel=(3, 5), padding=(1, 2)),
    # x is copied where its rows would not stay in the first-level cache.
    last(2, 512, 190, kernel=(31,), padding=(15,)),
    *(last(1, CHANNELS, 9, 10, kernel=(9, 5), padding=(4, p)) for p in range(6)),
    *(last(2, CHANNELS, 4, 6 + n, kernel=(3, 3), padding=(1, 1)) for n in range(12)),
    # Taps and windows both every second position, from an even or an odd one on.
    *(
        last(1, CHANNELS, 9, 30 + n, kernel=(3, 5), padding=(1, n), stride=(2, 2), dilation=(1, 2))
        for n in range(5)
    ),
    last(1, CHANNELS, 9, 12, kernel=(3, 3), padding=(2, 1), dilation=(2, 1)),
    # Taps of each phase: from every position on, of every number of them.
    *(
        last(2, CHANNELS, 9, 20 + n, kernel=(3, taps), padding=(1, p), stride=(2, 2))
        for n in range(3)
        for taps in (5, 6, 7, 9)
        for p in (0, 1, 2)
    ),
    *(last(1, CHANNELS, 7, 30, kernel=(2, k), padding=(0, 2), stride=(1, 3)) for k in (7, 8, 9)),
    last(1, CHANNELS, 7, 60, kernel=(3, 7), padding=(1, 5), stride=(2, 4), dilation=(1, 2)),
    last(1, 72, 5, 300, kernel=(3, 5), padding=(1, 2), stride=(1, 2)),
    Layer((6, 40, 18, 30), (3, 7), (1, 3), stride=(2, 2)),
    # Pieces of rows, of several channels; of lines and images.
    last(1, 72, 5, 300, kernel=(3, 4), padding=(1, 3)),
    last(40, CHANNELS, 8, 8, kernel=(3, 3), padding=(1, 1)),
    last(2, CHANNELS, 5, 6, 17, kernel=(3, 3, 4), padding=(1, 1, 1)),
    # Transposed first, whole or in several boxes; with zeros at the ends of long rows.
    Layer((32, 16, 7, 10), (5, 5), (2, 2)),
    Layer((6, 40, 18, 14), (3, 7), (1, 3)),
    Layer((32, 16, 5, 9, 30), (3, 1, 5), (1, 0, 2), stride=(1, 3, 1)),
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("layers", "plan"),
    [(OVERLAPPING, "overlapping windows"), (SLIDING, "sliding windows")],
    ids=["overlap by half", "slide"],
)
@every_target
def test_windows_that_share_positions(
    target: str, layers: tuple[Layer, ...], plan: str, dtype: torch.dtype
) -> None:
    with torch_ops.backends.use("simd", target):
        for layer in layers:
            call = call_of("wgrad", *layer.operands(dtype), layer)
            assert plan in call.kernel(), (layer, call.kernel())
            assert torch.equal(call.run(), call.exact()), layer


# Four rows of results and more in a box, of one box or several; every number of windows in a piece.
RESULTS = (
    *(
        last(2, CHANNELS, 48, 8 * n, kernel=(8, 16), padding=(2, 4), stride=(4, 8))
        for n in range(3, 12)
    ),
    *(
        last(1, CHANNELS, 40 + n, 18, kernel=(6, 6), padding=(p, 2), stride=(3, 3))
        for n in range(3)
        for p in range(4)
    ),
    last(1, 64, 150, 48, kernel=(4, 8), padding=(1, 2), stride=(2, 4)),
    last(1, 144, 300, 200, kernel=(8, 8), padding=(2, 2), stride=(4, 4)),
    last(40, CHANNELS, 24, 24, kernel=(8, 8), padding=(2, 2), stride=(4, 4)),
    last(2, CHANNELS, 5, 24, 24, kernel=(1, 8, 8), padding=(0, 2, 2), stride=(2, 4, 4)),
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_results_of_windows_that_overlap_by_half(target: str, dtype: torch.dtype) -> None:
    if dtype == torch.float16 and target.startswith("generic"):
        pytest.skip("copied first: its conversion takes more than an instruction")
    with torch_ops.backends.use("simd", target):
        for layer in RESULTS:
            x, w, y = layer.operands(dtype)
            call = call_of("fprop", x, w, y, layer)
            assert "overlapping windows" in call.kernel(), (layer, call.kernel())
            bias = integers(x.shape[-1], dtype=dtype)
            found = torch_ops.convolution(x, w, bias=bias, **call.attributes)
            assert torch.equal(call.run(), call.exact()), layer
            assert torch.equal(found, call.exact() + bias), layer


@pytest.mark.parametrize(("kernel", "stride"), [(4, 2), (3, 1)])
@every_target
def test_channel_multiplier_of_windows_that_overlap(target: str, kernel: int, stride: int) -> None:
    """One side's channels are spread over the lanes of the other."""
    x = integers(2, 20, 12, 14, dtype=torch.float32)
    y = integers(2, 60, 12 // stride, 14 // stride, dtype=torch.float32)
    attributes = {
        "strides": [stride] * 2, "pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1],
        "groups": 20, "data_format": "NCX", "weights_format": "OIX",
        "weights_shape": [60, 1, kernel, kernel],
    }  # fmt: skip
    expected = torch_ops.convolution_backward_weights(x.double(), y.double(), **attributes)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        operands = [t.contiguous(memory_format=memory_format) for t in (x, y)]
        with torch_ops.backends.use("simd", target):
            found = torch_ops.convolution_backward_weights(*operands, **attributes)
        assert torch.equal(found, expected.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize(
    ("kernel", "stride", "plan"),
    [
        ((4, 4), 2, "overlapping windows"),
        ((5, 5), 1, "sliding windows"),
        ((1, 9), 1, "sliding windows"),
    ],
)
@every_target
def test_what_is_not_finite_does_not_reach_windows_beyond_the_ends(
    target: str,
    kernel: tuple[int, int],
    stride: int,
    plan: str,
    value: float,
    dtype: torch.dtype,
) -> None:
    padding = tuple(min(1, k - 1) for k in kernel)
    layer = last(1, CHANNELS, 10, 18, kernel=kernel, padding=padding, stride=(stride,) * 2)
    for row, column in itertools.product((0, 4, 9), (0, 5, 17)):
        x, w, y = layer.operands(dtype)
        x[0, row, column, 3] = value
        call = call_of("wgrad", x, w, y.fill_(1), layer)
        with torch_ops.backends.use("simd", target):
            assert plan in call.kernel()
            assert call.is_exact(), (row, column)


def in_bands(target: str, dtype: torch.dtype, layer: Layer) -> bool:
    """Whether results of neighbouring rows are computed together: where registers are many, unless
    all rows of taps are multiplied in pairs."""
    portable = target in ("generic512", "generic_amx")
    wide = target == "avx512" or (portable and dtype != torch.float16)
    slides = (layer.stride or (1,))[-1] == (layer.dilation or (1,))[-1]
    pairs = dtype == torch.bfloat16 and multiplies_lane_pairs(target) and layer.kernel[-2] % 2 == 0
    return wide and slides and not pairs


# Rows of taps of which the last has no partner, or none in some of a stride's phases.
ROWS_OF_TAPS = (
    last(1, CHANNELS, 9, 12, kernel=(3, 3), padding=(1, 1)),
    last(1, CHANNELS, 9, 30, kernel=(5, 7), padding=(2, 3)),
    last(1, CHANNELS, 9, 12, kernel=(2, 3), padding=(1, 1)),
    last(1, CHANNELS, 11, 12, kernel=(5, 5), padding=(2, 2), stride=(2, 3)),
    last(1, CHANNELS, 11, 12, kernel=(3, 4), padding=(2, 2), dilation=(2, 1)),
    last(2, CHANNELS, 5, 6, 17, kernel=(3, 3, 4), padding=(1, 1, 1)),
    # Transposed first.
    Layer((2, 40, 18, 14), (3, 3), (1, 1)),
)


@every_target
def test_bfloat16_is_multiplied_in_pairs(target: str) -> None:
    with torch_ops.backends.use("simd", target):
        for layer, partial in [
            *itertools.product(ROWS_OF_TAPS, ("fprop", "dgrad")),
            *itertools.product(SLIDING, ("wgrad",)),
        ]:
            call = call_of(partial, *layer.operands(torch.bfloat16), layer)
            found = call.kernel().endswith("bf16 pairs")
            bands = partial != "wgrad" and in_bands(target, torch.bfloat16, layer)
            expected = multiplies_lane_pairs(target) and not bands
            assert found == expected, (layer, partial, call.kernel())
            assert torch.equal(call.run(), call.exact()), (layer, partial)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("partial", ["fprop", "dgrad"])
@every_target
def test_what_is_not_finite_does_not_meet_taps_that_are_absent(
    target: str, partial: str, value: float
) -> None:
    for layer in ROWS_OF_TAPS:
        x, w, y = layer.operands(torch.bfloat16)
        operand = x if partial == "fprop" else y
        pixels = operand.movedim(-1 if layer.data_format == "NXC" else 1, -1)
        for at in (0, 0.5, 1):
            operand.zero_()
            pixels[tuple(int(at * (n - 1)) for n in pixels.shape)] = value
            call = call_of(partial, x, w.fill_(1), y, layer)
            with torch_ops.backends.use("simd", target):
                assert call.is_exact(), (layer, at)


# Every number of rows in a band, and of taps in a row; ends that reach into the padding, or beyond.
BANDS = (
    *(last(2, CHANNELS, 2 + n, 9, kernel=(3, 3), padding=(1, 1)) for n in range(16)),
    *(
        last(1, CHANNELS, 13, 5 + taps, kernel=(rows, taps), padding=(rows // 2, p))
        for rows in (1, 2, 3, 5)
        for taps in range(3, 12)
        for p in (0, taps // 2, taps - 1)
    ),
    *(last(1, channels, 12, 7, kernel=(3, 5), padding=(1, 2)) for channels in (16, 17, 32, 47)),
    last(1, CHANNELS, 9, 10, kernel=(3, 3), padding=(4, 5)),
    # Rows that are cut, in bands with those of other images.
    *(last(n, CHANNELS, 7, 8, kernel=(7, 7), padding=(3, 3)) for n in range(1, 9)),
    last(9, CHANNELS, 14, 6, kernel=(7, 7), padding=(3, 3)),
    last(7, CHANNELS, 6, 5, kernel=(5, 3), padding=(2, 1)),
    last(3, CHANNELS, 2, 2, kernel=(7, 7), padding=(3, 3)),
    # Rows further apart than neighbours; rows of taps too; pixels and taps both.
    last(1, CHANNELS, 20, 9, kernel=(3, 3), padding=(1, 1), stride=(2, 1)),
    last(1, CHANNELS, 20, 9, kernel=(3, 3), padding=(2, 1), dilation=(2, 1)),
    last(1, CHANNELS, 20, 9, kernel=(5, 3), padding=(2, 1), stride=(3, 1), dilation=(2, 1)),
    # More axes, the first of which may have no tap that is present.
    last(2, CHANNELS, 5, 6, 17, kernel=(3, 3, 4), padding=(1, 1, 1)),
    last(2, CHANNELS, 3, 8, 9, kernel=(2, 3, 3), padding=(3, 1, 1)),
    # Pieces of rows; pixels in pages of their own, of one part and several.
    last(1, 64, 9, 300, kernel=(3, 3), padding=(1, 1)),
    last(1, 1040, 8, 20, kernel=(3, 3), padding=(1, 1)),
    last(1, 2064, 3, 18, kernel=(3, 5), padding=(1, 2)),
)
# Of longer rows lanes are pixels.
TRANSPOSED_BANDS = tuple(
    replace(layer, data_format="NCX")
    for layer in BANDS
    if layer.extents[-1] + 2 * layer.padding[-1] < 16 + layer.kernel[-1]
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_rows_of_results_in_bands(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for layer, partial in itertools.product(BANDS + TRANSPOSED_BANDS, ("fprop", "dgrad")):
            call = call_of(partial, *layer.operands(dtype), layer)
            if not (partial == "dgrad" and layer.stride):
                found = "in bands" in call.kernel()
                assert found == in_bands(target, dtype, layer), (layer, partial, call.kernel())
            assert torch.equal(call.run(), call.exact()), (layer, partial)
            if partial == "fprop":
                bias, rank = integers(layer.extents[1], dtype=dtype), len(layer.kernel)
                per_channel = bias if layer.data_format == "NXC" else bias[(...,) + (None,) * rank]
                assert torch.equal(call.with_bias(bias).run(), call.exact() + per_channel), layer


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("partial", ["fprop", "dgrad"])
@every_target
def test_bands_leave_out_taps_that_are_absent(target: str, partial: str, value: float) -> None:
    if not in_bands(target, torch.float32, BANDS[0]):
        pytest.skip("copied with zeros where many taps are absent")
    for layer in BANDS[::7]:
        x, w, y = layer.operands(torch.float32)
        operand = x if partial == "fprop" else y
        for at in (0, 0.5, 1):
            w.fill_(value)
            operand.zero_()[tuple(int(at * (n - 1)) for n in operand.shape)] = 1
            call = call_of(partial, x, w, y, layer)
            with torch_ops.backends.use("simd", target):
                assert call.is_exact(), (layer, at)


# Windows two pixels apart along rows: every number of taps and of their rows; rows that begin and
# end at every tap, or beyond the last one; one to some windows.
SCATTERED = (
    *(
        last(2, CHANNELS, 9, 8 + taps + n, kernel=(3, taps), padding=(1, p), stride=(2, 2))
        for taps in range(3, 8)
        for p in (0, 1, taps // 2, taps - 1)
        for n in range(3)
    ),
    *(last(1, CHANNELS, 7, taps, kernel=(2, taps), stride=(1, 2)) for taps in range(3, 8)),
    *(
        last(1, CHANNELS, 11, 16, kernel=(rows, 3), padding=(rows // 2, 1), stride=(s, 2))
        for rows in (1, 2, 3, 5, 7)
        for s in (1, 2, 3)
    ),
    *(
        last(1, channels, 12, 7, kernel=(3, 5), padding=(1, 2), stride=(2, 2))
        for channels in (16, 17, 32, 47)
    ),
    last(1, CHANNELS, 20, 9, kernel=(3, 3), padding=(2, 1), stride=(1, 2), dilation=(2, 1)),
    # Windows of other axes leave rows of pixels out.
    last(1, CHANNELS, 9, 14, kernel=(2, 4), padding=(0, 1), stride=(3, 2)),
    last(2, CHANNELS, 300, kernel=(5,), padding=(2,), stride=(2,)),
    last(2, CHANNELS, 5, 6, 17, kernel=(3, 3, 4), padding=(1, 1, 1), stride=(2, 2, 2)),
    last(2, CHANNELS, 3, 8, 9, kernel=(2, 3, 3), padding=(3, 1, 1), stride=(1, 2, 2)),
    # Pieces of rows; pixels in pages of their own, of one part and several.
    last(1, 64, 9, 600, kernel=(3, 3), padding=(1, 1), stride=(2, 2)),
    last(1, 1040, 8, 40, kernel=(3, 3), padding=(1, 1), stride=(2, 2)),
    last(1, 2064, 3, 37, kernel=(3, 6), padding=(1, 2), stride=(1, 2)),
    # Transposed first, whole or in several boxes.
    Layer((2, CHANNELS, 9, 15), (3, 3), (1, 1), stride=(2, 2)),
    Layer((6, 40, 18, 30), (3, 7), (1, 3), stride=(2, 2)),
    Layer((1, 40, 9, 20, 31), (3, 3, 5), (1, 1, 2), stride=(2, 2, 2)),
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_results_window_by_window(target: str, dtype: torch.dtype) -> None:
    converts = dtype != torch.float16 or target in ("avx2", "avx512")
    with torch_ops.backends.use("simd", target):
        for layer in SCATTERED:
            call = call_of("dgrad", *layer.operands(dtype), layer)
            assert ("window by window" in call.kernel()) == converts, (layer, call.kernel())
            assert torch.equal(call.run(), call.exact()), layer


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@every_target
def test_windows_leave_out_taps_that_are_absent(target: str, value: float) -> None:
    for layer in SCATTERED[::5]:
        x, w, y = layer.operands(torch.float32)
        for at in (0, 0.5, 1):
            y.zero_()[tuple(int(at * (n - 1)) for n in y.shape)] = 1
            call = call_of("dgrad", x, w.fill_(value), y, layer)
            with torch_ops.backends.use("simd", target):
                assert call.is_exact(), (layer, at)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_what_is_read_in_place(target: str, dtype: torch.dtype) -> None:
    """Also in 16 bits, where a conversion is not repeated often (grouped_weights.cpp)."""
    whole = dtype in (torch.float32, torch.float64)
    one_instruction = dtype != torch.float16 or target in ("avx2", "avx512")
    problems = [
        *itertools.product(((3, 1, 1), (7, 1, 1), (4, 2, 1), (9, 2, 1)), (64,), PARTIALS),
        *itertools.product(((7, 1, 1),), (512,), PARTIALS),
        ((9, 1, 2), 64, "wgrad"),
        ((9, 2, 3), 64, "wgrad"),  # few windows, of which fewer meet
    ]
    for (kernel, stride, dilation), channels, partial in problems:
        layer = last(
            *(1, channels, 32, 32),
            kernel=(kernel,) * 2,
            padding=(1, 1),
            stride=(stride,) * 2,
            dilation=(dilation,) * 2,
        )
        call = call_of(partial, *layer.operands(dtype), layer)
        with torch_ops.backends.use("simd", target):
            found = "in place" in call.kernel()
        many = dilation == 2 or (channels == 512 and not target.endswith(("512", "amx")))
        expected = one_instruction and (partial != "wgrad" or not many)
        assert found == (whole or expected), (partial, kernel, stride, channels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_target
def test_what_lies_far(target: str, dtype: torch.dtype) -> None:
    """What is larger than the caches is asked for beforehand, beyond the end of the tensors too."""
    for layer in (
        last(4, 144, 80, 80, kernel=(3, 3), padding=(1, 1)),
        last(2, 128, 130, 130, kernel=(4, 4), padding=(1, 1), stride=(2, 2)),
        # In the order of memory: pixels that fall into few sets of the caches; and volumes, not.
        last(12, 512, 28, 29, kernel=(3, 3), padding=(1, 1)),
        last(20, 256, 970, kernel=(5,), padding=(2,)),
        last(1, 64, 12, 80, 82, kernel=(3, 3, 3), padding=(1, 1, 1)),
        # Copied, the next box while one is summed.
        Layer((108, 256, 14, 14), (3, 3), (1, 1)),
        Layer((40, 128, 1000), (15,), (7,)),
    ):
        operands = layer.operands(dtype)
        for partial in PARTIALS:
            call = call_of(partial, *operands, layer)
            with torch_ops.backends.use("simd", target):
                assert torch.equal(call.run(), call.exact()), (layer, partial)


@pytest.mark.parametrize(
    ("dtype", "payloads"),
    [(torch.bfloat16, range(1, 128)), (torch.float16, range(1, 1024, 31))],
    ids=str,
)
@every_target
def test_every_nan_stays_one(target: str, dtype: torch.dtype, payloads: range) -> None:
    """Rounding a sum to 16 bits makes neither infinity nor zero of it."""
    infinity = torch.tensor(torch.inf, dtype=dtype).view(torch.int16).item()
    bits = torch.tensor([[infinity + p, infinity + p - 2**15] for p in payloads])
    nans = bits.to(torch.int16).view(dtype).reshape(-1, 1, 1).expand(-1, 1, 40)
    for layer in (
        Layer((len(nans), 40, 1), (1,), (0,), data_format="NXC"),
        Layer((len(nans), 40, 1), (1,), (0,)),
    ):
        x = nans if layer.data_format == "NXC" else nans.transpose(1, 2).contiguous()
        call = call_of("fprop", x, integers(40, 1, 1, dtype=dtype).fill_(1), x, layer)
        with torch_ops.backends.use("simd", target):
            assert call.run().isnan().all()


def test_runs_of_taps_have_the_same_bits_with_any_number_of_threads() -> None:
    layer = last(3, 40, 30, 31, kernel=(5, 5), padding=(2, 2))
    x, w = (torch.randn(t.shape) for t in layer.operands(torch.float32)[:2])
    call = call_of("fprop", x, w, x, layer)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            with torch_ops.backends.use("simd"):
                results.append(call.run())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in itertools.pairwise(results))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_fewer_channels_than_lanes(target: str, dtype: torch.dtype) -> None:
    """Depthwise, from one channel to some vectors; half a vector's lanes read what lies there."""
    for channels in (*range(1, 18), 23, 24, 25, 33):
        for layer in (
            last(2, channels, 9, 21, kernel=(3, 3), padding=(1, 1)),
            last(1, channels, 13, 19, kernel=(5, 5), padding=(2, 2), stride=(2, 2)),
            last(1, channels, 40, kernel=(9,), padding=(4,)),
        ):
            operands = layer.operands(dtype)
            for partial in PARTIALS:
                call = call_of(partial, *operands, layer)
                with torch_ops.backends.use("simd", target):
                    assert call.is_exact(), (layer, partial)
                    halves = "f32 of 8 lanes" in call.kernel()
                if channels > 1 and len(layer.kernel) == 2:
                    has_halves = target == "avx512" and dtype != torch.float64
                    assert halves == (has_halves and 8 <= channels < 16), (channels, partial)
