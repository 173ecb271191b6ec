"""C++ programs with LibTorch: the commands of docs/cpp.md, in a clean folder and without Python."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from samples import CASES, OPERATORS, Case, one_each
from torch import Tensor

import torch_ops

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "libtorch"
# AOTInductor's C++ compiler on a busy machine.
TIMEOUT = 1200

pytestmark = pytest.mark.unforced


def shell(command: str, folder: Path, **environment: str) -> str:
    """The output of a command of the document. cmake, ninja and python are those of this process.

    Linker and compiler drop every library that a program seems not to need.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    flags = {"PATH": path, "CMAKE_GENERATOR": "Ninja", "LDFLAGS": "-Wl,--as-needed"}
    child = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=os.environ | flags | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert child.returncode == 0, f"{command}\n{child.stdout}\n{child.stderr}"
    return child.stdout


def blocks(language: str) -> list[str]:
    """The document's, in order."""
    text = (ROOT / "docs" / "cpp.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def commands(*, of: str) -> list[str]:
    """Those of the document that mention `of`, in order."""
    lines = "".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [line for line in lines if of in line]


def test_every_command_is_run() -> None:
    """By the tests below."""
    run = {
        command
        for of in ("cmake", "train_generator", "export_package", "run_package")
        for command in commands(of=of)
    }
    assert set(commands(of="")) == run


def test_the_document_s_program(tmp_path: Path) -> None:
    """Its CMake and C++ blocks, as the least project around them."""
    (cmake,) = blocks("cmake")
    (code,) = blocks("cpp")
    include, calls = code.split("\n", 1)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(document LANGUAGES CXX)\n"
        f'{cmake}\nmessage(STATUS "found ${{convtbw_VERSION}}")\n'
    )
    (tmp_path / "program.cpp").write_text(f"""{include}
#include <ATen/ATen.h>
#include <iostream>
int main() {{
  const at::Tensor src = at::ones({{1, 2, 3, 3}}), weights = at::ones({{2, 1, 3, 3}});
  const at::Tensor bias = at::zeros({{1}}), diff_dst = at::ones({{1, 1, 5, 5}});
  {calls}
  std::cout << dst.sizes() << ' ' << gradient.sizes() << std::endl;
}}
""")
    prefix = f"-DCMAKE_PREFIX_PATH='{torch_ops.cmake_prefix_path}'"
    found = shell(f"cmake -S . -B build {prefix}", tmp_path)
    assert f"found {torch_ops.__version__}" in found
    shell("cmake --build build", tmp_path)
    assert run("build/program", tmp_path) == ["[1, 1, 5, 5] [2, 1, 3, 3]"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the examples, built by the documented commands."""
    folder = tmp_path_factory.mktemp("libtorch")
    shutil.copytree(EXAMPLES, folder / "examples" / "libtorch")
    built = commands(of="cmake")
    assert len(built) == 2
    for command in built:
        shell(command, folder)
    return folder


def run(command: str, folder: Path) -> list[str]:
    """What a program prints. It needs nothing of the environment and loads no Python."""
    log = folder / "loaded"
    printed = shell(f"env -i LD_DEBUG=files LD_DEBUG_OUTPUT={log} {command}", folder)
    (file,) = folder.glob("loaded.*")
    libraries = {Path(name).name for name in re.findall(r"calling init: (\S+)", file.read_text())}
    file.unlink()
    assert {"libconvtbw.so", "libtorch_cpu.so"} <= libraries
    assert not [name for name in libraries if "python" in name]
    return printed.splitlines()


def losses(lines: list[str]) -> list[float]:
    return [float(line.split()[-1]) for line in lines if line.startswith("step")]


def test_training(folder: Path) -> None:
    (command,) = commands(of="train_generator")
    trained = losses(run(command, folder))
    assert trained[-1] < trained[0] / 2
    assert trained == pytest.approx(trained_in_python(), rel=1e-3)


def trained_in_python() -> list[float]:
    """What train_generator.cpp does."""
    torch.manual_seed(0)
    channels = [8, 16, 16, 1]
    weights = [0.1 * torch.randn(i, o, 4, 4) for i, o in pairwise(channels)]
    layers = [(w.requires_grad_(), torch.zeros(w.shape[1], requires_grad=True)) for w in weights]
    codes = torch.randn(8, 8, 2, 2)
    pixel = torch.arange(16.0)
    index = torch.arange(8.0).view(8, 1, 1, 1)
    distance = (pixel.view(16, 1) - 4 - index).square() + (pixel - 11 + index).square()
    images = torch.where(distance < (3 + index / 2).square(), 0.8, -0.8)
    optimizer = torch.optim.Adam([p for layer in layers for p in layer], 0.01)
    losses = []
    for step in range(101):
        result = codes
        for i, (w, b) in enumerate(layers):
            result = torch_ops.conv_transpose(
                result.relu() if i else result,
                w,
                b,
                strides=[2, 2],
                pads_begin=[1, 1],
                pads_end=[1, 1],
                dilations=[1, 1],
                data_format="NCX",
                weights_format="IOX",
            )
        loss = (result.tanh() - images).square().mean()
        if step % 10 == 0:
            losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def test_package(folder: Path) -> None:
    """An AOTInductor package, forward and a gradient step, compiled in Python and run in C++."""
    (export,) = commands(of="export_package")
    shell(export, folder)
    (command,) = commands(of="run_package")
    lines = run(command, folder)

    example = runpy.run_path(str(EXAMPLES / "export_package.py"))
    model = example["generator"]()
    torch.manual_seed(0)
    codes, images = torch.randn(8, 8, 4, 4), torch.randn(8, 1, 16, 16).tanh()
    expected = []
    for step in range(51):
        loss, *gradients = example["step"](model, codes, images, list(model.parameters()))
        if step % 10 == 0:
            expected.append(loss.item())
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=0.5)
    assert expected[-1] < expected[0]
    assert losses(lines) == pytest.approx(expected, rel=1e-4)

    squares = [model(codes[:batch]).square().mean().item() for batch in (8, 3)]
    printed = [float(line.split()[-1]) for line in lines if line.startswith("batch")]
    assert printed == pytest.approx(squares, rel=1e-4)


@pytest.fixture(scope="session")  # a process can load these operators only once
def interface(tmp_path_factory: pytest.TempPathFactory):
    """The header's functions as operators."""
    build = tmp_path_factory.mktemp("interface")
    prefix = f"-DCMAKE_PREFIX_PATH='{torch_ops.cmake_prefix_path}'"
    shell(f"cmake -S {ROOT / 'tests' / 'cpp' / 'interface'} -B . {prefix}", build)
    shell("cmake --build .", build)
    torch.ops.load_library(str(build / "libinterface.so"))
    return torch.ops.convtbw_interface


def through_header(
    interface, case: Case, tensors: list[Tensor], suffix: str = "", **changes: object
) -> Tensor:
    """The call of a case, with all attributes, where the names of all operators are the same."""
    attributes = case.kwargs() | changes
    values = {
        "strides": attributes["strides"],
        "pads_begin": attributes.get("pads_begin", []),
        "pads_end": attributes.get("pads_end", []),
        "dilations": attributes["dilations"],
        "auto_pad": attributes.get("auto_pad", "none"),
        "output_padding": attributes.get("output_padding"),
        "groups": attributes["groups"],
        "data_format": attributes["data_format"],
        "weights_format": attributes[case.operator.format],
    }
    first, second, *rest = tensors
    shape = attributes.get(case.operator.shape or "")
    function = getattr(interface, case.op + suffix)
    return function(first, second, rest[0] if rest else None, shape, **values)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_header_calls_the_operator(interface, case: Case) -> None:
    tensors = [tensor.requires_grad_() for tensor in case.tensors()]
    result, expected = through_header(interface, case, tensors), case.call(*tensors)
    assert torch.equal(result, expected)
    cotangent = torch.randn_like(expected)
    for mine, other in zip(
        torch.autograd.grad(result, tensors, cotangent),
        torch.autograd.grad(expected, tensors, cotangent),
        strict=True,
    ):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("name", OPERATORS)
def test_header_has_the_operator_s_default_format(interface, name: str) -> None:
    default = OPERATORS[name].default_format
    (case,) = (c for c in one_each(weights_format=default) if c.op == name)
    tensors = case.tensors()
    without = through_header(interface, case, list(tensors), **{case.operator.format: None})
    assert torch.equal(without, case.call(*tensors))


@pytest.mark.parametrize("name", [n for n, row in OPERATORS.items() if row.result == "w"])
def test_header_takes_a_shape_tensor(interface, name: str) -> None:
    (case,) = (c for c in one_each() if c.op == name)
    tensors = case.tensors()
    shape = torch.tensor(case.shape("w"))
    expected = case.call(*tensors)
    without = {case.operator.shape: None}
    assert torch.equal(through_header(interface, case, [*tensors, shape], **without), expected)


@pytest.mark.parametrize("family", ["convolution", "conv_transpose"])
def test_header_adds_to_a_gradient(interface, family: str) -> None:
    (case,) = (c for c in one_each() if c.op == f"{family}_backward_weights")
    tensors = case.tensors()
    gradient = case.call(*tensors)
    result = through_header(interface, case, [*tensors, gradient.clone()], suffix="_add_")
    torch.testing.assert_close(result, 2 * gradient)


def test_header_s_errors_are_the_operator_s(interface) -> None:
    (case,) = (c for c in one_each() if c.op == "conv_transpose")
    with pytest.raises(RuntimeError, match="strides"):
        through_header(interface, case, list(case.tensors()), strides=[])
