"""Gradients of convolutions as functions, as in torch.nn.grad, which has none of transposed ones.

Each is one operator, so it is differentiable to any order itself. What the operators do not compute
is the derivative of the function in :mod:`torch_ops.functional`, and so torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torch_ops import functional_call
from torch_ops.functional_call import (
    REFUSALS,
    attributes,
    channel_dimension,
    check_data_format,
    check_ranks,
    integers,
    is_computed_here,
    operator_layout,
    spatial_extents,
)
from torch_ops.functional_pads import (
    Ints,
    Padding,
    Pads,
    conv_transpose_pads,
    convolution_pads,
    kernel_extents,
    numeric_pads,
    per_axis,
)

_DATA_FORMAT = """data_format: ``NCX``, torch's (N, C, spatial...), or ``NXC`` (N, spatial..., C),
            of every data tensor and size. The weights keep torch's order."""

_ATTRIBUTES = {
    "conv": """stride: of the convolution, one integer or one an axis.
        padding: one integer, one an axis, one pair (begin, end) an axis, ``same`` or ``valid``.
        dilation: one integer or one an axis.
        groups: number of groups.""",
    "conv_transpose": """stride: of the convolution, one integer or one an axis.
        padding: one integer, one an axis, one pair (begin, end) an axis, ``same`` or ``valid``.
        output_padding: one integer or one an axis; ``None``: what the sizes imply.
        groups: number of groups.
        dilation: one integer or one an axis.""",
}

_SOURCES = {
    "conv": "torch.nn.grad.conv{rank}d_{wanted}",
    "conv_transpose": "the operation page of :func:`torch_ops.conv_transpose_backward_{partial}`",
}

_INPUT = """Gradient of :func:`{name}` with respect to its input.

    Args:
        input_size: shape of the input, and so of the result.
        weight: {weight_shape}.
        grad_output: gradient with respect to the output, of the same dtype; unbatched if
            ``input_size`` is.
        {attributes}
        {data_format}

    Returns:
        A tensor of shape ``input_size``; in ``NCX``, channels_last where ``grad_output`` or the
        weights are and contiguous otherwise; in ``NXC`` contiguous.

    Raises:
        RuntimeError, TypeError, ValueError: what the forward function raises, and RuntimeError for
            a ``grad_output`` that has not its output's shape.

    Source: {source}.
    """

_WEIGHT = """Gradient of :func:`{name}` with respect to its weights.

    Args:
        input: the input, batched or unbatched.
        weight_size: shape of the weights, {weight_shape}, and so of the result.
        grad_output: gradient with respect to the output, of the same dtype; unbatched if
            ``input`` is.
        {attributes}
        {data_format}

    Returns:
        A contiguous tensor of shape ``weight_size``.

    Raises:
        RuntimeError, TypeError, ValueError: what the forward function raises, and RuntimeError for
            a ``grad_output`` that has not its output's shape.

    Source: {source}.
    """


def _gradient(
    compute: Callable[[], Tensor],
    forward: Callable[[Tensor], Tensor],
    size: Sequence[int],
    other: Tensor,
    grad_output: Tensor,
) -> Tensor:
    """The gradient that `compute` finds, with respect to the argument of `forward`.

    `size` is that argument's, `other` the convolution's other tensor.
    """
    if not is_computed_here(grad_output, other):
        return torch.func.vjp(forward, grad_output.new_zeros(size))[1](grad_output)[0]
    try:
        return compute()
    except REFUSALS as error:
        refusal = error
    # The convolution says what is wrong, or that its output has another shape.
    output = forward(grad_output.new_zeros(size))
    if output.shape == grad_output.shape:
        raise refusal
    raise RuntimeError(
        f"grad_output has shape {list(grad_output.shape)}; expected {list(output.shape)}, the "
        f"output's for tensors of size {list(size)} and {list(other.shape)}"
    )


def _sizes(rank: int, shape: Sequence[int], data_format: str, layout: str) -> list[int]:
    """A shape, batched or not, in the caller's format -> the batch's in the operator's."""
    batch = shape[0] if len(shape) == rank + 2 else 1
    channels = shape[channel_dimension(rank, data_format)]
    extents = spatial_extents(rank, shape, data_format)
    return [batch, channels, *extents] if layout == "NCX" else [batch, *extents, channels]


def _batch(rank: int, data: Tensor) -> Tensor:
    return data if data.dim() == rank + 2 else data.unsqueeze(0)


def _check_same_rank(input_rank: int, grad_output: Tensor) -> None:
    if input_rank != grad_output.dim():
        raise RuntimeError(
            f"input has {input_rank} dimensions but grad_output has {grad_output.dim()}; expected "
            "both batched or both unbatched"
        )


def _check_input_channels(channels: int, weight_size: Sequence[int]) -> None:
    """The operators also read weights of (IC / groups, OC); torch does not."""
    if weight_size[0] != channels:
        raise RuntimeError(
            f"input has {channels} channels but weight is of size {list(weight_size)}; expected "
            f"{channels} in dimension 0"
        )


def _named(
    function: Callable[..., Tensor], family: str, rank: int, wanted: str
) -> Callable[..., Tensor]:
    function.__name__ = function.__qualname__ = f"{family}{rank}d_{wanted}"
    weight_shape = "(OC, IC / groups, K...)" if family == "conv" else "(IC, OC / groups, K...)"
    partial = "data" if wanted == "input" else "weights"
    function.__doc__ = (_INPUT if wanted == "input" else _WEIGHT).format(
        name=f"{family}{rank}d",
        weight_shape=weight_shape,
        attributes=_ATTRIBUTES[family],
        data_format=_DATA_FORMAT,
        source=_SOURCES[family].format(rank=rank, wanted=wanted, partial=partial),
    )
    return function


def _conv_input(rank: int):
    def conv_input(
        input_size: Sequence[int],
        weight: Tensor,
        grad_output: Tensor,
        stride: Ints = 1,
        padding: str | Padding = 0,
        dilation: Ints = 1,
        groups: int = 1,
        *,
        data_format: str = "NCX",
    ) -> Tensor:
        check_data_format(data_format)

        def compute() -> Tensor:
            check_ranks(rank, grad_output, weight)
            _check_same_rank(len(input_size), grad_output)
            known = _convolution(rank, integers(weight.shape), stride, padding, dilation)
            data, layout, restore = operator_layout(rank, grad_output, weight, data_format)
            result = torch.ops.convtbw.convolution_backward_data(
                data,
                weight,
                src_shape=_sizes(rank, integers(input_size), data_format, layout),
                **attributes(*known, groups),
                data_format=layout,
                weights_format="OIX",
            )
            return restore(result)

        def forward(input: Tensor) -> Tensor:
            return functional_call.convolution(
                rank, input, weight, None, stride, padding, dilation, groups, data_format
            )

        return _gradient(compute, forward, input_size, weight, grad_output)

    return _named(conv_input, "conv", rank, "input")


def _conv_weight(rank: int):
    def conv_weight(
        input: Tensor,
        weight_size: Sequence[int],
        grad_output: Tensor,
        stride: Ints = 1,
        padding: str | Padding = 0,
        dilation: Ints = 1,
        groups: int = 1,
        *,
        data_format: str = "NCX",
    ) -> Tensor:
        check_data_format(data_format)

        def compute() -> Tensor:
            _check_same_rank(input.dim(), grad_output)
            known = _convolution(rank, integers(weight_size), stride, padding, dilation)
            return torch.ops.convtbw.convolution_backward_weights(
                _batch(rank, input),
                _batch(rank, grad_output),
                weights_shape=integers(weight_size),
                **attributes(*known, groups),
                data_format=data_format,
                weights_format="OIX",
            )

        def forward(weight: Tensor) -> Tensor:
            return functional_call.convolution(
                rank, input, weight, None, stride, padding, dilation, groups, data_format
            )

        return _gradient(compute, forward, weight_size, input, grad_output)

    return _named(conv_weight, "conv", rank, "weight")


def _convolution(
    rank: int, weight_size: Sequence[int], stride: Ints, padding: str | Padding, dilation: Ints
) -> tuple[Pads, list[int], list[int]]:
    """Pads, strides and dilations of a convolution."""
    strides, dilations = per_axis("stride", stride, rank), per_axis("dilation", dilation, rank)
    pads = convolution_pads(padding, weight_size[2:], strides, dilations)
    return pads, strides, dilations


def _conv_transpose_input(rank: int):
    def conv_transpose_input(
        input_size: Sequence[int],
        weight: Tensor,
        grad_output: Tensor,
        stride: Ints = 1,
        padding: str | Padding = 0,
        output_padding: Ints | None = None,
        groups: int = 1,
        dilation: Ints = 1,
        *,
        data_format: str = "NCX",
    ) -> Tensor:
        check_data_format(data_format)

        def known() -> tuple[Pads, list[int], list[int], list[int]]:
            check_ranks(rank, grad_output, weight)
            _check_same_rank(len(input_size), grad_output)
            extents = [
                integers(spatial_extents(rank, size, data_format))
                for size in (input_size, grad_output.shape)
            ]
            weight_size = integers(weight.shape)
            return _transposed(
                rank, *extents, weight_size, stride, padding, output_padding, dilation
            )

        def compute() -> Tensor:
            pads, extra, strides, dilations = known()
            _check_input_channels(input_size[channel_dimension(rank, data_format)], weight.shape)
            data, layout, restore = operator_layout(rank, grad_output, weight, data_format)
            result = torch.ops.convtbw.conv_transpose_backward_data(
                data,
                weight,
                **attributes(pads, strides, dilations, groups),
                output_padding=extra,
                data_format=layout,
                weights_format="IOX",
            )
            result = restore(result)
            if result.shape != torch.Size(input_size):
                raise RuntimeError(
                    f"input_size is {list(input_size)}; expected {list(result.shape)} for "
                    f"grad_output of size {list(grad_output.shape)}"
                )
            return result

        def forward(input: Tensor) -> Tensor:
            pads, extra, strides, dilations = known()
            return functional_call.conv_transpose(
                rank,
                input,
                weight,
                None,
                strides,
                list(zip(*pads, strict=True)),
                extra,
                groups,
                dilations,
                data_format,
                None,
            )

        return _gradient(compute, forward, input_size, weight, grad_output)

    return _named(conv_transpose_input, "conv_transpose", rank, "input")


def _conv_transpose_weight(rank: int):
    def conv_transpose_weight(
        input: Tensor,
        weight_size: Sequence[int],
        grad_output: Tensor,
        stride: Ints = 1,
        padding: str | Padding = 0,
        output_padding: Ints | None = None,
        groups: int = 1,
        dilation: Ints = 1,
        *,
        data_format: str = "NCX",
    ) -> Tensor:
        check_data_format(data_format)

        def known() -> tuple[Pads, list[int], list[int], list[int]]:
            _check_same_rank(input.dim(), grad_output)
            extents = [
                integers(spatial_extents(rank, data.shape, data_format))
                for data in (input, grad_output)
            ]
            return _transposed(
                rank,
                *extents,
                integers(weight_size),
                stride,
                padding,
                output_padding,
                dilation,
            )

        def compute() -> Tensor:
            pads, extra, strides, dilations = known()
            _check_input_channels(input.shape[channel_dimension(rank, data_format)], weight_size)
            return torch.ops.convtbw.conv_transpose_backward_weights(
                _batch(rank, input),
                _batch(rank, grad_output),
                weights_shape=integers(weight_size),
                **attributes(pads, strides, dilations, groups),
                output_padding=extra,
                data_format=data_format,
                weights_format="IOX",
            )

        def forward(weight: Tensor) -> Tensor:
            pads, extra, strides, dilations = known()
            return functional_call.conv_transpose(
                rank,
                input,
                weight,
                None,
                strides,
                list(zip(*pads, strict=True)),
                extra,
                groups,
                dilations,
                data_format,
                None,
            )

        return _gradient(compute, forward, weight_size, input, grad_output)

    return _named(conv_transpose_weight, "conv_transpose", rank, "weight")


def _transposed(
    rank: int,
    input_extents: Sequence[int],
    output_extents: Sequence[int],
    weight_size: Sequence[int],
    stride: Ints,
    padding: str | Padding,
    output_padding: Ints | None,
    dilation: Ints,
) -> tuple[Pads, list[int], list[int], list[int]]:
    """Pads, output padding, strides and dilations of a transposed convolution of known sizes."""
    strides, dilations = per_axis("stride", stride, rank), per_axis("dilation", dilation, rank)
    kernel_size = weight_size[2:]
    if isinstance(padding, str):
        pads, extra = conv_transpose_pads(
            padding,
            output_padding or 0,
            input_extents,
            kernel_size,
            strides,
            dilations,
            output_extents,
        )
    else:
        pads = numeric_pads(padding, rank)
        if output_padding is None:
            kernel = kernel_extents(kernel_size, dilations)
            axes = zip(input_extents, output_extents, kernel, strides, *pads, strict=True)
            extra = [o - ((i - 1) * s + ek - pb - pe) for i, o, ek, s, pb, pe in axes]
        else:
            extra = per_axis("output_padding", output_padding, rank)
    return pads, extra, strides, dilations


conv1d_input, conv2d_input, conv3d_input = (_conv_input(rank) for rank in (1, 2, 3))
conv1d_weight, conv2d_weight, conv3d_weight = (_conv_weight(rank) for rank in (1, 2, 3))
conv_transpose1d_input, conv_transpose2d_input, conv_transpose3d_input = (
    _conv_transpose_input(rank) for rank in (1, 2, 3)
)
conv_transpose1d_weight, conv_transpose2d_weight, conv_transpose3d_weight = (
    _conv_transpose_weight(rank) for rank in (1, 2, 3)
)
