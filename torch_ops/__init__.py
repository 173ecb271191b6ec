"""Gradients of convolution and transposed convolution on CPU, after oneDNN Graph's operations.

Importing the package loads the operators ``torch.ops.convtbw.*``. The functions of this module are
the same operators with types and documentation; :mod:`torch_ops.backends` says who computes and
why. :mod:`torch_ops.functional` and :mod:`torch_ops.nn` are these operators with the signatures of
torch.nn.functional and torch.nn, and :func:`convert` gives them to a model that exists.
:func:`enable` computes torch's own convolutions with the same kernels;
:func:`accumulate_gradients` adds the gradients of several micro-batches in them.
"""

from torch_ops import backends, flops, functional, nn  # noqa: F401  (flops: registers formulas)
from torch_ops._library import __version__, cmake_prefix_path
from torch_ops.accumulation import accumulate_gradients
from torch_ops.conversion import convert
from torch_ops.ops import (
    conv_transpose,
    conv_transpose_backprop_filters,
    conv_transpose_backward_data,
    conv_transpose_backward_weights,
    conv_transpose_backward_weights_add_,
    convolution,
    convolution_backprop_filters,
    convolution_backward_data,
    convolution_backward_weights,
    convolution_backward_weights_add_,
)
from torch_ops.override import disable, enable, enabled, is_enabled

__all__ = [
    "__version__",
    "accumulate_gradients",
    "backends",
    "cmake_prefix_path",
    "conv_transpose",
    "conv_transpose_backprop_filters",
    "conv_transpose_backward_data",
    "conv_transpose_backward_weights",
    "conv_transpose_backward_weights_add_",
    "convert",
    "convolution",
    "convolution_backprop_filters",
    "convolution_backward_data",
    "convolution_backward_weights",
    "convolution_backward_weights_add_",
    "disable",
    "enable",
    "enabled",
    "functional",
    "is_enabled",
    "nn",
]
