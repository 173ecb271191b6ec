"""The SIMD backend where lanes are pixels or taps of one channel: depthwise, channels first."""

from __future__ import annotations

import itertools

import pytest
import torch
from layers import PARTIALS, Call, Layer, call_of
from targets import every_target, integers

import torch_ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


# So few channels that lanes of any width would be mostly empty, if they were channels.
PIXELS = (
    Layer((2, 2, 9, 16), (3, 3), (1, 1)),
    Layer((1, 2, 11, 41), (5, 4), (0, 2)),
    Layer((2, 2, 6, 39), (2, 9), (2, 8)),
    Layer((1, 2, 5, 64), (1, 7), (0, 3)),
    Layer((1, 2, 30, 17), (13, 1), (6, 0)),
    Layer((3, 2, 4, 50), (3, 3), (0, 0), dilation=(1, 4)),
    Layer((2, 2, 170), (31,), (15,)),
    Layer((1, 2, 20000), (3,), (0,)),
    Layer((1, 2, 70, 1300), (3, 3), (1, 1)),
    Layer((1, 2, 6, 7, 33), (3, 3, 3), (1, 1, 1)),
    Layer((2, 2, 7, 4, 18), (2, 2, 5), (1, 0, 2), dilation=(3, 1, 1)),
)
# The pixels of a row are dealt to two halves where its stride is 2.
STRIDES = (
    *(Layer((1, 2, 7, 40 + n), (4, 4), (1, p), stride=(2, 2)) for n in range(3) for p in range(4)),
    *(Layer((2, 2, 12, 50 + k), (5, k), (2, k // 2), stride=(1, 2)) for k in (2, 3, 5, 8, 11)),
    Layer((1, 2, 9, 60), (3, 4), (1, 5), stride=(2, 2), dilation=(1, 3)),
    Layer((1, 2, 9, 47), (3, 4), (1, 3), stride=(3, 2), dilation=(1, 2)),
    Layer((1, 2, 500), (5,), (2,), stride=(2,)),
    Layer((1, 2, 9, 13, 45), (4, 4, 4), (1, 1, 1), stride=(2, 2, 2)),
    Layer((2, 2, 25, 33), (3, 3), (1, 1), stride=(2, 1)),
    Layer((1, 2, 26, 40), (7, 5), (3, 2), stride=(3, 1)),
    Layer((1, 2, 9, 13, 29), (4, 5, 3), (1, 2, 1), stride=(2, 3, 1)),
)
TAPS = (
    Layer((2, 2, 140, 145), (16, 16), (4, 4), stride=(8, 8)),
    Layer((1, 2, 30, 620), (10, 48), (3, 20), stride=(8, 32)),
    Layer((1, 2, 13, 300), (5, 16), (2, 0), stride=(2, 16)),
    Layer((1, 2, 11, 6, 200), (3, 2, 16), (1, 0, 7), stride=(3, 2, 8)),
    Layer((3, 2, 700), (64,), (13,), stride=(16,)),
)
# dgrad, whose rows are dealt to as many parts as the stride.
PHASES = (
    *(
        Layer((1, 2, 3 * s + n, 25 * s + n), (2 * s, s + n), (n, s // 2 + n), stride=(s, s))
        for s in range(2, 9)
        for n in range(min(s, 4))
    ),
    *(Layer((2, 2, 9, 16 * s + 1), (4, 3 * s), (1, p), stride=(2, s)) for s, p in ((2, 5), (3, 0))),
    Layer((1, 2, 12, 125), (3, 5), (1, 2), stride=(3, 2)),
    Layer((1, 2, 11, 100), (4, 6), (0, 6), stride=(1, 3)),
    Layer((1, 2, 25, 33), (4, 3), (1, 1), stride=(2, 1)),
    Layer((1, 2, 6, 5, 40), (3, 3, 2), (1, 1, 0), stride=(3, 1, 1)),
    Layer((1, 2, 3, 60), (7, 2), (3, 0), stride=(5, 2)),
    Layer((1, 2, 5, 7, 98), (4, 2, 8), (1, 0, 3), stride=(2, 2, 4)),
    Layer((1, 2, 8, 3, 61), (3, 3, 5), (1, 1, 2), stride=(2, 1, 2)),
    Layer((2, 2, 500), (16,), (4,), stride=(8,)),
    Layer((1, 2, 40001), (4,), (1,), stride=(2,)),
    Layer((1, 2, 100, 3000), (4, 4), (1, 1), stride=(2, 2)),
)
CASES = [
    *itertools.product(PIXELS, PARTIALS),
    *itertools.product(STRIDES + TAPS, ("fprop", "wgrad")),
    *itertools.product(PHASES, ("dgrad",)),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_values(target: str, dtype: torch.dtype) -> None:
    for layer, partial in CASES:
        call = call_of(partial, *layer.operands(dtype), layer)
        lanes = "taps of a channel in lanes" if layer in TAPS else "pixels of a channel in lanes"
        lanes += ", phases in turn" if layer in PHASES else ""
        with torch_ops.backends.use("simd", target):
            if (target, dtype) != ("generic", torch.float64):  # 2 lanes are few channels enough
                assert lanes in call.kernel(), (layer, call.kernel())
            assert torch.equal(call.run(), call.exact()), (layer, partial)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_every_width_and_number_of_taps(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for width in range(16, 52):
            rows, taps = 1 + width % 6, 1 + width * 5 % 11
            layer = Layer((1, 2, rows + 3, width + taps), (rows, taps), (rows - 1, 0))
            operands = layer.operands(dtype)
            for partial in PARTIALS:
                call = call_of(partial, *operands, layer)
                assert torch.equal(call.run(), call.exact()), (layer, partial)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_every_number_of_rows(target: str, dtype: torch.dtype) -> None:
    """That are computed together, with as many rows of taps as taps and with others."""
    with torch_ops.backends.use("simd", target):
        for height, k in itertools.product(range(1, 14), range(2, 8)):
            width = 16 * (1 + (height + k) % 9) + height
            for kernel, more in (((k, k), 0), ((k, 3), 1)):
                layer = Layer((1, 2, height + k - 1, width + more), kernel, (0, kernel[1] // 2))
                operands = layer.operands(dtype)
                for partial in ("fprop", "dgrad"):
                    call = call_of(partial, *operands, layer)
                    assert torch.equal(call.run(), call.exact()), (layer, partial)
        volume = Layer((1, 2, 5, 9, 40), (2, 4, 4), (1, 2, 2))
        call = call_of("fprop", *volume.operands(dtype), volume)
        assert torch.equal(call.run(), call.exact())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_target
def test_many_channels(target: str, dtype: torch.dtype) -> None:
    """Blocks of channels, the last of fewer; bias; both parts of a result that is wide."""
    for layer in (
        Layer((2, 37, 45, 45), (5, 5), (2, 2)),
        Layer((1, 40, 40, 56), (5, 5), (2, 2), stride=(2, 2)),
        Layer((1, 21, 130, 131), (16, 16), (4, 4), stride=(8, 8)),
    ):
        x, w, y = layer.operands(dtype)
        bias = integers(x.shape[1], dtype=dtype)
        call = call_of("fprop", x, w, y, layer)
        with torch_ops.backends.use("simd", target):
            wgrad = call_of("wgrad", x, w, y, layer)
            assert torch.equal(wgrad.run(), wgrad.exact())
            found = torch_ops.convolution(x, w, bias=bias, **call.attributes)
        assert torch.equal(found, call.exact() + bias[:, None, None])

    x, w = integers(2, 21, 16, 17, dtype=dtype), integers(21, 1, 16, 16, dtype=dtype)
    bias = integers(21, dtype=dtype)
    attributes = Layer((2, 21, 1, 1), (16, 16), (4, 4), stride=(8, 8)).attributes()
    transposed = Call("conv_transpose", (x, w), attributes | {"weights_format": "IOX"})
    with torch_ops.backends.use("simd", target):
        assert "phases in turn" in transposed.kernel()
        found = transposed.with_bias(bias).run()
    assert torch.equal(found, transposed.exact() + bias[:, None, None])


@pytest.mark.parametrize("gap", [3, 200])
@every_target
def test_large_images_with_gaps(target: str, gap: int) -> None:
    """The next channel is asked for beforehand, but not gaps; rows of y may be one row."""
    layer = Layer((1, 2, 1200, 1000), (3, 3), (1, 1))
    memory = integers(2, 1200, 1000 * (1 + gap // 100) + gap, dtype=torch.float32)
    x = memory[None, ..., gap : 1000 + gap]
    w = integers(2, 1, 3, 3, dtype=torch.float32)
    y = integers(1, 2, 1, 1000, dtype=torch.float32).expand(layer.extents)
    with torch_ops.backends.use("simd", target):
        for partial in PARTIALS:
            call = call_of(partial, x, w, y, layer)
            assert "of a channel in lanes" in call.kernel()
            assert torch.equal(call.run(), call.exact()), partial


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@every_target
def test_what_is_not_finite_reaches_its_own_results_alone(target: str, value: float) -> None:
    """Wherever it lies in a row: vectors end behind the row, buffers hold what was there before."""
    for layer in (
        Layer((1, 2, 4, 21), (3, 3), (0, 0)),
        Layer((1, 2, 4, 19), (2, 5), (1, 2)),
        Layer((1, 2, 26, 157), (16, 16), (0, 0), stride=(8, 8)),
        Layer((1, 2, 9, 57), (4, 4), (0, 0), stride=(2, 2)),
        Layer((1, 2, 7, 75), (3, 5), (0, 1), stride=(2, 2)),
    ):
        for partial, place in itertools.product(PARTIALS, (0, 5, -3, -1)):
            x, w, y = layer.operands(torch.float32)
            # Zeros of the padding times infinity are NaN in some ways to sum, absent in others.
            (y if partial == "dgrad" else x)[0, 1, 1, place] = value
            call = call_of(partial, x, w.fill_(1), y, layer)
            with torch_ops.backends.use("simd", target):
                assert "of a channel in lanes" in call.kernel()
                assert call.is_exact(), (layer, partial, place)


@every_target
def test_which_windows_are_too_large(target: str) -> None:
    """What one window meets is held at once; here another plan serves, with the same values."""
    layer = Layer((1, 2, 150, 400), (150, 3), (0, 0), dilation=(1, 100))
    call = call_of("fprop", *layer.operands(torch.float32), layer)
    with torch_ops.backends.use("simd", target):
        assert "of a channel in lanes" not in call.kernel()
        assert torch.equal(call.run(), call.exact())
