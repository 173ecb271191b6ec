"""What the operators count in torch.utils.flop_counter.FlopCounterMode: as much as torch's."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch.utils.flop_counter import register_flop_formula

from torch_ops import _library  # noqa: F401  (loads the operators)

# Which of (first tensor, second tensor, result) are the weights, and which has the windows as its
# pixels: the forward operator's output of a convolution, its input of a transposed one. What adds
# has no result, but a third tensor.
_WEIGHTS_AND_WINDOWS = {
    "convolution": (1, 2),
    "convolution_backward_data": (1, 0),
    "convolution_backward_weights": (2, 1),
    "convolution_backprop_filters": (2, 1),
    "conv_transpose": (1, 0),
    "conv_transpose_backward_data": (1, 2),
    "conv_transpose_backward_weights": (2, 0),
    "conv_transpose_backprop_filters": (2, 0),
    "convolution_backward_weights_add_": (0, 2),
    "conv_transpose_backward_weights_add_": (0, 1),
}


def _register(name: str, weights: int, windows: int) -> None:
    @register_flop_formula(getattr(torch.ops.convtbw, name))
    def flops(
        first: Sequence[int],
        second: Sequence[int],
        third: Sequence[int] | None = None,
        *_,
        out_shape: Sequence[int] | None,
        groups: int = 1,
        data_format: str = "NXC",
        **_attributes,
    ) -> int:
        shapes = (first, second, out_shape or third)
        data = shapes[windows]
        pixels = prod(data[:-1]) if data_format.upper() == "NXC" else data[0] * prod(data[2:])
        # Torch takes a weights gradient for one of all pairs of channels, also with groups.
        return 2 * prod(shapes[weights]) * pixels * (groups if weights != 1 else 1)


for _name, _places in _WEIGHTS_AND_WINDOWS.items():
    _register(_name, *_places)
