"""Train an nnU-Net-like 3-D U-Net that finds grey matter, white matter and fluid in a brain.

After F. Isensee, P. F. Jaeger, S. A. A. Kohl, J. Petersen, K. H. Maier-Hein, "nnU-Net: a
self-configuring method for deep learning-based biomedical image segmentation" (Nature Methods,
2021): plain 3x3x3 convolutions with instance norm and leaky ReLU, strided convolutions down,
transposed ones (kernel = stride) up, deep supervision, Dice plus cross-entropy, SGD with Nesterov
momentum and a polynomial learning rate, patches of which a third lie on the foreground, mirroring
and intensity augmentation, and a sliding window with Gaussian weights for the prediction.

The volumes are in nilearn's wheel: the MNI ICBM152 template of 2009 (average T1-weighted brain) and
its tissue probabilities, 1 mm, here averaged to 2 mm. A scanner's noise and shading are added. The
front of the brain is held out. The left half could not be: the template is its own mirror image.

    python examples/segmentation.py [--small] [--dtype f32 bf16] [--help]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from nilearn import datasets
from recipe import Recipe
from torch import Tensor, nn

CLASSES = ("background", "fluid", "grey matter", "white matter")
HELD_OUT = 0.3  # of the brain's length, from its front
NOISE = 0.04  # of the brightest voxel: about what a clinical scan has
SHADING = 0.2  # largest relative change of brightness by the receive coil
STEPS = 400  # of the long training, over which the learning rate falls

# Of ten steps, at a rate that amplifies rounding. Where only float32's differs (torch, contiguous
# and channels_last_3d, three seeds), losses are 1e-5 apart after two steps and 5e-3 after ten.
# Those of bfloat16 and float32 are up to 6e-3 apart.
TOLERANCE = {"f32": 2e-2, "bf16": 3e-2}


@dataclass(frozen=True)
class Sizes:
    """nnU-Net's plan: it halves the patch until its edge is 4 to 7 voxels, and doubles channels."""

    patch: int = 32
    channels: tuple[int, ...] = (16, 32, 64, 128)
    batch: int = 2
    millimetres: int = 2


SMALL = Sizes(patch=24, channels=(8, 16), millimetres=4)


# ---- data ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Brain:
    """A scan (X, Y, Z), its labels, and the first coronal slice that is held out."""

    scan: Tensor
    labels: Tensor
    front: int


@cache
def load(millimetres: int) -> Brain:
    """The template as a scanner might see it; labels are the most probable tissues."""
    files = (
        datasets.load_mni152_template(resolution=1),
        datasets.load_mni152_gm_template(resolution=1),
        datasets.load_mni152_wm_template(resolution=1),
    )
    volumes = torch.stack([torch.from_numpy(f.get_fdata(dtype=np.float32)) for f in files])
    intensity, grey, white = F.avg_pool3d(volumes, millimetres)
    outside = (intensity < 0.05 * intensity.max()).float()
    fluid = (1 - grey - white) * (1 - outside)
    labels = torch.stack([2 * outside, fluid, grey, white]).argmax(0)
    inside = labels.nonzero()
    box = [
        slice(max(0, int(a) - 4), int(b) + 5) for a, b in zip(*inside.aminmax(dim=0), strict=True)
    ]
    scan, labels = scanned(intensity)[*box], labels[*box]
    first, last = (int(edge) for edge in (labels > 0).any(2).any(0).nonzero()[[0, -1]])
    return Brain(scan, labels, round(last - HELD_OUT * (last - first)))


def scanned(intensity: Tensor) -> Tensor:
    """With smooth shading and Rician noise: mean 0 and variance 1 inside, constant outside."""
    random = torch.Generator().manual_seed(0)
    coarse = 2 * torch.rand(1, 1, 3, 3, 3, generator=random) - 1
    shading = F.interpolate(coarse, intensity.shape, mode="trilinear", align_corners=True)[0, 0]
    real = intensity / intensity.max() * (1 + SHADING * shading)
    noise = NOISE * torch.randn(2, *intensity.shape, generator=random)
    scan = torch.hypot(real + noise[0], noise[1]).where(intensity > 0, 0)
    brain = scan[intensity > 0]
    return (scan - brain.mean()) / brain.std()


class Patches:
    """Random patches behind the held-out part, augmented."""

    def __init__(self, brain: Brain, sizes: Sizes) -> None:
        self.scan, self.labels = brain.scan[:, : brain.front], brain.labels[:, : brain.front]
        self.patch, self.batch = sizes.patch, sizes.batch
        self.random = torch.Generator().manual_seed(1)
        self.foreground = (self.labels > 0).nonzero()

    def __call__(self) -> tuple[Tensor, Tensor]:
        """(N, 1, P, P, P) and its labels (N, P, P, P)."""
        drawn = [self._draw(third=index % 3 == 0) for index in range(self.batch)]
        scans, labels = (torch.stack(parts) for parts in zip(*drawn, strict=True))
        return scans[:, None], labels

    def _draw(self, third: bool) -> tuple[Tensor, Tensor]:
        free = torch.tensor(self.scan.shape) - self.patch
        at = (self._uniform(3) * (free + 1)).long()
        if third:
            chosen = self.foreground[int(self._uniform() * len(self.foreground))]
            at = (chosen - self.patch // 2).clamp(min=torch.zeros(3).long(), max=free)
        where = tuple(slice(int(a), int(a) + self.patch) for a in at)
        axes = [axis for axis in range(3) if self._uniform() < 0.5]
        scan, labels = self.scan[where].flip(axes), self.labels[where].flip(axes)
        contrast, brightness = 1 + 0.5 * (self._uniform(2) - 0.5)
        noise = 0.1 * self._uniform() * torch.randn(scan.shape, generator=self.random)
        return scan * contrast + brightness - 1 + noise, labels

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.random)


# ---- network ------------------------------------------------------------------------------------


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, 3, stride, padding=1),
        nn.InstanceNorm3d(outputs, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
        nn.Conv3d(outputs, outputs, 3, padding=1),
        nn.InstanceNorm3d(outputs, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
    )


class UNet(nn.Module):
    """The plain-convolution U-Net of nnU-Net; logits of every resolution, the finest first."""

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        pairs = list(pairwise(channels))
        self.down = nn.ModuleList([block(1, channels[0]), *(block(a, b, 2) for a, b in pairs)])
        self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in reversed(pairs))
        self.merge = nn.ModuleList(block(2 * a, a) for a, _ in reversed(pairs))
        self.heads = nn.ModuleList(nn.Conv3d(a, len(CLASSES), 1) for a, _ in reversed(pairs))
        for module in self.modules():
            if isinstance(module, nn.Conv3d | nn.ConvTranspose3d):
                nn.init.kaiming_normal_(module.weight, a=0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> list[Tensor]:
        skips = []
        for stage in self.down:
            x = stage(x)
            skips.append(x)
        skips.pop()
        logits = []
        for up, merge, head in zip(self.up, self.merge, self.heads, strict=True):
            x = merge(torch.cat((up(x), skips.pop()), 1))
            logits.append(head(x))
        return logits[::-1]


def dice_and_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """nnU-Net's loss, plus 1: cross-entropy less the soft Dice of the foreground, by image.

    Plus 1, for the losses of two trainings are compared relative to themselves.
    """
    logits = logits.float()
    truth = F.one_hot(labels, len(CLASSES)).movedim(-1, 1).float()
    probability = logits.softmax(1)
    both = (probability * truth).sum((2, 3, 4))
    either = (probability + truth).sum((2, 3, 4))
    dice = (2 * both + 1e-5) / (either + 1e-5).clamp(min=1e-8)
    return F.cross_entropy(logits, labels) + 1 - dice[:, 1:].mean()


def deeply_supervised(logits: list[Tensor], labels: Tensor) -> Tensor:
    """The loss of every resolution, each half as important as the next finer one."""
    importance = torch.tensor([0.5**level for level in range(len(logits))])
    importance /= importance.sum()
    losses = [
        dice_and_cross_entropy(level, labels[:, :: 2**i, :: 2**i, :: 2**i])
        for i, level in enumerate(logits)
    ]
    return (importance * torch.stack(losses)).sum()


class Segmentation:
    """The training of the recipe."""

    def __init__(self, dtype: str, small: bool) -> None:
        torch.manual_seed(0)
        self.sizes = SMALL if small else Sizes()
        self.brain = load(self.sizes.millimetres)
        self.patches = Patches(self.brain, self.sizes)
        self.network = UNet(self.sizes.channels)
        self.autocast = dtype == "bf16"
        # nnU-Net's rate is 0.01 and its momentum 0.99, which averages 100 of 250 000 steps. Ten
        # times less of 1 - momentum for far fewer steps, and the same rate / (1 - momentum).
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=3e-5
        )
        self.schedule = torch.optim.lr_scheduler.PolynomialLR(self.optimizer, STEPS, power=0.9)

    def step(self) -> float:
        scans, labels = self.patches()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            logits = self.network(scans)
        loss = deeply_supervised(logits, labels)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 12)
        self.optimizer.step()
        self.schedule.step()
        return loss.item()

    @torch.no_grad()
    def predict(self) -> Tensor:
        """Labels of all voxels inside, by windows that overlap by half and weigh as Gaussians."""
        patch, shape = self.sizes.patch, self.brain.scan.shape
        along = torch.linspace(-1, 1, patch).div(0.25).square().div(-2).exp()
        weight = torch.einsum("i,j,k->ijk", along, along, along).clamp(min=1e-4)
        sums = torch.zeros(len(CLASSES), *shape)
        for at in torch.cartesian_prod(*(windows(extent, patch) for extent in shape)).tolist():
            where = tuple(slice(a, a + patch) for a in at)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
                logits = self.network(self.brain.scan[where][None, None])[0]
            sums[:, *where] += weight * logits[0].float().softmax(0)
        # nnU-Net crops to what is not zero. The skull was stripped: what is outside is known.
        return sums.argmax(0) * (self.brain.scan > self.brain.scan.min())


def windows(extent: int, patch: int) -> Tensor:
    """Where windows begin that cover an axis, half a window apart at most."""
    count = -(-2 * (extent - patch) // patch) + 1
    return torch.linspace(0, extent - patch, count).round().long()


# ---- result -------------------------------------------------------------------------------------


def dice(found: Tensor, truth: Tensor) -> dict[str, float]:
    """2 |A and B| / (|A| + |B|) of each foreground class."""
    scores = {}
    for index, name in enumerate(CLASSES[1:], 1):
        a, b = found == index, truth == index
        scores[name] = 2 * float((a & b).sum()) / max(1, int(a.sum() + b.sum()))
    return scores


def save(training: Segmentation, folder: Path) -> list[Path]:
    """Prints the Dice of the held-out part; the picture shows three planes through the brain."""
    brain, found = training.brain, training.predict()
    scores = dice(found[:, brain.front :], brain.labels[:, brain.front :])
    told = ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
    print(f"Dice of the held-out front of the brain: {told}")
    path = folder / "segmentation.png"
    draw(brain, found, told, path)
    return [path]


def draw(brain: Brain, found: Tensor, told: str, path: Path) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    wrong = torch.where(found == brain.labels, 0, 1 + (brain.labels > 0).long())
    tissues = ListedColormap(["black", "#3b7dd8", "#9aa0a6", "#f5f5f5"])
    errors = ListedColormap(["black", "#f2c230", "#e0433a"])
    columns = (
        ("scan", brain.scan, {"cmap": "gray", "vmin": -3, "vmax": 2}),
        ("truth", brain.labels, {"cmap": tissues, "vmin": 0, "vmax": 3}),
        ("prediction", found, {"cmap": tissues, "vmin": 0, "vmax": 3}),
        ("wrong", wrong, {"cmap": errors, "vmin": 0, "vmax": 2}),
    )
    x, _, z = (extent // 2 for extent in brain.scan.shape)
    middle = (brain.front + brain.scan.shape[1]) // 2
    rows = (
        (lambda v: v[:, :, z + 2].T, "h", "axial"),
        (lambda v: v[x - 6].T, "v", "sagittal"),
        (lambda v: v[:, middle - 2].T, None, "coronal, held out"),
    )
    figure = Figure(figsize=(10, 8.2), layout="constrained", facecolor="black")
    heights = [brain.scan.shape[1], brain.scan.shape[2], brain.scan.shape[2]]
    grid = figure.subplots(3, 4, gridspec_kw={"height_ratios": heights})
    for axes, (cut, edge, plane) in zip(grid, rows, strict=True):
        for ax, (title, volume, style) in zip(axes, columns, strict=True):
            ax.imshow(cut(volume), origin="lower", interpolation="nearest", **style)
            ax.axis("off")
            if axes is grid[0]:
                ax.set_title(title, color="white")
            line = {"color": "#55dd88", "linewidth": 1, "linestyle": "--"}
            if edge == "h":
                ax.axhline(brain.front, **line)
            if edge == "v":
                ax.axvline(brain.front, **line)
        axes[0].text(0, 0, plane, color="#55dd88", transform=axes[0].transAxes)
    figure.suptitle(f"beyond the dashed line: held out; Dice {told}", color="white", fontsize=10)
    figure.savefig(path, dpi=80)


RECIPE = Recipe(
    name="segmentation",
    build=Segmentation,
    save=save,
    steps=STEPS,
    tolerance=TOLERANCE,
)

if __name__ == "__main__":
    sys.exit(RECIPE.main(__doc__))
