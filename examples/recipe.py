"""What the recipes share: the command line, the comparison with torch's kernels, data, the result.

A recipe trains twice from the same weights and data, with torch's convolutions and under
``torch_ops.enable()``, in float32 and in bfloat16 autocast. It prints how far the losses are apart
and how long a step takes; then it trains on with these kernels and saves what people would look at
or listen to. The exit status is 1 where losses differ by more than the recipe's tolerance.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from sklearn.datasets import load_digits
from torch import Tensor, nn
from tqdm import trange

import torch_ops
from torch_ops import bench_report
from torch_ops.bench_measure import Effort, machine
from torch_ops.bench_training import STEPS, Training, compare, sheet


def digits() -> tuple[Tensor, Tensor]:
    """scikit-learn's handwritten digits: N x 1 x 32 x 32 from -1 to 1, and their names."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None]
    enlarged = nn.functional.interpolate(images, scale_factor=4, mode="bicubic")
    return (enlarged / 8 - 1).clamp(-1, 1), torch.tensor(data.target)


@dataclass(frozen=True)
class Recipe:
    """``build(dtype, small)`` gives the same training each time; ``small`` is for tests.

    ``save(training, folder)`` writes pictures or sounds and returns their paths. ``tolerance`` is
    of the relative difference of the first losses, by dtype; ``steps`` as many as it takes until
    the result is worth looking at. ``by_torch`` builds torch's side, for what torch cannot compute
    as ``build`` does; ``note`` says then what is compared.
    """

    name: str
    build: Callable[[str, bool], Training]
    save: Callable[[Training, Path], list[Path]]
    steps: int
    tolerance: dict[str, float]
    by_torch: Callable[[str, bool], Training] | None = None
    note: str = ""

    def main(self, about: str, argv: list[str] | None = None) -> int:
        """Run by the command line ``argv``; ``about`` is the recipe's docstring."""
        options = self._parse(about, argv)
        if options.threads:
            torch.set_num_threads(options.threads)
        console = Console()
        console.print(*bench_report.header(machine()), sep="\n", highlight=False, markup=False)
        effort = Effort(options.rounds, seconds=0, once_above=float("inf"))
        rows = []
        for dtype in options.dtype:
            with console.status(f"{self.name} in {dtype}, by torch's kernels and by these"):
                build, by_torch = (
                    partial(side, dtype, options.small) if side else None
                    for side in (self.build, self.by_torch)
                )
                row = compare(build, effort, options.compared, by_torch)
            rows.append({"name": self.name, "dtype": dtype} | row)
        table = sheet(rows)
        console.print("", table.title, table.rich(), sep="\n", highlight=False, markup=False)
        if self.note:
            console.print(self.note, highlight=False, markup=False)
        wrong = [row for row in rows if not row["losses_apart"] <= self.tolerance[row["dtype"]]]
        for row in wrong:
            console.print(
                f"{row['dtype']}: losses are {row['losses_apart']:.1e} apart, "
                f"expected at most {self.tolerance[row['dtype']]:.0e}",
                style="red",
            )

        training = self.build(options.dtype[-1], options.small)
        with torch_ops.enabled():
            progress = trange(options.steps, desc=f"{self.name}, {options.dtype[-1]}")
            for _ in progress:
                progress.set_postfix(loss=f"{training.step():.4f}")
            options.out.mkdir(parents=True, exist_ok=True)
            for path in self.save(training, options.out):
                console.print("written:", path, highlight=False, soft_wrap=True)
        return 1 if wrong else 0

    def _parse(self, about: str, argv: list[str] | None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(description=about.split("\n")[0])
        add = parser.add_argument
        add("--steps", type=int, default=self.steps, help=f"of the long training ({self.steps})")
        dtypes = tuple(self.tolerance)
        add("--dtype", nargs="+", choices=dtypes, default=dtypes, help="the last trains long (all)")
        add(
            "--compared", type=int, default=STEPS, help=f"steps whose losses are compared ({STEPS})"
        )
        add(
            "--rounds",
            type=int,
            default=3,
            help="timed steps of each, of which the best counts (3)",
        )
        add("--small", action="store_true", help="sizes of a test")
        add("--threads", type=int, help="threads of torch's pool (torch's choice)")
        add("--out", type=Path, default=Path("build/examples"), help="folder (build/examples)")
        return parser.parse_args(argv)
