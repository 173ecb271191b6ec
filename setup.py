"""Drives CMakeLists.txt, the only build description, for pip. It adds no compiler flags.

``CMAKE_ARGS`` in the environment passes options, for example ``CMAKE_ARGS=-DCONVTBW_ONEDNN=OFF``.
"""

import os
import shlex
import subprocess
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def onednn_prefix() -> list[Path]:
    """The folder over include/oneapi/dnnl, where the development package installed it."""
    try:
        installed = files("onednn-devel-cpu-gomp") or []
    except PackageNotFoundError:
        return []
    headers = [f for f in installed if f.parts[-3:] == ("oneapi", "dnnl", "dnnl.hpp")]
    return [Path(header.locate()).resolve().parents[3] for header in headers]


class CMakeBuild(build_ext):
    def run(self) -> None:
        # From the build environment, which need not be on PATH.
        import cmake
        import ninja
        import torch

        given = shlex.split(os.environ.get("CMAKE_ARGS", ""))
        prefixes = [Path(torch.utils.cmake_prefix_path), *onednn_prefix()]
        options = [f"-DCMAKE_PREFIX_PATH={';'.join(map(str, prefixes))}"]
        if self.inplace:
            # Incremental. The result stays in the source tree: it must be told where oneDNN is.
            build, destination, fresh = ROOT / "build" / "inplace", ROOT, []
            options += [f"-DONEDNN_ROOT={prefix}" for prefix in onednn_prefix()]
        else:
            # Fresh: an isolated build environment has another path every time.
            build, destination, fresh = Path(self.build_temp), Path(self.build_lib), ["--fresh"]
        run = Path(cmake.CMAKE_BIN_DIR) / "cmake"
        options += [f"-DCMAKE_MAKE_PROGRAM={Path(ninja.BIN_DIR) / 'ninja'}"]
        source = ["-S", ROOT, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]
        subprocess.run([run, *source, *options, *given, *fresh], check=True)
        subprocess.run([run, "--build", build], check=True)
        subprocess.run([run, "--install", build, "--prefix", destination], check=True)

    def get_outputs(self) -> list[str]:
        return []  # CMake installs into the package's folder; setuptools has nothing to copy


class PlatformWheel(bdist_wheel):
    """The library needs torch's C++ interface and nothing of Python's: any Python 3 will do."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    # The extension has no sources of setuptools' own: it makes the wheel a platform wheel.
    ext_modules=[Extension("torch_ops._native", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "bdist_wheel": PlatformWheel},
)
