"""The SIMD backend where pairs of bfloat16 run on from one tap of a row to the next.

They do where the channels that are summed over are few and odd in number: else each tap would end
with half a pair.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from dense import problem
from layers import Call
from targets import every_target, multiplies_pairs

import torch_ops

CHANNELS = (1, 3, 5, 21, 63)  # that are summed over
JOINED = "taps joined with channels"


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("partial", ["fprop", "dgrad"])
@every_target
def test_every_row_of_taps(target: str, partial: str, data_format: str) -> None:
    """Odd and even, with every stride: rows of pairs begin with either element, or end with one."""
    with torch_ops.backends.use("simd", target):
        for channels, taps, stride in itertools.product(CHANNELS, range(1, 8), (1, 2, 3)):
            for pad in (0, 1, 2):
                call = problem(
                    *(partial, channels, (9, 37), (2, taps)),
                    stride=stride,
                    pad=pad,
                    data_format=data_format,
                )
                what = (channels, taps, stride, pad)
                assert torch.equal(call.run(), call.exact()), what
                # Channels first, other plans serve strides of up to 2.
                if partial == "fprop" and pad == 0 and (data_format == "NXC" or stride == 3):
                    joined = multiplies_pairs(target) and taps > 1
                    assert (JOINED in call.kernel()) == joined, (what, call.kernel())


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@every_target
def test_rows_of_every_kind(target: str, data_format: str) -> None:
    with torch_ops.backends.use("simd", target):
        for what, partial, channels, pixels, kernel, attributes, joined in (
            ("one axis", "fprop", 3, (301,), (7,), {}, True),
            ("three axes", "fprop", 1, (5, 6, 33), (2, 3, 3), {"pad": 1}, True),
            ("phases of three axes", "dgrad", 1, (8, 9, 34), (4, 4, 6), {"stride": 2}, True),
            ("rows that are joined", "fprop", 3, (30, 32), (2, 2), {"stride": 2}, True),
            ("an odd one", "fprop", 3, (30, 33), (3, 3), {"stride": 3}, True),
            ("groups", "fprop", 5, (9, 30), (3, 3), {"groups": 3}, True),
            ("groups of dgrad", "dgrad", 5, (9, 64), (3, 3), {"groups": 3}, True),
            ("sums that are folded", "fprop", 63, (6, 40), (1, 31), {}, True),
            ("several boxes", "fprop", 7, (40, 700), (3, 5), {}, True),
            ("windows that are apart", "fprop", 5, (9, 200), (2, 3), {"stride": 20}, True),
            ("dilated taps", "fprop", 3, (9, 40), (3, 3), {"dilation": 2}, False),
            ("an even number", "fprop", 4, (9, 40), (3, 3), {}, False),
            ("many channels", "fprop", 65, (9, 40), (3, 3), {}, False),
            ("windows of few taps", "fprop", 21, (4, 4), (3, 3), {"pad": 1}, False),
        ):
            call = problem(partial, channels, pixels, kernel, data_format=data_format, **attributes)
            assert torch.equal(call.run(), call.exact()), what
            if data_format == "NXC":  # channels first, other plans serve most of these
                expected = joined and multiplies_pairs(target)
                assert (JOINED in call.kernel()) == expected, (what, call.kernel())


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("partial", ["fprop", "dgrad"])
@every_target
def test_what_is_not_finite_does_not_reach_the_next_window(
    target: str, partial: str, value: float
) -> None:
    """Behind the last element of a window is the next pixel's first."""
    with torch_ops.backends.use("simd", target):
        for channels, taps, stride in itertools.product((1, 3), (2, 3, 5), (1, 2)):
            call = problem(partial, channels, (5, 19), (2, taps), stride=stride, data_format="NXC")
            data, w = call.operands
            w.fill_(1)
            for pixel, channel in itertools.product(range(data.shape[2]), {0, channels - 1}):
                data.zero_()
                data[1, 1, pixel, channel] = value
                assert call.is_exact(), (channels, taps, stride, pixel, channel)


@pytest.mark.parametrize("partial", ["fprop", "dgrad"])
@every_target
def test_channels_of_a_larger_tensor(target: str, partial: str) -> None:
    """All but the last of an even number: with that one a pixel's last pair would be whole."""
    with torch_ops.backends.use("simd", target):
        for channels, stride in itertools.product((1, 3, 7, 17, 33, 63), (1, 3)):
            call = problem(partial, channels, (7, 9), (3, 3), stride=stride, data_format="NXC")
            data, w = call.operands
            larger = torch.full((*data.shape[:-1], channels + 1), torch.nan, dtype=data.dtype)
            larger[..., :channels] = data
            call = Call(call.name, (larger[..., :channels], w), call.attributes)
            assert call.is_exact(), (channels, stride)
