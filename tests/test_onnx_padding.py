"""The helpers for ONNX's padding, against the definitions of ONNX's operators, in numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import torch_ops.functional as ours

# Above the operators: once is enough.
pytestmark = pytest.mark.unforced

# extents, kernel, strides, dilations
GEOMETRIES = [
    ((4,), (3,), (2,), (1,)),
    ((5,), (4,), (3,), (1,)),
    ((3,), (2,), (4,), (1,)),
    ((4,), (3,), (1,), (3,)),
    ((4, 3), (3, 2), (2, 3), (1, 2)),
    ((2, 3, 2), (3, 1, 2), (2, 2, 1), (1, 1, 2)),
]
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)


def conv_transpose(
    x: np.ndarray,
    w: np.ndarray,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    output_padding: tuple[int, ...],
    auto_pad: str,
    pads: tuple[int, ...] | None,
    output_shape: tuple[int, ...] | None,
) -> np.ndarray:
    """ONNX's ConvTranspose: everything spread, `output_padding` zeros at the end, pads cut off."""
    rank = x.ndim - 2
    extents, kernel = x.shape[2:], w.shape[2:]
    full = [
        strides[a] * (extents[a] - 1) + output_padding[a] + (kernel[a] - 1) * dilations[a] + 1
        for a in range(rank)
    ]
    if auto_pad.startswith("SAME") and output_shape is None:
        output_shape = tuple(i * s for i, s in zip(extents, strides, strict=True))
    begins, ends = [0] * rank, [0] * rank
    if output_shape is not None:
        for a in range(rank):
            total = full[a] - output_shape[a]
            if total < 0:  # more than everything: zeros
                full[a], total = output_shape[a], 0
            half = total // 2
            begins[a], ends[a] = (
                (half, total - half) if auto_pad == "SAME_UPPER" else (total - half, half)
            )
    elif auto_pad == "NOTSET" and pads is not None:
        begins, ends = list(pads[:rank]), list(pads[rank:])
    y = np.zeros((x.shape[0], w.shape[1], *full))
    for at in itertools.product(*map(range, extents)):
        for tap in itertools.product(*map(range, kernel)):
            to = [at[a] * strides[a] + tap[a] * dilations[a] for a in range(rank)]
            here = (slice(None), slice(None), *at)
            y[(slice(None), slice(None), *to)] += x[here] @ w[(slice(None), slice(None), *tap)]
    cut = tuple(slice(begins[a], full[a] - ends[a]) for a in range(rank))
    return y[(slice(None), slice(None), *cut)]


def check(geometry, output_padding=None, auto_pad="NOTSET", pads=None, output_shape=None) -> None:
    extents, kernel, strides, dilations = geometry
    rank = len(extents)
    output_padding = output_padding or (0,) * rank
    random = np.random.default_rng(0)
    x = random.integers(-4, 5, (2, 3, *extents)).astype(float)
    w = random.integers(-4, 5, (3, 2, *kernel)).astype(float)
    expected = conv_transpose(
        x, w, strides, dilations, output_padding, auto_pad, pads, output_shape
    )
    if output_shape is not None:
        assert expected.shape[2:] == tuple(output_shape)
    padding, extra = ours.onnx_conv_transpose_pads(
        extents,
        kernel,
        strides,
        dilations,
        output_padding,
        auto_pad=auto_pad,
        pads=pads,
        output_shape=output_shape,
    )
    result = getattr(ours, f"conv_transpose{rank}d")(
        torch.from_numpy(x),
        torch.from_numpy(w),
        stride=strides,
        padding=padding,
        output_padding=extra,
        dilation=dilations,
    )
    assert torch.equal(result, torch.from_numpy(expected))


@every_geometry
@pytest.mark.parametrize("auto_pad", ["VALID", "SAME_UPPER", "SAME_LOWER"])
def test_conv_transpose_auto_pad(geometry, auto_pad: str) -> None:
    _, _, strides, dilations = geometry
    check(geometry, auto_pad=auto_pad)
    most = tuple(max(s, d) - 1 for s, d in zip(strides, dilations, strict=True))
    check(geometry, most, auto_pad)


@every_geometry
def test_conv_transpose_pads(geometry) -> None:
    rank = len(geometry[0])
    check(geometry)
    check(geometry, pads=(1, 0, 2)[:rank] + (0, 1, 1)[:rank])


@every_geometry
@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_conv_transpose_output_shape(geometry, auto_pad: str) -> None:
    """Smaller than everything, odd and even; and larger, as far as a stride allows."""
    extents, kernel, strides, dilations = geometry
    everything = [
        s * (i - 1) + (k - 1) * d + 1
        for i, k, s, d in zip(extents, kernel, strides, dilations, strict=True)
    ]
    for less in (0, 1, 2):
        shape = [max(1, o - less) for o in everything]
        check(geometry, auto_pad=auto_pad, output_shape=shape)
    more = [o + max(s, d) - 1 for o, s, d in zip(everything, strides, dilations, strict=True)]
    check(geometry, auto_pad=auto_pad, output_shape=more)


def conv_begin(extent: int, kernel: int, stride: int, dilation: int, auto_pad: str) -> int:
    """ONNX's Conv: the fewest pixels with which the output has ceil(extent / stride)."""
    window, total = (kernel - 1) * dilation + 1, 0
    while extent + total < window or (extent + total - window) // stride + 1 < -(-extent // stride):
        total += 1
    return total // 2 if auto_pad == "SAME_UPPER" else total - total // 2


@every_geometry
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_conv_auto_pad(geometry, auto_pad: str) -> None:
    _, kernel, strides, dilations = geometry
    rank = len(kernel)
    for extent in range(1, 9):
        x, w = torch.randn(1, 1, *[extent] * rank), torch.randn(1, 1, *kernel)
        pads = ours.onnx_conv_pads(x.shape[2:], kernel, strides, dilations, auto_pad=auto_pad)
        axes = zip(kernel, strides, dilations, strict=True)
        assert [pad for pad, _ in pads] == [conv_begin(extent, *axis, auto_pad) for axis in axes]
        result = getattr(ours, f"conv{rank}d")(x, w, None, strides, pads, dilations)
        assert result.shape[2:] == tuple(-(-extent // s) for s in strides)


def test_conv_pads() -> None:
    assert ours.onnx_conv_pads((5, 6), (3, 3), pads=[0, 1, 2, 3]) == ((0, 2), (1, 3))
    assert ours.onnx_conv_pads((5, 6), (3, 3)) == ((0, 0), (0, 0))
    assert ours.onnx_conv_pads((5,), (3,), pads=[1, 1], auto_pad="VALID") == ((0, 0),)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("onnx_conv_pads", {"auto_pad": "SAME"}, "auto_pad is 'SAME'; expected one of NOTSET, VAL"),
        ("onnx_conv_pads", {"pads": [1, 1]}, r"pads has 2 entries \[1, 1\]; expected 4"),
        ("onnx_conv_pads", {"kernel_size": (3,)}, "input_size has 2 entries"),
        ("onnx_conv_transpose_pads", {"output_shape": (1, 2, 3)}, "output_shape has 3 entries"),
        ("onnx_conv_transpose_pads", {"auto_pad": "same_upper"}, "auto_pad is 'same_upper'"),
    ],
)
def test_errors(function: str, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(ours, function)(**{"input_size": (5, 6), "kernel_size": (3, 3), **arguments})
