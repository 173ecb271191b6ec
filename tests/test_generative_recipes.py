"""Parts of the recipes WGAN-GP, DP-SGD and HiFi-GAN against independent values."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("rich", reason="the extra 'examples' is not installed")
pytest.importorskip("dp_accounting", reason="the extra 'examples' is not installed")

import dp_sgd
import vocoder
import wgan_gp

pytestmark = pytest.mark.unforced


def test_gradient_penalty_of_a_linear_critic() -> None:
    critic = nn.Sequential(nn.Flatten(), nn.Linear(9, 1, bias=False), nn.Flatten(0))
    weight = critic[1].weight
    real, fake = torch.randn(2, 4, 1, 3, 3)
    penalty = wgan_gp.gradient_penalty(critic, real, fake)
    norm = weight.detach().norm()
    torch.testing.assert_close(penalty, (norm - 1).square())
    penalty.backward()
    torch.testing.assert_close(weight.grad, 2 * (norm - 1) * weight.detach() / norm)


def test_frechet_distance() -> None:
    images, _ = wgan_gp.digits()
    assert wgan_gp.frechet_distance(images, images) == pytest.approx(0, abs=1e-3)
    # Of equal covariances it is that of the means, in 64 pixels.
    assert wgan_gp.frechet_distance(images, images + 0.5) == pytest.approx(16, abs=1e-3)


def test_clipped_sum_is_that_of_single_backward_passes() -> None:
    training = dp_sgd.Training("f32", True)
    images, names = training.images[:6], training.names[:6]
    parameters = {key: value.detach() for key, value in training.model.named_parameters()}
    per_sample = torch.vmap(torch.func.grad(training._loss), in_dims=(None, 0, 0, 0))
    gradients = per_sample(parameters, images, images, names)
    norms = sum(g.flatten(1).square().sum(1) for g in gradients.values()).sqrt()
    clip = norms.median().item()  # some samples are longer, some shorter
    found = dp_sgd.clipped_sum(gradients, clip)

    expected = {key: torch.zeros_like(value) for key, value in parameters.items()}
    for image, name in zip(images, names, strict=True):
        training.model.zero_grad()
        clean, logits = training.model(image[None])
        loss = nn.functional.cross_entropy(logits, name[None])
        (loss + (clean[0] - image).square().mean()).backward()
        nn.utils.clip_grad_norm_(training.model.parameters(), clip)
        for key, parameter in training.model.named_parameters():
            expected[key] += parameter.grad
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_epsilon_against_the_paper() -> None:
    """Abadi et al., section 4: 10 000 steps, q = 0.01, sigma = 4, delta = 1e-5 cost 1.26."""
    rate, noise, steps, delta = 0.01, 4.0, 10_000, 1e-5

    def divergence(order: int) -> float:  # Mironov, Talwar, Zhang (2019), equation 6
        terms = (
            math.comb(order, k)
            * (1 - rate) ** (order - k)
            * rate**k
            * math.exp(k * (k - 1) / (2 * noise**2))
            for k in range(order + 1)
        )
        return math.log(sum(terms)) / (order - 1)

    of_paper = min(
        steps * divergence(order) + math.log(1 / delta) / (order - 1) for order in range(2, 65)
    )
    assert of_paper == pytest.approx(1.26, abs=0.01)
    # Since then the step from Renyi divergence to epsilon has become tighter.
    assert 0.9 < dp_sgd.epsilon(steps, rate, noise, delta) < of_paper


@pytest.mark.parametrize("hertz", [300, 1000, 3000, 6000])
def test_mel_spectrogram_of_a_tone(hertz: int) -> None:
    time = torch.arange(vocoder.HOP * 20) / vocoder.RATE
    mel = vocoder.Mel()((2 * math.pi * hertz * time).sin()[None])[0]
    assert mel.shape == (vocoder.MELS, 20)
    # Slaney's scale: linear to 1000 Hz, which is 15, then logarithmic.
    place = 3 * hertz / 200 if hertz < 1000 else 15 + 27 * math.log(hertz / 1000) / math.log(6.4)
    top = 15 + 27 * math.log(vocoder.RATE / 2000) / math.log(6.4)
    assert abs(mel[:, 10].argmax() + 1 - place / top * (vocoder.MELS + 1)) <= 1


def test_generator_returns_a_hop_of_samples_for_each_column() -> None:
    assert vocoder.Generator(32)(torch.randn(2, vocoder.MELS, 5)).shape == (2, 5 * vocoder.HOP)


def test_trains_without_recordings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vocoder, "SPEECH", tmp_path)
    assert math.isfinite(vocoder.Training("f32", True).step())
