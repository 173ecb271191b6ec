"""What objects compiled for an instruction set must not contain.

Of a weak symbol, such as an inline function of the standard library, the linker keeps one copy for
everybody; if it keeps that of an AVX-512 object, older CPUs crash. A static initialiser of such an
object runs on every CPU, when the library is loaded.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.unforced

BUILD = Path(__file__).parent.parent / "build" / "inplace"
# The generic target has no instruction-set flags: its copies serve every CPU.
OBJECTS = sorted(
    path
    for path in BUILD.glob("CMakeFiles/convtbw_simd_*.dir/**/*.o")
    if not path.relative_to(BUILD).parts[1].startswith("convtbw_simd_generic")
)

# A pointer to the exception handler, the same in every object: data, no instructions.
HARMLESS = "DW.ref.__gxx_personality_v0"


def weak_symbols(nm: str) -> list[str]:
    """Of the output of nm: weak (W, V) and unique (u) definitions."""
    found = re.findall(r"^[0-9a-f]+ [WVu] (.*)$", nm, re.MULTILINE)
    return [name for name in found if name != HARMLESS]


def initialisers(headers: str) -> list[str]:
    """Of the output of objdump -h: sections of functions to be called at load."""
    return re.findall(r"^\s*\d+ (\.(?:init_array|ctors|preinit_array)\S*)", headers, re.MULTILINE)


def run(*command: str | Path) -> str:
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is missing")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(not OBJECTS, reason=f"no convtbw_simd_* objects under {BUILD}")
@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: str(path.relative_to(BUILD).parts[1:]))
def test_nothing_is_shared_with_other_cpus(path: Path) -> None:
    assert weak_symbols(run("nm", "--demangle", "--defined-only", path)) == []
    assert initialisers(run("objdump", "--section-headers", path)) == []


# --- the check itself -----------------------------------------------------------------------------


def test_weak_symbols_are_found() -> None:
    nm = """
0000000000000000 V DW.ref.__gxx_personality_v0
0000000000000000 t convtbw::simd::avx2::(anonymous namespace)::tile<6, 2>(float const*)
0000000000000000 T convtbw::simd::avx2::table()
0000000000000000 W std::vector<long, std::allocator<long> >::~vector()
0000000000000000 V typeinfo for convtbw::Plan
0000000000000010 u convtbw::counter
"""
    assert weak_symbols(nm) == [
        "std::vector<long, std::allocator<long> >::~vector()",
        "typeinfo for convtbw::Plan",
        "convtbw::counter",
    ]


def test_initialisers_are_found() -> None:
    headers = """
Idx Name          Size      VMA               LMA               File off  Algn
  0 .text         0000000a  0000000000000000  0000000000000000  00000040  2**0
  4 .init_array   00000008  0000000000000000  0000000000000000  00000070  2**3
  5 .init_array.00101 00000008  0000000000000000  0000000000000000  00000078  2**3
"""
    assert initialisers(headers) == [".init_array", ".init_array.00101"]
