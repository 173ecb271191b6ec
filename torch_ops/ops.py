"""The operators with types and documentation. Each function is its ``torch.ops.convtbw`` operator.

All floating tensors of a call share one dtype: float32, bfloat16, float16 or float64. Sums are kept
in float32 or wider and rounded once. Any strides are legal. Shapes: N batch, C channels, I and O
spatial extents of the forward operator's input and output, IC and OC their channels, K the kernel's
extent. Extents, strides, pads and dilations count pixels. Every operator is differentiable with
respect to every floating tensor, to any order; but for those whose names end in ``_add_``, which
change a tensor instead of returning one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_ops import _library  # noqa: F401  (loads the operators)

_operators = torch.ops.convtbw


def conv_transpose_backward_weights(
    src: Tensor,
    diff_dst: Tensor,
    weights_shape_tensor: Tensor | None = None,
    *,
    strides: Sequence[int],
    pads_begin: Sequence[int],
    pads_end: Sequence[int],
    dilations: Sequence[int],
    auto_pad: str = "none",
    output_padding: Sequence[int] | None = None,
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XOI",
    weights_shape: Sequence[int] | None = None,
) -> Tensor:
    """Weights gradient of a transposed convolution.

    Args:
        src: input of the forward operator, (N, I..., IC) or (N, IC, I...).
        diff_dst: gradient with respect to its output, (N, O..., OC) or (N, OC, O...).
        weights_shape_tensor: the result's shape as a 1-D int32 or int64 CPU tensor; overrides
            ``weights_shape``. Not under torch.compile or export, where its values are unknown.
        strides: stride of each spatial axis (1 entry in 1-D, 2 in 2-D, 3 in 3-D), at least 1.
        pads_begin: padding before each spatial axis, in pixels, at least 0.
        pads_end: padding after each spatial axis, in pixels, at least 0. They decide only which
            shapes belong together.
        dilations: dilation of each spatial axis; 1 means dense.
        auto_pad: ``none``, ``valid`` (no padding), ``same_upper`` or ``same_lower`` (the padding
            that makes O = stride * I; the odd pixel at the end or at the beginning). Explicit
            pads are ignored unless ``none``.
        output_padding: extra extent of the output, 0 <= output_padding < max(stride, dilation);
            ``None``: whatever the shapes imply.
        groups: number of groups; divides both channel counts.
        data_format: ``NXC`` (N, spatial..., C) or ``NCX`` (N, C, spatial...), of every data
            tensor.
        weights_format: order of the result: ``OIX``, ``XIO``, ``IOX`` or ``XOI``. With groups the
            standard reading is (IC, OC/groups); IOX and XOI also accept (IC/groups, OC), the
            shape decides. The defaults differ inside a family (they are those of the operation
            pages).
        weights_shape: the result's shape in the order of ``weights_format``; K cannot be
            inferred.

    Returns:
        The gradient with respect to the weights, contiguous, of the inputs' dtype.

    Raises:
        RuntimeError: for any argument that does not fit; the message names it, with the actual
            and the expected value.

    Example:
        >>> src, diff_dst = torch.ones(1, 2, 2, 1), torch.ones(1, 4, 4, 4)  # NXC
        >>> once = dict(strides=[2, 2], pads_begin=[1, 1], pads_end=[0, 0], dilations=[1, 1])
        >>> diff_weights = conv_transpose_backward_weights(
        ...     src, diff_dst, weights_shape=[3, 3, 4, 1], **once
        ... )
        >>> diff_weights[:, :, 0, 0]  # of each tap: the pixels that it meets
        tensor([[1., 2., 2.],
                [2., 4., 4.],
                [2., 4., 4.]])

    Source: oneDNN Graph operation ConvTransposeBackwardWeights,
    https://uxlfoundation.github.io/oneDNN/dev_guide_op_convtransposebackwardweights.html
    """
    return _operators.conv_transpose_backward_weights(
        src,
        diff_dst,
        weights_shape_tensor,
        strides=strides,
        pads_begin=pads_begin,
        pads_end=pads_end,
        dilations=dilations,
        auto_pad=auto_pad,
        output_padding=output_padding,
        groups=groups,
        data_format=data_format,
        weights_format=weights_format,
        weights_shape=weights_shape,
    )


def conv_transpose_backprop_filters(
    input_forward: Tensor,
    output_delta: Tensor,
    filter_shape_tensor: Tensor | None = None,
    *,
    strides: Sequence[int],
    pads_begin: Sequence[int],
    pads_end: Sequence[int],
    dilations: Sequence[int],
    auto_pad: str = "none",
    output_padding: Sequence[int] | None = None,
    groups: int = 1,
    data_format: str = "NXC",
    filter_format: str = "XIO",
    filter_shape: Sequence[int] | None = None,
) -> Tensor:
    """Weights gradient of a transposed convolution, by an older name.

    The same as :func:`conv_transpose_backward_weights` but for the names of the arguments and the
    default of the format.

    Args:
        input_forward: input of the forward operator, (N, I..., IC) or (N, IC, I...).
        output_delta: gradient with respect to its output, (N, O..., OC) or (N, OC, O...).
        filter_shape_tensor: the result's shape as a 1-D int32 or int64 CPU tensor; overrides
            ``filter_shape``. Not under torch.compile or export, where its values are unknown.
        strides: stride of each spatial axis (1 entry in 1-D, 2 in 2-D, 3 in 3-D), at least 1.
        pads_begin: padding before each spatial axis, in pixels, at least 0.
        pads_end: padding after each spatial axis, in pixels, at least 0. They decide only which
            shapes belong together.
        dilations: dilation of each spatial axis; 1 means dense.
        auto_pad: ``none``, ``valid`` (no padding), ``same_upper`` or ``same_lower`` (the padding
            that makes O = stride * I; the odd pixel at the end or at the beginning). Explicit
            pads are ignored unless ``none``.
        output_padding: extra extent of the output, 0 <= output_padding < max(stride, dilation);
            ``None``: whatever the shapes imply.
        groups: number of groups; divides both channel counts.
        data_format: ``NXC`` (N, spatial..., C) or ``NCX`` (N, C, spatial...), of every data
            tensor.
        filter_format: order of the result: ``OIX``, ``XIO``, ``IOX`` or ``XOI``. With groups the
            standard reading is (IC, OC/groups); IOX and XOI also accept (IC/groups, OC), the
            shape decides. The defaults differ inside a family (they are those of the operation
            pages).
        filter_shape: the result's shape in the order of ``filter_format``; K cannot be inferred.

    Returns:
        The gradient with respect to the weights, contiguous, of the inputs' dtype.

    Raises:
        RuntimeError: for any argument that does not fit; the message names it, with the actual
            and the expected value.

    Source: oneDNN Graph operation ConvTransposeBackpropFilters-1,
    https://uxlfoundation.github.io/oneDNN/dev_guide_op_convtransposebackwardweights.html
    """
    return _operators.conv_transpose_backprop_filters(
        input_forward,
        output_delta,
        filter_shape_tensor,
        strides=strides,
        pads_begin=pads_begin,
        pads_end=pads_end,
        dilations=dilations,
        auto_pad=auto_pad,
        output_padding=output_padding,
        groups=groups,
        data_format=data_format,
        filter_format=filter_format,
        filter_shape=filter_shape,
    )


def conv_transpose_backward_data(
    diff_dst: Tensor,
    weights: Tensor,
    *,
    strides: Sequence[int],
    pads_begin: Sequence[int],
    pads_end: Sequence[int],
    dilations: Sequence[int],
    auto_pad: str = "none",
    output_padding: Sequence[int] | None = None,
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XIO",
) -> Tensor:
    """Data gradient of a transposed convolution.

    Args:
        diff_dst: gradient with respect to the output, (N, O..., OC) or (N, OC, O...).
        weights: of the order ``weights_format``, of the same dtype.
        strides: stride of each spatial axis (1 entry in 1-D, 2 in 2-D, 3 in 3-D), at least 1.
        pads_begin: padding before each spatial axis, in pixels, at least 0.
        pads_end: padding after each spatial axis, in pixels, at least 0.
        dilations: dilation of each spatial axis; 1 means dense.
        auto_pad: ``none``, ``valid`` (no padding), ``same_upper`` or ``same_lower`` (the padding
            that makes O = stride * I; the odd pixel at the end or at the beginning). Explicit
            pads are ignored unless ``none``.
        output_padding: extra extent of the output, 0 <= output_padding < max(stride, dilation);
            ``None``: the largest I that a stride allows; pass it where dilation > stride.
        groups: number of groups; divides both channel counts.
        data_format: ``NXC`` (N, spatial..., C) or ``NCX`` (N, C, spatial...), of every data
            tensor.
        weights_format: ``OIX``, ``XIO``, ``IOX`` or ``XOI``. With groups the standard reading is
            (IC, OC/groups); IOX and XOI also accept (IC/groups, OC), the shape decides. The
            defaults differ inside a family (they are those of the operation pages).

    Returns:
        The gradient with respect to the input, (N, I..., IC) or (N, IC, I...).
        NXC results are contiguous; NCX results are channels_last if the data input is that and
        not contiguous, otherwise contiguous.

    Raises:
        RuntimeError: for any argument that does not fit; the message names it, with the actual
            and the expected value.

    Source: oneDNN Graph operation ConvTransposeBackwardData,
    https://uxlfoundation.github.io/oneDNN/dev_guide_op_convtransposebackwarddata.html
    """
    return _operators.conv_transpose_backward_data(
        diff_dst,
        weights,
        strides=strides,
        pads_begin=pads_begin,
        pads_end=pads_end,
        dilations=dilations,
        auto_pad=auto_pad,
        output_padding=output_padding,
        groups=groups,
        data_format=data_format,
        weights_format=weights_format,
    )


def convolution_backprop_filters(
    input_forward: Tensor,
    output_delta: Tensor,
    filter_shape_tensor: Tensor | None = None,
    *,
    strides: Sequence[int],
    pads_begin: Sequence[int] = (),
    pads_end: Sequence[int] = (),
    dilations: Sequence[int],
    auto_pad: str = "none",
    groups: int = 1,
    data_format: str = "NXC",
    filter_format: str = "XIO",
    filter_shape: Sequence[int] | None = None,
) -> Tensor:
    """Weights gradient of a convolution, by an older name.

    The same as :func:`convolution_backward_weights` but for the names of the arguments.

    Args:
        input_forward: input of the forward operator, (N, I..., IC) or (N, IC, I...).
        output_delta: gradient with respect to its output, (N, O..., OC) or (N, OC, O...).
        filter_shape_tensor: the result's shape as a 1-D int32 or int64 CPU tensor; overrides
            ``filter_shape``. Not under torch.compile or export, where its values are unknown.
        strides: stride of each spatial axis (1 entry in 1-D, 2 in 2-D, 3 in 3-D), at least 1.
        pads_begin: padding before each spatial axis, in pixels, at least 0. May be left out
            together with ``pads_end``: then the padding follows from the extents.
        pads_end: padding after each spatial axis, in pixels, at least 0. They decide only which
            shapes belong together.
        dilations: dilation of each spatial axis; 1 means dense.
        auto_pad: ``none``, ``valid`` (no padding), ``same_upper`` or ``same_lower`` (the padding
            that makes O = ceil(I / stride); the odd pixel at the end or at the beginning).
            Explicit pads are ignored unless ``none``.
        groups: number of groups; divides both channel counts.
        data_format: ``NXC`` (N, spatial..., C) or ``NCX`` (N, C, spatial...), of every data
            tensor.
        filter_format: order of the result: ``OIX``, ``XIO``, ``IOX`` or ``XOI``. With groups its
            channel dimensions are (IC/groups, OC). The defaults differ inside a family (they are
            those of the operation pages).
        filter_shape: the result's shape in the order of ``filter_format``; K cannot be inferred.

    Returns:
        The gradient with respect to the weights, contiguous, of the inputs' dtype.

    Raises:
        RuntimeError: for any argument that does not fit; the message names it, with the actual
            and the expected value.

    Source: oneDNN Graph operation ConvolutionBackpropFilters-1,
    https://uxlfoundation.github.io/oneDNN/dev_guide_op_convolutionbackwardweights.html
    """
    return _operators.convolution_backprop_filters(
        input_forward,
        output_delta,
        filter_shape_tensor,
        strides=strides,
        pads_begin=pads_begin,
        pads_end=pads_end,
        dilations=dilations,
        auto_pad=auto_pad,
        groups=groups,
        data_format=data_format,
        filter_format=filter_format,
        filter_shape=filter_shape,
    )


def convolution_backward_weights(
    src: Tensor,
    diff_dst: Tensor,
    weights_shape_tensor: Tensor | None = None,
    *,
    strides: Sequence[int],
    pads_begin: Sequence[int] = (),
    pads_end: Sequence[int] = (),
    dilations: Sequence[int],
    auto_pad: str = "none",
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XIO",
    weights_shape: Sequence[int] | None = None,
) -> Tensor:
    """Weights gradient of a convolution.

    Args:
        src: input of the forward operator, (N, I..., IC) or (N, IC, I...).
        diff_dst: gradient with respect to its output, (N, O..., OC) or (N, OC, O...).
        weights_shape_tensor: the result's shape as a 1-D int32 or int64 CPU tensor; overrides
            ``weights_shape``. Not under torch.compile or export, where its values are unknown.
        strides: stride of each spatial axis (1 entry in 1-D, 2 in 2-D, 3 in 3-D), at least 1.
        pads_begin: padding before each spatial axis, in pixels, at least 0. May be left out
            together with ``pads_end``: then the padding follows from the extents.
        pads_end: padding after each spatial axis, in pixels, at least 0. They decide only which
            shapes belong together.
        dilations: dilation of each spatial axis; 1 means dense.
        auto_pad: ``none``, ``valid`` (no padding), ``same_upper`` or ``same_lower`` (the padding
            that makes O = ceil(I / stride); the odd pixel at the end or at the beginning).
            Explicit pads are ignored unless ``none``.
        groups: number of groups; divides both channel counts.
        data_format: ``NXC`` (N, spatial..., C) or ``NCX`` (N, C, spatial...), of every data
            tensor.
        weights_format: order of the result: ``OIX``, ``XIO``, ``IOX`` or ``XOI``. With groups its
            channel dimensions are (IC/groups, OC). The defaults differ inside a family (they are
            those of the operation pages).
        weights_shape: the result's shape in the order of ``weights_format``; K cannot be
            inferred.

    Returns:
        The gradient with respect to the weights, contiguous, of the inputs' dtype.

    Raises:
        RuntimeError: for any argument that does not fit; the message names it, with the actual
            and the expected value.

    Source: oneDNN Graph operation ConvolutionBackwardWeights,
    https://uxlfoundation.github.io/oneDNN/dev_guide_op_convolutionbackwardweights.html
    """
    return _operators.convolution_backward_weights(
        src,
        diff_dst,
        weights_shape_tensor,
        strides=strides,
        pads_begin=pads_begin,
        pads_end=pads_end,
        dilations=dilations,
        auto_pad=auto_pad,
        groups=groups,
        data_format=data_format,
        weights_format=weights_format,
        weights_shape=weights_shape,
    )


def convolution_backward_data(
    diff_dst: Tensor,
    weights: Tensor,
    *,
    src_shape: Sequence[int],
    strides: Sequence[int],
    pads_begin: Sequence[int],
    pads_end: Sequence[int],
    dilations: Sequence[int],
    auto_pad: str = "none",
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XIO",
) -> Tensor:
    """Data gradient of a convolution.

    Args:
        diff_dst: gradient with respect to the output, (N, O..., OC) or (N, OC, O...).
        weights: of the order ``weights_format``, of the same dtype.
        src_shape: shape of the result, in the order of ``data_format``; the stride leaves it
            open.
        strides: stride of each spatial axis (1 entry in 1-D, 2 in 2-D, 3 in 3-D), at least 1.
        pads_begin: padding before each spatial axis, in pixels, at least 0.
        pads_end: padding after each spatial axis, in pixels, at least 0.
        dilations: dilation of each spatial axis; 1 means dense.
        auto_pad: ``none``, ``valid`` (no padding), ``same_upper`` or ``same_lower`` (the padding
            that makes O = ceil(I / stride); the odd pixel at the end or at the beginning).
            Explicit pads are ignored unless ``none``.
        groups: number of groups; divides both channel counts.
        data_format: ``NXC`` (N, spatial..., C) or ``NCX`` (N, C, spatial...), of every data
            tensor.
        weights_format: ``OIX``, ``XIO``, ``IOX`` or ``XOI``. With groups the channel dimensions
            are (IC/groups, OC). The defaults differ inside a family (they are those of the
            operation pages).

    Returns:
        The gradient with respect to the input, (N, I..., IC) or (N, IC, I...).
        NXC results are contiguous; NCX results are channels_last if the data input is that and
        not contiguous, otherwise contiguous.

    Raises:
        RuntimeError: for any argument that does not fit; the message names it, with the actual
            and the expected value.

    Source: oneDNN Graph operation ConvolutionBackwardData,
    https://uxlfoundation.github.io/oneDNN/dev_guide_op_convolutionbackwarddata.html
    """
    return _operators.convolution_backward_data(
        diff_dst,
        weights,
        src_shape=src_shape,
        strides=strides,
        pads_begin=pads_begin,
        pads_end=pads_end,
        dilations=dilations,
        auto_pad=auto_pad,
        groups=groups,
        data_format=data_format,
        weights_format=weights_format,
    )


def conv_transpose(
    src: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    *,
    strides: Sequence[int],
    pads_begin: Sequence[int],
    pads_end: Sequence[int],
    dilations: Sequence[int],
    auto_pad: str = "none",
    output_padding: Sequence[int] | None = None,
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XOI",
) -> Tensor:
    """Transposed convolution.

    Args:
        src: input, (N, I..., IC) or (N, IC, I...).
        weights: of the order ``weights_format``, of the same dtype.
        bias: (OC,), of the same dtype, or ``None``.
        strides: stride of each spatial axis (1 entry in 1-D, 2 in 2-D, 3 in 3-D), at least 1.
        pads_begin: padding before each spatial axis, in pixels, at least 0.
        pads_end: padding after each spatial axis, in pixels, at least 0.
        dilations: dilation of each spatial axis; 1 means dense.
        auto_pad: ``none``, ``valid`` (no padding), ``same_upper`` or ``same_lower`` (the padding
            that makes O = stride * I; the odd pixel at the end or at the beginning). Explicit
            pads are ignored unless ``none``.
        output_padding: extra extent of the output, 0 <= output_padding < max(stride, dilation);
            ``None``: zeros.
        groups: number of groups; divides both channel counts.
        data_format: ``NXC`` (N, spatial..., C) or ``NCX`` (N, C, spatial...), of every data
            tensor.
        weights_format: ``OIX``, ``XIO``, ``IOX`` or ``XOI``. With groups the standard reading is
            (IC, OC/groups); IOX and XOI also accept (IC/groups, OC), the shape decides. The
            defaults differ inside a family (they are those of the operation pages).

    Returns:
        The output, (N, O..., OC) or (N, OC, O...), with ``O = stride * (I - 1) + ek - pads_begin -
        pads_end + output_padding`` per axis, where ``ek = (K - 1) * dilation + 1``.
        NXC results are contiguous; NCX results are channels_last if the data input is that and
        not contiguous, otherwise contiguous.

    Raises:
        RuntimeError: for any argument that does not fit; the message names it, with the actual
            and the expected value.

    Example:
        >>> src, weights = torch.ones(1, 2, 2, 1), torch.ones(3, 3, 4, 1)  # NXC, XOI
        >>> once = dict(strides=[2, 2], pads_begin=[1, 1], pads_end=[0, 0], dilations=[1, 1])
        >>> conv_transpose(src, weights, **once).shape
        torch.Size([1, 4, 4, 4])

    Source: oneDNN Graph operation ConvTranspose,
    https://uxlfoundation.github.io/oneDNN/dev_guide_op_convtranspose.html
    """
    return _operators.conv_transpose(
        src,
        weights,
        bias,
        strides=strides,
        pads_begin=pads_begin,
        pads_end=pads_end,
        dilations=dilations,
        auto_pad=auto_pad,
        output_padding=output_padding,
        groups=groups,
        data_format=data_format,
        weights_format=weights_format,
    )


def convolution(
    src: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    *,
    strides: Sequence[int],
    pads_begin: Sequence[int],
    pads_end: Sequence[int],
    dilations: Sequence[int],
    auto_pad: str = "none",
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XIO",
) -> Tensor:
    """Convolution.

    Args:
        src: input, (N, I..., IC) or (N, IC, I...).
        weights: of the order ``weights_format``, of the same dtype.
        bias: (OC,), of the same dtype, or ``None``.
        strides: stride of each spatial axis (1 entry in 1-D, 2 in 2-D, 3 in 3-D), at least 1.
        pads_begin: padding before each spatial axis, in pixels, at least 0.
        pads_end: padding after each spatial axis, in pixels, at least 0.
        dilations: dilation of each spatial axis; 1 means dense.
        auto_pad: ``none``, ``valid`` (no padding), ``same_upper`` or ``same_lower`` (the padding
            that makes O = ceil(I / stride); the odd pixel at the end or at the beginning).
            Explicit pads are ignored unless ``none``.
        groups: number of groups; divides both channel counts.
        data_format: ``NXC`` (N, spatial..., C) or ``NCX`` (N, C, spatial...), of every data
            tensor.
        weights_format: ``OIX``, ``XIO``, ``IOX`` or ``XOI``. With groups the channel dimensions
            are (IC/groups, OC). The defaults differ inside a family (they are those of the
            operation pages).

    Returns:
        The output, (N, O..., OC) or (N, OC, O...), with
        ``O = floor((I + pads_begin + pads_end - (K - 1) * dilation - 1) / stride) + 1`` per axis.
        NXC results are contiguous; NCX results are channels_last if the data input is that and
        not contiguous, otherwise contiguous.

    Raises:
        RuntimeError: for any argument that does not fit; the message names it, with the actual
            and the expected value.

    Source: oneDNN Graph operation Convolution,
    https://uxlfoundation.github.io/oneDNN/dev_guide_op_convolution.html
    """
    return _operators.convolution(
        src,
        weights,
        bias,
        strides=strides,
        pads_begin=pads_begin,
        pads_end=pads_end,
        dilations=dilations,
        auto_pad=auto_pad,
        groups=groups,
        data_format=data_format,
        weights_format=weights_format,
    )


def conv_transpose_backward_weights_add_(
    diff_weights: Tensor,
    src: Tensor,
    diff_dst: Tensor,
    *,
    strides: Sequence[int],
    pads_begin: Sequence[int],
    pads_end: Sequence[int],
    dilations: Sequence[int],
    auto_pad: str = "none",
    output_padding: Sequence[int] | None = None,
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XOI",
) -> None:
    """Add the weights gradient of a transposed convolution to an existing gradient.

    As ``diff_weights += conv_transpose_backward_weights(...)``, but the kernel adds: no second
    gradient is allocated, written and read.

    Args:
        diff_weights: what is added to, in the order of ``weights_format``, with any strides. Its
            dtype is the inputs', or float32 where theirs has 16 bits: sums are then not rounded.
            No elements may share memory, with each other or with the inputs.
        src, diff_dst, ...: as in :func:`conv_transpose_backward_weights`.

    Raises:
        RuntimeError: for any argument that does not fit; the message names it, with the actual
            and the expected value. Also where a tensor requires grad and grad mode is on.
    """
    _operators.conv_transpose_backward_weights_add_(
        diff_weights,
        src,
        diff_dst,
        strides=strides,
        pads_begin=pads_begin,
        pads_end=pads_end,
        dilations=dilations,
        auto_pad=auto_pad,
        output_padding=output_padding,
        groups=groups,
        data_format=data_format,
        weights_format=weights_format,
    )


def convolution_backward_weights_add_(
    diff_weights: Tensor,
    src: Tensor,
    diff_dst: Tensor,
    *,
    strides: Sequence[int],
    pads_begin: Sequence[int] = (),
    pads_end: Sequence[int] = (),
    dilations: Sequence[int],
    auto_pad: str = "none",
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XIO",
) -> None:
    """Add the weights gradient of a convolution to an existing gradient.

    As ``diff_weights += convolution_backward_weights(...)``, but the kernel adds: no second
    gradient is allocated, written and read.

    Args:
        diff_weights: what is added to, in the order of ``weights_format``, with any strides. Its
            dtype is the inputs', or float32 where theirs has 16 bits: sums are then not rounded.
            No elements may share memory, with each other or with the inputs.
        src, diff_dst, ...: as in :func:`convolution_backward_weights`.

    Raises:
        RuntimeError: for any argument that does not fit; the message names it, with the actual
            and the expected value. Also where a tensor requires grad and grad mode is on.
    """
    _operators.convolution_backward_weights_add_(
        diff_weights,
        src,
        diff_dst,
        strides=strides,
        pads_begin=pads_begin,
        pads_end=pads_end,
        dilations=dilations,
        auto_pad=auto_pad,
        groups=groups,
        data_format=data_format,
        weights_format=weights_format,
    )
