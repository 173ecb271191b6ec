"""A training with torch's convolutions and under ``torch_ops.enable()``, side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from torch_ops import bench_report, enabled
from torch_ops.bench_measure import Contender, Effort, measure

STEPS = 10  # whose losses are compared


class Training(Protocol):
    """A model with its data and optimizer."""

    def step(self) -> float:
        """Train one step, and return its loss."""


def compare(
    training: Callable[[], Training],
    effort: Effort,
    steps: int = STEPS,
    by_torch: Callable[[], Training] | None = None,
) -> dict:
    """Milliseconds of a step, and how far the losses of the first steps are apart.

    ``training`` is called twice, and must give the same weights and data each time. ``by_torch``
    makes torch's side, where what is trained cannot be written for torch alone. A step may
    take seconds: ``Effort(rounds, seconds=0, once_above=float("inf"))`` times it all the same.
    """

    def losses(of: Training) -> list[float]:
        torch.manual_seed(0)  # of dropout
        return [of.step() for _ in range(steps)]

    theirs, ours = (by_torch or training)(), training()
    expected = losses(theirs)
    with enabled():
        found = losses(ours)
    apart = [abs(a - b) / abs(a) for a, b in zip(expected, found, strict=True)]
    times = measure(
        {"torch": Contender(theirs.step), "ours": Contender(ours.step, enabled)}, effort
    )
    row = {f"ms_{name}": times.ms(name) for name in ("torch", "ours")}
    return row | {"ratio": row["ms_torch"] / row["ms_ours"], "losses_apart": max(apart)}


def sheet(rows: list[dict]) -> bench_report.Sheet:
    """What ``compare`` returned as a table; the rows have also ``name`` and ``dtype``."""
    columns = ["training", "dtype", "ms torch", "ms ours", "torch/ours", "losses apart"]
    table = bench_report.Sheet("A step of training under enable()", columns, [])
    for row in rows:
        milliseconds = [f"{row[f'ms_{name}']:.1f}" for name in ("torch", "ours")]
        measured = [*milliseconds, f"{row['ratio']:.2f}", f"{row['losses_apart']:.1e}"]
        table.rows.append([row["name"], row["dtype"], *measured])
    return table
