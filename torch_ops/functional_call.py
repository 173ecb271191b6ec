"""How a call in the words of torch.nn.functional becomes a call of an operator, or of torch.

What the operators do not compute (other dtypes and devices, zero channels, ...) torch computes,
with the same arguments. Where the operators refuse a call, torch is asked too: it says what is
wrong in the caller's words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter

from torch_ops import _library  # noqa: F401  (loads the operators)
from torch_ops.functional_pads import (
    Ints,
    Padding,
    Pads,
    constant,
    conv_transpose_pads,
    convolution_pads,
    has_pairs,
    per_axis,
)

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_CONV = (F.conv1d, F.conv2d, F.conv3d)
_CONV_TRANSPOSE = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)

REFUSALS = (RuntimeError, TypeError, ValueError)

# Exact classes of what the short cut takes: what derives from them may mean something else.
_TENSORS_OR_NONE = {Tensor, Parameter, type(None)}
_SEQUENCES = (tuple, list)


def may_be_short_cut(input, weight, bias, *attributes) -> bool:
    """Whether torch.ops.convtbw_functional takes a call, in torch's words and order.

    It knows no words, pairs or symbolic integers, takes True for 1, and would stand in graphs.
    """
    if torch.compiler.is_compiling():
        return False
    if not {type(input), type(weight), type(bias)} <= _TENSORS_OR_NONE:
        return False
    for attribute in attributes:
        if type(attribute) is int:
            continue
        if type(attribute) not in _SEQUENCES:
            return False
        for entry in attribute:
            if type(entry) is not int:
                return False
    return True


def convolution(
    rank: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: str | Padding,
    dilation: Ints,
    groups: int,
    data_format: str,
) -> Tensor:
    """A convolution over `rank` spatial axes."""

    def resolved(weight: Tensor) -> tuple[Pads, list[int], list[int]]:
        strides, dilations = per_axis("stride", stride, rank), per_axis("dilation", dilation, rank)
        pads = convolution_pads(padding, integers(weight.shape[2:]), strides, dilations)
        return pads, strides, dilations

    def here(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        check_ranks(rank, input, weight)
        pads, strides, dilations = resolved(weight)
        data, layout, restore = operator_layout(rank, input, weight, data_format)
        result = torch.ops.convtbw.convolution(
            data,
            weight,
            bias,
            **attributes(pads, strides, dilations, groups),
            data_format=layout,
            weights_format="OIX",
        )
        return restore(result)

    def in_torch(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if data_format == "NCX" and not has_pairs(padding):
            return _CONV[rank - 1](input, weight, bias, stride, padding, dilation, groups)
        check_ranks(rank, input, weight)
        pads, strides, dilations = resolved(weight)
        # Torch has no pads that differ: zeros around the input.
        around = [pad for pair in reversed(list(zip(*pads, strict=True))) for pad in pair]
        padded = F.pad(_as_ncx(rank, input, data_format), around)
        result = _CONV[rank - 1](padded, weight, bias, strides, 0, dilations, groups)
        return _from_ncx(rank, result, data_format)

    return _compute(here, in_torch, input, weight, bias, data_format)


def conv_transpose(
    rank: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: str | Padding,
    output_padding: Ints,
    groups: int,
    dilation: Ints,
    data_format: str,
    output_size: Ints | None,
) -> Tensor:
    """A transposed convolution over `rank` spatial axes."""

    def resolved(input: Tensor, weight: Tensor) -> tuple[Pads, list[int], list[int], list[int]]:
        strides, dilations = per_axis("stride", stride, rank), per_axis("dilation", dilation, rank)
        pads, extra = conv_transpose_pads(
            padding,
            output_padding,
            integers(spatial_extents(rank, input.shape, data_format)),
            integers(weight.shape[2:]),
            strides,
            dilations,
            _spatial_size(rank, input, output_size, data_format),
        )
        return pads, extra, strides, dilations

    def here(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        check_ranks(rank, input, weight)
        # The operator also reads weights of (IC / groups, OC); torch does not.
        if weight.shape[0] != input.shape[channel_dimension(rank, data_format)]:
            raise RuntimeError("weight and input differ in their input channels")
        pads, extra, strides, dilations = resolved(input, weight)
        data, layout, restore = operator_layout(rank, input, weight, data_format)
        result = torch.ops.convtbw.conv_transpose(
            data,
            weight,
            bias,
            **attributes(pads, strides, dilations, groups),
            output_padding=extra,
            data_format=layout,
            weights_format="IOX",
        )
        return restore(result)

    def in_torch(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        function = _CONV_TRANSPOSE[rank - 1]
        in_its_words = not isinstance(padding, str) and not has_pairs(padding)
        if data_format == "NCX" and in_its_words and output_size is None:
            return function(input, weight, bias, stride, padding, output_padding, groups, dilation)
        check_ranks(rank, input, weight)
        pads, extra, strides, dilations = resolved(input, weight)
        # Torch has no pads that differ: what they have in common, and a crop.
        begins, ends = pads
        common = [min(begin, end) for begin, end in zip(begins, ends, strict=True)]
        input = _as_ncx(rank, input, data_format)
        result = function(input, weight, bias, strides, common, extra, groups, dilations)
        for axis, (begin, end) in enumerate(zip(begins, ends, strict=True), start=-rank):
            extent = result.shape[axis] - abs(begin - end)
            if extent < 0:
                raise RuntimeError(
                    f"padding={padding} leaves extent {extent} of the output in spatial axis "
                    f"{axis + rank}; expected at least 1"
                )
            result = result.narrow(axis, max(0, begin - end), extent)
        return _from_ncx(rank, result, data_format)

    return _compute(here, in_torch, input, weight, bias, data_format)


def _compute(
    here: Callable[..., Tensor],
    in_torch: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    data_format: str,
) -> Tensor:
    """The result of `here`, or of `in_torch` for what is not computed here."""
    check_data_format(data_format)
    dtype_of = _autocast_dtype if torch.is_autocast_enabled("cpu") else _dtype
    if not is_computed_here(input, weight, bias, dtype_of):
        return in_torch(input, weight, bias)
    try:
        return here(input, weight, bias)
    except REFUSALS as error:
        refusal = error
    # Torch raises its own error, or accepts: zero channels and results of zero pixels, which the
    # operators refuse. Anything else is an error, such as a backend that is forced and declines.
    result = in_torch(input, weight, bias)
    if result.numel() > 0:
        raise refusal
    return result


def check_data_format(data_format: str) -> None:
    if data_format not in ("NCX", "NXC"):
        raise ValueError(f"data_format is {data_format!r}; expected 'NCX' or 'NXC'")


def check_ranks(rank: int, data: Tensor, weight: Tensor) -> None:
    # Not `in`: a compiler with dynamic sizes makes a symbol of `rank`, which it finds in no tuple.
    if not rank + 1 <= data.dim() <= rank + 2:
        raise RuntimeError(
            f"Expected {rank + 1}D (unbatched) or {rank + 2}D (batched) input, but got input of "
            f"size: {list(data.shape)}"
        )
    if weight.dim() != rank + 2:
        raise RuntimeError(
            f"Expected {rank + 2}D weight, but got weight of size: {list(weight.shape)}"
        )


def _dtype(tensor: Tensor) -> torch.dtype:
    return tensor.dtype


def _autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype of what autocast makes of a tensor: convolutions are on its list."""
    eligible = tensor.is_cpu and tensor.is_floating_point() and tensor.dtype is not torch.float64
    return torch.get_autocast_dtype("cpu") if eligible else tensor.dtype


def is_computed_here(
    data: Tensor,
    other: Tensor,
    bias: Tensor | None = None,
    dtype_of: Callable[[Tensor], torch.dtype] = _dtype,
) -> bool:
    """Whether the operators take these tensors, which share a dtype."""
    for tensor in (data, other) if bias is None else (data, other, bias):
        if not (
            _is_plain_tensor(type(tensor))
            and dtype_of(tensor) is dtype_of(data)
            and (tensor.is_cpu or tensor.is_meta)
            and tensor.layout is torch.strided
            and not tensor.is_nested
        ):
            return False
    return data.dtype in _DTYPES


def _is_plain_tensor(kind: type) -> bool:
    """Whether a class leaves __torch_function__ as it is: an override knows torch's functions."""
    if kind is Tensor or kind is Parameter:
        return True
    override = getattr(kind, "__torch_function__", None)
    return issubclass(kind, Tensor) and (
        override is torch._C._disabled_torch_function_impl
        or getattr(override, "__func__", None) is Tensor.__torch_function__.__func__
    )


def operator_layout(
    rank: int, data: Tensor, weight: Tensor, data_format: str
) -> tuple[Tensor, str, Callable[[Tensor], Tensor]]:
    """Data as a batch, its format for the operator, and what makes of a result that of the caller.

    The memory format is torch's: channels_last where the data or the weights are. The operator is
    given the same memory as NXC then, for contiguous in NXC is channels_last in NCX.
    """
    batched = data.dim() == rank + 2
    if not batched:
        data = data.unsqueeze(0)
    permuted = (
        data_format == "NCX" and rank > 1 and (_is_channels_last(data) or _is_channels_last(weight))
    )
    if permuted:
        data, data_format = data.movedim(1, -1), "NXC"

    def restore(result: Tensor) -> Tensor:
        # One image cut out of a channels_last batch is channels_last for the operator.
        result = result.movedim(-1, 1) if permuted else result.contiguous()
        return result if batched else result.squeeze(0)

    return data, data_format, restore


def attributes(pads: Pads, strides: list[int], dilations: list[int], groups: int) -> dict:
    """What all operators take."""
    return {
        "strides": strides,
        "pads_begin": pads[0],
        "pads_end": pads[1],
        "dilations": dilations,
        "groups": constant(groups),
    }


def _is_channels_last(tensor: Tensor) -> bool:
    """Whether torch takes the strides of an NCX tensor for channels_last (is_strides_like_...)."""
    strides = tensor.stride()
    if strides[1] == 0 or strides[-1] < strides[1]:
        return False
    sizes, least = tensor.shape, 0
    for d in (1, *range(tensor.dim() - 1, 1, -1)):
        if strides[d] < least:
            return False
        least = strides[d] * max(sizes[d], 1)
    return strides[0] >= least and least != strides[1]


def channel_dimension(rank: int, data_format: str) -> int:
    """From the end, so that unbatched data has the same."""
    return -1 if data_format == "NXC" else -rank - 1


def integers(sizes: Sequence[int]) -> list[int]:
    """Sizes as integers, symbolic or not: torch.jit.trace makes tensors of them."""
    return [int(size) if isinstance(size, Tensor) else size for size in sizes]


def spatial_extents(rank: int, shape: Sequence[int], data_format: str) -> Sequence[int]:
    return shape[-rank - 1 : -1] if data_format == "NXC" else shape[-rank:]


def _spatial_size(
    rank: int, input: Tensor, size: Ints | None, data_format: str
) -> Sequence[int] | None:
    """The spatial part of an output_size, which may be a whole shape, as for torch's modules."""
    if size is None:
        return None
    if not isinstance(size, list | tuple):
        return [size] * rank
    if len(size) == input.dim():
        return spatial_extents(rank, size, data_format)
    if len(size) != rank:
        raise ValueError(
            f"for {input.dim()}D input, output_size must have {rank} or {input.dim()} elements "
            f"(got {len(size)})"
        )
    return size


def _as_ncx(rank: int, data: Tensor, data_format: str) -> Tensor:
    return data.movedim(-1, -rank - 1) if data_format == "NXC" else data


def _from_ncx(rank: int, data: Tensor, data_format: str) -> Tensor:
    return data.movedim(-rank - 1, -1) if data_format == "NXC" else data
