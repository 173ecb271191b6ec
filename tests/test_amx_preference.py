"""Which backend the planner prefers for bfloat16 where the CPU has matrix registers."""

from __future__ import annotations

import pytest
import torch
from planner import CPU, matrix_registers, served, with_onednn

pytestmark = [
    pytest.mark.unforced,
    pytest.mark.skipif(not matrix_registers, reason="the CPU has no matrix registers"),
]
DATA, WEIGHTS = "convolution_backward_data", "convolution_backward_weights"
BFLOAT16 = {"dtype": torch.bfloat16}
FIRST = BFLOAT16 | {"data_format": "NCX"}


@with_onednn
def test_dense_rules() -> None:
    """Each rule of csrc/plan/rules/amx.cpp on both sides of its bounds."""
    assert served("convolution", 3, 56, 64, **BFLOAT16) == "onednn"
    assert served("convolution", 3, 14, 64, **BFLOAT16) == "simd"
    assert served("convolution", 3, 56, 3, results=64, batch=8, **BFLOAT16) == "simd"
    assert served("convolution", 3, 4096, 64, axes=1, **BFLOAT16) == "simd"
    assert served("convolution", 3, 56, 64, stride=2, **BFLOAT16) == "simd"
    few = {"stride": 2, "results": 32, "batch": 8}
    assert served("convolution", 3, 56, 64, **few, **BFLOAT16) == "onednn"
    assert served("convolution", 3, 48, 64, **few, **BFLOAT16) == "simd"
    assert served("convolution", 3, 56, 64, **FIRST) == "simd"
    assert served("convolution", 3, 14, 64, batch=8, **FIRST) == "onednn"
    assert served(DATA, 3, 56, 64, **BFLOAT16) == "onednn"
    assert served(DATA, 3, 14, 64, **BFLOAT16) == "simd"
    assert served(DATA, 3, 56, 64, **FIRST) == "simd"
    assert served(DATA, 4, 64, 64, stride=2, **BFLOAT16) == "onednn"
    assert served(DATA, 4, 65, 64, stride=2, **BFLOAT16) == "simd"
    assert served(DATA, 4, 32, 64, stride=2, batch=8, **BFLOAT16) == "simd"
    assert served(WEIGHTS, 3, 56, 64, **BFLOAT16) == "simd"
    assert served(WEIGHTS, 3, 56, 256, **BFLOAT16) == "onednn"
    assert served(WEIGHTS, 3, 56, 256, **FIRST) == "simd"


@with_onednn
def test_grouped_rules() -> None:
    for op in ("convolution", DATA, WEIGHTS):
        assert served(op, 3, 56, 96, groups=96, **BFLOAT16) == "simd"
        assert served(op, 3, 56, 64, groups=4, **FIRST) == "simd"
    assert served("convolution", 3, 56, 64, groups=4, **BFLOAT16) == "onednn"
    assert served("convolution", 3, 14, 256, groups=4, **BFLOAT16) == "simd"
    assert served("convolution", 3, 56, 64, groups=8, **BFLOAT16) == "simd"
    assert served(DATA, 3, 56, 64, groups=4, **BFLOAT16) == "onednn"
    assert served(DATA, 4, 57, 64, groups=4, stride=2, **BFLOAT16) == "simd"
    assert served(DATA, 3, 56, 64, groups=16, **BFLOAT16) == "simd"
    assert served(WEIGHTS, 3, 56, 64, groups=4, **BFLOAT16) == "simd"
    assert served(WEIGHTS, 3, 56, 64, groups=4, batch=8, **BFLOAT16) == "onednn"


@with_onednn
def test_float16() -> None:
    """Its matrix registers, which are others, were not measured."""
    if "amx_fp16" not in CPU:
        for op in ("convolution", DATA, WEIGHTS):
            assert served(op, 3, 56, 64, dtype=torch.float16) == "simd"
