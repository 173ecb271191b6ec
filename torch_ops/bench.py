"""Measure the convtbw operators against torch, interleaved and in one run.

Per shape, data format, dtype and partial (weights gradient, data gradient, forward): our operator
as the planner serves it, each backend by force, and ``aten::convolution_backward`` with one
gradient selected (``aten::convolution`` for forward). The rate of sgemm and the bandwidth of a copy
are measured in the same run. Results go to the terminal, ``build/bench/bench.json`` and ``.csv``.

    python -m torch_ops.bench [--quick] [--shapes 'dcgan*'] [--dtype f32 bf16] [--partial weights]
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import platform
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from torch_ops import backends
from torch_ops.bench_cases import DTYPES, FORMATS, PARTIALS, Case, Run
from torch_ops.bench_shapes import SETS


def cpu_name() -> str:
    """The processor as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


# ---- timing -------------------------------------------------------------------------------------


def seconds(run: Run, calls: int = 1) -> float:
    """Mean of so many calls in a row."""
    started = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - started) / calls


def measure(
    contenders: dict[str, tuple[Run, AbstractContextManager]], rounds: int, limit: float
) -> tuple[dict[str, float], dict[str, str]]:
    """Milliseconds per contender, best of interleaved rounds; and why the others declined.

    The first call warms up and estimates. Where it alone exceeds ``limit`` seconds it is the
    result. Only a contender that was forced may decline.
    """
    best: dict[str, float] = {}
    declined: dict[str, str] = {}
    calls: dict[str, int] = {}
    for name, (run, context) in contenders.items():
        try:
            with context():
                first = seconds(run)
        except (RuntimeError, ValueError) as error:
            if name in ("ours", "torch"):
                raise
            declined[name] = str(error).splitlines()[0]
            continue
        best[name] = first
        calls[name] = 0 if first > limit else max(1, int(0.005 / first))
    for _ in range(rounds):
        for name, count in calls.items():
            if count:
                run, context = contenders[name]
                with context():
                    best[name] = min(best[name], seconds(run, count))
    return {name: value * 1e3 for name, value in best.items()}, declined


def sgemm_rate(rounds: int = 5) -> float:
    """GFLOP/s of torch.mm on 1536³, f32, best of the rounds."""
    a, b = torch.randn(1536, 1536), torch.randn(1536, 1536)
    return 2 * 1536**3 / min(seconds(lambda: torch.mm(a, b)) for _ in range(rounds + 1)) / 1e9


def copy_bandwidth(rounds: int = 5) -> float:
    """GB/s, reads plus writes, of a copy of 256 MB: larger than any cache."""
    a = torch.ones(64 * 2**20)
    b = torch.empty_like(a)
    return 2 * a.nbytes / min(seconds(lambda: b.copy_(a)) for _ in range(rounds + 1)) / 1e9


# ---- report -------------------------------------------------------------------------------------


def result(case: Case, rounds: int, limit: float, forced: list[str], limits: dict) -> dict:
    """Measure one case; one flat row, in ms, GFLOP/s and shares of the machine's limits."""
    run = case.our_run()
    contenders = {"torch": (case.torch_run(), nullcontext), "ours": (run, nullcontext)}
    for name in forced:
        contenders[name] = (run, lambda name=name: backends.use(name))
    best, declined = measure(contenders, rounds, limit)
    name, args, kwargs = case.our_call()
    plan = backends.explain(name, *args, **kwargs)
    gflops = 2 * case.shape.macs / best["ours"] / 1e6
    gbytes = case.shape.elements * DTYPES[case.dtype].itemsize / best["ours"] / 1e6
    return {
        "shape": case.shape.name,
        "format": case.data_format,
        "dtype": case.dtype,
        "partial": case.partial,
        "ms_ours": best["ours"],
        "ms_torch": best["torch"],
        "ratio": best["torch"] / best["ours"],
        "gflops": gflops,
        "share_of_sgemm": gflops / limits["sgemm_gflops"],
        "share_of_copy": gbytes / limits["copy_gbytes"],
        "plan": " ".join(str(p) for p in (plan.backend, plan.target, plan.kernel) if p),
        "difference": case.difference() if max(best["ours"], best["torch"]) < 1e3 * limit else None,
        **{f"ms_{name}": best.get(name) for name in forced},
        **{f"declined_{name}": declined.get(name) for name in forced},
    }


def report(rows: list[dict], forced: list[str], console: Console) -> None:
    """The table, the geometric means, and the reasons of the backends that declined."""
    table = Table(title="ratio = torch / ours: above 1 ours is faster", row_styles=["", "dim"])
    table.add_column("shape", no_wrap=True)
    numbers = ("ms ours", "ms torch", "ratio", "GFLOP/s", "% sgemm", "% copy")
    for column in ("format", "dtype", "partial"):
        table.add_column(column)
    for column in (*numbers, *(f"ms {name}" for name in forced)):
        table.add_column(column, justify="right")
    table.add_column("backend and kernel", overflow="fold")
    for row in rows:
        colour = "green" if row["ratio"] >= 1 else "red"
        times = [row["ms_ours"], row["ms_torch"], *(row[f"ms_{name}"] for name in forced)]
        ours, theirs, *others = ("-" if ms is None else f"{ms:.4g}" for ms in times)
        shares = [f"{100 * row[key]:.0f}" for key in ("share_of_sgemm", "share_of_copy")]
        ratio = f"[{colour}]{row['ratio']:.2f}[/]"
        keys = [row[key] for key in ("shape", "format", "dtype", "partial")]
        rate = f"{row['gflops']:.3g}"
        table.add_row(*keys, ours, theirs, ratio, rate, *shares, *others, row["plan"])
    console.print(table)
    groups: dict[str, list[float]] = {}
    for row in rows:
        for key in ("all", f"{row['dtype']} {row['format']} {row['partial']}"):
            groups.setdefault(key, []).append(math.log(row["ratio"]))
    for key, logs in groups.items():
        mean = math.exp(sum(logs) / len(logs))
        console.print(f"geometric mean, {key}: {mean:.2f} (of {len(logs)})", highlight=False)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="torch_ops.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small shapes, few rounds")
    parser.add_argument("--shapes", default="*", help="part of a name, or a pattern such as 'dw*'")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=["f32"])
    parser.add_argument("--partial", nargs="+", choices=PARTIALS, default=PARTIALS)
    parser.add_argument("--format", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--threads", type=int, help="threads of torch's pool (default: torch's)")
    parser.add_argument("--limit", type=float, default=1.0, help="slower than this, s: run once")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="results' folder")
    options = parser.parse_args(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    pattern = options.shapes if set(options.shapes) & set("*?[") else f"*{options.shapes}*"
    every = [s for shapes in SETS.values() for s in shapes]
    shapes = [s for s in every if fnmatch(s.name, pattern)]
    forced = list(backends.available())
    if options.quick:
        shapes = [s for s in shapes if s.macs < 5e8]
        forced = [name for name in forced if name != "reference"]  # seconds a call
    if not shapes:
        parser.error(f"no shape matches {options.shapes!r}: {', '.join(s.name for s in every)}")

    console = Console()
    if not console.is_terminal:
        console = Console(width=180)  # a log: keep a row of the table on one line
    machine = {
        "cpu": cpu_name(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "sgemm_gflops": sgemm_rate(),
        "copy_gbytes": copy_bandwidth(),
    }
    for key, value in machine.items():
        console.print(f"{key:13} {value:.4g}" if isinstance(value, float) else f"{key:13} {value}")

    rows, reasons = [], set()
    cases = list(product(options.dtype, options.partial, shapes, options.format))
    for done, (dtype, partial, shape, data_format) in enumerate(cases):
        where = f"{done + 1}/{len(cases)} {shape.name} {data_format} {dtype} {partial}"
        with console.status(where), torch.no_grad():
            case = Case(shape, data_format, dtype, partial)
            row = result(case, 3 if options.quick else 7, options.limit, forced, machine)
        rows.append(row)
        for name in forced:
            if (reason := row[f"declined_{name}"]) and (name, reason) not in reasons:
                reasons.add((name, reason))
                console.print(f"{where}: {name} declined: {reason}", highlight=False, markup=False)
    report(rows, forced, console)

    options.out.mkdir(parents=True, exist_ok=True)
    document = json.dumps({"machine": machine, "rows": rows}, indent=1)
    (options.out / "bench.json").write_text(document)
    with (options.out / "bench.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    console.print(f"written: {options.out}/bench.json, {options.out}/bench.csv")
    return 0


if __name__ == "__main__":
    sys.exit(main())
