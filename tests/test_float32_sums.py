"""Results in float32 are as close to the exact ones as a blocked gemm.

Errors are of random numbers, but the same in every run: data are seeded by the case (bench_cases).
"""

from __future__ import annotations

import pytest
from targets import every_target

import torch_ops
from torch_ops.bench_accuracy import errors
from torch_ops.bench_cases import Case
from torch_ops.bench_shapes import Shape

# Where sums are long, and could be one chain.
SHAPES = (
    Shape("long row", False, 1, 24, 24, (6000,), 3, padding=1),
    Shape("long row, dilated", False, 2, 24, 16, (2048,), 11, padding=25, dilation=5),
    Shape("long row, transposed", True, 2, 24, 16, (2048,), 4, 2, 1),
    Shape("few channels by several taps, transposed", True, 1, 21, 21, (12, 12), 16, 8, 4),
    Shape("large image", False, 1, 16, 16, (96, 96), 3, padding=1),
    Shape("many images", False, 256, 16, 16, (7, 7), 3, padding=1),
    Shape("one tap", False, 1, 24, 24, (80, 80), 1),
    Shape("few channels", False, 2, 3, 32, (96, 96), 7, 2, 3),
    Shape("depthwise", False, 4, 32, 32, (64, 64), 5, padding=2, groups=32),
    Shape("long row, depthwise", False, 1, 32, 32, (6000,), 9, padding=4, groups=32),
    Shape("groups of 4", False, 4, 32, 32, (64, 64), 3, padding=1, groups=8),
    Shape("many groups of 4", False, 8, 128, 128, (56, 56), 3, padding=1, groups=32),
    Shape("many channels", False, 1, 768, 8, (20, 20), 1),
)


@pytest.mark.parametrize("partial", ["weights", "data", "forward"])
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@every_target
def test_errors(target: str, shape: Shape, data_format: str, partial: str) -> None:
    with torch_ops.backends.use("simd", target):
        found = errors(Case(shape, data_format, "f32", partial), with_ours=True, with_torch=True)
    assert 0 < found["error_ours"] <= max(found["error_torch"], 1.25 * found["error_gemm"]), found
