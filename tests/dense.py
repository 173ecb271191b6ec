"""Layers that sum over channels of their groups, on small integers."""

from __future__ import annotations

import torch
from layers import Call
from targets import integers

import torch_ops


def problem(
    partial: str,
    channels: int,
    pixels: tuple[int, ...],
    kernel: tuple[int, ...],
    *,
    into: int = 20,
    stride: int | tuple[int, ...] = 1,
    pad: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    data_format: str = "NCX",
    weights_format: str = "OIX",
    dtype: torch.dtype = torch.bfloat16,
) -> Call:
    """fprop, or dgrad, from so many channels of each group into so many.

    A dilation that is a number is of the last axis alone.
    """
    axes = len(kernel)
    x_channels, y_channels = (channels, into) if partial == "fprop" else (into, channels)
    dilations = (1,) * (axes - 1) + (dilation,) if isinstance(dilation, int) else dilation
    pads = [pad] * axes if isinstance(pad, int) else [*pad]
    attributes = {
        "strides": [stride] * axes if isinstance(stride, int) else [*stride],
        "pads_begin": pads,
        "pads_end": pads,
        "dilations": [*dilations],
        "groups": groups,
        "data_format": data_format,
        "weights_format": weights_format,
    }

    def data(channels: int, pixels: tuple[int, ...]) -> torch.Tensor:
        extents = (channels, *pixels) if data_format == "NCX" else (*pixels, channels)
        return integers(2, *extents, dtype=dtype)

    x = data(groups * x_channels, pixels)
    y_side = groups * y_channels
    extents = (
        (y_side, x_channels, *kernel) if weights_format == "OIX" else (*kernel, x_channels, y_side)
    )
    w = integers(*extents, dtype=dtype)
    if partial == "fprop":
        return Call("convolution", (x, w), attributes)
    y = torch_ops.convolution(x, w, **attributes)
    pixels = tuple(y.shape[2:] if data_format == "NCX" else y.shape[1:-1])
    y = data(groups * y_channels, pixels)
    return Call("convolution_backward_data", (y, w), attributes | {"src_shape": [*x.shape]})
