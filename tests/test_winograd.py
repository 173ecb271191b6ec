"""The SIMD backend's filtering of tiles (Winograd): values, and which problems have tiles."""

from __future__ import annotations

import itertools

import pytest
import torch
from forcing import supported_targets
from targets import DTYPES, every_target, integers, wrong
from torch import Tensor

import torch_ops

# x (NCX), w (OIX), stride, pad, groups: ranks, phases, tiles that reach beyond the result,
# remainders of vectors, chunks of channels.
TILED = (
    (((2, 16, 12, 14), (16, 16, 3, 3)), 1, 1, 1),
    (((6, 20, 13, 9), (37, 20, 3, 3)), 1, 1, 1),
    (((2, 67, 30, 31), (64, 67, 2, 3)), 1, 1, 1),
    (((1, 96, 17, 33), (80, 96, 3, 2)), 1, 0, 1),
    (((4, 64, 15, 16), (36, 32, 3, 3)), 1, 0, 2),
    (((2, 18, 48, 46), (64, 18, 4, 4)), 2, 1, 1),
    (((3, 20, 53, 54), (64, 20, 6, 6)), 3, 1, 1),
    (((1, 21, 54, 55), (18, 21, 9, 9)), 3, 3, 1),
    (((2, 16, 5, 9, 8), (24, 16, 3, 3, 3)), 1, 1, 1),
    (((6, 16, 8, 16, 16), (65, 16, 4, 4, 4)), 2, 1, 1),
    (((2, 700, 15, 16), (40, 700, 3, 3)), 1, 1, 1),
)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@every_target
def test_tiles_of_winograd(target: str, dtype: torch.dtype, channels_last: bool) -> None:
    found = []
    with torch_ops.backends.use("simd", target):
        for extents, stride, pad, groups in TILED:
            found += wrong(extents, extents, stride, pad, groups, dtype, channels_last)
    assert not found


@every_target
def test_tiles_of_winograd_add_the_bias(target: str) -> None:
    with torch_ops.backends.use("simd", target):
        for groups, dtype in itertools.product((1, 3), DTYPES):
            x, w = (
                integers(2, 48, 16, 15, dtype=dtype),
                integers(51, 48 // groups, 3, 3, dtype=dtype),
            )
            bias = integers(51, dtype=dtype) + 1
            found = torch_ops.functional.conv2d(x, w, bias, padding=1, groups=groups)
            expected = torch.nn.functional.conv2d(
                *(t.double() for t in (x, w, bias)), padding=1, groups=groups
            )
            assert torch.equal(found.double(), expected)


def test_which_problems_have_tiles() -> None:
    aten = torch.ops.aten
    with torch_ops.backends.use("simd", supported_targets()[0]):
        for (x_shape, w_shape), stride, pad, groups in TILED:
            axes = len(x_shape) - 2
            x, w = torch.empty(x_shape), torch.empty(w_shape)
            rest = ([stride] * axes, [pad] * axes, [1] * axes, False, [0] * axes, groups)
            y = aten.convolution(x, w, None, *rest)
            reports = [torch_ops.backends.explain(aten.convolution, x, w, None, *rest)]
            for mask in ([True, False, False], [False, True, False]):
                reports.append(
                    torch_ops.backends.explain(
                        aten.convolution_backward, y, x, w, None, *rest, mask
                    )
                )
            for report in reports:
                assert "Winograd" in report.kernel, (x_shape, report.kernel)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@every_target
def test_tiles_of_winograd_with_dilation(target: str, dtype: torch.dtype) -> None:
    """With 16 lanes the other plans are as fast for few tiles that are apart, but for wgrad."""
    aten = torch.ops.aten
    many = (2, 17, 66, 65)
    for x_shape, w_shape, dilation in (
        (many, (33, 17, 3, 3), [2, 2]),
        ((2, 17, 30, 31), (33, 17, 3, 3), [2, 2]),
        ((1, 80, 29, 41), (72, 80, 3, 3), [4, 1]),
        ((1, 80, 29, 41), (72, 80, 3, 3), [3, 1]),  # weights gradients alone
        ((1, 96, 37, 33), (80, 96, 3, 2), [2, 4]),
    ):
        x, w = integers(*x_shape, dtype=dtype), integers(*w_shape, dtype=dtype)
        for transposed in (False, True):
            weights = w.transpose(0, 1) if transposed else w
            rest = ([1, 1], [1, 2], dilation, transposed, [0, 0], 1)
            expected = aten.convolution(x.double(), weights.double(), None, *rest)
            y, wanted = integers(*expected.shape, dtype=dtype), [False, True, False]
            wgrad = (aten.convolution_backward, y, x, weights, None, *rest, wanted)
            with torch_ops.backends.use("simd", target), torch_ops.enabled():
                for call in ((aten.convolution, x, weights, None, *rest), wgrad):
                    kernel = torch_ops.backends.explain(*call).kernel
                    few = x_shape != many and target in ("avx512", "generic512", "generic_amx")
                    direct = call is not wgrad and (few or 3 in dilation)
                    assert ("Winograd" in kernel) != direct
                found = aten.convolution(x, weights, None, *rest)
                found_wgrad = wgrad[0](*wgrad[1:])[1]
            assert torch.equal(found.double(), expected)
            doubles = [t.double() for t in (y, x, weights)]
            expected_wgrad = aten.convolution_backward(*doubles, None, *rest, wanted)[1]
            assert torch.equal(found_wgrad.double(), expected_wgrad.to(dtype).double())


def test_tiles_far_apart_of_many_channels_are_the_direct_methods() -> None:
    def kernel(target: str, channels: int, taps: int, stride: int, dilation: int) -> str:
        x, w = torch.empty(2, channels, 64, 64), torch.empty(64, channels, taps, taps)
        rest = ([stride] * 2, [dilation] * 2, [dilation] * 2, False, [0, 0], 1)
        with torch_ops.backends.use("simd", target), torch_ops.enabled():
            return torch_ops.backends.explain(torch.ops.aten.convolution, x, w, None, *rest).kernel

    for target in ("generic", "generic512"):
        for channels, *far in ((256, 4, 2, 1), (256, 3, 1, 2)):
            assert "Winograd" in kernel(target, channels, *far)
            assert "Winograd" not in kernel(target, channels + 16, *far)
        assert "Winograd" not in kernel(target, 64, 3, 1, 3)
    assert "Winograd" in kernel("generic", 64, 3, 1, 4)
    assert "Winograd" not in kernel("generic", 80, 3, 1, 4)
    assert "Winograd" not in kernel("generic512", 16, 3, 1, 4)

    def weights_kernel(channels: int, results: int, extent: int) -> str:
        x, y = (torch.empty(1, c, extent, extent) for c in (channels, results))
        attributes = {
            "strides": [1, 1], "dilations": [4, 4], "pads_begin": [4, 4], "pads_end": [4, 4],
            "weights_shape": [results, channels, 3, 3], "data_format": "NCX",
            "weights_format": "OIX",
        }  # fmt: skip
        with torch_ops.backends.use("simd"):
            name = "convolution_backward_weights"
            return torch_ops.backends.explain(name, x, y, **attributes).kernel

    for shape in ((128, 64, 64), (72, 72, 32)):
        assert "Winograd" in weights_kernel(*shape)
    for shape in ((256, 64, 64), (64, 72, 32)):
        assert "Winograd" not in weights_kernel(*shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@every_target
def test_tiles_of_winograd_of_slices(target: str, dtype: torch.dtype) -> None:
    """Per-sample gradients, of one image and of two; an infinity stays in its own slice."""
    for images, channels in ((1, 36), (2, 130)):
        x, y = integers(3, images, 17, 31, 30, dtype=dtype), integers(3, images, channels, 31, 30)
        y = y.to(dtype)
        plan = torch_ops.backends.explain(
            "_convolution_backward_weights_of_slices", x.flatten(0, 1), y.flatten(0, 1),
            strides=[1, 1], dilations=[1, 1], pads_begin=[1, 1], pads_end=[1, 1],
            weights_shape=[3, channels, 17, 3, 3],
            data_format="NCX", weights_format="OIX",
        )  # fmt: skip
        x[1, 0, 3, 7, 8] = torch.inf

        def gradient(x: Tensor, y: Tensor, channels: int = channels) -> Tensor:
            return torch_ops.functional.conv2d_weight(x, (channels, 17, 3, 3), y, padding=1)

        with torch_ops.backends.use("simd", target):
            found = torch.vmap(gradient)(x, y)
        with torch_ops.backends.use("reference"):
            expected = torch.stack([gradient(*both) for both in zip(x, y, strict=True)])
        assert "Winograd, slices" in plan.kernel, plan
        assert torch.equal(found.nan_to_num(nan=7), expected.nan_to_num(nan=7))


@pytest.mark.parametrize(
    ("dtype", "held"),
    [
        (torch.float32, torch.float32),
        (torch.float16, torch.float16),
        (torch.float16, torch.float32),
    ],
    ids=str,
)
@every_target
def test_tiles_of_winograd_are_added(target: str, dtype: torch.dtype, held: torch.dtype) -> None:
    """To what memory holds; what is not finite is computed twice, but not added twice."""
    attributes = {
        "strides": [1, 1], "dilations": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1],
        "data_format": "NCX", "weights_format": "OIX",
    }  # fmt: skip
    add = torch_ops.convolution_backward_weights_add_
    for channels, tiled in ((40, True), (1300, False)):  # of more than 4 MB as float32
        x, y = integers(2, 100, 31, 30, dtype=dtype), integers(2, channels, 31, 30, dtype=dtype)
        for value in (0.0, torch.inf):
            x[1, 3, 7, 8] = value
            memory = integers(channels, 100, 3, 3, dtype=held)
            expected = memory.double()
            with torch_ops.backends.use("reference"):
                add(expected, x.double(), y.double(), **attributes)
            with torch_ops.backends.use("simd", target):
                plan = torch_ops.backends.explain(add.__name__, memory, x, y, **attributes)
                assert ("Winograd" in plan.kernel) == tiled, plan
                add(memory, x, y, **attributes)
            found = memory.double().nan_to_num(nan=7, posinf=8, neginf=9)
            assert torch.equal(found, expected.nan_to_num(nan=7, posinf=8, neginf=9))


@pytest.mark.parametrize(
    ("wanted", "spoilt"), [("fprop", "x"), ("fprop", "w"), ("dgrad", "y"), ("wgrad", "x")]
)
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3e38])
@every_target
def test_tiles_of_winograd_keep_what_is_not_finite_apart(
    target: str, value: float, wanted: str, spoilt: str
) -> None:
    """Or overflows in a transform alone: results are those of windows, as torch's are."""
    aten = torch.ops.aten
    # Whether torch multiplies the padding's zeros by the weights depends on the batch.
    pad = 0 if spoilt == "w" else 1
    x, w, y = integers(2, 16, 16, 17), torch.ones(16, 16, 3, 3), torch.ones(2, 16, 16, 17)
    if spoilt == "w":
        w[5, 2, 1, 2] = value
    else:
        (x if spoilt == "x" else y)[0, 3, 7, 8] = value
    rest = ([1, 1], [pad, pad], [1, 1], False, [0, 0], 1)
    mask = [wanted == "dgrad", wanted == "wgrad", False]
    call = (aten.convolution, x, w, None, *rest)
    if wanted != "fprop":
        call = (aten.convolution_backward, y, x, w, None, *rest, mask)

    def run() -> Tensor:
        results = call[0](*call[1:])
        return results if wanted == "fprop" else results[mask.index(True)]

    expected = run()
    with torch_ops.backends.use("simd", target), torch_ops.enabled():
        assert "Winograd" in torch_ops.backends.explain(*call).kernel
        found = run()
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-6, atol=0)
