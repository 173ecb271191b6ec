"""A weights gradient that is added to an existing one, by the kernel and by torch afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from torch_ops.bench_cases import Case
from torch_ops.bench_measure import Effort, Ours, measure
from torch_ops.bench_shapes import Shape

# A gradient of 64 MiB in float32, which few last-level caches hold, of few pixels.
SHAPE = Shape("accumulation", True, 4, 1024, 1024, (4, 4), 4, stride=2, padding=1)
DTYPES = (("f32", torch.float32), ("bf16", torch.bfloat16), ("bf16", torch.float32))
CONTENDERS = ("ours", "then_added", "alone")


@torch.no_grad()
def accumulation(
    dtype: str, held: torch.dtype, ours: Ours, effort: Effort, shape: Shape = SHAPE
) -> dict[str, object]:
    """Milliseconds and the most memory beside inputs and gradient, MiB, for NCX data.

    ``ours`` adds in the kernel; ``then_added`` computes a gradient and adds it with torch;
    ``alone`` computes it and adds nothing.
    """
    case = Case(shape, "NCX", dtype, "weights")
    _, (src, diff_dst), kwargs = case.our_call()
    weights_shape = kwargs["weights_shape"]
    attributes = {name: value for name, value in kwargs.items() if name != "weights_shape"}
    total = torch.zeros(weights_shape, dtype=held)
    operators = torch.ops.convtbw

    def gradient() -> torch.Tensor:
        return operators.conv_transpose_backward_weights(src, diff_dst, **kwargs)

    def add() -> None:
        operators.conv_transpose_backward_weights_add_(total, src, diff_dst, **attributes)

    runs = {"ours": add, "then_added": lambda: total.add_(gradient()), "alone": gradient}
    times = measure({name: ours.contender(run) for name, run in runs.items()}, effort)
    row = {"shape": shape.name, "dtype": dtype, "held": str(held).removeprefix("torch.")}
    row |= {"gradient_mib": total.nbytes / 2**20, "once": times.once}
    row |= {f"ms_{name}": times.ms(name) for name in CONTENDERS}
    row |= {f"peak_mib_{name}": peak_mib(runs[name]) for name in CONTENDERS if row[f"ms_{name}"]}
    both = row["ms_ours"] and row["ms_then_added"]
    return row | {"ratio": row["ms_then_added"] / row["ms_ours"] if both else None}


def peak_mib(run: Callable[[], object]) -> float | None:
    """How much more memory the process has at most, while it runs, than before; None if unknown."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now
        before = _status("VmRSS")
        run()
        return (_status("VmHWM") - before) / 1024
    except OSError:
        return None


def _status(name: str) -> int:
    """Kibibytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
