"""The convolutions of torch.nn.functional and torch.nn.grad, on this package's operators.

They take what torch's take, raise what torch's raise, and return tensors of the same shape, dtype
and memory format. Beyond torch they have pads that differ, ``same`` and ``valid`` for transposed
convolutions, ``output_size``, ``data_format``, and the gradients of transposed convolutions.

The operators compute float32, bfloat16, float16 and float64 on CPU. Anything else (complex and
integer tensors, other devices, sparse and quantised tensors) is passed on to torch.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.overrides import handle_torch_function

from torch_ops import functional_call
from torch_ops.functional_grad import (
    conv1d_input,
    conv1d_weight,
    conv2d_input,
    conv2d_weight,
    conv3d_input,
    conv3d_weight,
    conv_transpose1d_input,
    conv_transpose1d_weight,
    conv_transpose2d_input,
    conv_transpose2d_weight,
    conv_transpose3d_input,
    conv_transpose3d_weight,
)
from torch_ops.functional_pads import Ints, Padding, onnx_conv_pads, onnx_conv_transpose_pads

__all__ = [
    "conv1d",
    "conv1d_input",
    "conv1d_weight",
    "conv2d",
    "conv2d_input",
    "conv2d_weight",
    "conv3d",
    "conv3d_input",
    "conv3d_weight",
    "conv_transpose1d",
    "conv_transpose1d_input",
    "conv_transpose1d_weight",
    "conv_transpose2d",
    "conv_transpose2d_input",
    "conv_transpose2d_weight",
    "conv_transpose3d",
    "conv_transpose3d_input",
    "conv_transpose3d_weight",
    "onnx_conv_pads",
    "onnx_conv_transpose_pads",
]

_DATA_FORMAT = """data_format: ``NCX``, torch's (N, C, spatial...), or ``NXC`` (N, spatial..., C),
            of input and result. The weights keep torch's order."""

_FORMAT = """In ``NCX`` it is channels_last where
        the input or the weights are and contiguous otherwise, in ``NXC`` contiguous."""

_CONV = """A {rank}-D convolution, as ``torch.nn.functional``'s.

    Args:
        input: (N, IC, I...), or unbatched (IC, I...); with ``NXC`` (N, I..., IC) or (I..., IC).
        weight: (OC, IC / groups, K...), of the same dtype.
        bias: (OC,) or ``None``, of the same dtype.
        stride: one integer or one an axis, at least 1.
        padding: one integer or one an axis; ``valid``, which is 0; ``same`` (O = I, for stride 1;
            the odd pixel at the end); or, beyond torch, one pair (begin, end) an axis.
        dilation: one integer or one an axis, at least 1.
        groups: number of groups; divides IC and OC.
        {data_format}

    Returns:
        The output, with ``O = floor((I + begin + end - (K - 1) * dilation - 1) / stride) + 1`` per
        axis. {format}

    Raises:
        RuntimeError, TypeError: what torch raises, for the same arguments.
        ValueError: for an unknown ``data_format``.

    Source: https://docs.pytorch.org/docs/2.13/generated/torch.nn.functional.conv{rank}d.html; the
    operator: :func:`torch_ops.convolution`.
    """

_CONV_TRANSPOSE = """A {rank}-D transposed convolution, as ``torch.nn.functional``'s.

    Args:
        input: (N, IC, I...), or unbatched (IC, I...); with ``NXC`` (N, I..., IC) or (I..., IC).
        weight: (IC, OC / groups, K...), of the same dtype.
        bias: (OC,) or ``None``, of the same dtype.
        stride: one integer or one an axis, at least 1.
        padding: one integer or one an axis; or, beyond torch, one pair (begin, end) an axis, or
            TensorFlow's ``same`` and ``valid``, for which O is ``output_size`` or, without,
            ``stride * I`` and ``stride * (I - 1) + max(ek, stride)``. ``same`` crops
            ``max(0, stride * (I - 1) + ek - O)`` pixels, the odd one at the end.
        output_padding: extra extent of the output at the end, one integer or one an axis, less
            than stride or dilation.
        groups: number of groups; divides IC and OC.
        dilation: one integer or one an axis, at least 1.
        {data_format}
        output_size: the O wanted, instead of ``output_padding``: one integer, one an axis, or the
            whole shape of the output. A convolution of it must give I.

    Returns:
        The output, with ``O = stride * (I - 1) + ek - begin - end + output_padding`` per axis,
        where ``ek = (K - 1) * dilation + 1``. {format}

    Raises:
        RuntimeError, TypeError: what torch raises, for the same arguments.
        ValueError: for an unknown ``data_format`` and an ``output_size`` that no convolution has.

    Sources: https://docs.pytorch.org/docs/2.13/generated/torch.nn.functional.conv_transpose{rank}d.html
    and, for the words, https://www.tensorflow.org/api_docs/python/tf/nn/conv_transpose; the
    operator: :func:`torch_ops.conv_transpose`.
    """


def _named(function: Callable[..., Tensor], name: str, doc: str, rank: int) -> None:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc.format(rank=rank, data_format=_DATA_FORMAT, format=_FORMAT)


def _short_cut(name: str) -> Callable[..., Tensor]:
    # Not the overload itself, whose __call__ does nothing else and takes 0.4 us.
    return getattr(torch.ops.convtbw_functional, name).default._op


def _conv(rank: int):
    short_cut = _short_cut(f"conv{rank}d")

    def conv(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Ints = 1,
        padding: str | Padding = 0,
        dilation: Ints = 1,
        groups: int = 1,
        *,
        data_format: str = "NCX",
    ) -> Tensor:
        arguments = (input, weight, bias, stride, padding, dilation, groups)
        if data_format == "NCX" and functional_call.may_be_short_cut(*arguments):
            try:
                return short_cut(*arguments)
            except functional_call.REFUSALS:
                pass  # what follows finds the caller's words for it
        if isinstance(input, Proxy):  # torch.fx records the call
            return handle_torch_function(conv, (input,), *arguments, data_format=data_format)
        return functional_call.convolution(rank, *arguments, data_format)

    _named(conv, f"conv{rank}d", _CONV, rank)
    return conv


def _conv_transpose(rank: int):
    short_cut = _short_cut(f"conv_transpose{rank}d")

    def conv_transpose(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Ints = 1,
        padding: str | Padding = 0,
        output_padding: Ints = 0,
        groups: int = 1,
        dilation: Ints = 1,
        *,
        data_format: str = "NCX",
        output_size: Ints | None = None,
    ) -> Tensor:
        arguments = (input, weight, bias, stride, padding, output_padding, groups, dilation)
        in_torch_s_words = data_format == "NCX" and output_size is None
        if in_torch_s_words and functional_call.may_be_short_cut(*arguments):
            try:
                return short_cut(*arguments)
            except functional_call.REFUSALS:
                pass  # what follows finds the caller's words for it
        if isinstance(input, Proxy):  # torch.fx records the call
            beyond_torch = {"data_format": data_format, "output_size": output_size}
            return handle_torch_function(conv_transpose, (input,), *arguments, **beyond_torch)
        return functional_call.conv_transpose(rank, *arguments, data_format, output_size)

    _named(conv_transpose, f"conv_transpose{rank}d", _CONV_TRANSPOSE, rank)
    return conv_transpose


conv1d, conv2d, conv3d = (_conv(rank) for rank in (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = (_conv_transpose(rank) for rank in (1, 2, 3))
