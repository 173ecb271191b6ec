"""TorchScript: the operators in scripted and traced programs, also without this package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_ops.nn
from torch_ops._library import _PATH

# Above the operators: once is enough. torch.jit itself warns that it is deprecated.
pytestmark = [pytest.mark.unforced, pytest.mark.filterwarnings("ignore")]

WRITES = """
import sys
import torch

torch.ops.load_library(sys.argv[1])


class Up(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 3, 3, 3))
        self.bias = torch.nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor, grow: int) -> torch.Tensor:
        return torch.ops.convtbw.conv_transpose(
            x, self.weight, self.bias, strides=[2, 2], pads_begin=[0, 1], pads_end=[1, 0],
            dilations=[1, 1], output_padding=[grow, grow], data_format="NCX", weights_format="IOX",
        )


model = Up()
scripted = torch.jit.script(model)
x = torch.randn(2, 4, 5, 6, requires_grad=True)
for grow in (0, 1, 0, 1):  # the profiling executor optimises after some runs
    expected = torch.nn.functional.conv_transpose2d(
        x, model.weight, model.bias, 2, 0, grow
    )[:, :, : 10 + grow, 1:]
    result = scripted(x, grow)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    leaves = (x, model.weight, model.bias)
    torch.testing.assert_close(
        torch.autograd.grad(result.square().sum(), leaves),
        torch.autograd.grad(expected.square().sum(), leaves),
        rtol=1e-3, atol=1e-3,
    )
assert "convtbw::conv_transpose" in str(scripted.graph)
scripted.save(sys.argv[2])
torch.jit.freeze(scripted.eval()).save(sys.argv[2] + ".frozen")
torch.save((x, scripted(x, 1)), sys.argv[3])
assert "torch_ops" not in sys.modules
"""

READS = """
import sys
import torch

torch.ops.load_library(sys.argv[1])
x, expected = torch.load(sys.argv[3])
for path in (sys.argv[2], sys.argv[2] + ".frozen"):
    assert torch.equal(torch.jit.load(path)(x, 1), expected)
assert "torch_ops" not in sys.modules
"""


def test_without_the_package(tmp_path: Path) -> None:
    """Written by one process and read by another; both have loaded the library alone."""
    for name, script in (("writes.py", WRITES), ("reads.py", READS)):
        (tmp_path / name).write_text(script)  # torch.jit.script reads the source
        files = [tmp_path / name, _PATH, tmp_path / "model.pt", tmp_path / "tensors.pt"]
        child = subprocess.run(
            [sys.executable, "-P", "-W", "ignore", *map(str, files)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert child.returncode == 0, child.stderr


@pytest.mark.parametrize("name", torch_ops.nn.__all__)
def test_traced_modules(name: str, tmp_path: Path) -> None:
    """A trace serves other batches and extents, and is saved and loaded."""
    rank = int(name[-2])
    module = getattr(torch_ops.nn, name)(4, 6, 3, stride=2, padding=1)
    traced = torch.jit.trace(module, torch.randn(2, 4, *[6] * rank))
    torch.jit.save(traced, tmp_path / "traced.pt")
    loaded = torch.jit.load(tmp_path / "traced.pt")
    for x in (torch.randn(2, 4, *[6] * rank), torch.randn(3, 4, *[9, 7, 8][:rank])):
        x.requires_grad_()
        expected = module(x)
        (gradient,) = torch.autograd.grad(expected.square().sum(), x)
        for program in (traced, loaded):
            result = program(x)
            torch.testing.assert_close(result, expected)
            torch.testing.assert_close(torch.autograd.grad(result.square().sum(), x)[0], gradient)


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("conv2d", {"padding": "same"}),
        ("conv2d", {"padding": ((1, 0), (0, 2))}),
        ("conv2d", {"padding": 1, "data_format": "NXC"}),
        ("conv_transpose2d", {"stride": 2, "padding": "same"}),
        ("conv_transpose2d", {"stride": 2, "padding": "valid", "data_format": "NXC"}),
        ("conv_transpose2d", {"stride": 2, "padding": ((1, 0), (0, 2)), "output_padding": 1}),
        ("conv_transpose2d", {"stride": 2, "padding": 1, "output_size": (9, 9)}),
    ],
    ids=str,
)
def test_traced_words(name: str, attributes: dict) -> None:
    """What torch's functions have not; an output_size is a constant of the trace."""
    function, weight = getattr(torch_ops.functional, name), torch.randn(4, 4, 3, 3)
    x = torch.randn(2, 5, 5, 4) if "data_format" in attributes else torch.randn(2, 4, 5, 5)
    traced = torch.jit.trace(lambda x: function(x, weight, **attributes), x)
    for other in (x, torch.cat([x, 2 * x])):
        torch.testing.assert_close(traced(other), function(other, weight, **attributes))


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_traced_gradients(name: str) -> None:
    """Their sizes, also where a tensor has them, are constants of the trace."""
    x, weight = torch.randn(2, 4, 5, 6), torch.randn(4, 4, 3, 3)
    function, of_input, of_weight = (
        getattr(torch_ops.functional, name + kind) for kind in ("", "_input", "_weight")
    )

    padding = "valid" if "transpose" in name else 1

    def program(x: torch.Tensor, weight: torch.Tensor, grad_output: torch.Tensor):
        return (
            of_input(x.shape, weight, grad_output, 2, padding),
            of_weight(x, weight.shape, grad_output, 2, padding),
        )

    tensors = x, weight, torch.randn_like(function(x, weight, stride=2, padding=padding))
    traced = torch.jit.trace(program, tensors)
    others = tuple(2 * tensor for tensor in tensors)
    torch.testing.assert_close(traced(*others), program(*others))
