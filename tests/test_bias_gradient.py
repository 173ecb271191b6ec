"""Gradients of biases, which are sums of 16 bits in float32, rounded once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from targets import integers
from torch.profiler import ProfilerActivity, profile

import torch_ops

pytestmark = pytest.mark.unforced
EXTENTS = (
    (2, 5, 48), (2, 5, 49), (3, 17, 8, 9), (1, 40, 7, 31), (2, 3, 4, 5, 6), (1, 3, 300, 300),
    (4, 1, 16, 16), (2, 130, 20, 20), (2, 130, 160, 160),
)  # fmt: skip


def gradients_of_bias(gradient: torch.Tensor, ours: bool) -> torch.Tensor:
    """By torch.nn.functional, of a convolution of one tap from two channels."""
    batch, channels, *spatial = gradient.shape
    src = gradient.new_zeros(batch, 2, *spatial)
    bias = gradient.new_zeros(channels).requires_grad_()
    weights = gradient.new_zeros(channels, 2, *[1] * len(spatial)).requires_grad_()
    functional = torch_ops.functional if ours else F
    convolution = getattr(functional, f"conv{len(spatial)}d")
    convolution(src, weights, bias).backward(gradient)
    return bias.grad


@pytest.mark.parametrize("ours", [True, False], ids=["functional", "enabled"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sums_are_exact_and_rounded_once(dtype: torch.dtype, ours: bool) -> None:
    for extents in EXTENTS:
        gradient = integers(*extents).add(1).to(dtype)
        others = [d for d in range(len(extents)) if d != 1]
        expected = gradient.double().sum(others).to(dtype)
        for layout in (gradient, gradient.movedim(1, -1).contiguous().movedim(-1, 1)):
            with torch_ops.enabled():
                assert torch.equal(gradients_of_bias(layout, ours), expected), extents


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("ours", [True, False], ids=["functional", "enabled"])
def test_no_copy_of_the_whole_gradient(ours: bool, layout: torch.memory_format) -> None:
    small = layout == torch.contiguous_format
    extents = (2, 16, 20, 20) if small else (2, 48, 256, 256)
    gradient = integers(*extents, dtype=torch.bfloat16).to(memory_format=layout)
    with torch_ops.enabled():
        gradients_of_bias(gradient, ours)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            gradients_of_bias(gradient, ours)
    names = {event.key for event in profiled.key_averages()}
    assert "aten::sum" not in names
    assert "aten::_to_copy" not in names


def test_derivatives_of_it() -> None:
    src, weights = torch.randn(2, 3, 8, 8, dtype=torch.bfloat16), torch.zeros(4, 3, 1, 1)
    weights, bias = weights.bfloat16().requires_grad_(), torch.zeros(4).bfloat16().requires_grad_()
    dst = torch_ops.functional.conv2d(src, weights, bias)
    cotangent = torch.randn_like(dst).requires_grad_()
    (gradient,) = torch.autograd.grad(dst, bias, cotangent, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), cotangent)
    assert torch.equal(second, torch.ones_like(dst))


def test_a_forced_backend_is_not_asked() -> None:
    gradient = integers(2, 16, 20, 20, dtype=torch.bfloat16)
    with torch_ops.backends.use("reference"):
        found = gradients_of_bias(gradient, ours=True)
    assert torch.equal(found, gradient.double().sum((0, 2, 3)).bfloat16())
