"""DP-SGD on handwritten digits: gradients of each sample, clipped and blurred.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: Deep Learning with Differential Privacy
(2016). The model reads noisy digits: an encoder of strided convolutions, a decoder of transposed
ones that removes the noise, and a linear layer that names the digit; tanh as Papernot et al.:
Tempered Sigmoid Activations (2021). Each sample's gradient, by torch.func, is clipped to norm 1;
their sum gets Gaussian noise. Printed: epsilon, by dp-accounting (Renyi differential privacy of the
Poisson-subsampled Gaussian), and what was learned for it. The data are scikit-learn's 1797 digits,
enlarged to 32x32.

    python examples/dp_sgd.py [--steps N] [--dtype f32 bf16] [--threads N]
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from recipe import Recipe, digits
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

HELD_OUT = 360  # of 1797 digits
LOT = 256  # samples of a step, expected: each digit takes part with the same probability
CLIP = 1.0  # largest norm of a sample's gradient
NOISE = 3.0  # standard deviation of the noise of the sum, in units of CLIP
DELTA = 1e-5
ORDERS = range(2, 65)  # of Renyi divergence: whole ones have a closed form
LEARNING_RATE = 3e-3
BLUR = 0.7  # standard deviation of the noise in the images, whose pixels are from -1 to 1


class Reader(nn.Module):
    """Without batch norm, which would mix the samples."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 4, stride=2, padding=1),
            nn.Tanh(),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
            nn.Tanh(),
            nn.Conv2d(2 * width, 2 * width, 4, stride=2, padding=1),
            nn.Tanh(),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(2 * width, 2 * width, 4, stride=2, padding=1),
            nn.Tanh(),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
            nn.Tanh(),
            nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
            nn.Tanh(),
        )
        self.name = nn.Linear(2 * width * 4 * 4, 10)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(images)
        return self.decoder(code), self.name(code.flatten(1))


def epsilon(steps: int, rate: float, noise: float = NOISE, delta: float = DELTA) -> float:
    """What the steps have cost, each with a share ``rate`` of the data."""
    accountant = RdpAccountant(ORDERS)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)
    return accountant.get_epsilon(delta)


def clipped_sum(gradients: dict[str, Tensor], norm: float) -> dict[str, Tensor]:
    """Sum over the samples, each of which is shortened to the norm first."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
    share = (norm / (norms + 1e-6)).clamp(max=1)
    return {name: torch.einsum("n,n...->...", share, g) for name, g in gradients.items()}


class Training:
    def __init__(self, dtype: str, small: bool) -> None:
        torch.manual_seed(0)
        width, self.lot = (4, 16) if small else (24, LOT)
        images, names = digits()
        self.images, self.names = images[HELD_OUT:], names[HELD_OUT:]
        self.test_images, self.test_names = images[:HELD_OUT], names[:HELD_OUT]
        self.model = Reader(width)
        self.autocast = dtype == "bf16"
        # Of its own, so that trainings which take turns see the same samples.
        self.random = torch.Generator().manual_seed(0)
        self.optimizer = torch.optim.Adam(self.model.parameters(), LEARNING_RATE)
        self.steps = 0

    @property
    def rate(self) -> float:
        """Probability that a sample is part of a step."""
        return self.lot / len(self.images)

    def _loss(self, parameters: dict, noisy: Tensor, image: Tensor, name: Tensor) -> Tensor:
        # The cache of casts would keep what belongs to one level of torch.func for another.
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast, cache_enabled=False):
            clean, logits = functional_call(self.model, parameters, (noisy[None],))
        named = nn.functional.cross_entropy(logits.float(), name[None])
        return named + nn.functional.mse_loss(clean[0].float(), image)

    def step(self) -> float:
        chosen = torch.rand(len(self.images), generator=self.random) < self.rate
        image, name = self.images[chosen], self.names[chosen]
        noisy = image + BLUR * torch.randn(image.shape, generator=self.random)
        parameters = {key: value.detach() for key, value in self.model.named_parameters()}
        per_sample = vmap(grad_and_value(self._loss), in_dims=(None, 0, 0, 0))
        gradients, losses = per_sample(parameters, noisy, image, name)
        sums = clipped_sum(gradients, CLIP)
        for key, parameter in self.model.named_parameters():
            noise = torch.randn(parameter.shape, generator=self.random)
            parameter.grad = (sums[key] + NOISE * CLIP * noise) / self.lot
        self.optimizer.step()
        self.steps += 1
        return losses.mean().item()

    @torch.no_grad()
    def read(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The images without noise, and their names."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            clean, logits = self.model(images)
        return clean.float(), logits.argmax(1)


def decibels(images: Tensor, clean: Tensor) -> float:
    """Peak signal-to-noise ratio; the peak is 2, from -1 to 1."""
    return float(10 * torch.log10(4 / (images - clean).square().mean()))


def save(training: Training, folder: Path) -> list[Path]:
    clean, names = training.test_images, training.test_names
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(1))
    noisy = clean + BLUR * noise
    read, found = training.read(noisy)
    spent = epsilon(training.steps, training.rate)
    right = (found == names).double().mean()
    print(f"epsilon {spent:.2f} for delta {DELTA} after {training.steps} steps")
    print(
        f"held out: {right:.1%} named right, "
        f"{decibels(noisy, clean):.1f} dB -> {decibels(read, clean):.1f} dB"
    )

    columns = 12
    figure, axes = plt.subplots(3, columns, figsize=(10, 3.2), layout="constrained")
    figure.suptitle(f"noisy, read with epsilon {spent:.1f}, original")
    for row, images in zip(axes, (noisy, read, clean), strict=True):
        for axis, image in zip(row, images, strict=False):
            axis.imshow(image[0], cmap="gray", vmin=-1, vmax=1)
            axis.axis("off")
    for axis, name in zip(axes[1], found, strict=False):
        axis.set_title(int(name), fontsize=9, pad=2)
    path = folder / "dp_sgd.png"
    figure.savefig(path, dpi=80)
    return [path]


# Of ten losses, those of torch and of these kernels are 1e-7 apart in f32, and 8e-6 in bf16, where
# torch's contiguous and channels_last runs differ by 1e-5; on an AVX2 CPU 3e-5.
RECIPE = Recipe("DP-SGD", Training, save, steps=300, tolerance={"f32": 1e-5, "bf16": 1e-3})

if __name__ == "__main__":
    sys.exit(RECIPE.main(__doc__))
