"""What a call through a cached plan costs beside the arithmetic: `make call-overhead`.

Against a no-op of the same schema that returns its first argument, from Python and from C++ (typed
handles), on one thread, best of interleaved rounds. The problems of batch 0 have no arithmetic:
there the difference is all that convtbw adds to a call. Those of batch 2 are tiny gradients as the
planner serves them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import torch

import torch_ops
from torch_ops.bench_measure import cpu_name


def microseconds(
    contenders: list[Callable[..., object]],
    tensors: tuple[torch.Tensor, ...],
    attributes: dict[str, object],
) -> list[float]:
    """Per call of each contender: the best of interleaved rounds."""
    best = [float("inf")] * len(contenders)
    for _ in range(200):
        for i, contender in enumerate(contenders):
            begin = time.perf_counter()
            for _ in range(50):
                contender(*tensors, **attributes)
            best[i] = min(best[i], (time.perf_counter() - begin) / 50 * 1e6)
    return best


def problems() -> Iterator[tuple[str, str, tuple[torch.Tensor, ...], dict[str, object]]]:
    """Operators and their arguments, each with the name of its problem."""
    for batch in (0, 2):
        for kernel, stride in ((3, 1), (4, 2)):
            small = torch.randn(batch, 8, 4, 4)
            big = torch.randn(batch, 8, *[3 * stride + kernel - 2] * 2)
            weights = torch.randn(8, 8, kernel, kernel)
            common = {
                "strides": [stride] * 2,
                "pads_begin": [1, 1],
                "pads_end": [1, 1],
                "dilations": [1, 1],
                "data_format": "NCX",
                "weights_format": "IOX",
            }
            shape = {"weights_shape": list(weights.shape)}
            src_shape = {"src_shape": list(big.shape)}
            name = f"{batch}x8x4x4 k{kernel}s{stride}"
            yield name, "conv_transpose_backward_weights", (small, big), common | shape
            yield name, "conv_transpose_backward_data", (big, weights), common
            yield name, "convolution_backward_data", (small, weights), common | src_shape


def main() -> None:
    torch.ops.load_library(sys.argv[1])
    torch.set_num_threads(1)
    print(f"{cpu_name()}, torch {torch.__version__}, {torch_ops.__file__}")
    print(f"\n{'us per call, of a no-op, and added':46}{'Python':>20}{'C++':>22}")
    for name, op, tensors, attributes in problems():
        ours, noop, timed = (
            getattr(getattr(torch.ops, library), op).default
            for library in ("convtbw", "convtbw_noop", "convtbw_timed")
        )
        row = f"{op:32}{name:14}"
        for mine, nothing in (
            microseconds([ours, noop], tensors, attributes),
            timed(*tensors, **attributes).tolist(),
        ):
            row += f"{mine:8.2f}{nothing:6.2f}{mine - nothing:6.2f}  "
        plan = torch_ops.backends.explain(op, *tensors, **attributes)
        print(f"{row}{plan.backend}, {plan.kernel}")


if __name__ == "__main__":
    main()
