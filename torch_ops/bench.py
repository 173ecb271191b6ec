"""Measure the convtbw operators against torch and oneDNN, interleaved and in one run.

Per shape, data format, dtype and partial (weights gradient, data gradient, forward): our operator
as the planner serves it or as ``--backend`` and ``--target`` force it, our operator with oneDNN
forced, ``aten::convolution_backward`` with one gradient selected (``aten::convolution`` for
forward), and beside 16 bits our operator in float32. sgemm's rate and the memory's bandwidth are
measured between the cases. Then: double backward, gradients that are added to existing ones, and
the cost of a call. Results go to the terminal and, under ``--out``, to ``bench.json``,
``bench.csv``, ``speedup.png`` and ``roofline.png``.

    python -m torch_ops.bench [--quick] [--shapes 'dcgan*'] [--dtype f32 bf16] [--partial weights]
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from torch_ops import (
    backends,
    bench_accumulation,
    bench_overhead,
    bench_plots,
    bench_report,
)
from torch_ops.bench_accuracy import errors
from torch_ops.bench_cases import DTYPES, FORMATS, PARTIALS, Case
from torch_ops.bench_double_backward import double_backward
from torch_ops.bench_measure import Contender, Effort, Limits, Ours, intensity, machine, measure
from torch_ops.bench_shapes import SET_OF, SETS, choose

CONTENDERS = ("ours", "torch", "onednn", "ours_f32")
SECTIONS = ("cases", "double-backward", "accumulation", "overhead")
QUICK_MACS = 2e8  # --quick: shapes of at most so many multiply-adds


@torch.no_grad()
def measure_case(case: Case, ours: Ours, effort: Effort, accuracy: bool) -> dict:
    """One case as a flat row: ms, GFLOP/s, MiB; None where a contender declined."""
    contenders = {
        "torch": Contender(case.torch_run()),
        "ours": ours.contender(case.our_run()),
        "onednn": Contender(case.our_run(), lambda: backends.use("onednn")),
    }
    if case.dtype != "f32":
        in_f32 = Case(case.shape, case.data_format, "f32", case.partial)
        contenders["ours_f32"] = ours.contender(in_f32.our_run())
    times = measure(contenders, effort)
    ms = {name: times.ms(name) for name in CONTENDERS}
    others = [ms[name] for name in ("torch", "onednn") if ms[name]]
    s, mine = case.shape, ms["ours"]
    row = {
        "set": SET_OF[s.name],
        "shape": s.name,
        "format": case.data_format,
        "dtype": case.dtype,
        "partial": case.partial,
        "kind": s.kind,
        "least_channels": min(s.inputs, s.outputs),
        "largest_kernel": max(s.kernel),
        **{f"ms_{name}": value for name, value in ms.items()},
        "ratio": ms["torch"] / mine if mine and ms["torch"] else None,
        "ratio_to_best": min(others) / mine if mine and others else None,
        "ratio_to_f32": mine / ms["ours_f32"] if mine and ms["ours_f32"] else None,
        "gflops": 2 * s.macs / mine / 1e6 if mine else None,
        "flop_per_byte": intensity(s, DTYPES[case.dtype].itemsize),
        "once": times.once,
        **{f"declined_{name}": times.declined.get(name) for name in CONTENDERS},
    }
    name, args, kwargs = case.our_call()
    with ours.context():
        plan = backends.explain(name, *args, **kwargs) if mine else None
        # Torch would have to run once more: not where that takes seconds.
        with_torch = ms["torch"] is not None and "torch" not in times.once
        row["difference"] = case.difference() if mine and with_torch else None
        if accuracy:
            row |= errors(case, mine is not None, with_torch)
    parts = (plan.backend, plan.target, plan.kernel) if plan else ()
    row["plan"] = " ".join(part for part in parts if part)
    row["workspace_mib"] = plan.workspace / 2**20 if plan else None
    return row


def measure_all(options: argparse.Namespace, console: Console) -> dict:
    """Everything that was asked for, as one document; declined cases are told as they occur."""
    ours = Ours(options.backend, options.target)
    effort = Effort(options.rounds, options.seconds, options.once_above)
    limits = Limits()
    about = machine() | {"ours": str(ours)}
    console.print(*bench_report.header(about), sep="\n", highlight=False, markup=False)

    cases, doubles, sums, tiny = [], [], [], []
    if "cases" in options.sections:
        cases = list(product(options.chosen, options.dtype, options.format, options.partial))
    if "double-backward" in options.sections:
        doubles = ["f32"] if options.quick else ["f32", "bf16"]
    if "accumulation" in options.sections and not options.quick:
        sums = bench_accumulation.DTYPES
    if "overhead" in options.sections:
        tiny = list(product(bench_overhead.SHAPES, bench_overhead.PARTIALS))

    document = {"machine": about, "rows": []}
    document |= {"double_backward": [], "accumulation": [], "overhead": []}
    told: set[tuple[str, str]] = set()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    try:
        with bar:
            task = bar.add_task("", total=len(cases) + len(doubles) + len(sums) + len(tiny))
            for shape, dtype, data_format, partial in cases:
                case = Case(shape, data_format, dtype, partial)
                where = f"{shape.name} {data_format} {dtype} {partial}"
                bar.update(task, description=where)
                row = measure_case(case, ours, effort, options.accuracy)
                document["rows"].append(row)
                for name in CONTENDERS:
                    reason = row[f"declined_{name}"]
                    if reason and (name, reason) not in told:
                        told.add((name, reason))
                        console.print(f"{where}: {name}: {reason}", highlight=False, markup=False)
                limits.update()
                bar.advance(task)
            for dtype in doubles:
                bar.update(task, description=f"double backward {dtype}")
                row = double_backward(dtype, ours, effort)
                document["double_backward"].append(row)
                bar.advance(task)
            for dtype, held in sums:
                bar.update(task, description=f"accumulation {dtype}")
                row = bench_accumulation.accumulation(dtype, held, ours, effort)
                document["accumulation"].append(row)
                bar.advance(task)
            for shape, partial in tiny:
                bar.update(task, description=f"overhead {shape.name} {partial}")
                document["overhead"].append(bench_overhead.overhead(shape, partial, ours, effort))
                bar.advance(task)
            bar.update(task, description="done")
    except KeyboardInterrupt:
        console.print("interrupted; what follows is what was measured until then")
    finish(document, limits)
    return document


def finish(document: dict, limits: Limits) -> None:
    """Add what only the end of the run knows: the limits may have grown until the last case."""
    for row in document["rows"]:
        row["limit_gflops"] = limits.at(row["flop_per_byte"])
        row["share_of_limit"] = row["gflops"] / row["limit_gflops"] if row["gflops"] else None
    names = ("sgemm_gflops", "copy_gbytes", "read_gbytes", "memory_gbytes")
    document["machine"] |= {name: getattr(limits, name) for name in names}
    document["summary"] = bench_report.summary(document["rows"])


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line; ``chosen`` is the shapes that it names."""
    parser = argparse.ArgumentParser(prog="torch_ops.bench", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="small shapes alone, and few rounds")
    add("--shapes", nargs="+", default=["*"], help="names, parts of names, patterns such as 'dw*'")
    add("--set", nargs="+", choices=SETS, default=list(SETS), help="sets of shapes (all)")
    add("--dtype", nargs="+", choices=DTYPES, default=["f32"], help="of the cases (f32)")
    add("--partial", nargs="+", choices=PARTIALS, default=list(PARTIALS), help="of the cases (all)")
    add("--format", nargs="+", choices=FORMATS, default=list(FORMATS), help="of the data (all)")
    add("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="to measure (all)")
    add("--backend", help="force what ours runs (the planner chooses)")
    add("--target", help="force its instruction set too (its best)")
    add("--threads", type=int, help="threads of torch's pool (torch's choice)")
    add("--rounds", type=int, help="least rounds, of which the best counts (7, quick 3)")
    add("--seconds", type=float, help="least time of a case's rounds (0.5, quick 0.1)")
    add("--once-above", type=float, default=1.0, help="what takes more seconds runs once (1)")
    add("--accuracy", action="store_true", help="errors against float64; slower")
    add("--out", type=Path, default=Path("build/bench"), help="results' folder (build/bench)")
    add("--markdown", type=Path, help="write the tables to this file too")
    options = parser.parse_args(argv)

    if options.target and not options.backend:
        parser.error("--target needs --backend")
    try:
        options.chosen = choose(options.shapes, options.set)
        with Ours(options.backend, options.target).context():
            pass  # an unknown name is an error on entry
    except (ValueError, RuntimeError) as error:
        parser.error(str(error).splitlines()[0])
    if options.quick:
        options.chosen = [s for s in options.chosen if s.macs <= QUICK_MACS]
        if not options.chosen:
            parser.error(f"--quick leaves out shapes of more than {QUICK_MACS:.0e} multiply-adds")
    if options.rounds is None:
        options.rounds = 3 if options.quick else 7
    if options.seconds is None:
        options.seconds = 0.1 if options.quick else 0.5
    return options


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    console = Console()
    if not console.is_terminal:
        console = Console(width=240)  # a log: keep a row of the table on one line
    document = measure_all(options, console)
    for sheet in bench_report.sheets(document):
        console.print(f"\n{sheet.title}", sheet.rich(), sep="\n", highlight=False, markup=False)

    options.out.mkdir(parents=True, exist_ok=True)
    rows, about = document["rows"], document["machine"]
    written = [options.out / "bench.json"]
    bench_report.write_json(document, written[0])
    if rows:
        title = f"{about['cpu']}, {about['capability']}, {about['threads']} threads, ours: "
        title += about["ours"]
        written += [options.out / name for name in ("bench.csv", "speedup.png", "roofline.png")]
        bench_report.write_csv(rows, written[1])
        bench_plots.speedup(rows, title, written[2])
        bench_plots.roofline(rows, about, title, written[3])
    if options.markdown:
        bench_report.write_markdown(document, options.markdown)
        written.append(options.markdown)
    console.print("", *bench_report.header(about), sep="\n", highlight=False, markup=False)
    console.print("written:", *written, highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
