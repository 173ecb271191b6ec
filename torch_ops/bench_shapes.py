"""The layers that the benchmark measures, in sets that are reported apart."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from math import prod

Axes = int | tuple[int, ...]  # one number for every spatial axis, or one for each


@dataclass(frozen=True)
class Shape:
    """One layer. Extents are those of the forward operator's src; ``inputs`` are its channels.

    Kernel, stride, padding (at both ends), dilation and output_padding may be given as one number;
    they are stored as one per spatial axis.
    """

    name: str
    transposed: bool
    batch: int
    inputs: int
    outputs: int
    spatial: tuple[int, ...]
    kernel: Axes
    stride: Axes = 1
    padding: Axes = 0
    dilation: Axes = 1
    output_padding: Axes = 0
    groups: int = 1

    def __post_init__(self) -> None:
        for field in ("kernel", "stride", "padding", "dilation", "output_padding"):
            value = getattr(self, field)
            per_axis = (value,) * len(self.spatial) if isinstance(value, int) else tuple(value)
            if len(per_axis) != len(self.spatial):
                raise ValueError(
                    f"{self.name}: {field} has {len(per_axis)} entries for "
                    f"{len(self.spatial)} spatial axes"
                )
            object.__setattr__(self, field, per_axis)  # the dataclass is frozen

    @property
    def dst_spatial(self) -> tuple[int, ...]:
        rest = zip(self.spatial, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        if not self.transposed:
            return tuple((i + 2 * p - (k - 1) * d - 1) // s + 1 for i, k, s, p, d in rest)
        full = (s * (i - 1) + (k - 1) * d + 1 - 2 * p for i, k, s, p, d in rest)
        return tuple(o + extra for o, extra in zip(full, self.output_padding, strict=True))

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
        first, second = self.outputs, self.inputs
        if self.transposed:
            first, second = second, first
        return (first, second // self.groups, *self.kernel)

    @property
    def macs(self) -> int:
        """Multiply-adds of any partial; taps that fall into the padding are counted."""
        pixels = prod(self.spatial if self.transposed else self.dst_spatial)
        taps = prod(self.kernel)
        return self.batch * pixels * taps * self.inputs * self.outputs // self.groups

    @property
    def elements(self) -> int:
        """Elements of src, weights and dst: what any partial must read or write at least once."""
        return prod(self.src) + prod(self.weights) + prod(self.dst)

    @property
    def kind(self) -> str:
        """``dense`` (one group), ``depthwise`` (one input channel a group) or ``grouped``."""
        if self.groups == 1:
            return "dense"
        return "depthwise" if self.groups == self.inputs else "grouped"


def _conv(name: str, *args: Axes, **kwargs: Axes) -> Shape:
    return Shape(name, False, *args, **kwargs)


def _transpose(name: str, *args: Axes, **kwargs: Axes) -> Shape:
    return Shape(name, True, *args, **kwargs)


# What was measured before there was any code; the list never changes.
MEASURED = (
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

# From public threads about slow or wrong convolutions on CPU; the number is that of the issue or
# pull request in pytorch/pytorch. Where the thread's batch makes more than 2.5 G multiply-adds, the
# batch is smaller here.
THREADS = (
    _transpose("istft_120982", 1, 1026, 1, (224,), 1024, stride=256),
    _transpose("up3_47341", 16, 512, 512, (32,), 6, stride=3, padding=2, output_padding=1),
    _transpose(
        "up3_dw_47341", 16, 512, 512, (32,), 6, stride=3, padding=2, output_padding=1, groups=512
    ),
    _transpose("groups4_95604", 1, 128, 128, (224, 224), 3, padding=1, groups=4),
    _conv("groups8_70954", 1, 128, 128, (224, 224), 3, padding=1, groups=8),
    # The thread gives no extents; these are a middle level of a 128 x 128 x 128 patch.
    _transpose("unet3d_194496", 1, 64, 32, (32, 32, 32), 2, stride=2),
    _transpose("c32_92530", 8, 32, 32, (100, 100), 3),
    _transpose("c16_92530", 4, 16, 16, (200, 200), 3),
    _transpose("c128_92530", 1, 128, 128, (100, 100), 3),
    _conv("k7dil2_183815", 8, 16, 32, (112, 112), 7, dilation=2),
    _conv("half1x1_83382", 1, 16, 16, (176, 320), 1),
    _conv("c8k5_27974", 32, 8, 8, (32, 32), 5, padding=2),
    _conv("penalty_22577", 16, 32, 128, (32, 32), 3, padding=1),
    _conv("k3s3_169688", 19, 313, 96, (12, 14, 4), 3, stride=3),
    # jaywalnut310/vits#25 and kan-bayashi/ParallelWaveGAN#319: the vocoder's other upsamplings.
    _transpose("vits_up2", 4, 256, 128, (256,), 16, stride=8, padding=4),
    _transpose("vits_up3", 4, 128, 64, (2048,), 4, stride=2, padding=1),
    _transpose("vits_up4", 4, 64, 32, (4096,), 4, stride=2, padding=1),
)

# Layers of known networks that were chosen after the first measurements.
NETWORKS = (
    _transpose("stylegan2_up", 2, 512, 512, (16, 16), 3, stride=2),
    # StyleGAN2 modulates weights per sample: the batch becomes groups.
    _conv("stylegan2_fused", 1, 1024, 1024, (16, 16), 3, padding=1, groups=2),
    _transpose("pix2pix_up7", 1, 256, 64, (64, 64), 4, stride=2, padding=1),
    _transpose("pix2pix_last", 1, 128, 3, (128, 128), 4, stride=2, padding=1),
    _conv("pix2pix_disc2", 1, 64, 128, (128, 128), 4, stride=2, padding=1),
    _transpose("cyclegan_up1", 1, 256, 128, (64, 64), 3, stride=2, padding=1, output_padding=1),
    _conv("nnunet_flat3", 1, 32, 32, (32, 64, 64), (1, 3, 3), padding=(0, 1, 1)),
    _transpose("nnunet_flat_up", 1, 128, 64, (16, 32, 32), (1, 2, 2), stride=(1, 2, 2)),
    _conv("vnet_k5", 1, 16, 16, (32, 32, 32), 5, padding=2),
    _conv("hifigan_res11", 2, 128, 128, (2048,), 11, padding=25, dilation=5),
    # EnCodec pads src by an operator of its own: 3000 + 5 samples.
    _conv("encodec_down3", 4, 128, 256, (3005,), 10, stride=5),
    _transpose("encodec_up1", 4, 512, 256, (75,), 16, stride=8),
    _conv("convnext_stem", 8, 3, 96, (224, 224), 4, stride=4),
    _conv("mobilenetv3_dw5", 8, 240, 240, (28, 28), 5, stride=2, padding=2, groups=240),
    _conv("resnext_3x3", 8, 128, 128, (56, 56), 3, padding=1, groups=32),
    _conv("r50_3x3_last", 8, 512, 512, (7, 7), 3, padding=1),
    _conv("deeplab_aspp12", 1, 320, 256, (33, 33), 3, padding=12, dilation=12),
    _conv("conformer_sub2", 1, 256, 256, (199, 39), 3, stride=2),
    _conv("conformer_dw31", 8, 256, 256, (400,), 31, padding=15, groups=256),
    _conv("wav2vec2_conv3", 1, 512, 512, (1599,), 3, stride=2),
    _conv("wav2vec2_pos", 1, 768, 768, (249,), 128, padding=64, groups=16),
    _conv("edsr_res", 2, 64, 64, (96, 96), 3, padding=1),
    _conv("inception_1x7", 4, 192, 192, (17, 17), (1, 7), padding=(0, 3)),
    _conv("r2plus1d_time", 1, 144, 64, (8, 56, 56), (3, 1, 1), padding=(1, 0, 0)),
    _conv("x3d_dw3", 1, 108, 108, (8, 28, 28), 3, padding=1, groups=108),
    _transpose("pose_up1", 2, 2048, 256, (8, 6), 4, stride=2, padding=1),
    _transpose("sam_up1", 1, 256, 64, (64, 64), 2, stride=2),
    _transpose("convtasnet_dec", 4, 512, 1, (3000,), 16, stride=8),
)

SETS = {"measured": MEASURED, "threads": THREADS, "networks": NETWORKS}
SET_OF = {shape.name: name for name, shapes in SETS.items() for shape in shapes}


def choose(names: list[str], sets: list[str]) -> list[Shape]:
    """The shapes of the sets that one of the names fits.

    Args:
        names: whole names; or else parts of names, or patterns such as ``dw*``.
        sets: keys of :data:`SETS`.

    Raises:
        ValueError: if a name fits no shape; the message lists them all.
    """
    shapes = [shape for name in sets for shape in SETS[name]]
    chosen: set[str] = set()
    for name in names:
        whole = any(shape.name == name for shape in shapes)
        pattern = name if whole or set(name) & set("*?[") else f"*{name}*"
        fitting = {shape.name for shape in shapes if fnmatch(shape.name, pattern)}
        if not fitting:
            known = ", ".join(shape.name for shape in shapes)
            raise ValueError(f"no shape matches {name!r}; there are: {known}")
        chosen |= fitting
    return [shape for shape in shapes if shape.name in chosen]
