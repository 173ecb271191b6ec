"""Which backend the planner prefers: the rules of csrc/plan/rules/."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from planner import (
    avx512,
    bfloat16_products,
    intel,
    onednn_if,
    served,
    with_onednn,
    zen_3,
    zen_4,
    zen_5,
)

from torch_ops import backends

pytestmark = pytest.mark.unforced


@with_onednn
@pytest.mark.skipif(not torch.cpu._is_avx2_supported(), reason="the CPU has no AVX2")
def test_rules_of_avx2() -> None:
    """In a process of its own: the planner's target is the environment's."""
    checks = """
from planner import intel, onednn_if, served, zen_3_or_4
long = {"results": 64, "data_format": "NCX", "axes": 1}
assert served("convolution", 3, 1000, 24, **long) == onednn_if(not zen_3_or_4)
assert served("convolution", 8, 64, 3, results=64, stride=4) == "simd"
assert served("convolution", 7, 64, 3, results=64) == "onednn"
few = {"results": 32, "data_format": "NCX"}
assert served("convolution", 3, 64, 3, **few) == "simd"
assert served("convolution", 3, 28, 3, **few) == "onednn"
assert served("convolution", 3, 64, 3, **few | {"results": 64}) == "onednn"
assert served("convolution", 3, 28, 3, **few | {"results": 36}) == "simd"
assert served("convolution", 5, 1000, 3, **few, axes=1) == "simd"
assert served("convolution", 7, 1000, 3, **few, axes=1) == onednn_if(not zen_3_or_4)
assert served("convolution", 2, 16, 3, **few, axes=3) == "simd"
assert served("convolution", 3, 16, 3, **few, axes=3) == onednn_if(not zen_3_or_4)
assert served("convolution", 5, 28, 128, data_format="NCX", batch=1) == "onednn"
assert served("convolution", 5, 28, 128, data_format="NCX") == "simd"
assert served("convolution", 5, 28, 128) == "onednn"
assert served("convolution", 2, 28, 256, stride=2, data_format="NCX", batch=1) == "simd"
assert served("convolution", 1, 56, 128) == "onednn"
assert served("convolution", 1, 64, 64, results=7) == "simd"
assert served("convolution", 1, 64, 64, results=8) == "onednn"
assert served("convolution", 1, 64, 8, results=4) == "simd"
assert served("convolution", 1, 64, 8, results=5) == "onednn"
assert served("convolution_backward_data", 1, 64, 7, results=64) == "simd"
assert served("convolution_backward_data", 1, 64, 8, results=64) == "onednn"
assert served("convolution", 5, 8, 128, batch=8) == "simd"
assert served("convolution_backward_data", 5, 8, 128) == "simd"
assert served("convolution_backward_data", 5, 8, 128, batch=8) == onednn_if(not zen_3_or_4)
if zen_3_or_4:  # what simd serves better by now
    data, weights = "convolution_backward_data", "convolution_backward_weights"
    assert served("convolution", 5, 27, 128) == "simd"
    assert served("convolution", 5, 56, 128, stride=2) == "simd"
    assert served("convolution", 5, 56, 8, results=128, stride=2) == "onednn"
    assert served(data, 5, 27, 128) == "simd"
    assert served(data, 5, 28, 128) == "onednn"
    assert served("convolution", 1, 56, 128, stride=2) == "simd"
    assert served("convolution", 1, 1000, 64, axes=1) == "onednn"
    assert served("convolution", 1, 16, 8, axes=3) == "simd"
    assert served(weights, 1, 56, 128) == "onednn"
    assert served(weights, 1, 55, 128) == "simd"
    assert served(weights, 1, 56, 144) == "simd"
    assert served(weights, 3, 112, 1, results=16) == "onednn"
    assert served(weights, 3, 128, 1, results=16) == "simd"
    assert served(weights, 3, 112, 2, results=16) == "simd"
    assert served(weights, 3, 112, 1, results=57) == "simd"
    long = {"results": 256, "data_format": "NCX", "axes": 1}
    assert served("convolution", 16, 2048, 256, **long, stride=8, padded=False) == "onednn"
if not intel:  # groups of 8 channels
    weights = "convolution_backward_weights"
    assert served(weights, 3, 28, 64, groups=8) == "onednn"
    assert served(weights, 3, 112, 128, groups=16) == "simd"  # far
    assert served(weights, 3, 28, 64, groups=8, data_format="NCX") == "simd"
    assert served("convolution_backward_data", 3, 28, 64, groups=8, data_format="NCX") == "simd"
    assert served("convolution_backward_data", 3, 16, 64, groups=8, axes=3, stride=2) == "simd"
    assert served("convolution", 3, 28, 64, groups=8) == "simd"
    assert served("convolution", 3, 1000, 64, groups=8, axes=1) == "simd"
    assert served("convolution", 1, 1000, 64, groups=8, axes=1) == "onednn"
    assert served("convolution_backward_data", 3, 28, 64, groups=8) == "simd"
    assert served("convolution_backward_data", 5, 14, 64, groups=8) == "simd"
    assert served(weights, 3, 56, 64, groups=8) == "simd"
    assert served(weights, 5, 56, 64, groups=8) == "onednn"
    assert served("convolution_backward_data", 1, 56, 64, groups=8, data_format="NCX") == "simd"
"""
    environment = os.environ | {"CONVTBW_TARGET": "avx2"}
    command = [sys.executable, "-c", checks]
    subprocess.run(command, check=True, cwd=Path(__file__).parent, env=environment)


@with_onednn
def test_onednn_serves_where_it_is_faster() -> None:
    """Each rule on one side of its bound."""
    assert served("convolution", 1, 28, 8) == "simd"  # few pixels
    signal = {"axes": 1, "stride": 64, "padded": False, "results": 258}
    assert served("convolution", 256, 16384, 1, **signal) == "simd"  # what lies in a stride
    assert served("convolution", 1, 8, 8, axes=3) == "simd"  # few pixels
    assert served("convolution", 5, 28, 64, gaps=True) == "simd"
    assert served("convolution", 7, 28, 64) == "simd"
    assert served("convolution", 5, 2, 512) == "simd"
    assert served("convolution", 5, 5, 128, batch=16) == "simd"
    assert served("convolution", 5, 8, 128, batch=16) == "simd"
    assert served("convolution", 4, 8, 128, stride=2, data_format="NCX") == "simd"
    assert served("convolution", 3, 32, 512, stride=2, batch=4) == onednn_if(not avx512)
    long_sums = served("convolution", 3, 32, 256, stride=2, batch=4)
    assert long_sums == onednn_if(not avx512)
    long_sums = served("convolution_backward_data", 3, 33, 320, dilation=12, results=256)
    assert long_sums == onednn_if(not avx512)
    assert served("convolution", 1, 11, 128) == "simd"
    assert served("convolution", 1, 12, 128) == onednn_if(not avx512)
    assert served("convolution", 1, 12, 128, more_padding=1) == "simd"
    assert served("convolution_backward_data", 5, 5, 128, batch=16) == onednn_if(not avx512)
    assert served("convolution_backward_data", 5, 8, 128, batch=16) == onednn_if(not avx512)
    assert served("convolution", 3, 28, 64) == "simd"  # Winograd
    assert served("convolution_backward_data", 5, 28, 64) == "onednn"
    assert served("convolution_backward_data", 5, 28, 64, stride=2) == "simd"
    assert served("convolution_backward_data", 11, 28, 64) == "simd"
    assert served("convolution_backward_data", 3, 28, 64) == "simd"  # Winograd
    assert served("convolution_backward_data", 3, 112, 3) == "simd"
    assert served("convolution_backward_weights", 1, 12, 128) == onednn_if(avx512)
    assert served("convolution_backward_weights", 1, 28, 64) == "onednn"
    assert served("convolution_backward_weights", 1, 90, 64) == "onednn"
    assert served("convolution_backward_weights", 1, 91, 64) == onednn_if(not zen_5)
    assert served("convolution_backward_weights", 1, 56, 64, stride=2) == "simd"
    assert served("convolution_backward_weights", 3, 28, 64) == "simd"
    assert served("convolution_backward_weights", 2, 56, 32, stride=2) == "simd"
    deep = {"stride": 2, "data_format": "NCX", "batch": 4}
    many = served("convolution_backward_weights", 2, 16, 256, **deep)
    assert many == onednn_if(zen_5)
    assert served("convolution_backward_weights", 2, 24, 256, **deep) == "simd"
    assert served("convolution_backward_weights", 2, 16, 128, **deep) == "simd"
    assert served("convolution", 2, 32, 128, stride=2) == onednn_if(intel and avx512)  # few pixels
    assert served("convolution", 1, 56, 64, stride=2, data_format="NCX") == "simd"
    assert served("convolution_backward_data", 1, 56, 64, stride=2) == "simd"
    assert served("convolution", 11, 1000, 64, axes=1) == "simd"
    assert served("convolution", 11, 1000, 64, axes=1, data_format="NCX") == "simd"
    assert served("convolution", 3, 4, 16) == "simd"  # tiny
    # oneDNN's kernels and ours compare differently on Intel's CPUs with AVX-512.
    on_intel = onednn_if(intel and avx512)
    assert served("convolution", 3, 1000, 64, axes=1) == on_intel
    assert served("convolution", 3, 56, 32) == on_intel  # Winograd
    few = onednn_if(intel or zen_5 or not avx512)
    assert served("convolution", 3, 200, 16) == few
    assert served("convolution_backward_data", 3, 200, 16) == few
    if not intel:
        assert served("convolution", 3, 112, 16) == onednn_if(zen_5)
        assert served("convolution", 3, 112, 16, data_format="NCX") == "simd"
        small = {"stride": 2, "results": 16}
        assert served("convolution", 4, 64, 64, **small, batch=16) == "simd"
    wide = {"dilation": 6, "data_format": "NCX"}
    assert served("convolution", 3, 32, 128, **wide | {"dilation": 12}) == "simd"
    weights = "convolution_backward_weights"
    if zen_3:
        assert served(weights, 3, 64, 1, results=16) == "onednn"
        assert served(weights, 3, 64, 1, results=24) == "simd"
        assert served(weights, 3, 64, 3, results=8) == "onednn"
        assert served(weights, 3, 64, 3, results=16) == "simd"
        assert served(weights, 3, 64, 3, results=8, data_format="NCX") == "simd"
        assert served("convolution_backward_data", 5, 64, 64, results=8) == "simd"
        assert served("convolution_backward_data", 5, 64, 64, results=3) == "onednn"
        assert served("convolution_backward_data", 5, 64, 64, results=16) == "onednn"
    if zen_4:
        data = "convolution_backward_data"
        assert served("convolution", 3, 64, 32, results=24, stride=2) == "simd"
        # Windows that spread: of images, of few channels, of one window.
        spread = {"padded": False, "batch": 8}
        assert served(data, 5, 12, 4, **spread | {"results": 256}) == "simd"
        one = {"data_format": "NCX", "padded": False, "batch": 32}
        assert served(data, 5, 5, 64, **one) == "simd"
        assert served("convolution", 5, 5, 64, **one) == "simd"
        assert served("convolution", 3, 56, 64, results=8) == "simd"
        assert served(weights, 33, 64, 1, results=32) == "simd"
        for data_format in ("NXC", "NCX"):  # of few small images, whose windows miss many taps
            for op in ("convolution", data):
                few = {"data_format": data_format, "batch": 3}
                assert served(op, 7, 11, 64, **few) == "onednn"
                assert served(op, 5, 7, 64, **few | {"batch": 16}, dtype=torch.bfloat16) == "simd"
                assert served(op, 7, 11, 64, **few, dtype=torch.bfloat16) == "onednn"
                assert served(op, 3, 11, 64, **few, dtype=torch.bfloat16) == "simd"
    if zen_5:
        few = {"data_format": "NCX", "batch": 8}
        assert served(weights, 3, 112, 3, results=16, **few) == "onednn"
        assert served(weights, 3, 112, 3, results=32, **few) == "simd"
    if avx512 and not intel:
        # Data gradients, and others, channels first.
        data, first = "convolution_backward_data", {"data_format": "NCX"}
        assert served(data, 3, 1000, 128, axes=1, **first) == onednn_if(zen_5)
        assert served(data, 5, 1000, 128, axes=1, **first) == "simd"
        assert served(data, 7, 56, 16, results=32, **first) == "onednn"
        assert served(data, 7, 56, 8, results=32, **first) == "simd"
        assert served(data, 7, 56, 32, results=40, **first) == "simd"
        assert served("convolution", 5, 56, 64, results=16, **first) == onednn_if(zen_5)
        assert served("convolution", 5, 56, 60, results=16, **first) == "simd"
        assert served("convolution", 4, 4, 64, padded=False, **first) == "simd"
        assert served(data, 5, 56, 16, results=32, dilation=2, **first) == "onednn"
        many_absent = {"results": 40, "dilation": 2, "padded": False}
        assert served(data, 7, 112, 32, **many_absent, **first) == "simd"
        # Few channels.
        assert served(weights, 2, 128, 3, results=96, stride=2, data_format="NCX") == "simd"
        assert served(weights, 5, 128, 3, results=96, stride=2) == "simd"
        few = {"results": 64, "data_format": "NCX"}
        assert served("convolution", 3, 64, 3, **few) == "simd"
        assert served("convolution", 3, 28, 3, **few | {"results": 40}) == "simd"
        assert served("convolution", 3, 1000, 3, **few, axes=1) == "simd"
        assert served("convolution", 3, 32, 3, **few, axes=3) == "simd"
        assert served("convolution", 3, 24, 3, **few, axes=3) == "onednn"
        # Volumes.
        assert served("convolution", 3, 16, 16, stride=2, axes=3, data_format="NCX") == onednn_if(
            zen_4
        )
        assert served("convolution", 5, 12, 8, axes=3) == "simd"
        assert served(weights, 3, 12, 16, axes=3) == "simd"  # Winograd
        assert served(weights, 2, 16, 32, stride=2, axes=3) == "simd"
        assert served(weights, 3, 16, 16, stride=2, axes=3) == "simd"
        assert served("convolution_backward_data", 3, 16, 16, stride=2, axes=3) == "simd"
    if bfloat16_products:
        dense = {"dtype": torch.bfloat16}
        assert served("convolution", 1, 56, 64, **dense) == "onednn"
        assert served("convolution", 3, 56, 64, **dense) == "onednn"
        assert served("convolution", 3, 14, 64, **dense) == "simd"  # few pixels
        assert served("convolution", 3, 56, 64, **dense, data_format="NCX") == "simd"
        assert served("convolution_backward_data", 3, 56, 64, **dense) == "onednn"
        assert served("convolution_backward_data", 3, 56, 64, **dense, stride=2) == "simd"
        assert served("convolution_backward_data", 3, 56, 3, **dense) == "simd"
        assert served("convolution", 3, 56, 64, **dense, dilation=2) == "onednn"
        assert served("convolution", 3, 56, 64, **dense, dilation=4) == "simd"
        assert served("convolution_backward_data", 3, 56, 64, **dense, dilation=4) == "simd"
        upsampling = dense | {"stride": 2, "results": 16}
        assert served("convolution_backward_data", 4, 64, 12, **upsampling) == "simd"
        assert served("convolution_backward_weights", 3, 56, 64, **dense) == "simd"
        into_few = served("convolution_backward_weights", 3, 56, 8, **dense)
        assert into_few == onednn_if(not zen_4)
        assert served("convolution_backward_weights", 15, 4096, 16, **dense, axes=1) == "simd"
        assert served("convolution", 33, 4096, 4, **dense, results=16, axes=1) == "simd"
        assert served("convolution", 9, 4096, 4, **dense, results=16, axes=1) == "onednn"
        if zen_4:
            few = {"results": 3, "dtype": torch.bfloat16}
            assert served("convolution", 1, 64, 128, **few) == "simd"
    torch.use_deterministic_algorithms(True)
    try:
        assert served("convolution", 5, 28, 64) == "simd"
    finally:
        torch.use_deterministic_algorithms(False)


@with_onednn
def test_bias_of_one_tap() -> None:
    """Which oneDNN adds in a pass of its own."""
    src, weights = torch.empty(4, 64, 64, 12), torch.empty(1, 1, 12, 12)
    attributes = {
        "strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1],
        "data_format": "NXC", "weights_format": "XOI",
    }  # fmt: skip
    for bias, backend in ((None, "onednn"), (torch.empty(12), "simd")):
        report = backends.explain("conv_transpose", src, weights, bias=bias, **attributes)
        assert report.backend == backend
