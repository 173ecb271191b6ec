"""The SIMD backend where lanes are the phases of a row and the channels of the result: dgrad of
windows that are whole strides long, channels last.
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
PLAN = "phases of a row in lanes"


def dgrad(into: int, pixels: tuple[int, ...], kernel: tuple[int, ...], **of) -> Call:
    of = {"channels": 5, "data_format": "NXC", "weights_format": "XIO"} | of
    return problem("dgrad", of.pop("channels"), pixels, kernel, into=into, **of)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_windows_of_every_kind(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for what, into, pixels, kernel, attributes in (
            ("results beside whole strides", 18, (12, 48), (4, 4), {"stride": 2, "pad": 1}),
            ("strides alone", 18, (12, 48), (4, 4), {"stride": 2}),
            ("windows that tile rows", 21, (8, 40), (4, 4), {"stride": 4}),
            ("windows that tile rows, with padding", 21, (8, 40), (4, 4), {"stride": 4, "pad": 2}),
            ("a part of the last window", 18, (9, 49), (4, 4), {"stride": 2, "pad": 1}),
            ("three strides long", 18, (13, 51), (6, 6), {"stride": 2, "pad": 2}),
            ("eight phases", 21, (20, 112), (16, 16), {"stride": 8, "pad": 4}),
            ("padding of several strides", 18, (12, 44), (6, 6), {"stride": 2, "pad": 5}),
            ("padding beyond the window", 18, (8, 40), (4, 4), {"stride": 2, "pad": 7}),
            ("rows of other strides", 18, (12, 48), (3, 4), {"stride": (1, 2), "pad": 1}),
            ("several parts of lanes", 34, (6, 60), (8, 8), {"stride": 4, "pad": 2}),
            ("sums that are folded", 34, (6, 40), (4, 4), {"stride": 2, "channels": 301}),
            ("one axis", 18, (500,), (8,), {"stride": 4, "pad": 2}),
            ("three axes", 18, (4, 5, 40), (2, 3, 4), {"stride": (2, 1, 2), "pad": 1}),
            ("no phase of some rows", 18, (13, 48), (2, 4), {"stride": (3, 2), "pad": 1}),
        ):
            call = dgrad(into, pixels, kernel, dtype=dtype, **attributes)
            assert torch.equal(call.run(), call.exact()), what
            if dtype != torch.float64:  # other lanes
                assert PLAN in call.kernel(), (what, call.kernel())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_target
def test_every_number_of_channels_and_pixels(target: str, dtype: torch.dtype) -> None:
    served = 0
    with torch_ops.backends.use("simd", target):
        for into, (kernel, stride) in itertools.product(
            (8, 9, 10, 12, 15, 17, 19, 21, 25, 33, 50), ((2, 2), (4, 2), (6, 3), (5, 5))
        ):
            row = 12 * stride + into % (2 * stride) + kernel
            call = dgrad(
                *(into, (kernel + 1, row), (kernel, kernel)), stride=stride, pad=into % kernel,
                channels=1 + into % 5, dtype=dtype,
            )  # fmt: skip
            assert torch.equal(call.run(), call.exact()), (into, kernel, stride)
            served += PLAN in call.kernel()
    assert served > 10


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_bias(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for kernel, pad in (((4, 4), 1), ((2, 2), 0), ((6, 6), 3)):
            y, w = integers(2, 6, 20, 3, dtype=dtype), integers(*kernel, 18, 3, dtype=dtype)
            pads, bias = [pad, pad], integers(18, dtype=dtype)
            attributes = {
                "strides": [2, 2], "pads_begin": pads, "pads_end": pads, "dilations": [1, 1],
                "data_format": "NXC", "weights_format": "XOI",
            }  # fmt: skip
            biased = attributes | {"bias": bias}
            plan = torch_ops.backends.explain("conv_transpose", y, w, **biased).kernel
            assert PLAN in plan or dtype == torch.float64
            alone = torch_ops.conv_transpose(y, w, **attributes)
            assert torch.equal(torch_ops.conv_transpose(y, w, **biased), alone + bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_target
def test_other_weights_and_tensors(target: str, dtype: torch.dtype) -> None:
    """Taps that do not follow their channels, dilations and groups have other plans."""
    of = {"stride": 2, "pad": 1, "dtype": dtype}
    with torch_ops.backends.use("simd", target):
        for what, call in (
            ("taps inside", dgrad(18, (12, 48), (4, 4), weights_format="OIX", **of)),
            ("dilation", dgrad(18, (12, 48), (4, 4), dilation=3, **of)),
            ("groups", dgrad(18, (12, 48), (4, 4), groups=2, **of)),
            ("an odd window", dgrad(18, (12, 48), (3, 3), **of)),
            ("channels first", dgrad(18, (12, 48), (4, 4), data_format="NCX", **of)),
        ):
            assert PLAN not in call.kernel(), what
            assert torch.equal(call.run(), call.exact()), what
        call = dgrad(18, (12, 48), (4, 4), **of)
        strides = ((1, 2, 3, 1), (0, 0, 0, 1), (9000, 900, 97, 1), (1, 1, 1, 31))
        call.assert_exact_of(integers(30000, dtype=dtype), PLAN, *strides)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@every_target
def test_what_is_not_finite_reaches_its_own_results_alone(target: str, value: float) -> None:
    with torch_ops.backends.use("simd", target):
        for kernel, stride, pad in ((4, 2, 1), (2, 2, 0), (6, 3, 2)):
            call = dgrad(
                18, (12, 48), (kernel, kernel), stride=stride, pad=pad, dtype=torch.float32
            )
            assert PLAN in call.kernel()
            y, w = call.operands
            w.fill_(1)
            for pixel in (0, 1, y.shape[2] // 2, y.shape[2] - 1):
                y.zero_()
                y[1, 1, pixel, 2] = value
                assert call.is_exact(), (kernel, pixel)
