"""Inner loops, as compiled: all multiply-adds there, and all sums in registers.

A compiler that spills one accumulator costs a third of the speed, one that spills the loop's own
pointer a fifth, and no test of values sees it.
"""

from __future__ import annotations

import math
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

import torch_ops

pytestmark = pytest.mark.unforced

TARGETS = ("avx2", "avx512", "avx512_bf16")
# By name: templates whose last two numbers, or the last one, multiply to their accumulators: a tile
# is one over <arithmetic, rows, vectors>, a run of taps over <..., taps, pixels, type>, a row of
# taps that windows slide over one over <..., vectors, taps, type>, a band one over <..., taps,
# rows, rows of taps together, type>, windows that are added up one by one over <..., taps, rows of
# taps that stay in registers, type>, of planes a tile one over <..., rows, vectors, type> and a
# column one over <..., taps, type>, a tile in matrix registers one over <rows / 16, vectors>. Runs
# of 16-bit elements lack a register for what is converted, and spill some sums with AVX2.
KERNELS = {
    "tile": r"_tile<.*, (\d+), (\d+)>\(",
    "run of taps": r"::lane_runs<(?:(?:float|double), .*TapKind\)[024]|.*bfloat16, .*TapKind\)3), "
    r"\d+, (\d+), \w+>\(",
    "band": r"::band_of_windows<(?:float|double), \w+, (\d+), (\d+), \d, \w+>\(",
    "scatter": r"::scattered_windows<(?:float|double), \w+, (3|4), [12], \w+>\(",
    "plane": r"::plane_tile<\w+, (\d+), (\d+), \w+>\(",
    "column": r"::plane_column<\w+, (\d+), \w+>\(",
    "matrix": r"::(?:gathered|adjacent)_matrix<(\d), (\d)>\(",
    "row of taps": r"::lane_slide_blocks<(?:float|double), .*, (\d+), (\d+), \w+>\(",
}
# Of one vector, so many rows and the loop's pointers outnumber the integer registers.
MANY_ROWS = 12

HEADER = re.compile(r"^[0-9a-f]+ <(.+)>:$")
# The assembler pads with prefixes, where branches would cross a line.
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\t(?:cs )*(\S+)\s*(.*)$")
MULTIPLY_ADD = re.compile(r"vfn?m(add|sub)\w*p[sdh]|vdpbf16ps")
VECTOR = re.compile(r"%[xyz]mm\d+")


@dataclass(frozen=True)
class Instruction:
    address: int
    mnemonic: str
    operands: str

    @property
    def is_vector(self) -> bool:
        return bool(VECTOR.search(self.operands))

    @property
    def is_multiply_add(self) -> bool:
        return bool(MULTIPLY_ADD.fullmatch(self.mnemonic))

    @property
    def jumps_to(self) -> int | None:
        target = re.match(r"([0-9a-f]+) <", self.operands)
        return int(target[1], 16) if self.mnemonic.startswith("j") and target else None

    def __str__(self) -> str:
        return f"{self.mnemonic} {self.operands}"


Function = list[Instruction]


def kernels(disassembly: str, target: str, kind: str = "tile") -> list[tuple[str, int, Function]]:
    """Name, number of accumulators and instructions of each, of the output of objdump -d."""
    pattern = re.compile(rf"\bconvtbw::simd::{target}::.*{KERNELS[kind]}")
    found: list[tuple[str, int, Function]] = []
    inside = False
    for line in disassembly.splitlines():
        if header := HEADER.match(line):
            kernel = pattern.search(header[1])
            inside = bool(kernel) and "[clone .cold]" not in header[1]
            if inside:
                found.append((header[1], math.prod(map(int, kernel.groups())), []))
        elif inside and (instruction := INSTRUCTION.match(line)):
            address, mnemonic, operands = instruction.groups()
            operands = operands.split("#")[0].strip()  # the rest is objdump's comment
            found[-1][2].append(Instruction(int(address, 16), mnemonic, operands))
    return found


def innermost_loops(function: Function) -> list[Function]:
    loops = [
        (instruction.jumps_to, instruction.address)
        for instruction in function
        if instruction.jumps_to is not None
        and function[0].address <= instruction.jumps_to <= instruction.address
    ]
    return [
        [instruction for instruction in function if first <= instruction.address <= last]
        for first, last in loops
        if not any(
            first <= other[0] and other[1] <= last and other != (first, last) for other in loops
        )
    ]


def inner_loop(function: Function) -> Function:
    """The innermost loop with the most multiply-adds; empty if there is no loop."""
    return max(innermost_loops(function), key=multiply_adds, default=[])


def middle_loop(accumulators: int, function: Function) -> Function:
    """Of a row of taps, the shortest loop with the most multiply-adds of all accumulators: at the
    row's ends it takes instructions to choose what is absent. Empty if there is none.
    """
    loops = [loop for loop in innermost_loops(function) if multiply_adds(loop) % accumulators == 0]
    return max(loops, key=lambda loop: (multiply_adds(loop), -len(loop)), default=[])


def multiply_adds(loop: Function) -> int:
    return sum(instruction.is_multiply_add for instruction in loop)


def spills(function: Function, loop: Function, *, sums_only: bool = False) -> Function:
    """Instructions of the loop that touch the stack, and of vectors those that store anywhere.

    A tile has nothing to store before its last step: a store is a sum that lives in memory.
    """
    # Without a frame pointer %rbp is a register like any other.
    framed = any(str(instruction) == "mov %rsp,%rbp" for instruction in function)
    stack = r"\(%r[sb]p" if framed else r"\(%rsp"
    store = r"\)(\{%k\d\})?$"
    return [
        instruction
        for instruction in loop
        if (instruction.is_vector and re.search(f"{stack}|{store}", instruction.operands))
        or (not sums_only and re.search(stack, instruction.operands))
    ]


def check(accumulators: int, function: Function, *, sums_only: bool = False) -> None:
    loop = inner_loop(function)
    count = multiply_adds(loop)
    assert count, "no loop with multiply-adds"
    # A multiple, if the loop is unrolled.
    assert count % accumulators == 0, f"{count} multiply-adds for {accumulators} accumulators"
    found = spills(function, loop, sums_only=sums_only)
    assert not found, "spills: " + "; ".join(map(str, found))


def round_trips(loop: Function) -> Function:
    """Instructions of vectors that are on the stack and that the loop both stores and reads, as it
    would sums; windows and positions that lie there do not cost the rate.
    """
    slots: dict[str, Function] = {}
    for instruction in loop:
        slot = re.search(r"[-\w]*\(%r[sb]p.*?\)", instruction.operands)
        if instruction.is_vector and slot:
            slots.setdefault(slot[0], []).append(instruction)
    stores = [sum(i.operands.endswith(slot) for i in found) for slot, found in slots.items()]
    return [
        instruction
        for found, stored in zip(slots.values(), stores, strict=True)
        if 0 < stored < len(found)
        for instruction in found
    ]


def check_row(accumulators: int, function: Function) -> None:
    loop = middle_loop(accumulators, function)
    assert multiply_adds(loop), f"no loop with multiply-adds for {accumulators} accumulators"
    found = round_trips(loop)
    assert not found, "spills: " + "; ".join(map(str, found))


@pytest.fixture(scope="module")
def disassembly() -> str:
    if not shutil.which("objdump"):
        pytest.skip("objdump is missing")
    library = Path(torch_ops.__file__).parent / "libconvtbw.so"
    command = ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", library]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the targets are those of x86-64")
@pytest.mark.parametrize(
    ("kind", "target"),
    [
        *(("tile", target) for target in TARGETS),
        ("run of taps", "avx2"),
        ("run of taps", "avx512"),
        ("run of taps", "avx512_bf16"),
        ("row of taps", "avx2"),
        ("band", "avx512"),
        ("plane", "avx2"),
        ("plane", "avx512"),
        ("scatter", "avx2"),
        ("scatter", "avx512"),
    ],
)
def test_sums_stay_in_registers(disassembly: str, target: str, kind: str) -> None:
    found = kernels(disassembly, target, kind)
    assert found, f"no {kind} in the library; is it stripped?"
    for name, accumulators, function in found:
        try:
            if kind in ("row of taps", "plane", "scatter"):
                check_row(accumulators, function)
                continue
            many = accumulators >= MANY_ROWS and ", 1>" in name
            check(accumulators, function, sums_only=many or kind != "tile")
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def repeated_reads(loop: Function) -> Function:
    """Instructions that read a vector from where another did, while no register of the address
    changed: a load that crosses a cache line counts twice, each time.
    """
    read: set[str] = set()
    found = []
    for instruction in loop:
        source = re.search(r"[-\w]*\(%[^)]*\)(?=,)", instruction.operands)
        if instruction.is_vector and source and "%rsp" not in source[0]:
            if source[0] in read:
                found.append(instruction)
            read.add(source[0])
        elif written := re.search(r"(%\w+)$", instruction.operands):
            read = {address for address in read if written[1] not in address}
    return found


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the targets are those of x86-64")
@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("plane", "avx2"),
        ("plane", "avx512"),
        ("column", "avx2"),
        ("column", "avx512"),
        ("band", "avx512"),
        ("run of taps", "avx512"),  # with AVX2 no register is left for a pixel
    ],
)
def test_what_is_read_is_read_once(disassembly: str, target: str, kind: str) -> None:
    found = kernels(disassembly, target, kind)
    assert found, f"no {kind} in the library; is it stripped?"
    for name, _, function in found:
        loop = inner_loop(function)
        assert multiply_adds(loop), f"{name}: no loop with multiply-adds"
        assert not repeated_reads(loop), f"{name}: {[*map(str, repeated_reads(loop))]}"


# --- the check itself -----------------------------------------------------------------------------

# GCC 12 at -O3: a 2 x 2 tile, and the loop of one that spills.
IN_REGISTERS = """
0000000000001100 <void convtbw::simd::avx2::(anonymous namespace)::a_tile<Plain<float>, 2, 2>(TileCall)>:
    1100:	push   %rbp
    1101:	vmovups (%rdx),%ymm5
    1105:	vmovaps %ymm5,0x28(%rsp)
    1110:	vmovups (%rsi),%ymm0
    1114:	vmovups 0x20(%rsi),%ymm1
    1118:	vbroadcastss (%rax,%rbp,1),%ymm2
    111e:	vfmadd231ps %ymm2,%ymm0,%ymm4
    1122:	vfmadd231ps %ymm2,%ymm1,%ymm5
    1126:	vbroadcastss 0x0(%rbp),%ymm3
    112c:	vfmadd231ps %ymm3,%ymm0,%ymm6
    1130:	vfmadd231ps %ymm3,%ymm1,%ymm7
    1134:	mov    0x8(%rsi),%rbx
    1138:	cmp    %r11,%rax
    113c:	jne    1110 <void convtbw::simd::avx2::(anonymous namespace)::a_tile<Plain<float>, 2, 2>(TileCall)+0x10>
    1140:	add    $0x20,%rsi
    1144:	jne    1101 <void convtbw::simd::avx2::(anonymous namespace)::a_tile<Plain<float>, 2, 2>(TileCall)+0x1>
    1148:	vmovups %ymm4,(%rdx)
    114c:	ret
"""  # noqa: E501
SPILLS = {
    "load": ("vbroadcastss 0x0(%rbp),%ymm3", "vmovaps 0x28(%rsp),%ymm3"),
    "operand": ("vfmadd231ps %ymm3,%ymm1,%ymm7", "vfmadd213ps -0x38(%rsp),%ymm1,%ymm9"),
    "pointer": ("mov    0x8(%rsi),%rbx", "mov    0x8(%rsp),%rbx"),
    "store": ("vbroadcastss 0x0(%rbp),%ymm3", "vmovaps %ymm3,0x28(%rsp)"),
    "store elsewhere": ("vbroadcastss 0x0(%rbp),%ymm3", "vmovups %ymm3,(%rax)"),
    "masked store": ("vbroadcastss 0x0(%rbp),%ymm3", "vmovups %ymm3,(%rax){%k1}"),
    "frame pointer": ("vmovups (%rdx),%ymm5", "mov    %rsp,%rbp"),
}


def only_tile(text: str) -> tuple[int, Function]:
    assert not kernels(text, "avx512")
    ((_, accumulators, function),) = kernels(text, "avx2")
    return accumulators, function


def test_a_loop_in_registers_passes() -> None:
    accumulators, function = only_tile(IN_REGISTERS)
    assert accumulators == 4
    loop = inner_loop(function)
    assert (loop[0].address, loop[-1].address) == (0x1110, 0x113C)
    check(accumulators, function)


@pytest.mark.parametrize("kind", SPILLS)
def test_a_spill_is_found(kind: str) -> None:
    text = IN_REGISTERS.replace(*SPILLS[kind])
    assert text != IN_REGISTERS
    with pytest.raises(AssertionError, match="spills: "):
        check(*only_tile(text))


def test_a_pointer_in_memory_is_no_sum() -> None:
    check(*only_tile(IN_REGISTERS.replace(*SPILLS["pointer"])), sums_only=True)
    with pytest.raises(AssertionError, match="spills: v"):
        check(*only_tile(IN_REGISTERS.replace(*SPILLS["load"])), sums_only=True)


def test_missing_multiply_adds_are_found() -> None:
    with pytest.raises(AssertionError, match="3 multiply-adds for 4 accumulators"):
        check(*only_tile(IN_REGISTERS.replace("vfmadd231ps %ymm2,%ymm0", "vaddps %ymm2,%ymm0")))
    with pytest.raises(AssertionError, match="no loop"):
        check(*only_tile(IN_REGISTERS.replace("vfmadd", "vmul")))


def test_a_row_of_taps_is_checked_in_its_middle() -> None:
    for kind in ("load", "store"):
        check_row(*only_tile(IN_REGISTERS.replace(*SPILLS[kind])))
    stored = IN_REGISTERS.replace(*SPILLS["store"])
    with pytest.raises(AssertionError, match="spills: v"):
        check_row(*only_tile(stored.replace("0x20(%rsi),%ymm1", "0x28(%rsp),%ymm1")))
    with pytest.raises(AssertionError, match="no loop with multiply-adds for 4 accumulators"):
        check_row(*only_tile(IN_REGISTERS.replace("vfmadd231ps %ymm2,%ymm0", "vaddps %ymm2,%ymm0")))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the targets are those of x86-64")
def test_matrix_registers_are_loaded_once_for_all_their_products(disassembly: str) -> None:
    """Rows once for all vectors, vectors once for all rows; sums neither between the products."""
    found = kernels(disassembly, "amx", "matrix")
    assert len(found) == 12
    for name, sums, function in found:
        halves, vectors = map(int, re.search(KERNELS["matrix"], name).groups())
        chunks, loads, products = 0, 0, 0
        for instruction in function:
            loads += instruction.mnemonic == "tileloadd"
            products += instruction.mnemonic == "tdpbf16ps"
            if products == sums:
                assert loads == halves + vectors, name
                chunks, loads, products = chunks + 1, 0, 0
            elif instruction.mnemonic in ("tilestored", "tilezero"):
                assert (loads, products) == (0, 0), name
        assert chunks, name
