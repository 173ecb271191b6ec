"""Gradients of convolution and transposed convolution on CPU, after oneDNN Graph's operations.

Importing the package loads the operators ``torch.ops.convtbw.*``. The functions of this module are
the same operators with types and documentation; :mod:`torch_ops.backends` says who computes and
why.
"""

from torch_ops import backends
from torch_ops._library import __version__
from torch_ops.ops import (
    conv_transpose,
    conv_transpose_backprop_filters,
    conv_transpose_backward_data,
    conv_transpose_backward_weights,
    convolution,
    convolution_backprop_filters,
    convolution_backward_data,
    convolution_backward_weights,
)

__all__ = [
    "__version__",
    "backends",
    "conv_transpose",
    "conv_transpose_backprop_filters",
    "conv_transpose_backward_data",
    "conv_transpose_backward_weights",
    "convolution",
    "convolution_backprop_filters",
    "convolution_backward_data",
    "convolution_backward_weights",
]
