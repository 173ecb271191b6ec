"""What the benchmark measures: layers of known networks, and the calls that they become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
PARTIALS = ("weights", "data", "forward")
FORMATS = ("NCX", "NXC")

Run = Callable[[], Tensor]


@dataclass(frozen=True)
class Shape:
    """One layer. Extents are those of the forward operator's src; ``inputs`` are its channels.

    Every spatial axis has the same kernel extent, stride, padding at both ends and dilation.
    """

    name: str
    transposed: bool
    batch: int
    inputs: int
    outputs: int
    spatial: tuple[int, ...]
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1

    @property
    def dst_spatial(self) -> tuple[int, ...]:
        extent = (self.kernel - 1) * self.dilation + 1
        if self.transposed:
            return tuple(self.stride * (i - 1) + extent - 2 * self.padding for i in self.spatial)
        return tuple((i + 2 * self.padding - extent) // self.stride + 1 for i in self.spatial)

    @property
    def src(self) -> tuple[int, ...]:
        """Shape of src as NCX."""
        return (self.batch, self.inputs, *self.spatial)

    @property
    def dst(self) -> tuple[int, ...]:
        """Shape of dst as NCX."""
        return (self.batch, self.outputs, *self.dst_spatial)

    @property
    def weights(self) -> tuple[int, ...]:
        """Shape of the weights as torch holds them: OIX, or IOX of a transposed convolution."""
        taps = (self.kernel,) * len(self.spatial)
        first, second = self.outputs, self.inputs
        if self.transposed:
            first, second = second, first
        return (first, second // self.groups, *taps)

    @property
    def macs(self) -> int:
        """Multiply-adds of any partial; taps that fall into the padding are counted."""
        pixels = prod(self.spatial if self.transposed else self.dst_spatial)
        taps = self.kernel ** len(self.spatial)
        return self.batch * pixels * taps * self.inputs * self.outputs // self.groups

    @property
    def elements(self) -> int:
        """Elements of src, weights and dst: what any partial must read or write at least once."""
        return prod(self.src) + prod(self.weights) + prod(self.dst)


def _conv(name: str, *args: int | tuple[int, ...], **kwargs: int) -> Shape:
    return Shape(name, False, *args, **kwargs)


def _transpose(name: str, *args: int | tuple[int, ...], **kwargs: int) -> Shape:
    return Shape(name, True, *args, **kwargs)


SHAPES = (
    _transpose("dcgan_g2", 32, 512, 256, (8, 8), 4, stride=2, padding=1),
    _transpose("dcgan_g4", 32, 128, 64, (32, 32), 4, stride=2, padding=1),
    _transpose("dcgan_last", 32, 64, 3, (32, 32), 4, stride=2, padding=1),
    _transpose("unet_up1", 1, 512, 256, (64, 64), 2, stride=2),
    _transpose("unet_up4", 1, 128, 64, (256, 256), 2, stride=2),
    _transpose("fcn_up8", 1, 21, 21, (64, 64), 16, stride=8, padding=4),
    _transpose("fcn_up8_dw", 1, 21, 21, (64, 64), 16, stride=8, padding=4, groups=21),
    _transpose("dw_up2", 4, 256, 256, (32, 32), 4, stride=2, padding=1, groups=256),
    _transpose("dil2", 8, 64, 64, (28, 28), 3, padding=2, dilation=2),
    _transpose("hifigan_up1", 16, 512, 256, (32,), 16, stride=8, padding=4),
    _transpose("unet3d_up", 1, 128, 64, (16, 16, 16), 2, stride=2),
    _conv("r50_3x3", 8, 64, 64, (56, 56), 3, padding=1),
    _conv("r50_1x1", 8, 256, 64, (56, 56), 1),
    _conv("r50_stem", 8, 3, 64, (224, 224), 7, stride=2, padding=3),
    _conv("dw3", 8, 96, 96, (56, 56), 3, padding=1, groups=96),
    _conv("convnext_dw7", 8, 96, 96, (56, 56), 7, padding=3, groups=96),
)


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
        torch.manual_seed(0)
        src, dst, weights = (torch.randn(e).to(dtype) for e in (s.src, s.dst, s.weights))
        if self.data_format == "NCX":
            self.ours, self.theirs = (src, dst, weights), (src, dst, weights)
            weights_format = "IOX" if s.transposed else "OIX"
        else:
            last = [t.movedim(1, -1).contiguous() for t in (src, dst, weights)]
            by_taps = weights.movedim((0, 1), (-1, -2)).contiguous()
            self.ours = (last[0], last[1], by_taps)
            self.theirs = tuple(t.movedim(-1, 1) for t in last)
            weights_format = "XOI" if s.transposed else "XIO"
        axes = len(s.spatial)
        self.attributes = {
            "strides": [s.stride] * axes,
            "pads_begin": [s.padding] * axes,
            "pads_end": [s.padding] * axes,
            "dilations": [s.dilation] * axes,
            "groups": s.groups,
            "data_format": self.data_format,
            "weights_format": weights_format,
        }

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

    def our_run(self) -> Run:
        name, args, kwargs = self.our_call()
        op = getattr(torch.ops.convtbw, name)
        return lambda: op(*args, **kwargs)

    def torch_run(self) -> Run:
        s, (src, dst, weights) = self.shape, self.theirs
        axes = len(s.spatial)
        geometry = [s.stride] * axes, [s.padding] * axes, [s.dilation] * axes
        rest = (*geometry, s.transposed, [0] * axes, s.groups)
        if self.partial == "forward":
            return lambda: torch.ops.aten.convolution(src, weights, None, *rest)
        index = 1 if self.partial == "weights" else 0
        mask = [index == 0, index == 1, False]
        op = torch.ops.aten.convolution_backward
        return lambda: op(dst, src, weights, None, *rest, mask)[index]

    def difference(self) -> float:
        """Relative L2 distance of our result from torch's (whose 16-bit sums are the coarser)."""
        ours, theirs = self.our_run()().double(), self.torch_run()().double()
        if self.data_format == "NXC":
            taps = self.partial == "weights"
            ours = ours.movedim((-1, -2), (0, 1)) if taps else ours.movedim(-1, 1)
        return ((ours - theirs).norm() / theirs.norm()).item()
