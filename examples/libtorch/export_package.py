"""Compiles a generator, and a gradient step of it, into AOTInductor packages for C++.

    python examples/libtorch/export_package.py FOLDER

writes FOLDER/forward.pt2 and FOLDER/step.pt2, which run_package.cpp runs.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

import torch_ops


def generator() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        torch_ops.nn.ConvTranspose2d(8, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        torch_ops.nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
        nn.Tanh(),
    )


def step(
    model: nn.Module, codes: Tensor, images: Tensor, parameters: Sequence[Tensor]
) -> list[Tensor]:
    """The loss, and its gradient with respect to each parameter."""
    names = [name for name, _ in model.named_parameters()]
    outputs = functional_call(model, dict(zip(names, parameters, strict=True)), codes)
    loss = (outputs - images).square().mean()
    return [loss, *torch.autograd.grad(loss, parameters)]


def export_packages(folder: Path) -> None:
    model = generator()
    codes, images = torch.randn(8, 8, 4, 4), torch.randn(8, 1, 16, 16)
    batch = Dim("batch", max=1024)
    forward = torch.export.export(model, (codes,), dynamic_shapes=({0: batch},))

    # make_fx traces below autograd: gradients are operators of its graph.
    arguments = (codes, images, *(p.detach().requires_grad_() for p in model.parameters()))
    traced = make_fx(lambda codes, images, *parameters: step(model, codes, images, parameters))
    gradients = torch.export.export(traced(*arguments), arguments)

    # Otherwise short parameters become part of the code, and cannot be updated.
    options = {"always_keep_tensor_constants": True}
    for name, program in {"forward": forward, "step": gradients}.items():
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(folder / f"{name}.pt2"), inductor_configs=options
        )


if __name__ == "__main__":
    export_packages(Path(sys.argv[1]))
