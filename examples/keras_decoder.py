"""Port a Keras autoencoder weight by weight, check it against TensorFlow, and train it further.

A variational autoencoder (D. P. Kingma, M. Welling, "Auto-Encoding Variational Bayes", 2013; the
network of Keras' own example by F. Chollet, 2020) learnt printed digits in TensorFlow:
``examples/keras_vae/train.py``. Its ``weights.npz`` has the weights in Keras' layouts, and images,
latents and gradients that TensorFlow computed from them. Here the same network computes with
channels last and ``padding="same"``, reproduces TensorFlow's values, and learns the handwritten
digits of scikit-learn.

Torch alone has no SAME padding for strides: its usual port transposes every kernel, pads the
pictures by hand and crops what ``conv_transpose2d`` computes too much. That is the other side of
the comparison.

    python examples/keras_decoder.py [--small] [--dtype f32 bf16] [--help]
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from recipe import Recipe
from sklearn.datasets import load_digits
from torch import Tensor, nn

import torch_ops.functional

WEIGHTS = Path(__file__).parent / "keras_vae/weights.npz"
SIZE = 32
LATENT = 16
ENCODER = ("conv2d", "conv2d_1", "conv2d_2")  # stride 2, kernels 3, 4, 5
# Kernels 5, 4, 3 with stride 2, and 3 with stride 1.
DECODER = (
    ("conv2d_transpose", 2),
    ("conv2d_transpose_1", 2),
    ("conv2d_transpose_2", 2),
    ("conv2d_transpose_3", 1),
)

# Largest relative distance, of the norms, between TensorFlow's values and those of the port:
# float32's rounding, in sums of up to 1600 products. A pixel's shift is 1e-1 and more.
TENSORFLOW = 1e-5

# Of ten steps. Where only the rounding differs (the torch port, contiguous and channels_last, with
# and without oneDNN, two seeds), losses are up to 1.1e-5 apart, and in bfloat16 4e-4.
TOLERANCE = {"f32": 1e-4, "bf16": 3e-3}


# ---- the port -----------------------------------------------------------------------------------


class Port(nn.Module):
    """Both networks with Keras' data and weights as they are: (N, H, W, C), (H, W, I, O) and, in
    transposed convolutions, (H, W, O, I). The views in torch's order cost nothing."""

    def __init__(self) -> None:
        super().__init__()
        for name, value in keras_weights().items():
            self.register_parameter(name, nn.Parameter(torch.from_numpy(value)))

    def down(self, x: Tensor, layer: str) -> Tensor:
        """``Conv2D(strides=2, padding="same")``"""
        kernel, bias = self._weights("encoder", layer)
        padding = torch_ops.functional.onnx_conv_pads(
            x.shape[1:3], kernel.shape[:2], 2, auto_pad="SAME_UPPER"
        )
        return torch_ops.functional.conv2d(
            x, kernel.permute(3, 2, 0, 1), bias, 2, padding, data_format="NXC"
        )

    def up(self, x: Tensor, layer: str, stride: int) -> Tensor:
        """``Conv2DTranspose(strides=stride, padding="same")``"""
        kernel, bias = self._weights("decoder", layer)
        return torch_ops.functional.conv_transpose2d(
            x, kernel.permute(3, 2, 0, 1), bias, stride, "same", data_format="NXC"
        )

    def encode(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the variance of the latents, of pictures (N, H, W, 1)."""
        x = pictures
        for layer in ENCODER:
            x = F.relu(self.down(x, layer))
        x = x.flatten(1)
        return self._dense(x, "encoder", "z_mean"), self._dense(x, "encoder", "z_log_var")

    def decode(self, latents: Tensor) -> Tensor:
        """Logits (N, H, W, 1)."""
        x = self._dense(latents, "decoder", "dense").unflatten(1, (4, 4, -1))
        for layer, stride in DECODER:
            x = self.up(F.relu(x), layer, stride)
        return x

    def _weights(self, network: str, layer: str) -> tuple[Tensor, Tensor]:
        return tuple(getattr(self, f"{network}/{layer}/{kind}") for kind in ("kernel", "bias"))

    def _dense(self, x: Tensor, network: str, layer: str) -> Tensor:
        kernel, bias = self._weights(network, layer)
        return F.linear(x, kernel.T, bias)


class TorchPort(Port):
    """The usual port with torch alone: kernels transposed once, pads and crops by hand."""

    def __init__(self) -> None:
        super().__init__()
        for value in self.parameters():
            if value.dim() == 4:
                value.data = value.data.permute(3, 2, 0, 1).contiguous()

    def down(self, x: Tensor, layer: str) -> Tensor:
        kernel, bias = self._weights("encoder", layer)
        total = kernel.shape[-1] - 2  # for an even extent and stride 2
        begin = total // 2
        x = F.pad(x.permute(0, 3, 1, 2), (begin, total - begin) * 2)
        return F.conv2d(x, kernel, bias, 2).permute(0, 2, 3, 1)

    def up(self, x: Tensor, layer: str, stride: int) -> Tensor:
        kernel, bias = self._weights("decoder", layer)
        begin = (kernel.shape[-1] - stride) // 2
        rows, columns = (stride * extent for extent in x.shape[1:3])
        x = F.conv_transpose2d(x.permute(0, 3, 1, 2), kernel, bias, stride, begin)
        return x[:, :, :rows, :columns].permute(0, 2, 3, 1)


def keras_weights() -> dict[str, np.ndarray]:
    with np.load(WEIGHTS) as file:
        return {k: file[k].astype(np.float32) for k in file.files if not k.startswith("reference/")}


def distances_to_tensorflow(port: Port) -> dict[str, float]:
    """|port - TensorFlow| / |TensorFlow|, of values and of gradients."""
    with np.load(WEIGHTS) as file:
        expected = {
            name.removeprefix("reference/"): torch.from_numpy(file[name])
            for name in file.files
            if name.startswith("reference/")
        }
    mean, log_variance = port.encode(expected["pictures"])
    latent = expected["latent"].requires_grad_()
    logits = port.decode(latent)
    kernel = port.get_parameter("decoder/conv2d_transpose_2/kernel")
    to_latent, to_kernel = torch.autograd.grad(logits.square().mean(), (latent, kernel))
    if isinstance(port, TorchPort):
        to_kernel = to_kernel.permute(2, 3, 1, 0)
    found = {
        "mean": mean,
        "log_variance": log_variance,
        "logits": logits,
        "gradient/latent": to_latent,
        "gradient/conv2d_transpose_2/kernel": to_kernel,
    }
    return {
        name: ((value - expected[name]).norm() / expected[name].norm()).item()
        for name, value in found.items()
    }


# ---- training -----------------------------------------------------------------------------------


def handwritten() -> tuple[Tensor, Tensor]:
    """(N, 32, 32, 1) for training and for tests, which other people wrote."""
    digits = torch.from_numpy(load_digits().images).float()[:, None] / 16
    larger = F.interpolate(digits, (SIZE - 6, SIZE - 6), mode="bicubic", align_corners=False)
    pictures = F.pad(larger.clamp(0, 1), (3, 3, 3, 3)).permute(0, 2, 3, 1).contiguous()
    return pictures[:1500], pictures[1500:]


class FineTuning:
    """The training of the recipe, of either port."""

    def __init__(self, port: type[Port], dtype: str, small: bool) -> None:
        self.port = port()
        far = {k: v for k, v in distances_to_tensorflow(self.port).items() if not v < TENSORFLOW}
        if far:
            raise RuntimeError(f"{port.__name__} does not compute what TensorFlow does: {far}")
        self.pictures, self.tests = handwritten()
        self.batch = 16 if small else 128
        self.autocast = dtype == "bf16"
        self.random = torch.Generator().manual_seed(0)
        self.optimizer = torch.optim.Adam(self.port.parameters(), 1e-3)

    def step(self) -> float:
        chosen = torch.randint(len(self.pictures), (self.batch,), generator=self.random)
        loss = self.loss(self.pictures[chosen], self.random)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def loss(self, pictures: Tensor, random: torch.Generator) -> Tensor:
        """The negative lower bound of the log-likelihood of a picture, in nats."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            mean, log_variance = (x.float() for x in self.port.encode(pictures))
            noise = torch.randn(mean.shape, generator=random)
            logits = self.port.decode(mean + (log_variance / 2).exp() * noise).float()
        wrong = F.binary_cross_entropy_with_logits(logits, pictures, reduction="sum")
        divergence = (mean.square() + log_variance.exp() - log_variance - 1).sum() / 2
        return (wrong + divergence) / len(pictures)


# ---- result -------------------------------------------------------------------------------------


@torch.no_grad()
def save(training: FineTuning, folder: Path) -> list[Path]:
    before, after = Port(), training.port
    with torch.enable_grad():
        distances = distances_to_tensorflow(before)
    told = ", ".join(f"{name} {distance:.0e}" for name, distance in distances.items())
    print(f"Distance of the port to TensorFlow's values: {told}")
    bounds = []
    for port in (before, after):
        training.port = port
        random = torch.Generator().manual_seed(1)
        bounds.append(float(training.loss(training.tests, random)))
    print(
        f"Loss of {len(training.tests)} test digits: {bounds[0]:.1f} nats by Keras' weights, "
        f"{bounds[1]:.1f} after training"
    )
    path = folder / "keras_decoder.png"
    draw(before, after, training.tests, path)
    return [path]


def draw(before: Port, after: Port, tests: Tensor, path: Path) -> None:
    """Test digits and what both decode of them, samples of both, and walks between digits."""
    from matplotlib.figure import Figure

    shown = tests[:16]
    latents = torch.randn(16, LATENT, generator=torch.Generator().manual_seed(2))
    ends = after.encode(tests[[11, 1, 5, 17]])[0]
    walk = torch.cat([torch.lerp(a, b, torch.linspace(0, 1, 16)[:, None]) for a, b in
                      zip(ends, ends.roll(-1, 0), strict=True)])  # fmt: skip
    rows = [("handwritten test digits", shown)]
    for name, port in (("by Keras' weights", before), ("after training", after)):
        rows.append((f"decoded, {name}", port.decode(port.encode(shown)[0]).sigmoid()))
        rows.append((f"samples, {name}", port.decode(latents).sigmoid()))
    walked = after.decode(walk).sigmoid().split(16)
    rows += [("walk between digits" if not i else "", row) for i, row in enumerate(walked)]
    figure = Figure(figsize=(6.6, 0.56 * len(rows)), layout="constrained")
    for ax, (title, pictures) in zip(figure.subplots(len(rows), 1), rows, strict=True):
        ax.imshow(torch.cat(list(pictures[..., 0]), 1), cmap="gray_r", vmin=0, vmax=1)
        ax.set_title(title, fontsize=8, loc="left", pad=2)
        ax.axis("off")
    figure.savefig(path, dpi=80)  # about a pixel for a pixel


RECIPE = Recipe(
    name="keras_decoder",
    build=partial(FineTuning, Port),
    by_torch=partial(FineTuning, TorchPort),
    save=save,
    steps=800,
    tolerance=TOLERANCE,
    note="Torch cannot say SAME: its side is the usual port, with pads and crops by hand.",
)

if __name__ == "__main__":
    sys.exit(RECIPE.main(__doc__))
