"""The modules of torch.nn that convolve, computed by :mod:`torch_ops.functional`.

Subclasses of torch's: the same constructors, parameters, state_dict and errors. Beyond torch,
``padding`` may be one pair (begin, end) for each axis, and that of the transposed ones ``same`` or
``valid``; ``output_size`` then may be anything whose convolution has the input's size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_ops import functional
from torch_ops.functional_pads import Ints, Padding, has_pairs

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

_CONV = (functional.conv1d, functional.conv2d, functional.conv3d)
_CONV_TRANSPOSE = (
    functional.conv_transpose1d,
    functional.conv_transpose2d,
    functional.conv_transpose3d,
)


class _Conv:
    """What the convolutions share: torch's constructor, and the call that torch leaves open."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            around = self._reversed_padding_repeated_twice
            if has_pairs(padding):
                around = [pad for pair in reversed(padding) for pad in pair]
            input = torch.nn.functional.pad(input, around, mode=self.padding_mode)
            padding = 0
        convolve = _CONV[len(self.kernel_size) - 1]
        return convolve(input, weight, bias, self.stride, padding, self.dilation, self.groups)


class _ConvTranspose:
    """What the transposed convolutions share."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: str | Padding = 0,
        output_padding: Ints = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Ints = 1,
        padding_mode: str = "zeros",
        device=None,
        dtype=None,
    ) -> None:
        word = isinstance(padding, str)
        if word and padding not in ("same", "valid"):
            raise ValueError(
                f"Invalid padding string {padding!r}, should be one of 'same', 'valid'"
            )
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            0 if word else padding,
            output_padding,
            groups,
            bias,
            dilation,
            padding_mode,
            device,
            dtype,
        )
        if word:
            self.padding = padding

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """The transposed convolution of an input.

        Args:
            input: (N, IC, I...) or (IC, I...).
            output_size: the wanted shape of the output, or its spatial part; it takes the place of
                ``output_padding``.

        Returns:
            (N, OC, O...) or (OC, O...).

        Raises:
            ValueError: for an ``output_size`` whose convolution has not the input's size.
        """
        if self.padding_mode != "zeros":
            raise ValueError(f"Only `zeros` padding mode is supported for {type(self).__name__}")
        return _CONV_TRANSPOSE[len(self.kernel_size) - 1](
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.output_padding if output_size is None else 0,
            self.groups,
            self.dilation,
            output_size=output_size,
        )


class Conv1d(_Conv, torch.nn.Conv1d):
    """:class:`torch.nn.Conv1d`, computed by ``torch_ops.functional.conv1d``."""


class Conv2d(_Conv, torch.nn.Conv2d):
    """:class:`torch.nn.Conv2d`, computed by ``torch_ops.functional.conv2d``."""


class Conv3d(_Conv, torch.nn.Conv3d):
    """:class:`torch.nn.Conv3d`, computed by ``torch_ops.functional.conv3d``."""


class ConvTranspose1d(_ConvTranspose, torch.nn.ConvTranspose1d):
    """:class:`torch.nn.ConvTranspose1d`, computed by ``torch_ops.functional.conv_transpose1d``."""


class ConvTranspose2d(_ConvTranspose, torch.nn.ConvTranspose2d):
    """:class:`torch.nn.ConvTranspose2d`, computed by ``torch_ops.functional.conv_transpose2d``."""


class ConvTranspose3d(_ConvTranspose, torch.nn.ConvTranspose3d):
    """:class:`torch.nn.ConvTranspose3d`, computed by ``torch_ops.functional.conv_transpose3d``."""
