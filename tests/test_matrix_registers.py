"""The SIMD backend's tiles of bfloat16 pairs in matrix registers: AMX's, and portable code's."""

from __future__ import annotations

import itertools

import pytest
import torch
from dense import problem
from targets import matrix_targets, wrong

from torch_ops import backends

matrix_target = pytest.mark.parametrize(
    "target", [pytest.param(target, marks=pytest.mark.unforced) for target in matrix_targets()]
)
# Around the steps, pairs and vectors of a multiplication, and the rows of two.
COUNTS = (1, 2, 3, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 96, 127, 130)


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("partial", ["fprop", "dgrad"])
@matrix_target
def test_every_number_of_channels(target: str, partial: str, data_format: str) -> None:
    with backends.use("simd", target):
        for channels, into in itertools.product(COUNTS, COUNTS):
            call = problem(
                partial, channels, (7, 9), (3, 3), into=into, pad=1, data_format=data_format
            )
            assert torch.equal(call.run(), call.exact()), (channels, into, call.kernel())


@pytest.mark.parametrize("channels_last", [False, True])
@matrix_target
def test_weights_gradients_of_every_number_of_channels(target: str, channels_last: bool) -> None:
    with backends.use("simd", target):
        for x_channels, y_channels in itertools.product(COUNTS, (1, 16, 33, 64, 67)):
            for kernel, stride in ((3, 1), (2, 2), (1, 1)):
                extents = (
                    (2, x_channels, 9, 11),
                    (y_channels, x_channels, kernel, kernel),
                )
                bad = wrong(target, extents, stride, kernel // 2, 1, torch.bfloat16, channels_last)
                assert not bad, (x_channels, y_channels, kernel)


@pytest.mark.parametrize("pixels", [(5,), (17,), (40,), (3, 50), (2, 3, 33)])
@matrix_target
def test_every_number_of_pixels(target: str, pixels: tuple[int, ...]) -> None:
    """Rows of a tile end with those of the image, or lie on two of them."""
    with backends.use("simd", target):
        for channels, stride in itertools.product((32, 130), (1, 2)):
            for row in range(pixels[-1], pixels[-1] + 17):
                call = problem(
                    "fprop",
                    channels,
                    (*pixels[:-1], row),
                    (1,) * (len(pixels) - 1) + (3,),
                    into=64,
                    stride=stride,
                    data_format="NXC",
                )
                assert torch.equal(call.run(), call.exact()), (channels, stride, row)
                assert "matrix registers" in call.kernel()


@matrix_target
def test_sums_that_are_folded(target: str) -> None:
    with backends.use("simd", target):
        for channels in (2047, 2048, 4100, 7000):
            call = problem("fprop", channels, (3, 5), (1, 1), into=40, data_format="NXC")
            assert torch.equal(call.run(), call.exact()), channels


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("partial", ["fprop", "dgrad"])
@matrix_target
def test_what_is_not_finite_stays_with_its_channels(
    target: str, partial: str, value: float
) -> None:
    """Behind the last step of some channels' weights lie those of the next ones."""
    with backends.use("simd", target):
        for channels, into in ((24, 200), (6, 96), (40, 130)):
            call = problem(partial, channels, (9, 21), (3, 3), into=into, data_format="NXC")
            weights = call.operands[1]
            results = weights if partial == "fprop" else weights.transpose(0, 1)
            results[1::2] = value
            found, expected = call.run()[..., ::2], call.exact()[..., ::2]
            assert torch.equal(found, expected), (channels, into)
