"""The SIMD backend's one tap from many channels into few, channels last: products of rows."""

from __future__ import annotations

import pytest
import torch
from dense import problem
from targets import every_target, integers

import torch_ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
PLAN = "summed channels in lanes"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_channels_and_pixels_of_every_number(target: str, dtype: torch.dtype) -> None:
    """Vectors that end within the channels, pieces that overlap, blocks of results."""
    with torch_ops.backends.use("simd", target):
        for channels in range(16, 50):
            for partial in ("fprop", "dgrad"):
                into, pixels = channels % 7 + 1, 16 + channels * 29 % 1200
                call = problem(
                    *(partial, channels, (pixels,), (1,)),
                    into=into, data_format="NXC", dtype=dtype,
                )  # fmt: skip
                assert torch.equal(call.run(), call.exact()), (partial, channels, into, pixels)
                assert PLAN in call.kernel(), (partial, channels, into, pixels)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_layers(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for what, channels, into, pixels, groups in (
            ("planes", 20, 3, (5, 9), 1),
            ("three axes", 33, 5, (3, 4, 5), 1),
            ("groups", 18, 2, (7, 7), 3),
            ("as many channels as are summed at a time", 192, 2, (4, 4), 1),
        ):
            kernel = (1,) * len(pixels)
            call = problem(
                *("fprop", channels, pixels, kernel),
                into=into, groups=groups, data_format="NXC", dtype=dtype,
            )  # fmt: skip
            bias = integers(groups * into, dtype=dtype)
            x, w = call.operands
            found = torch_ops.convolution(x, w, bias=bias, **call.attributes)
            assert torch.equal(found, call.exact() + bias), what
            assert PLAN in call.kernel(), (what, call.kernel())


@every_target
def test_infinity_stays_in_its_pixel(target: str) -> None:
    """The last vector of a pixel's channels has lanes behind them, where the next pixel lies."""
    with torch_ops.backends.use("simd", target):
        x, w = torch.ones(1, 40, 19), torch.ones(2, 19, 1)
        x[0, 20] = torch.inf
        found = torch_ops.convolution(
            *(x, w), strides=[1], pads_begin=[0], pads_end=[0], dilations=[1],
            data_format="NXC", weights_format="OIX",
        )  # fmt: skip
        expected = torch.full((1, 40, 2), 19.0)
        expected[0, 20] = torch.inf
        assert torch.equal(found, expected)


def test_other_plans_serve_the_rest() -> None:
    """Few pixels, sums so long that they would be less exact, results that fill vectors."""
    with torch_ops.backends.use("simd"):
        for channels, into, pixels in ((64, 3, 15), (1 << 14, 1, 16), (64, 16, 64)):
            call = problem(
                *("fprop", channels, (pixels,), (1,)),
                into=into, data_format="NXC", dtype=torch.float32,
            )  # fmt: skip
            assert PLAN not in call.kernel()
            assert torch.equal(call.run(), call.exact()), (channels, into, pixels)
