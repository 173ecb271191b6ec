"""A shape, format, dtype and partial as calls of our operator and of torch's, on the same data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_ops.bench_shapes import Shape

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
PARTIALS = ("weights", "data", "forward")
FORMATS = ("NCX", "NXC")

Run = Callable[[], Tensor]


@dataclass
class Case:
    """One problem: the same numbers in the same memory for torch and for us.

    NXC means channels_last for torch, its weights too, as ``model.to(memory_format=...)`` leaves
    them. Ours takes weights in torch's order with NCX, in the operator pages' XIO / XOI with NXC.
    """

    shape: Shape
    data_format: str
    dtype: str
    partial: str

    def __post_init__(self) -> None:
        s, dtype = self.shape, DTYPES[self.dtype]
        generator = torch.Generator().manual_seed(0)
        src, dst, weights = (
            torch.randn(extents, generator=generator).to(dtype)
            for extents in (s.src, s.dst, s.weights)
        )
        if self.data_format == "NCX":
            self.ours, self.theirs = (src, dst, weights), (src, dst, weights)
            weights_format = "IOX" if s.transposed else "OIX"
        else:
            last = [t.movedim(1, -1).contiguous() for t in (src, dst, weights)]
            by_taps = weights.movedim((0, 1), (-1, -2)).contiguous()
            self.ours = (last[0], last[1], by_taps)
            self.theirs = tuple(t.movedim(-1, 1) for t in last)
            weights_format = "XOI" if s.transposed else "XIO"
        self.attributes = {
            "strides": list(s.stride),
            "pads_begin": list(s.padding),
            "pads_end": list(s.padding),
            "dilations": list(s.dilation),
            "groups": s.groups,
            "data_format": self.data_format,
            "weights_format": weights_format,
        }
        if s.transposed:
            self.attributes["output_padding"] = list(s.output_padding)

    def our_call(self) -> tuple[str, tuple[Tensor, ...], dict[str, object]]:
        """Name, arguments and keywords of our operator."""
        src, dst, weights = self.ours
        name = "conv_transpose" if self.shape.transposed else "convolution"
        if self.partial == "forward":
            return name, (src, weights), self.attributes
        if self.partial == "weights":
            more = {"weights_shape": list(weights.shape)}
            return f"{name}_backward_weights", (src, dst), self.attributes | more
        more = {} if self.shape.transposed else {"src_shape": list(src.shape)}
        return f"{name}_backward_data", (dst, weights), self.attributes | more

    def our_run(self, device: str | None = None) -> Run:
        """Our operator on the data, or on tensors of the device ``meta``, which hold none."""
        name, args, kwargs = self.our_call()
        args = tuple(tensor.to(device or tensor.device) for tensor in args)
        op = getattr(torch.ops.convtbw, name)
        return lambda: op(*args, **kwargs)

    def torch_run(self, dtype: torch.dtype | None = None) -> Run:
        """torch's operator on the data, or on the same numbers in another dtype."""
        s = self.shape
        src, dst, weights = (tensor.to(dtype or tensor.dtype) for tensor in self.theirs)
        geometry = list(s.stride), list(s.padding), list(s.dilation)
        rest = (*geometry, s.transposed, list(s.output_padding), s.groups)
        if self.partial == "forward":
            op = torch.ops.aten.convolution
            return lambda: op(src, weights, None, *rest)
        index = 1 if self.partial == "weights" else 0
        mask = [index == 0, index == 1, False]
        op = torch.ops.aten.convolution_backward
        return lambda: op(dst, src, weights, None, *rest, mask)[index]

    def our_result(self) -> Tensor:
        """Our result in torch's order of the dimensions."""
        result = self.our_run()()
        if self.data_format == "NCX":
            return result
        if self.partial == "weights":
            return result.movedim((-1, -2), (0, 1))
        return result.movedim(-1, 1)

    def difference(self) -> float:
        """Relative L2 distance of our result from torch's (whose 16-bit sums are the coarser)."""
        ours, theirs = self.our_result().double(), self.torch_run()().double()
        return ((ours - theirs).norm() / theirs.norm()).item()
