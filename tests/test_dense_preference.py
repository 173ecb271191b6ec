"""Which backend the planner prefers for dense problems: rules of one CPU, and of the others."""

from __future__ import annotations

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

pytestmark = pytest.mark.unforced


@with_onednn
@pytest.mark.skipif(zen_4, reason="other rules hold there: test_dense_rules_of_zen_4")
def test_dense_rules() -> None:
    """Each rule on one side of its bound, beside those above."""
    data, weights = "convolution_backward_data", "convolution_backward_weights"
    assert served("convolution", 1, 64, 8) == "onednn"
    assert served("convolution", 1, 16, 8, axes=3) == "onednn"
    assert served("convolution", 5, 28, 64) == "onednn"
    assert served("convolution", 5, 8, 128, batch=3) == onednn_if(avx512)
    assert served("convolution", 5, 9, 128, batch=16) == "onednn"
    assert served("convolution", 3, 32, 192, stride=2, batch=4) == "onednn"
    assert served("convolution", 1, 18, 128) == "onednn"
    assert served(data, 5, 8, 128, batch=3) == onednn_if(avx512)
    assert served(data, 5, 9, 128, batch=16) == "onednn"
    assert served(weights, 1, 46, 64, results=24) == "simd"
    assert served(weights, 2, 224, 4, stride=2) == "onednn"
    assert served("convolution", 1, 56, 64, stride=3, data_format="NCX") == "onednn"
    assert served("convolution", 1, 1000, 64, stride=2, axes=1) == "onednn"
    narrow = served("convolution", 3, 1000, 128, axes=1, data_format="NCX")
    assert narrow == onednn_if(not (intel if avx512 else zen_3))
    assert served("convolution", 2, 32, 32, stride=2, axes=3) == onednn_if(intel and avx512)
    wide = {"dilation": 6, "data_format": "NCX"}
    assert served("convolution", 3, 32, 128, **wide) == onednn_if(avx512 and not zen_5)
    if not intel:
        assert served("convolution", 1, 2000, 64, axes=1) == "onednn"
        assert served("convolution", 4, 32, 64, stride=2, results=16) == "onednn"
    if avx512 and not intel:
        first = {"data_format": "NCX"}
        assert served("convolution", 3, 1000, 64, axes=1, **first) == "simd"
        assert served(data, 7, 56, 24, results=32, **first) == "simd"
        assert served("convolution", 4, 8, 64, **first) == "simd"
        assert served("convolution", 4, 16, 64, **first) == "onednn"
        many_absent = {"results": 40, "dilation": 2, "padded": False}
        assert served(data, 7, 56, 32, **many_absent, **first) == "simd"
        # Few channels.
        assert served(weights, 2, 128, 3, results=96, stride=2) == "onednn"
        assert served("convolution", 3, 28, 3, results=64, **first) == "onednn"
        assert served("convolution", 3, 28, 3, results=40) == "onednn"
        assert served("convolution", 3, 224, 3, results=64, **first, stride=4) == "onednn"
        # Volumes.
        assert served("convolution", 3, 16, 16, stride=2, axes=3) == "simd"
        assert served("convolution", 5, 12, 16, axes=3) == "onednn"
        assert served(weights, 5, 12, 16, axes=3) == "onednn"
        assert served(weights, 2, 16, 16, stride=2, axes=3) == "onednn"
        assert served(data, 5, 12, 16, axes=3) == "onednn"
    if bfloat16_products:
        dense = {"dtype": torch.bfloat16}
        assert served(data, 3, 64, 12, **dense, stride=2, results=16) == "onednn"
        assert served(weights, 1, 56, 64, **dense) == "onednn"
        for channels in (8, 16):
            assert served(weights, 3, 56, channels, **dense) == "onednn"


@with_onednn
@pytest.mark.skipif(not zen_4, reason="of Zen 4 with AVX-512")
def test_dense_rules_of_zen_4() -> None:
    """Each rule of csrc/plan/rules/zen_4.cpp on both sides of its bounds."""
    data, weights = "convolution_backward_data", "convolution_backward_weights"
    first = {"data_format": "NCX"}
    # fprop
    assert served("convolution", 3, 56, 3, results=32, batch=4) == "onednn"
    assert served("convolution", 3, 56, 3, results=32, batch=3) == "simd"
    assert served("convolution", 3, 40, 3, results=32, batch=4) == "simd"
    assert served("convolution", 3, 56, 3, results=40, batch=4) == "simd"
    assert served("convolution", 3, 56, 9, results=32, batch=4) == "simd"
    assert served("convolution", 5, 56, 1, results=18) == "onednn"
    assert served("convolution", 5, 56, 1, results=19) == "simd"
    assert served("convolution", 4, 56, 1, results=80) == "onednn"
    assert served("convolution", 5, 56, 4, results=16) == "onednn"
    assert served("convolution", 5, 56, 4, results=24) == "simd"
    assert served("convolution", 3, 28, 5, results=64, **first) == "onednn"
    assert served("convolution", 3, 32, 5, results=64, **first) == "simd"
    assert served("convolution", 3, 28, 4, results=64, **first) == "simd"
    assert served("convolution", 7, 224, 3, results=64, stride=4, **first) == "onednn"
    assert served("convolution", 7, 224, 3, results=64, stride=2, **first) == "simd"
    patches = first | {"padded": False, "results": 64}
    assert served("convolution", 4, 128, 4, stride=4, **patches) == "onednn"
    assert served("convolution", 4, 128, 3, stride=4, **patches) == "simd"  # 48 products
    assert served("convolution", 4, 128, 12, stride=4, **patches) == "onednn"
    assert served("convolution", 4, 128, 13, stride=4, **patches) == "simd"
    assert served("convolution", 4, 128, 3, stride=3, **patches) == "simd"
    assert served("convolution", 3, 129, 3, stride=3, **patches) == "simd"
    assert served("convolution", 4, 60, 4, stride=4, batch=8, **patches) == "simd"
    assert served("convolution", 4, 128, 4, stride=4, **patches | {"results": 72}) == "simd"
    assert served("convolution", 5, 28, 64, **first) == "onednn"
    assert served("convolution", 5, 48, 64, **first) == "simd"
    assert served("convolution", 4, 28, 64, **first) == "simd"
    assert served("convolution", 5, 28, 64, **first, stride=2) == "onednn"
    assert served("convolution", 5, 28, 96, **first, stride=2) == "simd"  # a long sum
    assert served("convolution", 5, 28, 64) == "simd"
    # dgrad
    assert served(data, 5, 28, 64, **first) == "onednn"
    assert served(data, 5, 28, 96, **first) == "simd"
    assert served(data, 5, 28, 64, **first, stride=2) == "simd"
    assert served(data, 3, 56, 64, results=8) == "onednn"
    assert served(data, 3, 40, 64, results=8) == "simd"
    assert served(data, 5, 28, 64) == "onednn"
    assert served(data, 5, 28, 64, batch=4) == "simd"
    assert served(data, 5, 28, 128) == "simd"
    assert served(data, 9, 28, 64) == "simd"
    # wgrad
    assert served(weights, 1, 28, 64) == "onednn"
    assert served(weights, 1, 28, 64, batch=4) == "simd"
    assert served(weights, 1, 28, 64, **first) == "simd"
    assert served(weights, 3, 56, 1, results=64) == "onednn"
    assert served(weights, 5, 56, 1, results=64) == "simd"
    assert served(weights, 5, 56, 1, results=64, batch=4) == "onednn"
    assert served(weights, 3, 56, 3, results=64) == "simd"
    assert served(weights, 4, 56, 3, results=64, batch=4) == "onednn"
    assert served(weights, 5, 56, 3, results=64, batch=4) == "simd"
    assert served(weights, 3, 56, 5, results=64, batch=4) == "onednn"
    assert served(weights, 3, 56, 6, results=64, batch=4) == "simd"
    assert served(weights, 4, 56, 5, results=64, batch=4) == "simd"
    assert served(weights, 2, 112, 16, stride=2) == "onednn"
    assert served(weights, 2, 112, 16, stride=2, batch=1) == "simd"
    assert served(weights, 2, 112, 16, results=25, stride=2) == "simd"
    assert served(weights, 3, 32, 11, batch=8) == "onednn"
    assert served(weights, 3, 56, 11, batch=8) == "simd"
    assert served(weights, 3, 56, 12, batch=8) == "simd"
    assert served(weights, 2, 256, 4, results=32, stride=2, batch=1) == "onednn"
    assert served(weights, 2, 224, 4, results=32, stride=2, batch=1) == "simd"
    # Volumes.
    for op in ("convolution", weights, data):
        for attributes in ({}, first):
            volume = {"axes": 3, "batch": 1, **attributes}
            assert served(op, 5, 16, 16, **volume) == "onednn"
            assert served(op, 5, 16, 20, **volume) == "simd"
    for extent, backend in ((8, "onednn"), (7, "simd")):  # 4x4x4 windows, or 3x3x3
        assert served("convolution", 5, extent, 32, axes=3, padded=False, **first) == backend
    for op in ("convolution", data):
        assert served(op, 5, 16, 16, axes=3, batch=4) == "simd"
        assert served(op, 5, 16, 16, axes=3, batch=4, **first) == "onednn"
    assert served("convolution", 4, 16, 16, axes=3, **first) == "onednn"
    assert served(data, 4, 16, 16, axes=3, **first) == "simd"
    assert served(weights, 5, 16, 16, axes=3, padded=False) == "simd"
    for attributes in ({}, first):
        strided = {"axes": 3, "stride": 2, **attributes}
        assert served("convolution", 3, 16, 32, **strided) == "onednn"
        assert served("convolution", 3, 16, 32, batch=4, **strided) == "simd"
        assert served("convolution", 4, 16, 32, **strided) == "simd"
        assert served("convolution", 3, 16, 36, **strided) == "simd"
        assert served("convolution", 3, 6, 64, **strided) == "simd"  # 3x3x3 windows
        for op in (data, weights):
            assert served(op, 3, 16, 32, **strided) == "simd"
    # One tap of many pixels.
    for channels, backend in ((12, "onednn"), (13, "simd")):
        for op in ("convolution", weights):
            assert served(op, 1, 128, channels, batch=4) == backend
    assert served(data, 1, 128, 14) == "onednn"
    assert served(data, 1, 128, 8, results=6) == "simd"
    for op in ("convolution", data, weights):
        assert served(op, 1, 128, 12, **first) == "simd"
    # bfloat16
    half = {"dtype": torch.bfloat16}
    assert served("convolution", 5, 16, 16, axes=3, **first, **half) == "onednn"
    assert served("convolution", 5, 16, 16, axes=3, batch=4, **half) == "simd"
    assert served(data, 5, 16, 16, axes=3, **half) == "onednn"
    assert served(weights, 5, 16, 16, axes=3, **half) == "onednn"
    assert served(weights, 4, 16, 16, axes=3, **half) == "simd"
    assert served(weights, 5, 16, 64, results=32, axes=3, **half) == "simd"
    assert served("convolution", 3, 56, 4, results=24, **half) == "onednn"
    assert served("convolution", 3, 40, 4, results=24, **half) == "simd"
    assert served("convolution", 3, 56, 20, **half) == "simd"
    assert served("convolution", 3, 96, 20, **half) == "onednn"
    assert served("convolution", 1, 64, 128, results=7, **half) == "simd"
    assert served("convolution", 1, 64, 128, results=8, **half) == "onednn"
    assert served("convolution", 1, 128, 56, results=4, **half) == "onednn"
    assert served(data, 3, 96, 64, results=12, **half) == "onednn"
    assert served(data, 3, 96, 64, results=11, **half) == "simd"
    assert served(data, 3, 56, 64, results=12, **half) == "simd"
    assert served(data, 3, 56, 64, **half) == "onednn"
    assert served(data, 4, 128, 64, stride=2, **half) == "simd"  # whole strides
    assert served(data, 3, 128, 64, stride=2, **half) == "onednn"
    assert served(weights, 3, 56, 1, results=36, **half) == "onednn"
    assert served(weights, 3, 56, 1, results=37, **half) == "simd"
    assert served(weights, 1, 56, 64, **half) == "simd"
    for op in ("convolution", data, weights):
        assert served(op, 3, 56, 64, dtype=torch.float16) == "simd"
