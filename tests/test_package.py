"""The package around the operators: version, typing marker, wrappers, the check of torch."""

import inspect
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path

import pytest
import torch
from samples import OPERATORS, one_each

import torch_ops

pytestmark = pytest.mark.unforced


PACKAGE = Path(torch_ops.__file__).parent
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_version_is_pyproject_s() -> None:
    version = PROJECT["project"]["version"]
    assert torch_ops.__version__ == version
    assert metadata.version("convtbw") == version
    of_cmake = PACKAGE / "share" / "cmake" / "convtbw" / "convtbwConfigVersion.cmake"
    numbers = re.match(r"[\d.]*\d", version)[0]
    assert f'set(PACKAGE_VERSION "{numbers}")' in of_cmake.read_text()
    assert re.search(rf"^## \[{re.escape(version)}\]", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_one_torch_and_one_onednn() -> None:
    """The binary belongs to one torch: what it is built with is what it is installed with."""
    building = set(PROJECT["build-system"]["requires"])
    assert set(PROJECT["project"]["dependencies"]) <= building
    (pin,) = (need for need in building if need.startswith("torch=="))
    assert torch.__version__.split("+")[0] == pin.removeprefix("torch==")
    of_cmake = PACKAGE / "share" / "cmake" / "convtbw" / "convtbwConfig.cmake"
    assert f"find_dependency(Torch {pin.removeprefix('torch==')} EXACT)" in of_cmake.read_text()
    onednn = {re.sub("-devel", "", need) for need in building if need.startswith("onednn")}
    assert len(onednn) == 1


def test_typing_marker() -> None:
    assert resources.files(torch_ops).joinpath("py.typed").is_file()


@pytest.mark.parametrize("name", OPERATORS)
def test_wrapper_is_documented(name: str) -> None:
    documentation = inspect.getdoc(getattr(torch_ops, name)) or ""
    for section in ("Args:", "Returns:", "Raises:"):
        assert section in documentation, section
    for argument in OPERATORS[name].names:
        assert argument in documentation, argument


@pytest.mark.parametrize("case", one_each(), ids=str)
def test_wrapper_is_the_operator(case) -> None:
    tensors = [tensor.requires_grad_() for tensor in case.tensors()]
    wrapped = getattr(torch_ops, case.op)(*tensors, **case.kwargs())
    plain = case.call(*tensors)
    assert torch.equal(wrapped, plain)
    assert wrapped.stride() == plain.stride()
    cotangent = torch.randn_like(plain)
    for mine, other in zip(
        torch.autograd.grad(wrapped, tensors, cotangent),
        torch.autograd.grad(plain, tensors, cotangent),
        strict=True,
    ):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("name", OPERATORS)
def test_wrapper_has_the_schema_s_arguments_and_defaults(name: str) -> None:
    schema = getattr(torch.ops.convtbw, name).default._schema
    parameters = inspect.signature(getattr(torch_ops, name)).parameters
    assert list(parameters) == [argument.name for argument in schema.arguments]
    for argument in schema.arguments:
        parameter = parameters[argument.name]
        keyword_only = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert keyword_only == argument.kwarg_only, argument.name
        if argument.has_default_value():
            default = parameter.default
            default = list(default) if isinstance(default, tuple) else default
            assert default == argument.default_value, argument.name
        else:
            assert parameter.default is inspect.Parameter.empty, argument.name


def test_another_torch_version_is_refused_with_both_versions() -> None:
    # The binary belongs to one torch version; a mismatch must be a sentence, not a missing symbol.
    built_for = torch.__version__.split("+")[0]
    script = "import torch; torch.__version__ = '2.12.0'; import torch_ops"
    child = subprocess.run(
        [sys.executable, "-P", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    last_lines = child.stderr[child.stderr.find("ImportError") :]
    assert child.returncode != 0
    assert last_lines.startswith("ImportError")
    assert "2.12.0" in last_lines
    assert built_for in last_lines


def test_without_the_onednn_library_the_package_works(tmp_path: Path) -> None:
    """The backend's shared object is opened at first use; without it, it is unsupported."""
    if "onednn" not in torch_ops.backends.available():
        pytest.skip("built without oneDNN")
    without = shutil.ignore_patterns("libconvtbw_onednn.so", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "torch_ops", ignore=without)
    script = f"""
import torch, torch_ops
from torch_ops import backends
assert torch_ops.__file__.startswith({str(tmp_path)!r}), torch_ops.__file__
assert backends.available() == ["simd", "onednn", "reference"]
assert backends.supported() == ["simd", "reference"]
src, weights = torch.ones(1, 3, 2), torch.ones(2, 2, 1)
attributes = dict(strides=[1], pads_begin=[0], pads_end=[0], dilations=[1])
assert torch_ops.convolution(src, weights, **attributes).tolist() == [[[4.0], [4.0]]]
report = backends.explain("convolution", src, weights, **attributes)
assert "libconvtbw_onednn.so" in report.declined["onednn"], report
with backends.use("onednn"):
    pass
"""
    child = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert child.returncode == 1
    last = child.stderr.strip().splitlines()[-1]
    assert re.search(r"'onednn' is not supported here: .*libconvtbw_onednn\.so", last), last
    assert "supported here: simd, reference" in last
