"""What the README, the documents and the docstrings show runs as it stands."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

import torch_ops

pytestmark = pytest.mark.unforced

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]


class Block(NamedTuple):
    name: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}-{self.text.strip().splitlines()[-1][:40]}"


BLOCKS = [
    Block(str(path.relative_to(ROOT)), *block)
    for path in DOCUMENTS
    for block in re.findall(r"^ *```(.*)\n([\s\S]*?)^ *```$", path.read_text(), re.M)
]
PYTHON = [block for block in BLOCKS if block.language == "python"]


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_block_runs(block: Block) -> None:
    namespace = {"__name__": "__main__"}
    exec(compile(block.text, block.name, "exec"), namespace)
    if "torch.distributed" in block.text:
        # The threads of torch's gloo take the GIL to let go of their last work, and torch, which
        # holds it when the model goes, waits for them: they must come first.
        time.sleep(1)


def test_the_example_is_there() -> None:
    assert "conv_transpose_backward_weights" in PYTHON[0].text


def test_the_documents_have_examples() -> None:
    assert {block.name for block in PYTHON} >= {
        "README.md",
        "docs/accumulation.md",
        "docs/cpp.md",
        "docs/enable.md",
        "docs/functional.md",
        "docs/scaling.md",
    }


def test_every_block_is_run_by_some_test() -> None:
    """Python and commands by this file, C++ and CMake by test_libtorch.py, the rest is no code."""
    others = {
        (block.name, block.language)
        for block in BLOCKS
        if block.language not in ("python", "sh", "{eval-rst}")
    }
    assert others == {("docs/cpp.md", "cpp"), ("docs/cpp.md", "cmake"), ("docs/design.md", "")}


COMMANDS = [
    (block.name, line)
    for block in BLOCKS
    if block.language == "sh" and block.name != "docs/cpp.md"  # tests/test_libtorch.py
    for line in block.text.replace("\\\n", " ").splitlines()
]


@pytest.mark.parametrize(("name", "line"), COMMANDS, ids=lambda text: text[:50])
def test_command_exists(name: str, line: str) -> None:
    """Targets of the Makefile exist, and programs take the arguments; both without being run."""
    words = shlex.split(line, comments=True)
    if words == [".ci/run"]:
        assert os.access(ROOT / ".ci" / "run", os.X_OK)
        return
    if words[0] == ".venv/bin/python" and words[-1] == "--help":
        subprocess.run([sys.executable, *words[1:]], cwd=ROOT, check=True, capture_output=True)
        return
    dry = re.sub(r"\bmake ", "make --dry-run ", line, count=1)
    assert dry != line, f"{name}: no test runs {line!r}"
    # What `make test` was given is not for this one.
    environment = {k: v for k, v in os.environ.items() if k != "ARGS" and not k.startswith("MAKE")}
    child = subprocess.run(
        dry, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
    run = shlex.split(child.stdout.splitlines()[-1])
    if "torch_ops.bench" in run:
        from torch_ops import bench

        bench.parse(run[run.index("torch_ops.bench") + 1 :])


def docstring_examples() -> list[doctest.DocTest]:
    programs = ("bench", "demo")
    modules = [path.stem for path in Path(torch_ops.__file__).parent.glob("[!_]*.py")]
    return [
        test
        for module in sorted(modules)
        if not module.startswith(programs)
        for test in doctest.DocTestFinder().find(import_module(f"torch_ops.{module}"))
        if test.examples
    ]


EXAMPLES = docstring_examples()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_docstring_s_example_runs(example: doctest.DocTest) -> None:
    report: list[str] = []
    failed, _ = doctest.DocTestRunner().run(example, out=report.append)
    assert not failed, "".join(report)


def test_the_docstrings_have_examples() -> None:
    documented = {example.name for example in EXAMPLES}
    assert documented >= {
        "torch_ops.backends.explain",
        "torch_ops.backends.use",
        "torch_ops.conversion.convert",
        "torch_ops.functional_pads.onnx_conv_pads",
        "torch_ops.ops.conv_transpose_backward_weights",
        "torch_ops.ops.conv_transpose",
        "torch_ops.override.enabled",
    }
