"""The SIMD backend where windows are far apart.

All contractions phase by phase, and wgrad with taps of one channel in lanes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch
from layers import Call
from targets import every_target, integers, multiplies_pairs

import torch_ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass
class Windows:
    """Of each axis; kernel and the rest as in a convolution."""

    pixels: tuple[int, ...]  # of y
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...] | None = None
    left_over: int = 0  # positions of x that no window meets, at most
    channels: tuple[int, int] = (17, 17)
    images: int = 1
    groups: int = 1

    def call(self, partial: str, dtype: torch.dtype, data_format: str) -> Call:
        axes = len(self.kernel)
        dilation = self.dilation or (1,) * axes
        extents = [
            (y - 1) * s + (k - 1) * d + 1 - 2 * p + min(self.left_over, s - 1)
            for y, k, s, p, d in zip(
                *(self.pixels, self.kernel, self.stride, self.pad, dilation), strict=True
            )
        ]
        x_channels, y_channels = self.channels
        x = integers(self.images, self.groups * x_channels, *extents, dtype=dtype)
        y = integers(self.images, self.groups * y_channels, *self.pixels, dtype=dtype)
        w = integers(self.groups * y_channels, x_channels, *self.kernel, dtype=dtype)
        if data_format == "NXC":
            x, y = (t.movedim(1, -1).contiguous() for t in (x, y))
        attributes = {
            "strides": [*self.stride],
            "pads_begin": [*self.pad],
            "pads_end": [*self.pad],
            "dilations": [*dilation],
            "groups": self.groups,
            "data_format": data_format,
            "weights_format": "OIX",
        }
        if partial == "wgrad":
            attributes["weights_shape"] = [*w.shape]
            return Call("convolution_backward_weights", (x, y), attributes)
        if partial == "dgrad":
            attributes["src_shape"] = [*x.shape]
            return Call("convolution_backward_data", (y, w), attributes)
        bias = integers(self.groups * y_channels, dtype=dtype)
        return Call("convolution", (x, w, bias), attributes)


WGRAD = {
    "windows twice as long as apart": Windows((4, 5), (16, 16), (8, 8), (4, 4)),
    "phases of unequal taps": Windows(
        (4, 5), (19, 9), (8, 3), (5, 2), left_over=3, channels=(21, 21)
    ),
    "one window": Windows((1, 7), (24, 8), (16, 8), (3, 0), channels=(21, 21)),
    "padding beyond a stride": Windows((5, 3), (30, 9), (10, 8), (14, 4)),
    "dilated": Windows((4, 3), (15, 9), (9, 4), (6, 0), (2, 1), channels=(24, 24)),
    "dilated by a divisor": Windows((4, 3), (12, 9), (8, 4), (2, 1), (4, 1), channels=(25, 25)),
    "groups of images": Windows(
        *((3, 4), (16, 16), (8, 8), (4, 4)), channels=(16, 18), images=2, groups=2
    ),
    "planes": Windows((3, 3, 4), (12, 3, 8), (8, 2, 4), (3, 1, 2)),
    "rows of planes": Windows(
        (2, 3, 4), (2, 12, 8), (1, 8, 4), (0, 3, 2), left_over=5, channels=(21, 21)
    ),
}


# Where a row of windows meets much.
FPROP = {
    "windows twice as long as apart": Windows(
        *((3, 15), (16, 16), (8, 8), (0, 4)), channels=(72, 21)
    ),
    "phases of unequal taps": Windows(
        *((3, 40), (19, 9), (8, 3), (5, 2)), left_over=3, channels=(60, 5)
    ),
    "dilated": Windows((4, 40), (9, 8), (5, 3), (6, 0), (2, 1), channels=(128, 9)),
    "groups of images": Windows(
        *((2, 40), (12, 8), (6, 3), (3, 4)), channels=(100, 9), images=2, groups=2
    ),
    "planes": Windows((3, 3, 9), (8, 4, 8), (4, 2, 3), (3, 1, 2), channels=(100, 8)),
}


# Where a window has many results, and there are many windows.
DGRAD = {
    "windows twice as long as apart": Windows(
        *((16, 16), (32, 32), (16, 16), (8, 8)), channels=(17, 5)
    ),
    "phases of unequal taps": Windows(
        *((20, 13), (23, 20), (15, 18), (5, 2)), left_over=3, channels=(17, 5)
    ),
    "rows that few windows meet": Windows(
        *((2, 130), (41, 11), (20, 13), (20, 0)), left_over=9, channels=(18, 3)
    ),
    "groups of images": Windows(
        *((11, 12), (24, 24), (16, 16), (4, 7)), channels=(17, 5), images=2, groups=2
    ),
    "planes": Windows((4, 4, 16), (12, 3, 9), (8, 3, 9), (2, 1, 0), channels=(64, 3)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("partial", "phases"),
    [("wgrad", WGRAD), ("fprop", FPROP), ("dgrad", DGRAD)],
    ids=("wgrad", "fprop", "dgrad"),
)
@every_target
def test_phases(target: str, partial: str, phases: dict[str, Windows], dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for what, windows in phases.items():
            for data_format in ("NCX", "NXC"):
                call = windows.call(partial, dtype, data_format)
                assert torch.equal(call.run(), call.exact()), (what, data_format)
                assert "phase by phase" in call.kernel(), (what, data_format, call.kernel())


# With 16 lanes, windows of 16 taps are half a block.
TAPS = {
    "windows twice as long as apart": Windows((5, 6), (3, 32), (2, 16), (1, 9)),
    "four blocks": Windows((4, 5), (2, 128), (1, 64), (0, 30), channels=(3, 21)),
    "windows tile the row": Windows((3, 7), (2, 32), (2, 32), (0, 0), left_over=9),
    "windows apart": Windows((3, 7), (1, 32), (2, 48), (0, 7)),
    "one axis": Windows((50,), (32,), (16,), (8,), images=3),
    "dilated rows": Windows((4, 6), (3, 32), (1, 16), (2, 9), (3, 1)),
    "groups": Windows((4, 6), (3, 32), (1, 16), (2, 9), groups=2),
    "three axes, in phases": Windows((2, 3, 4), (2, 12, 32), (1, 8, 16), (0, 3, 9)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_taps_in_lanes(target: str, dtype: torch.dtype) -> None:
    pairs = dtype == torch.bfloat16 and multiplies_pairs(target)
    with torch_ops.backends.use("simd", target):
        for what, windows in TAPS.items():
            call = windows.call("wgrad", dtype, "NCX")
            assert torch.equal(call.run(), call.exact()), what
            if (target, dtype) == ("generic", torch.float64):
                continue  # its lanes are full of 17 channels
            assert ("taps of a channel in lanes" in call.kernel()) != pairs, (what, call.kernel())


def test_many_channels_are_transposed() -> None:
    """All channels of a box would be packed, and only few windows fit then."""
    with torch_ops.backends.use("simd"):
        windows = Windows((6, 6), (16, 32), (8, 16), (4, 9), channels=(96, 21))
        call = windows.call("wgrad", torch.float32, "NCX")
        assert "taps of a channel in lanes" not in call.kernel()
        assert torch.equal(call.run(), call.exact())


@every_target
def test_bias_of_dgrad(target: str) -> None:
    with torch_ops.backends.use("simd", target):
        y, w = integers(1, 5, 16, 16), integers(5, 17, 32, 32)
        bias = integers(17)
        attributes = {
            "strides": [16, 16], "pads_begin": [8, 8], "pads_end": [8, 8], "dilations": [1, 1],
            "data_format": "NCX", "weights_format": "IOX",
        }  # fmt: skip
        assert "phase by phase" in Call("conv_transpose", (y, w), attributes).kernel()
        expected = torch_ops.conv_transpose(y, w, **attributes) + bias[:, None, None]
        assert torch.equal(torch_ops.conv_transpose(y, w, bias, **attributes), expected)


def test_windows_that_tile_rows_are_phases_of_dgrad_channels_first() -> None:
    with torch_ops.backends.use("simd"):
        windows = Windows((16, 16), (16, 16), (16, 16), (0, 0), channels=(20, 5))
        for data_format, phases in (("NCX", True), ("NXC", False)):
            call = windows.call("dgrad", torch.float32, data_format)
            assert ("phase by phase" in call.kernel()) == phases
            assert torch.equal(call.run(), call.exact())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_results_that_no_tap_reaches(target: str, dtype: torch.dtype) -> None:
    """Zeros, or the bias, also where memory held something else before."""
    with torch_ops.backends.use("simd", target):
        for channels, kernel, stride, groups in itertools.product(
            (5, 16, 40), (1, 2), (3, 4), (1, 2)
        ):
            y = integers(2, 6, 7, 9 * groups, dtype=dtype)
            w = integers(kernel, kernel, channels, 9 * groups, dtype=dtype)
            attributes = {
                "strides": [stride] * 2, "pads_begin": [0, 0], "pads_end": [0, 0],
                "dilations": [1, 1], "groups": groups, "data_format": "NXC",
                "weights_format": "XOI", "output_padding": [stride - 1] * 2,
            }  # fmt: skip
            images, filters = (t.double() for t in (y.movedim(-1, 1), w.permute(3, 2, 0, 1)))
            exact = torch.nn.functional.conv_transpose2d(
                images, filters, stride=stride, output_padding=stride - 1, groups=groups
            ).movedim(1, -1)
            for bias in (None, integers(channels * groups, dtype=dtype)):
                torch.full(exact.shape, float("nan"), dtype=dtype)  # the result's memory
                result = torch_ops.conv_transpose(y, w, bias, **attributes)
                expected = exact if bias is None else exact + bias.double()
                assert torch.equal(result.double(), expected)
