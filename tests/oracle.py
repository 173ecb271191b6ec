"""The eight operators in float64 numpy, straight from the trilinear form

    T(x, w, y) = sum of x[n, g·C + c, h] · w[g, q, c, k] · y[n, g·Q + q, j],   h = j·s - pb + k·d

`fprop`, `dgrad` and `wgrad` are its three partial derivatives on canonical layouts:
x (N, g·C, *X), w (g, Q, C, *K), y (N, g·Q, *Y). `call` has the signature of the operators and
translates formats, readings, pads and shapes; it shares no code with the library.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch

Array = np.ndarray
Ints = Sequence[int]

# operator -> (family, partial, name of its format attribute, default format)
OPERATORS: dict[str, tuple[str, str, str, str]] = {
    "convolution": ("convolution", "fprop", "weights_format", "XIO"),
    "convolution_backward_data": ("convolution", "dgrad", "weights_format", "XIO"),
    "convolution_backward_weights": ("convolution", "wgrad", "weights_format", "XIO"),
    "convolution_backprop_filters": ("convolution", "wgrad", "filter_format", "XIO"),
    "conv_transpose": ("conv_transpose", "dgrad", "weights_format", "XOI"),
    "conv_transpose_backward_data": ("conv_transpose", "fprop", "weights_format", "XIO"),
    "conv_transpose_backward_weights": ("conv_transpose", "wgrad", "weights_format", "XOI"),
    "conv_transpose_backprop_filters": ("conv_transpose", "wgrad", "filter_format", "XIO"),
}
WEIGHTS_FORMATS = ("OIX", "XIO", "IOX", "XOI")
DATA_FORMATS = ("NXC", "NCX")


# ---- the three partials -----------------------------------------------------------------------


def _taps(
    x_extent: Ints, y_extent: Ints, kernel: Ints, stride: Ints, dilation: Ints, pads_begin: Ints
) -> list[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
    """For every tap that joins anything: the tap, the positions in x, the positions in y.

    Absent taps are left out rather than multiplied by zero, so NaN and Inf never meet padding.
    """
    joined = []
    for tap in itertools.product(*map(range, kernel)):
        xs, ys = [], []
        axes = zip(tap, x_extent, y_extent, stride, dilation, pads_begin, strict=True)
        for k, big, small, s, d, pb in axes:
            first = max(0, -((k * d - pb) // s))  # smallest j with h >= 0
            last = min(small - 1, (big - 1 + pb - k * d) // s)  # largest j with h < big
            if last < first:
                break
            h = first * s - pb + k * d
            xs.append(slice(h, h + (last - first) * s + 1, s))
            ys.append(slice(first, last + 1))
        else:
            joined.append((tap, tuple(xs), tuple(ys)))
    return joined


def _grouped(a: Array, groups: int) -> Array:
    return a.reshape(a.shape[0], groups, a.shape[1] // groups, *a.shape[2:])


def fprop(
    x: Array, w: Array, y_extent: Ints, *, stride: Ints, dilation: Ints, pads_begin: Ints
) -> Array:
    """The partial of T with respect to y."""
    groups, q = w.shape[:2]
    xg = _grouped(x, groups)
    y = np.zeros((x.shape[0], groups, q, *y_extent))
    for tap, xs, ys in _taps(x.shape[2:], y_extent, w.shape[3:], stride, dilation, pads_begin):
        here = (slice(None),) * 3
        y[here + ys] += np.einsum("ngc...,gqc->ngq...", xg[here + xs], w[here + tap])
    return y.reshape(x.shape[0], groups * q, *y_extent)


def dgrad(
    y: Array, w: Array, x_extent: Ints, *, stride: Ints, dilation: Ints, pads_begin: Ints
) -> Array:
    """The partial of T with respect to x."""
    groups, _, c = w.shape[:3]
    yg = _grouped(y, groups)
    x = np.zeros((y.shape[0], groups, c, *x_extent))
    for tap, xs, ys in _taps(x_extent, y.shape[2:], w.shape[3:], stride, dilation, pads_begin):
        here = (slice(None),) * 3
        x[here + xs] += np.einsum("ngq...,gqc->ngc...", yg[here + ys], w[here + tap])
    return x.reshape(y.shape[0], groups * c, *x_extent)


def wgrad(
    x: Array, y: Array, kernel: Ints, groups: int, *, stride: Ints, dilation: Ints, pads_begin: Ints
) -> Array:
    """The partial of T with respect to w."""
    xg, yg = _grouped(x, groups), _grouped(y, groups)
    w = np.zeros((groups, yg.shape[2], xg.shape[2], *kernel))
    axes = "abd"[: len(kernel)]
    for tap, xs, ys in _taps(x.shape[2:], y.shape[2:], kernel, stride, dilation, pads_begin):
        here = (slice(None),) * 3
        w[here + tap] = np.einsum(f"ngc{axes},ngq{axes}->gqc", xg[here + xs], yg[here + ys])
    return w


# ---- pads and extents -------------------------------------------------------------------------


def effective_kernel(kernel: Ints, dilation: Ints) -> list[int]:
    return [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]


def _split(total: int, auto_pad: str) -> tuple[int, int]:
    begin = (total + 1) // 2 if auto_pad == "same_lower" else total // 2
    return begin, total - begin


def resolve_pads(
    family: str,
    auto_pad: str,
    pads_begin: Ints,
    pads_end: Ints,
    forward_input: Ints,
    kernel: Ints,
    stride: Ints,
    dilation: Ints,
    forward_output: Ints | None = None,
) -> tuple[list[int], list[int]]:
    """Section 6, and the omitted pads of convolution's weights gradient (needs forward_output).

    A transposed convolution's pads never depend on its input's extent: pass anything there.
    """
    auto_pad = auto_pad.lower()
    if auto_pad == "none" and (pads_begin or not kernel):
        return list(pads_begin), list(pads_end)
    begins, ends = [], []
    for axis, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
        ek = (k - 1) * d + 1
        if auto_pad == "valid":
            total = 0
        elif auto_pad == "none":
            assert forward_output is not None, "pads omitted where no rule derives them"
            total = max(0, (forward_output[axis] - 1) * s + ek - forward_input[axis])
        elif family == "conv_transpose":
            total = max(0, ek - s)
        else:
            total = max(0, (-(-forward_input[axis] // s) - 1) * s + ek - forward_input[axis])
        begin, end = _split(total, auto_pad)
        begins.append(begin)
        ends.append(end)
    return begins, ends


def convolution_extent(i: int, ek: int, s: int, pb: int, pe: int) -> int:
    assert ek <= i + pb + pe, "the kernel does not fit"
    return (i + pb + pe - ek) // s + 1


def conv_transpose_extent(i: int, ek: int, s: int, pb: int, pe: int, op: int) -> int:
    return s * (i - 1) + ek - pb - pe + op


# ---- formats ----------------------------------------------------------------------------------


def to_numpy(tensor: torch.Tensor) -> Array:
    return tensor.detach().to(torch.float64).numpy()


def data_to_canonical(a: Array, data_format: str) -> Array:
    return a if data_format.upper() == "NCX" else np.moveaxis(a, -1, 1)


def data_from_canonical(a: Array, data_format: str) -> Array:
    return a if data_format.upper() == "NCX" else np.moveaxis(a, 1, -1)


def _order(weights_format: str, rank: int) -> list[int]:
    """Where each dimension of a tensor in this format sits in the order (I, O, *X)."""
    places = {"I": [0], "O": [1], "X": list(range(2, 2 + rank))}
    return [p for letter in weights_format.upper() for p in places[letter]]


def shape_to_iox(shape: Ints, weights_format: str) -> tuple[int, ...]:
    order = _order(weights_format, len(shape) - 2)
    return tuple(int(shape[order.index(i)]) for i in range(len(shape)))


def standard_reading(family: str) -> str:
    """Which channel dimension carries the groups: O for convolution, I for the transposed."""
    return "O" if family == "convolution" else "I"


def readings(family: str, weights_format: str) -> tuple[str, ...]:
    both = family == "conv_transpose" and weights_format.upper() in ("IOX", "XOI")
    return ("I", "O") if both else (standard_reading(family),)


def find_reading(
    family: str, weights_format: str, iox: Ints, groups: int, ic: int | None, oc: int | None
) -> str:
    """The accepted reading that agrees with the channels known from the data tensors."""
    for reading in readings(family, weights_format):
        expect_i = None if ic is None else (ic if reading == "I" else ic // groups)
        expect_o = None if oc is None else (oc if reading == "O" else oc // groups)
        if expect_i in (None, iox[0]) and expect_o in (None, iox[1]):
            return reading
    raise ValueError(f"{iox} fits no reading of {weights_format} ({family}, groups {groups})")


def weights_to_canonical(
    a: Array, family: str, weights_format: str, reading: str, groups: int
) -> Array:
    iox = np.transpose(a, np.argsort(_order(weights_format, a.ndim - 2)))
    i, o, *kernel = iox.shape
    if reading == "O":
        gio = np.moveaxis(iox.reshape(i, groups, o // groups, *kernel), 1, 0)
    else:
        gio = iox.reshape(groups, i // groups, o, *kernel)
    return np.swapaxes(gio, 1, 2) if family == "convolution" else gio


def weights_from_canonical(w: Array, family: str, weights_format: str, reading: str) -> Array:
    gio = np.swapaxes(w, 1, 2) if family == "convolution" else w
    groups, i, o, *kernel = gio.shape
    if reading == "O":
        iox = np.moveaxis(gio, 0, 1).reshape(i, groups * o, *kernel)
    else:
        iox = gio.reshape(groups * i, o, *kernel)
    return np.transpose(iox, _order(weights_format, len(kernel)))


# ---- the operators ----------------------------------------------------------------------------


def call(
    operator: str,
    first: torch.Tensor,
    second: torch.Tensor,
    third: torch.Tensor | None = None,
    *,
    strides: Ints,
    dilations: Ints,
    pads_begin: Ints = (),
    pads_end: Ints = (),
    auto_pad: str = "none",
    output_padding: Ints | None = None,
    groups: int = 1,
    data_format: str = "NXC",
    src_shape: Ints | None = None,
    **weights_attributes: object,
) -> torch.Tensor:
    """What `torch.ops.convtbw.<operator>` must return for these arguments, in float64."""
    family, partial, attribute, default = OPERATORS[operator]
    weights_format = str(weights_attributes.get(attribute, default))
    at = {"stride": strides, "dilation": dilations}
    transposed = family == "conv_transpose"

    data = data_to_canonical(to_numpy(first), data_format)
    other = data_to_canonical(to_numpy(second), data_format) if partial == "wgrad" else None
    if partial == "wgrad":
        shape = weights_attributes.get(attribute.replace("_format", "_shape"))
        shape = third.tolist() if third is not None else shape
    else:
        shape = second.shape
    iox = shape_to_iox(shape, weights_format)
    kernel = iox[2:]
    ek = effective_kernel(kernel, dilations)

    ic = oc = None  # channels of the forward operator's src and dst, where a data tensor tells
    if operator in ("convolution", "conv_transpose"):
        ic = data.shape[1]
    elif partial == "wgrad":
        ic, oc = data.shape[1], other.shape[1]
    else:
        oc = data.shape[1]
    reading = find_reading(family, weights_format, iox, groups, ic, oc)

    if operator == "convolution_backward_data":
        src = src_shape[1:-1] if data_format.upper() == "NXC" else src_shape[2:]
        dst = data.shape[2:]
    elif operator == "conv_transpose_backward_data":
        src, dst = (1,) * len(kernel), data.shape[2:]
    else:
        src, dst = data.shape[2:], other.shape[2:] if other is not None else None
    begins, ends = resolve_pads(
        family, auto_pad, pads_begin, pads_end, src, kernel, strides, dilations, dst
    )
    axes = list(zip(ek, strides, begins, ends, strict=True))
    op = list(output_padding) if output_padding is not None else [0] * len(kernel)
    if operator == "convolution":
        dst = [convolution_extent(i, *a) for i, a in zip(src, axes, strict=True)]
    elif operator == "conv_transpose":
        dst = [conv_transpose_extent(i, *a, p) for i, a, p in zip(src, axes, op, strict=True)]
    elif operator == "conv_transpose_backward_data":
        # With an explicit output_padding the division is exact, so one formula serves both.
        src = [convolution_extent(o - p, *a) for o, a, p in zip(dst, axes, op, strict=True)]

    at["pads_begin"] = begins
    x_extent, y_extent = (dst, src) if transposed else (src, dst)
    if partial == "wgrad":
        x, y = (other, data) if transposed else (data, other)
        w = wgrad(x, y, kernel, groups, **at)
        result = weights_from_canonical(w, family, weights_format, reading)
    else:
        w = weights_to_canonical(to_numpy(second), family, weights_format, reading, groups)
        run: Callable[..., Array] = fprop if partial == "fprop" else dgrad
        result = run(data, w, y_extent if partial == "fprop" else x_extent, **at)
        if third is not None:
            result = result + to_numpy(third).reshape(1, -1, *[1] * len(kernel))
        result = data_from_canonical(result, data_format)
    return torch.from_numpy(np.ascontiguousarray(result))
