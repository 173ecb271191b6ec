"""Padding in the words of torch, TensorFlow and ONNX, as the pads that the operators take.

Per axis: I extent of the input, O of the output, s stride, ``ek = (K - 1) * dilation + 1`` the
extent of the dilated kernel. All sizes are spatial extents, in pixels.
"""

import operator
from collections.abc import Sequence

from torch import SymInt

# `stride`, `dilation`, `output_padding`: one integer for all axes or one an axis.
Ints = int | Sequence[int]
# `padding`, where it is no word: the same, or one (begin, end) an axis.
Padding = Ints | Sequence[tuple[int, int]]

# What the operators take: the begins of all axes, the ends of all axes.
Pads = tuple[Sequence[int], Sequence[int]]

# torch.Size is a tuple. To ask for collections.abc.Sequence takes 10 times as long.
_SEQUENCES = (list, tuple)


def constant(value) -> int:
    """`value` if it is an integer, and a TypeError as torch's if not.

    A symbolic one becomes a constant of the traced program: strides, dilations and groups are
    constants of the operators.
    """
    if isinstance(value, bool):
        raise TypeError(f"expected an integer but got {value}")
    return operator.index(value)


def pixels(value) -> int:
    """The same, but a symbolic one stays symbolic."""
    return value if isinstance(value, SymInt) else constant(value)


def per_axis(name: str, value: Ints, rank: int, integer=constant) -> list[int]:
    """One integer for each of `rank` axes."""
    if not isinstance(value, _SEQUENCES):
        return [integer(value)] * rank
    if len(value) not in (1, rank):
        raise RuntimeError(
            f"expected {name} to be a single integer value or a list of {rank} values to match "
            f"the convolution dimensions, but got {name}={list(value)}"
        )
    entries = [integer(entry) for entry in value]
    return entries if len(entries) == rank else entries * rank


def has_pairs(padding: str | Padding) -> bool:
    """Whether a padding is (begin, end) for each axis."""
    if not isinstance(padding, _SEQUENCES):
        return False
    return any(isinstance(entry, _SEQUENCES) for entry in padding)


def numeric_pads(padding: Padding, rank: int) -> Pads:
    """Pads of a padding that is no word."""
    if has_pairs(padding):
        is_pair = [isinstance(entry, _SEQUENCES) and len(entry) == 2 for entry in padding]
        if len(padding) != rank or not all(is_pair):
            raise RuntimeError(
                f"expected padding to be a single integer value, a list of {rank} values or a list "
                f"of {rank} pairs (begin, end), but got padding={padding}"
            )
        begins = [pixels(begin) for begin, _ in padding]
        ends = [pixels(end) for _, end in padding]
    else:
        begins = ends = per_axis("padding", padding, rank, pixels)
    if min(begins) < 0 or min(ends) < 0:
        raise RuntimeError(f"negative padding is not supported, but got padding={padding}")
    return begins, ends


def kernel_extents(kernel_size: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """ek of each axis."""
    return [(k - 1) * d + 1 for k, d in zip(kernel_size, dilation, strict=True)]


def halves(totals: Sequence[int], odd_at_begin: bool = False) -> Pads:
    begins = [(total + odd_at_begin) // 2 for total in totals]
    return begins, [total - begin for total, begin in zip(totals, begins, strict=True)]


def convolution_pads(
    padding: str | Padding,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Pads:
    """Pads of a convolution. ``same`` is torch's: O = I, for stride 1 only."""
    if not isinstance(padding, str):
        return numeric_pads(padding, len(stride))
    if padding == "valid":
        return [0] * len(stride), [0] * len(stride)
    if padding != "same":
        raise RuntimeError(f"Invalid padding string: '{padding}'; expected 'same' or 'valid'")
    if any(s != 1 for s in stride):
        raise RuntimeError("padding='same' is not supported for strided convolutions")
    return halves([ek - 1 for ek in kernel_extents(kernel_size, dilation)])


def conv_transpose_pads(
    padding: str | Padding,
    output_padding: Ints,
    input_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    output_size: Sequence[int] | None,
) -> tuple[Pads, list[int]]:
    """Pads and output padding of a transposed convolution.

    Words and an `output_size` decide O. All follows from how far it reaches beyond the begin of the
    last window, O - (I - 1) * s.
    """
    rank = len(stride)
    extra = per_axis("output_padding", output_padding, rank, pixels)
    word = padding if isinstance(padding, str) else None
    if word not in (None, "same", "valid"):
        raise RuntimeError(f"Invalid padding string: '{padding}'; expected 'same' or 'valid'")
    pads = numeric_pads(padding, rank) if word is None else ([0] * rank, [0] * rank)
    if word is None and output_size is None:
        return pads, extra
    if any(extra):
        given = f"output_size={list(output_size)}" if output_size else f"padding={padding!r}"
        raise ValueError(
            f"{given} decides the size of the output, but got output_padding={output_padding}; "
            "expected 0"
        )

    kernel = kernel_extents(kernel_size, dilation)
    if output_size is not None:
        least = [1] * rank if word == "same" else _cropped(kernel, pads)
        beyond = _beyond_last_window(output_size, input_size, stride, least, padding)
    elif word == "same":
        beyond = stride
    else:
        beyond = [max(ek, s) for ek, s in zip(kernel, stride, strict=True)]
    if word == "same":
        pads = halves([max(0, ek - reach) for ek, reach in zip(kernel, beyond, strict=True)])
    windows = _cropped(kernel, pads)
    return pads, [reach - window for reach, window in zip(beyond, windows, strict=True)]


def _cropped(kernel: Sequence[int], pads: Pads) -> list[int]:
    """What the pads leave of a window."""
    return [ek - begin - end for ek, begin, end in zip(kernel, *pads, strict=True)]


def _beyond_last_window(
    output_size: Sequence[int],
    input_size: Sequence[int],
    stride: Sequence[int],
    least: Sequence[int],
    padding: str | Padding,
) -> list[int]:
    """O - (I - 1) * s, from `least` on; a convolution of `s` values gives the same I."""
    starts = [(i - 1) * s for i, s in zip(input_size, stride, strict=True)]
    beyond = [o - start for o, start in zip(output_size, starts, strict=True)]
    if any(not low <= b < low + s for low, b, s in zip(least, beyond, stride, strict=True)):
        lowest = [start + low for start, low in zip(starts, least, strict=True)]
        highest = [low + s - 1 for low, s in zip(lowest, stride, strict=True)]
        raise ValueError(
            f"requested an output size of {list(output_size)}, but valid sizes range from {lowest} "
            f"to {highest} (for an input of {list(input_size)} and padding={padding!r})"
        )
    return beyond


_AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def _check_onnx(auto_pad: str, input_size, kernel_size) -> int:
    if auto_pad not in _AUTO_PADS:
        raise ValueError(f"auto_pad is {auto_pad!r}; expected one of {', '.join(_AUTO_PADS)}")
    if len(input_size) != len(kernel_size):
        raise ValueError(
            f"input_size has {len(input_size)} entries {list(input_size)} but kernel_size has "
            f"{len(kernel_size)} {list(kernel_size)}; expected one per spatial axis in both"
        )
    return len(kernel_size)


def _onnx_pads(auto_pad: str, pads: Sequence[int] | None, rank: int) -> Pads:
    """Those of ``NOTSET`` and ``VALID``."""
    if pads is None or auto_pad == "VALID":
        return [0] * rank, [0] * rank
    if len(pads) != 2 * rank:
        raise ValueError(
            f"pads has {len(pads)} entries {list(pads)}; expected {2 * rank}, the begin of each "
            "spatial axis and then the end of each"
        )
    return pads[:rank], pads[rank:]


def _pairs(pads: Pads) -> tuple[tuple[int, int], ...]:
    return tuple(zip(*pads, strict=True))


def onnx_conv_pads(
    input_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Ints = 1,
    dilation: Ints = 1,
    *,
    auto_pad: str = "NOTSET",
    pads: Sequence[int] | None = None,
) -> tuple[tuple[int, int], ...]:
    """``padding`` of :func:`conv1d` to :func:`conv3d` for the attributes of ONNX's Conv.

    ``SAME_UPPER`` is also what TensorFlow calls ``SAME``, which torch has for stride 1 only.

    Args:
        input_size: I of each spatial axis.
        kernel_size: K of each spatial axis.
        stride: ONNX's ``strides``, one integer or one an axis.
        dilation: ONNX's ``dilations``, one integer or one an axis.
        auto_pad: ``NOTSET`` (``pads`` holds), ``VALID`` (none), ``SAME_UPPER`` or ``SAME_LOWER``
            (O = ceil(I / stride); the odd pixel at the end or at the beginning).
        pads: begins of all axes, then ends; ``None``: zeros.

    Returns:
        One pair (begin, end) for each axis.

    Raises:
        ValueError: for an unknown ``auto_pad`` and for lists that do not fit.

    Example:
        >>> onnx_conv_pads([10, 13], [3, 3], stride=2, auto_pad="SAME_UPPER")
        ((0, 1), (1, 1))

    Source: https://onnx.ai/onnx/operators/onnx__Conv
    """
    rank = _check_onnx(auto_pad, input_size, kernel_size)
    stride = per_axis("stride", stride, rank)
    kernel = kernel_extents(kernel_size, per_axis("dilation", dilation, rank))
    if not auto_pad.startswith("SAME"):
        return _pairs(_onnx_pads(auto_pad, pads, rank))
    totals = [
        max(0, (-(-i // s) - 1) * s + ek - i)
        for i, ek, s in zip(input_size, kernel, stride, strict=True)
    ]
    return _pairs(halves(totals, odd_at_begin=auto_pad == "SAME_LOWER"))


def onnx_conv_transpose_pads(
    input_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Ints = 1,
    dilation: Ints = 1,
    output_padding: Ints = 0,
    *,
    auto_pad: str = "NOTSET",
    pads: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """``padding`` and ``output_padding`` for the attributes of ONNX's ConvTranspose.

    They are those of :func:`conv_transpose1d` to :func:`conv_transpose3d`. Per axis, ONNX pads
    ``total = s * (I - 1) + output_padding + ek - O``; where an ``output_shape`` is larger than
    that allows, ``total`` is 0 and the rest is output padding.

    Args:
        input_size: I of each spatial axis.
        kernel_size: K of each spatial axis.
        stride: ONNX's ``strides``, one integer or one an axis.
        dilation: ONNX's ``dilations``, one integer or one an axis.
        output_padding: extra extent at the end, one integer or one an axis.
        auto_pad: ``NOTSET`` (``pads`` holds), ``VALID`` (none), ``SAME_UPPER`` or ``SAME_LOWER``
            (O = stride * I; the odd pixel at the end or at the beginning).
        pads: begins of all axes, then ends; ``None``: zeros. Ignored beside ``output_shape``.
        output_shape: O of each spatial axis. The odd pixel then goes to the end with
            ``SAME_UPPER`` and to the beginning with anything else, also with ``NOTSET``.

    Returns:
        One pair (begin, end) for each axis; the output padding of each axis.

    Raises:
        ValueError: for an unknown ``auto_pad`` and for lists that do not fit.

    Example:
        >>> onnx_conv_transpose_pads([5, 7], [3, 3], stride=2, output_shape=[10, 15])
        (((1, 0), (0, 0)), (0, 0))

    Source: https://onnx.ai/onnx/operators/onnx__ConvTranspose
    """
    rank = _check_onnx(auto_pad, input_size, kernel_size)
    stride = per_axis("stride", stride, rank)
    kernel = kernel_extents(kernel_size, per_axis("dilation", dilation, rank))
    output_padding = per_axis("output_padding", output_padding, rank, pixels)
    if output_shape is None and not auto_pad.startswith("SAME"):
        return _pairs(_onnx_pads(auto_pad, pads, rank)), tuple(output_padding)
    if output_shape is None:
        output_shape = [i * s for i, s in zip(input_size, stride, strict=True)]
    elif len(output_shape) != rank:
        raise ValueError(
            f"output_shape has {len(output_shape)} entries {list(output_shape)}; expected {rank}, "
            "one per spatial axis"
        )
    totals = [
        s * (i - 1) + extra + ek - o
        for i, s, extra, ek, o in zip(
            input_size, stride, output_padding, kernel, output_shape, strict=True
        )
    ]
    padding = halves([max(0, total) for total in totals], odd_at_begin=auto_pad != "SAME_UPPER")
    output_padding = [
        extra + max(0, -total) for extra, total in zip(output_padding, totals, strict=True)
    ]
    return _pairs(padding), tuple(output_padding)
