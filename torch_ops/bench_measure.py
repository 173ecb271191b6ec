"""Timing: contenders in turn, and what the machine can do at most, measured in the same run."""

from __future__ import annotations

import os
import platform
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch

from torch_ops import backends
from torch_ops.bench_shapes import Shape

# Seconds that a contender runs in a row before the next one's turn: short against the changes of a
# shared machine, long against the clock's resolution.
SLICE = 0.005

# Instruction sets can be lowered by these, for torch, for the oneDNN inside it, for MKL and for us.
ENVIRONMENT = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "CONVTBW_BACKEND",
    "CONVTBW_TARGET",
)


@dataclass
class Contender:
    """Something to be timed, inside a context of its own that is not timed."""

    run: Callable[[], object]
    context: Callable[[], AbstractContextManager] = nullcontext
    may_decline: bool = True


@dataclass(frozen=True)
class Ours:
    """How our operators are served: by the planner's choice, or by a backend that is forced."""

    backend: str | None = None
    target: str | None = None

    def context(self) -> AbstractContextManager:
        return backends.use(self.backend, self.target) if self.backend else nullcontext()

    def contender(self, run: Callable[[], object]) -> Contender:
        # What nobody forced serves every call: if it raises, that is an error and no reason.
        forced = bool(self.backend or os.environ.get("CONVTBW_BACKEND"))
        return Contender(run, self.context, may_decline=forced)

    def __str__(self) -> str:
        forced = "/".join(name for name in (self.backend, self.target) if name)
        return f"{forced}, forced" if forced else "the planner's choice"


@dataclass(frozen=True)
class Effort:
    """How long a case is measured.

    A shared machine is often slow for a tenth of a second and rarely for a whole one: short cases
    get as many rounds as ``seconds`` hold, but not fewer than ``rounds``.
    """

    rounds: int = 7
    seconds: float = 0.5
    once_above: float = 1.0  # seconds: what takes longer runs once


@dataclass
class Times:
    """Seconds a call by contender, why the others declined, and who ran only once."""

    seconds: dict[str, float] = field(default_factory=dict)
    declined: dict[str, str] = field(default_factory=dict)
    once: list[str] = field(default_factory=list)

    def ms(self, name: str) -> float | None:
        return 1e3 * self.seconds[name] if name in self.seconds else None


def seconds(run: Callable[[], object], calls: int = 1) -> float:
    """Mean of so many calls in a row."""
    started = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - started) / calls


def measure(contenders: dict[str, Contender], effort: Effort) -> Times:
    """Time every contender: the best of several rounds, in each of which all take their turn.

    The first call warms up, and is the result where it takes longer than ``effort.once_above``. An
    error of a contender that may decline is its reason; any other one is raised.
    """
    times = Times()
    several: list[str] = []
    for name, contender in contenders.items():
        try:
            with contender.context():
                first = seconds(contender.run)
                if first <= effort.once_above:
                    first = min(first, seconds(contender.run))
        except RuntimeError as error:
            if not contender.may_decline:
                raise
            times.declined[name] = str(error).splitlines()[0]
            continue
        times.seconds[name] = first
        if first > effort.once_above:
            times.once.append(name)
        else:
            several.append(name)
    started, rounds = time.perf_counter(), 0
    shuffled = random.Random(0)
    while several and (rounds < effort.rounds or time.perf_counter() - started < effort.seconds):
        # Nobody always follows the same one: what that left in the caches differs.
        shuffled.shuffle(several)
        for name in several:
            # As long a turn for all: calls in a row become faster, and whoever was warmed up first,
            # while new pages were zeroed, would be asked for fewest.
            count = max(1, int(SLICE / times.seconds[name]))
            with contenders[name].context():
                if times.seconds[name] < 10 * SLICE:
                    # Not timed: the one before has left its own data in the caches, to the
                    # advantage of a contender that shares some. Long turns do not feel it.
                    contenders[name].run()
                taken = seconds(contenders[name].run, count)
            times.seconds[name] = min(times.seconds[name], taken)
        rounds += 1
    return times


class Limits:
    """The machine's best rates so far. Updated between the cases, so that one bad moment of a
    shared machine does not lower the limits of the whole run."""

    def __init__(self, extent: int = 1536, elements: int = 64 * 2**20) -> None:
        """Args: extent of sgemm's square matrices; float32 elements that are copied and summed,
        by default 256 MiB, which no cache holds."""
        self._a, self._b = torch.randn(extent, extent), torch.randn(extent, extent)
        self._from, self._to = torch.ones(elements), torch.ones(elements)
        self.sgemm_gflops = self.copy_gbytes = self.read_gbytes = 0.0
        for _ in range(5):
            self.update()

    def update(self) -> None:
        flops, gbytes = 2 * len(self._a) ** 3, self._from.nbytes / 1e9
        sgemm = flops / seconds(lambda: torch.mm(self._a, self._b)) / 1e9
        copy = 2 * gbytes / seconds(lambda: self._to.copy_(self._from))
        read = gbytes / seconds(lambda: self._from.sum())
        self.sgemm_gflops = max(self.sgemm_gflops, sgemm)
        self.copy_gbytes = max(self.copy_gbytes, copy)
        self.read_gbytes = max(self.read_gbytes, read)

    @property
    def memory_gbytes(self) -> float:
        """The better of a copy, reads plus writes, and of a sum, which only reads."""
        return max(self.copy_gbytes, self.read_gbytes)

    def at(self, flop_per_byte: float) -> float:
        """GFLOP/s of a perfect kernel that moves every element between memory and core once.

        Cases may exceed this: what the caches hold since the call before moves faster, and taps in
        the padding count as work though nobody multiplies them.
        """
        return min(self.sgemm_gflops, flop_per_byte * self.memory_gbytes)


def intensity(shape: Shape, itemsize: int) -> float:
    """FLOP per byte: 2 per multiply-add; src, weights and dst once each."""
    return 2 * shape.macs / (shape.elements * itemsize)


def cpu_name() -> str:
    """The processor as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine() -> dict[str, object]:
    """What a result depends on beside the code: to be printed with every result."""
    return {
        "cpu": cpu_name(),
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "environment": {name: os.environ[name] for name in ENVIRONMENT if os.environ.get(name)},
    }
