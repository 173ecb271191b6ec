"""What a call costs where there is next to nothing to compute."""

from __future__ import annotations

import torch

from torch_ops.bench_cases import Case
from torch_ops.bench_measure import Contender, Effort, Ours, measure
from torch_ops.bench_shapes import Shape

SHAPES = (
    Shape("tiny_k3", False, 2, 8, 8, (4, 4), 3, padding=1),
    Shape("tiny_k4", True, 2, 8, 8, (4, 4), 4, stride=2, padding=1),
)
PARTIALS = ("weights", "data")
CONTENDERS = ("ours", "torch", "meta")


@torch.no_grad()
def overhead(shape: Shape, partial: str, ours: Ours, effort: Effort) -> dict[str, object]:
    """Microseconds a call from Python, float32, NCX: ours, torch's, and ours without arithmetic.

    The last one runs on tensors of the device ``meta``: dispatch, the checks and the result's
    shape, in symbolic integers.
    """
    case = Case(shape, "NCX", "f32", partial)
    times = measure(
        {
            "ours": ours.contender(case.our_run()),
            "torch": Contender(case.torch_run()),
            "meta": Contender(case.our_run("meta"), may_decline=False),
        },
        effort,
    )
    microseconds = {name: 1e6 * value for name, value in times.seconds.items()}
    row = {"shape": shape.name, "partial": partial}
    return row | {f"us_{name}": microseconds.get(name) for name in CONTENDERS}
