"""Loads the operators into torch, once."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

# The library is compiled against this release's C++ interface, which changes between releases.
_BUILT_FOR = "2.13.0"

if torch.__version__.split("+")[0] != _BUILT_FOR:
    raise ImportError(
        f"torch_ops was built for torch {_BUILT_FOR} but found torch {torch.__version__}; "
        f"install torch=={_BUILT_FOR}, or rebuild torch_ops for the version you have"
    )

try:
    __version__ = version("convtbw")
except PackageNotFoundError:  # loaded from a source tree that is not installed
    __version__ = "0+unknown"

_PATH = Path(__file__).with_name("libconvtbw.so")
if not _PATH.exists():
    raise ImportError(f"{_PATH} is missing: build it with `make build` or `pip install .`")
torch.ops.load_library(str(_PATH))

# Where CMake finds the package convtbw and torch's, which it needs.
cmake_prefix_path = f"{_PATH.parent / 'share' / 'cmake'};{torch.utils.cmake_prefix_path}"
