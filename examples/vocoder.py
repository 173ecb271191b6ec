"""HiFi-GAN on recorded speech: from a mel spectrogram to the sound.

Kong, Kim, Bae: HiFi-GAN: Generative Adversarial Networks for Efficient and High Fidelity Speech
Synthesis (2020). The generator is V2 of the paper, whole: transposed 1-D convolutions that enlarge
64 times in two steps and 4 in two more, each before residual blocks of three kernels and three
dilations. Its critics are the multi-period and the multi-scale discriminator, a sixteenth as wide.
Losses, their weights and the optimizer are the paper's; weights start as torch's do, which takes
fewer steps than the authors' small ones.

    python examples/vocoder.py [--steps N] [--dtype f32 bf16] [--threads N]

The sound is that of Debian's alsa-utils (``apt-get install alsa-utils``; GPL-2): "front left" and
the like, spoken, of which "side right" is held out. Where they are not installed, vowels are
synthesised, and a line says so.
"""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from recipe import Recipe
from scipy.io import wavfile
from scipy.signal import lfilter, resample_poly
from torch import Tensor, nn
from torch.nn.functional import l1_loss, leaky_relu, pad
from torch.nn.utils.parametrizations import weight_norm

RATE = 16000  # samples a second: the paper looks at frequencies up to 8000 Hz
WINDOW, HOP, MELS = 1024, 256, 80
SEGMENT = 8192  # samples of each example

WIDTH = 128  # V2's
CRITIC_WIDTH = 2  # of the periods' first layers, the paper's is 32; four times of the scales'
RATES, UP_KERNELS = (8, 8, 2, 2), (16, 16, 4, 4)
KERNELS, DILATIONS = (3, 7, 11), (1, 3, 5)
PERIODS = (2, 3, 5, 7, 11)
SCALES = 3

BATCH = 2  # the paper's is 16
MEL_WEIGHT, FEATURE_WEIGHT = 45.0, 2.0
# The paper's 2e-4 and 0.999 of it after each epoch are for 2.5 million steps.
LEARNING_RATE, DECAY = 1e-3, 0.998
WARM_UP = 50  # steps; without, Adam's first ones amplify rounding

SPEECH = Path("/usr/share/sounds/alsa")
HELD_OUT = "Side_Right"


def recordings() -> dict[str, Tensor]:
    """Spoken words by name, from -1 to 1."""
    files = sorted(SPEECH.glob("*_*.wav"))
    if not files:
        names = ("Front_Left", "Front_Right", "Side_Left", HELD_OUT)
        return {name: torch.tensor(voice(seed)) for seed, name in enumerate(names)}
    sounds = {}
    for path in files:
        rate, sound = wavfile.read(path)
        sound = resample_poly(sound / 32768, RATE, rate)
        sounds[path.stem] = torch.tensor(0.95 * sound / np.abs(sound).max(), dtype=torch.float32)
    return sounds


def voice(seed: int, seconds: float = 1.5) -> np.ndarray:
    """Vowels: pulses of a gliding pitch through three resonances each (Klatt 1980)."""
    random = np.random.default_rng(seed)
    vowels = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480))
    parts = []
    for _ in range(4):
        time = np.arange(int(seconds / 4 * RATE)) / RATE
        pitch = random.uniform(150, 220) * (1 + random.uniform(-0.3, 0.3) * time)
        pulses = np.diff(np.floor(np.cumsum(pitch) / RATE), prepend=0.0)
        sound = pulses + 0.003 * random.standard_normal(len(time))
        for formant in vowels[random.integers(len(vowels))]:
            radius = math.exp(-math.pi * 80 / RATE)
            turn = 2 * math.pi * formant / RATE
            sound = lfilter([1 - radius], [1, -2 * radius * math.cos(turn), radius**2], sound)
        parts.append(sound * np.sin(np.pi * time / time[-1]) ** 0.5)
    sound = np.concatenate(parts)
    return (0.95 * sound / np.abs(sound).max()).astype(np.float32)


def mel_filters() -> Tensor:
    """MELS x frequencies: triangles, of equal area, even on the mel scale of Slaney (1998)."""

    def to_mel(hertz: np.ndarray) -> np.ndarray:
        log = 15 + 27 * np.log(np.maximum(hertz, 1000) / 1000) / math.log(6.4)
        return np.where(hertz < 1000, 3 * hertz / 200, log)

    frequencies = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    # to_mel rises: where it reaches even steps is found between finely spaced points.
    fine = np.linspace(0, RATE / 2, 100_000)
    mels = to_mel(fine)
    edges = np.interp(np.linspace(0, mels[-1], MELS + 2), mels, fine)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    triangles = np.clip(np.minimum(rising, falling), 0, None) * 2 / (high - low)
    return torch.tensor(triangles, dtype=torch.float32)


class Mel(nn.Module):
    """The logarithm of the mel spectrogram: N x samples to N x MELS x samples / HOP."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filters", mel_filters())
        self.register_buffer("window", torch.hann_window(WINDOW))

    def forward(self, sound: Tensor) -> Tensor:
        ends = (WINDOW - HOP) // 2
        sound = pad(sound[:, None], (ends, ends), mode="reflect")[:, 0]
        spectrum = torch.stft(
            sound, WINDOW, HOP, window=self.window, center=False, return_complex=True
        )
        power = torch.view_as_real(spectrum).square().sum(-1)
        return (self.filters @ (power + 1e-9).sqrt()).clamp(min=1e-5).log()


class Residual(nn.Module):
    """A receptive field: convolutions of one kernel, dilated further and further."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()

        def layers(dilations: tuple[int, ...]) -> nn.ModuleList:
            return nn.ModuleList(
                weight_norm(
                    nn.Conv1d(channels, channels, kernel, padding="same", dilation=dilation)
                )
                for dilation in dilations
            )

        self.dilated, self.plain = layers(DILATIONS), layers((1,) * len(DILATIONS))

    def forward(self, x: Tensor) -> Tensor:
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            x = x + plain(leaky_relu(dilated(leaky_relu(x, 0.1)), 0.1))
        return x


class Generator(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = weight_norm(nn.Conv1d(MELS, width, 7, padding=3))
        self.ups, self.fields = nn.ModuleList(), nn.ModuleList()
        for rate, kernel in zip(RATES, UP_KERNELS, strict=True):
            up = nn.ConvTranspose1d(width, width // 2, kernel, rate, (kernel - rate) // 2)
            width //= 2
            self.ups.append(weight_norm(up))
            self.fields.append(nn.ModuleList(Residual(width, kernel) for kernel in KERNELS))
        self.last = weight_norm(nn.Conv1d(width, 1, 7, padding=3))

    def forward(self, mel: Tensor) -> Tensor:
        x = self.first(mel)
        for up, fields in zip(self.ups, self.fields, strict=True):
            x = up(leaky_relu(x, 0.1))
            x = sum(field(x) for field in fields) / len(fields)
        return torch.tanh(self.last(leaky_relu(x, 0.01)))[:, 0]


class Discriminator(nn.Module):
    """Convolutions whose outputs are all returned: the last one judges, the others are compared."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(weight_norm(layer) for layer in layers)

    def forward(self, x: Tensor) -> list[Tensor]:
        features = []
        for layer in self.layers[:-1]:
            x = leaky_relu(layer(x), 0.1)
            features.append(x)
        return [*features, self.layers[-1](x)]


class OfPeriod(Discriminator):
    """Sees every ``period``-th sample in a column."""

    def __init__(self, period: int, width: int) -> None:
        self.period = period
        widths = (1, width, 4 * width, 16 * width, 32 * width, 32 * width)
        layers = [
            nn.Conv2d(inputs, outputs, (5, 1), (3 if i < 4 else 1, 1), (2, 0))
            for i, (inputs, outputs) in enumerate(pairwise(widths))
        ]
        super().__init__([*layers, nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0))])

    def forward(self, sound: Tensor) -> list[Tensor]:
        sound = pad(sound[:, None], (0, -sound.shape[-1] % self.period), mode="reflect")
        return super().forward(sound.unflatten(-1, (-1, self.period)))


class OfScale(Discriminator):
    """Sees the sound, or a smoothed half of its samples: strided, grouped convolutions."""

    def __init__(self, halvings: int, width: int) -> None:
        self.halvings = halvings
        sizes = (  # outputs in widths, kernel, stride, groups
            (1, 15, 1, 1),
            (1, 41, 2, 4),
            (2, 41, 2, 16),
            (4, 41, 4, 16),
            (8, 41, 4, 16),
            (8, 41, 1, 16),
            (8, 5, 1, 1),
        )
        layers, inputs = [], 1
        for outputs, kernel, stride, groups in sizes:
            groups = math.gcd(groups, width)  # 16 groups of the paper's widths
            layer = nn.Conv1d(inputs, outputs * width, kernel, stride, kernel // 2, groups=groups)
            layers.append(layer)
            inputs = outputs * width
        super().__init__([*layers, nn.Conv1d(inputs, 1, 3, padding=1)])

    def forward(self, sound: Tensor) -> list[Tensor]:
        sound = sound[:, None]
        for _ in range(self.halvings):
            sound = nn.functional.avg_pool1d(sound, 4, 2, padding=2)
        return super().forward(sound)


class Training:
    def __init__(self, dtype: str, small: bool) -> None:
        torch.manual_seed(0)
        width, self.batch, self.segment = (32, 1, 2048) if small else (WIDTH, BATCH, SEGMENT)
        sounds = recordings()
        self.held_out = sounds.pop(HELD_OUT)
        self.sounds = list(sounds.values())
        self.mel = Mel()
        self.generator = Generator(width)
        periods = [OfPeriod(period, CRITIC_WIDTH) for period in PERIODS]
        scales = [OfScale(halvings, 4 * CRITIC_WIDTH) for halvings in range(SCALES)]
        self.critics = nn.ModuleList([*periods, *scales])
        self.autocast = dtype == "bf16"
        adam = {"lr": LEARNING_RATE, "betas": (0.8, 0.99)}
        self.generator_optimizer = torch.optim.AdamW(self.generator.parameters(), **adam)
        self.critics_optimizer = torch.optim.AdamW(self.critics.parameters(), **adam)
        self.schedules = [
            torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: min(1, (step + 1) / WARM_UP) * DECAY**step
            )
            for optimizer in (self.generator_optimizer, self.critics_optimizer)
        ]

    def _precision(self) -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.autocast)

    def _segments(self) -> Tensor:
        segments = []
        for index in torch.randint(len(self.sounds), (self.batch,)):
            sound = self.sounds[index]
            begin = torch.randint(len(sound) - self.segment, ())
            segments.append(sound[begin : begin + self.segment])
        return torch.stack(segments)

    def _judge(self, sound: Tensor) -> list[list[Tensor]]:
        """Each critic's features, and its judgement as the last of them."""
        with self._precision():
            return [[x.float() for x in critic(sound)] for critic in self.critics]

    def step(self) -> float:
        """Returns the generator's loss."""
        real = self._segments()
        mel = self.mel(real)
        with self._precision():
            fake = self.generator(mel).float()

        judged = zip(self._judge(real), self._judge(fake.detach()), strict=True)
        of_critics = sum((1 - r[-1]).square().mean() + f[-1].square().mean() for r, f in judged)
        self.critics_optimizer.zero_grad()
        of_critics.backward()
        self.critics_optimizer.step()

        with torch.no_grad():
            expected = self._judge(real)
        loss = MEL_WEIGHT * l1_loss(self.mel(fake), mel)
        for r, f in zip(expected, self._judge(fake), strict=True):
            loss = loss + (1 - f[-1]).square().mean()
            features = zip(r[:-1], f[:-1], strict=True)
            loss = loss + FEATURE_WEIGHT * sum(l1_loss(a, b) for a, b in features)
        self.generator_optimizer.zero_grad()
        loss.backward()
        self.generator_optimizer.step()
        for schedule in self.schedules:
            schedule.step()
        return loss.item()

    @torch.no_grad()
    def reconstruct(self, sound: Tensor) -> Tensor:
        with self._precision():
            return self.generator(self.mel(sound[None])).float()[0]


def save(training: Training, folder: Path) -> list[Path]:
    original = training.held_out[: len(training.held_out) // HOP * HOP]
    made = training.reconstruct(original)
    mels = {
        "original": training.mel(original[None])[0],
        "from its mel spectrogram": training.mel(made[None])[0],
    }
    apart = l1_loss(*mels.values())
    source = SPEECH if any(SPEECH.glob("*_*.wav")) else f"synthesised, for there is no {SPEECH}"
    print(f"speech: {source}")
    print(f"held out: log mel spectrograms differ by {apart:.2f} in the mean")

    figure, axes = plt.subplots(2, 1, figsize=(8, 6), layout="constrained")
    for axis, (title, mel) in zip(axes, mels.items(), strict=True):
        extent = (0, len(original) / RATE, 0, MELS)
        axis.imshow(mel, origin="lower", aspect="auto", extent=extent, vmin=-9, vmax=1)
        axis.set(title=title, xlabel="seconds", ylabel="mel band")
    paths = [folder / "vocoder.png", folder / "vocoder.wav", folder / "vocoder_original.wav"]
    figure.savefig(paths[0], dpi=80)
    for path, sound in zip(paths[1:], (made, original), strict=True):
        wavfile.write(path, RATE, (sound * 32767).short().numpy())
    return paths


# Ten losses are 4e-5 apart in f32, torch's own 1e-5 where its weights are moved by one rounding;
# 7e-3 in bf16.
RECIPE = Recipe("HiFi-GAN", Training, save, steps=1000, tolerance={"f32": 1e-3, "bf16": 5e-2})

if __name__ == "__main__":
    sys.exit(RECIPE.main(__doc__))
