"""`same` and `valid` of transposed convolutions against TensorFlow's definition, in numpy.

TensorFlow's conv_transpose is the gradient of its convolution with respect to an input whose size
is given, `output_shape`: each pixel of the transposed convolution's input is spread over the
window from which the convolution would have computed it. Keras chooses the `output_shape`.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import torch_ops.functional as ours
import torch_ops.nn

# Above the operators: once is enough.
pytestmark = pytest.mark.unforced


def forward_size(size: int, window: int, stride: int, padding: str) -> int:
    """Extent of the convolution's output: https://www.tensorflow.org/api_docs/python/tf/nn."""
    if padding == "same":
        return -(-size // stride)
    return -(-(size - window + 1) // stride)


def forward_begin(size: int, window: int, stride: int, padding: str) -> int:
    """Pixels that the convolution pads before its input."""
    if padding == "valid":
        return 0
    # TensorFlow's notes on padding, with the remainder.
    total = max(window - stride, 0) if size % stride == 0 else max(window - size % stride, 0)
    return total // 2


def conv_transpose(
    src: np.ndarray,
    weights: np.ndarray,
    size: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: str,
) -> np.ndarray:
    """src (N, spatial..., IC), weights (spatial..., OC, IC): TensorFlow's layouts."""
    kernel, extents = weights.shape[:-2], src.shape[1:-1]
    windows = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    axes = list(zip(size, windows, strides, strict=True))
    assert extents == tuple(forward_size(*axis, padding) for axis in axes)
    begins = [forward_begin(*axis, padding) for axis in axes]
    dst = np.zeros((len(src), *size, weights.shape[-2]))
    for at in itertools.product(*map(range, extents)):
        for tap in itertools.product(*map(range, kernel)):
            to = [
                i * s - begin + k * d
                for i, s, begin, k, d in zip(at, strides, begins, tap, dilations, strict=True)
            ]
            if all(0 <= t < o for t, o in zip(to, size, strict=True)):
                dst[(slice(None), *to)] += src[(slice(None), *at)] @ weights[tap].T
    return dst


def keras_size(extent: int, window: int, stride: int, padding: str) -> int:
    """`deconv_output_length` of Keras without output_padding."""
    return extent * stride if padding == "same" else extent * stride + max(window - stride, 0)


CASES = [
    # extents, kernel, strides, dilations
    ((4,), (3,), (2,), (1,)),
    ((4,), (4,), (2,), (1,)),
    ((3,), (5,), (2,), (1,)),
    ((4,), (2,), (3,), (1,)),
    ((4,), (1,), (3,), (1,)),
    ((5,), (3,), (1,), (1,)),
    ((5,), (4,), (1,), (1,)),
    ((3,), (3,), (2,), (2,)),
    ((4, 3), (3, 2), (2, 3), (1, 1)),
    ((2, 3), (5, 1), (2, 1), (1, 2)),
    ((2, 3, 2), (3, 2, 4), (2, 3, 1), (1, 1, 1)),
]


def sizes(case, padding: str) -> list[tuple[int, ...] | None]:
    """None for Keras's own, and every size that the convolution maps to the same extents."""
    extents, kernel, strides, dilations = case
    per_axis = []
    for extent, k, s, d in zip(extents, kernel, strides, dilations, strict=True):
        window = (k - 1) * d + 1
        per_axis.append(
            [o for o in range(1, 40) if o >= (window if padding == "valid" else 1)
             and forward_size(o, window, s, padding) == extent]
        )  # fmt: skip
    return [None, *itertools.product(*per_axis)]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_values_and_shapes(case, padding: str) -> None:
    extents, kernel, strides, dilations = case
    rank = len(extents)
    random = np.random.default_rng(0)
    src = random.integers(-4, 5, (2, *extents, 3)).astype(float)
    weights = random.integers(-4, 5, (*kernel, 2, 3)).astype(float)
    keras = tuple(
        keras_size(i, (k - 1) * d + 1, s, padding)
        for i, k, s, d in zip(extents, kernel, strides, dilations, strict=True)
    )
    in_torch_s_order = torch.from_numpy(weights).permute(-1, -2, *range(rank))
    function = getattr(ours, f"conv_transpose{rank}d")
    for size in sizes(case, padding):
        expected = torch.from_numpy(
            conv_transpose(src, weights, size or keras, strides, dilations, padding)
        )
        attributes = {"stride": strides, "dilation": dilations, "padding": padding}
        result = function(
            torch.from_numpy(src),
            in_torch_s_order,
            output_size=size,
            data_format="NXC",
            **attributes,
        )
        assert torch.equal(result, expected), size
        first = function(
            torch.from_numpy(src).movedim(-1, 1), in_torch_s_order, output_size=size, **attributes
        )
        assert torch.equal(first.movedim(1, -1), expected), size


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_sizes_that_no_convolution_has_are_refused(case, padding: str) -> None:
    extents, kernel, strides, dilations = case
    rank = len(extents)
    x, w = torch.ones(1, 1, *extents), torch.ones(1, 1, *kernel)
    allowed = set(sizes(case, padding))
    for smaller in (True, False):
        edge = (min if smaller else max)(size for size in allowed if size is not None)
        wrong = [o - 1 if smaller else o + 1 for o in edge]
        with pytest.raises(ValueError, match="valid sizes range"):
            getattr(ours, f"conv_transpose{rank}d")(
                x, w, None, strides, padding, dilation=dilations, output_size=wrong
            )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_strided_same_convolution(case) -> None:
    """TensorFlow's SAME, which torch refuses, by the pads of ONNX's SAME_UPPER."""
    extents, kernel, strides, dilations = case
    rank = len(extents)
    x = torch.randint(-4, 5, (1, 2, *[3 * i + 1 for i in extents])).double()
    w = torch.randint(-4, 5, (3, 2, *kernel)).double()
    pads = ours.onnx_conv_pads(x.shape[2:], kernel, strides, dilations, auto_pad="SAME_UPPER")
    windows = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    axes = list(zip(x.shape[2:], windows, strides, strict=True))
    assert [begin for begin, _ in pads] == [forward_begin(*axis, "same") for axis in axes]
    result = getattr(ours, f"conv{rank}d")(x, w, None, strides, pads, dilations)
    assert result.shape[2:] == tuple(forward_size(*axis, "same") for axis in axes)
    # The transposed convolution with the same words is its adjoint: <conv x, y> = <x, conv^T y>.
    y = torch.randint(-4, 5, result.shape).double()
    transposed = getattr(ours, f"conv_transpose{rank}d")(
        y, w, None, strides, "same", dilation=dilations, output_size=x.shape[2:]
    )
    assert (result * y).sum() == (x * transposed).sum()


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_module(padding: str) -> None:
    module = torch_ops.nn.ConvTranspose2d(3, 2, 3, 2, padding)
    x = torch.randn(1, 3, 4, 5)
    for size in (None, (7, 10) if padding == "same" else (10, 12)):
        expected = ours.conv_transpose2d(
            x, module.weight, module.bias, 2, padding, output_size=size
        )
        assert torch.equal(module(x, output_size=size), expected)
