"""Which backend the planner prefers for groups: rules of one CPU, and of the others."""

from __future__ import annotations

import pytest
import torch
from planner import avx512, bfloat16_products, intel, onednn_if, served, with_onednn, zen_3, zen_4

pytestmark = pytest.mark.unforced


@with_onednn
@pytest.mark.skipif(zen_4, reason="other rules hold there: test_grouped_rules_of_zen_4")
def test_grouped_rules() -> None:
    """Each rule on one side of its bound."""
    assert served("convolution", 3, 56, 64, groups=64) == "simd"
    assert served("convolution", 3, 56, 96, groups=96, batch=8) == "simd"
    assert served("convolution", 3, 28, 1024, groups=1024) == onednn_if(avx512)
    assert served("convolution", 7, 7, 512, groups=512) == "simd"
    assert served("convolution", 3, 112, 64, groups=64, stride=2) == "onednn"
    assert served("convolution", 3, 56, 64, groups=64, dilation=2) == "simd"
    assert served("convolution", 7, 112, 64, groups=64, stride=2) == "simd"
    assert served("convolution", 7, 112, 21, groups=21, stride=2) == onednn_if(avx512)
    assert served("convolution", 16, 128, 21, groups=21, stride=8) == "simd"
    first = {"groups": 64, "data_format": "NCX"}
    assert served("convolution", 7, 8, 64, batch=16, **first) == onednn_if(not avx512)
    assert served("convolution", 7, 16, 64, stride=2, batch=16, **first) == "onednn"
    assert served("convolution", 7, 18, 64, stride=2, batch=16, **first) == "simd"
    assert served("convolution", 7, 56, 64, groups=64, data_format="NCX") == "simd"
    assert served("convolution_backward_data", 3, 28, 256, groups=256) == onednn_if(not avx512)
    assert served("convolution_backward_data", 3, 112, 256, groups=256) == "simd"
    assert served("convolution_backward_data", 7, 56, 64, groups=64) == "simd"
    strides = {"groups": 64, "stride": 2}
    few_taps = served("convolution_backward_data", 4, 56, 64, **strides, batch=4)
    assert few_taps == "onednn"
    many = {"groups": 512, "stride": 2}
    assert served("convolution_backward_data", 3, 56, 512, **many) == "onednn"
    many_taps = served("convolution_backward_data", 5, 56, 64, groups=64, stride=2)
    assert many_taps == onednn_if(not zen_3)
    assert served("convolution_backward_data", 7, 28, 64, **first) == "simd"
    assert served("convolution_backward_weights", 3, 14, 768, groups=768) == "simd"
    assert served("convolution_backward_weights", 3, 28, 192, groups=192) == "simd"
    assert served("convolution_backward_weights", 3, 112, 64, groups=64, stride=2) == "simd"
    assert served("convolution", 3, 112, 64, groups=64, stride=2, gaps=True) == "simd"
    # Groups of 8 channels.
    assert served("convolution", 1, 28, 64, groups=8) == onednn_if(intel)
    assert served("convolution", 3, 28, 64, groups=8) == onednn_if(intel)
    channels_first = {"groups": 8, "data_format": "NCX"}
    assert served("convolution", 3, 28, 64, **channels_first) == "simd"
    assert served("convolution", 3, 28, 64, groups=2) == "simd"
    assert served("convolution_backward_data", 3, 28, 64, groups=8) == onednn_if(intel)
    weights = "convolution_backward_weights"
    assert served(weights, 3, 28, 64, groups=8) == onednn_if(intel or not avx512)
    assert served(weights, 3, 28, 64, groups=2) == "simd"
    if zen_3:
        assert served("convolution", 1, 56, 128, groups=8) == "onednn"
        assert served("convolution", 1, 14, 128, groups=8, batch=1) == "simd"
        assert served(weights, 1, 56, 128, groups=8) == "simd"
        assert served(weights, 3, 28, 128, groups=32, stride=2) == "onednn"
        assert served(weights, 3, 56, 128, groups=32, stride=2) == "simd"
        assert served("convolution", 1, 112, 64, groups=64) == "onednn"
        assert served("convolution", 1, 112, 16, groups=16, batch=4) == "onednn"
        assert served("convolution", 3, 112, 256, groups=256, stride=2) == "onednn"  # far
        assert served("convolution", 3, 56, 64, groups=64, stride=2) == "onednn"  # 2 MFLOP
        assert served("convolution", 3, 28, 64, groups=64, stride=2) == "simd"
    if avx512 and not intel:
        data = "convolution_backward_data"
        assert served(weights, 3, 56, 64, groups=8, stride=2) == "simd"
        assert served(weights, 2, 56, 64, groups=8, stride=2) == "onednn"
        assert served("convolution", 3, 112, 64, **channels_first) == "simd"
        assert served("convolution", 3, 112, 64, **channels_first, stride=2) == "simd"
        one_image = served("convolution", 1, 112, 64, **channels_first, stride=2, batch=1)
        assert one_image == "onednn"
        several = served("convolution", 1, 112, 64, **channels_first, stride=2)
        assert several == "onednn"
        dilated = served("convolution", 3, 28, 64, **channels_first, dilation=2)
        assert dilated == "simd"
        assert served(data, 3, 28, 64, **channels_first) == "simd"
        assert served(data, 3, 8, 256, groups=32, batch=8) == "simd"
        assert served(data, 3, 112, 64, **channels_first) == "simd"
        assert served("convolution", 3, 1000, 64, **channels_first, axes=1) == "simd"
        assert served(weights, 3, 56, 64, **channels_first, batch=1) == "simd"
        assert served(weights, 3, 56, 64, **channels_first) == "simd"
        assert served("convolution", 3, 56, 64, groups=4, stride=2) == "onednn"
        assert served("convolution", 3, 56, 64, groups=4, stride=2, batch=32) == "simd"  # far
        assert served("convolution", 3, 56, 64, groups=4) == "simd"  # broadcast
        assert served("convolution", 3, 56, 64, groups=4, data_format="NCX") == "onednn"
        assert served("convolution", 3, 14, 64, groups=4) == "onednn"
        assert served("convolution", 3, 7, 64, groups=4, batch=16) == "onednn"
        assert served(weights, 3, 14, 64, groups=4) == "onednn"
        assert served(weights, 3, 112, 64, groups=4, batch=8) == "simd"  # Winograd
        assert served(weights, 3, 56, 64, groups=16, stride=2) == "simd"
        assert served(weights, 3, 56, 12, groups=3, stride=2) == "onednn"
        assert served(weights, 1, 56, 128, groups=4) == "onednn"
        assert served(weights, 1, 56, 128, groups=2) == "simd"
        assert served("convolution", 1, 56, 64, groups=2) == "onednn"
        unequal = {"kernel": 3, "extent": 28, "groups": 16, "batch": 8}
        assert served("convolution", channels=80, results=160, **unequal) == "onednn"
        assert served("convolution", channels=80, results=256, **unequal) == "simd"
        assert served("convolution", channels=320, results=160, **unequal) == "simd"
        assert served(data, channels=160, results=80, **unequal) == "onednn"
        assert served(data, channels=64, results=80, **unequal) == "simd"
        assert served(weights, channels=80, results=160, **unequal) == "onednn"
        assert served(weights, channels=160, results=80, **unequal) == "simd"
        first = {"channels": 80, "results": 160, "data_format": "NCX"}
        assert served("convolution", **unequal, **first) == "simd"
        # Groups with dilations.
        wide = {"channels": 256, "groups": 16, "dilation": 4, "batch": 8}
        for kernel, data_format in ((3, "NXC"), (3, "NCX"), (5, "NCX")):
            expected = onednn_if(data_format == "NXC" or kernel == 5)
            for op in ("convolution", data, weights):
                assert served(op, kernel, 20, data_format=data_format, **wide) == expected
        assert served(weights, 5, 14, 512, groups=32, dilation=4, batch=4) == "simd"
        eight = {"channels": 256, "groups": 32, "batch": 8}
        assert served("convolution", 5, 20, dilation=4, **eight) == "onednn"
        assert served("convolution", 5, 56, dilation=2, **eight) == "simd"
        assert served(weights, 5, 20, dilation=4, data_format="NCX", **eight) == "simd"
    if bfloat16_products:
        grouped = {"groups": 8, "dtype": torch.bfloat16}
        assert served("convolution", 3, 28, 64, **grouped) == "simd"  # spread in registers
        unequal = {"results": 128} | grouped
        assert served("convolution", 3, 28, 64, **unequal) == "simd"
        assert served("convolution", 3, 28, 192, **unequal) == "simd"
        assert served("convolution_backward_data", 3, 28, 64, **unequal) == "simd"
        assert served("convolution_backward_data", 3, 28, 64, **unequal, stride=2) == "simd"
        assert served("convolution_backward_weights", 3, 28, 64, **unequal) == "simd"
        assert served("convolution", 3, 28, 72, **unequal) == "simd"  # an odd number of channels
        of_5 = {"results": 40} | grouped
        assert served("convolution_backward_data", 3, 28, 64, **of_5) == "simd"
        assert served("convolution", 41, 1024, 64, **unequal, axes=1, stride=4) == "simd"
        assert served("convolution", 3, 28, 80, **grouped) == "simd"
        assert served("convolution", 3, 28, 96, **grouped) == "simd"
        assert served("convolution", 3, 28, 96, **grouped, stride=2) == "onednn"
        assert served("convolution_backward_data", 3, 28, 128, **grouped) == "onednn"
        assert served("convolution_backward_data", 3, 28, 256, **grouped) == "simd"
        assert served("convolution_backward_data", 1, 28, 256, **grouped) == "onednn"
        assert served("convolution", 3, 28, 64, **grouped, data_format="NCX") == "simd"
        assert served("convolution_backward_weights", 3, 28, 64, **grouped) == "simd"
        assert served("convolution_backward_weights", 3, 56, 64, **grouped, stride=2) == "simd"
        long_rows = served("convolution_backward_weights", 3, 64, 64, **grouped, stride=2)
        assert long_rows == "onednn"
        depthwise = {"groups": 96, "dtype": torch.bfloat16}
        assert served("convolution", 3, 56, 96, **depthwise) == "simd"
        assert served("convolution", 3, 112, 96, **depthwise, stride=2) == "onednn"
        many = depthwise | {"groups": 960}
        assert served("convolution", 3, 14, 960, **many) == "onednn"
        assert served("convolution", 5, 56, 96, **depthwise) == "simd"
        assert served("convolution", 3, 56, 96, **depthwise, data_format="NCX") == "simd"
        assert served("convolution_backward_data", 5, 56, 96, **depthwise, stride=2) == "simd"
        assert served("convolution_backward_weights", 5, 56, 96, **depthwise) == "simd"


@with_onednn
@pytest.mark.skipif(not zen_4, reason="of Zen 4 with AVX-512")
def test_grouped_rules_of_zen_4() -> None:
    """Each rule of csrc/plan/rules/zen_4_groups.cpp on both sides of its bounds."""
    data, weights = "convolution_backward_data", "convolution_backward_weights"
    first = {"data_format": "NCX"}
    half = {"dtype": torch.bfloat16}
    # one tap
    assert served("convolution", 1, 26, 96, groups=8) == "onednn"
    assert served("convolution", 1, 25, 96, groups=8) == "simd"
    assert served("convolution", 1, 56, 232, groups=8) == "simd"
    assert served("convolution", 1, 28, 160, groups=16) == "simd"
    assert served("convolution", 1, 28, 192, groups=16) == "onednn"
    assert served("convolution", 1, 28, 64, groups=8) == "simd"  # spread in registers
    assert served(data, 1, 28, 192, groups=8) == "onednn"
    assert served(data, 1, 28, 256, groups=8) == "simd"
    assert served(data, 1, 56, 256, groups=8) == "onednn"
    assert served(data, 1, 28, 32, groups=8, results=80, batch=8) == "simd"
    assert served(weights, 1, 28, 112, groups=8) == "onednn"
    assert served(weights, 1, 28, 120, groups=8) == "simd"
    assert served(weights, 1, 56, 64, groups=8) == "simd"
    assert served("convolution", 1, 28, 96, groups=8, **half) == "onednn"
    assert served("convolution", 1, 11, 192, groups=8, batch=8, **half) == "simd"
    assert served("convolution", 1, 56, 64, groups=8, **half) == "simd"
    assert served(data, 1, 28, 96, groups=8, **half) == "onednn"
    assert served(data, 1, 18, 192, groups=8, **half) == "simd"
    assert served(weights, 1, 28, 96, groups=8, **half) == "simd"
    for op in ("convolution", data, weights):
        assert served(op, 1, 28, 96, groups=8, **first) == "simd"
        assert served(op, 3, 28, 128, groups=8, dtype=torch.float16) == "simd"
        assert served(op, 3, 14, 128, groups=8, batch=8, **first, **half) == "simd"
    # fprop
    assert served("convolution", 3, 14, 128, groups=8) == "onednn"
    assert served("convolution", 3, 8, 128, groups=8) == "simd"
    assert served("convolution", 3, 112, 128, groups=8) == "simd"  # far
    assert served("convolution", 3, 256, 128, groups=8, axes=1, batch=8) == "simd"
    assert served("convolution", 3, 56, 80, groups=8) == "onednn"
    assert served("convolution", 3, 28, 80, groups=8) == "simd"
    assert served("convolution", 3, 56, 64, groups=8) == "simd"
    assert served("convolution", 3, 28, 64, groups=8, results=32) == "onednn"
    assert served("convolution", 8, 28, 64, groups=8, results=32) == "simd"
    assert served("convolution", 3, 224, 64, groups=8, results=32) == "simd"
    assert served("convolution", 3, 28, 64, groups=8, results=128) == "simd"
    assert served("convolution", 3, 28, 32, groups=8, results=64) == "simd"
    assert served("convolution", 3, 56, 32, groups=8, results=64, stride=2) == "onednn"
    # dgrad
    assert served(data, 3, 28, 64, groups=8, results=128) == "onednn"
    assert served(data, 3, 28, 64, groups=8, results=128, dilation=2) == "simd"
    assert served(data, 3, 28, 128, groups=8, results=64) == "simd"
    assert served(data, 3, 28, 80, groups=8) == "onednn"
    assert served(data, 3, 28, 96, groups=8) == "simd"
    assert served(data, 5, 14, 64, groups=8) == "onednn"
    assert served(data, 5, 56, 64, groups=8) == "simd"
    assert served(data, 3, 28, 64, groups=8) == "simd"
    assert served(data, 3, 22, 128, groups=8) == "onednn"
    assert served(data, 3, 23, 128, groups=8) == "simd"
    assert served(data, 3, 12, 128, groups=8, **first) == "onednn"
    assert served(data, 3, 13, 128, groups=8, **first) == "simd"
    assert served(data, 3, 12, 64, groups=8, **first) == "simd"  # short sums
    # volumes of groups of 8
    volume = {"channels": 64, "groups": 8, "axes": 3}
    assert served("convolution", 3, 16, stride=2, **volume) == "onednn"
    assert served("convolution", 2, 16, stride=2, **volume) == "simd"
    assert served(data, 4, 16, stride=2, **volume) == "onednn"
    assert served(data, 3, 16, stride=2, **volume) == "simd"
    for op in ("convolution", data):
        assert served(op, 7, 12, **volume) == "onednn"
        assert served(op, 5, 12, **volume) == "simd"
    assert served(weights, 5, 12, **volume) == "simd"
    # wgrad
    assert served(weights, 3, 28, 96, groups=8) == "onednn"
    assert served(weights, 3, 56, 96, groups=8) == "simd"
    assert served(weights, 3, 28, 128, groups=8) == "simd"
    assert served(weights, 3, 28, 64, groups=8) == "simd"
    assert served(weights, 3, 28, 96, groups=8, dilation=2) == "simd"
    assert served(weights, 3, 28, 64, groups=8, results=128) == "onednn"
    assert served(weights, 3, 28, 128, groups=8, results=64) == "simd"
    assert served(weights, 3, 28, 64, groups=8, results=128, **first) == "simd"
    # bfloat16
    assert served("convolution", 3, 56, 128, groups=8, **half) == "onednn"
    assert served("convolution", 3, 20, 128, groups=8, batch=1, **half) == "simd"
    assert served("convolution", 3, 56, 192, groups=8, **half) == "simd"
    assert served("convolution", 3, 28, 768, groups=32, batch=1, **half) == "onednn"
    assert served("convolution", 3, 28, 768, groups=32, **half) == "simd"
    assert served("convolution", 3, 56, 128, groups=4, **half) == "simd"
    assert served("convolution", 3, 28, 64, groups=8, results=32, **half) == "onednn"
    assert served("convolution", 9, 28, 64, groups=8, results=32, **half) == "simd"
    assert served("convolution", 3, 28, 72, groups=8, results=32, **half) == "simd"  # odd
    assert served("convolution", 3, 28, 64, groups=8, results=128, **half) == "onednn"
    assert served("convolution", 3, 26, 64, groups=8, results=128, **half) == "simd"
    long = {"axes": 1, "stride": 4, "results": 128, "groups": 8}
    assert served("convolution", 41, 2048, 64, **long, **half) == "simd"
    assert served(data, 3, 14, 128, groups=8, **half) == "onednn"
    assert served(data, 3, 14, 128, groups=8, dilation=2, **half) == "simd"
    assert served(data, 3, 14, 256, groups=8, **half) == "simd"
    assert served(data, 3, 28, 96, groups=8, **half) == "onednn"
    assert served(data, 3, 28, 64, groups=8, results=128, **half) == "onednn"
    assert served(data, 3, 14, 256, groups=8, results=128, **half) == "simd"
    assert served(weights, 3, 28, 128, groups=8, **half) == "simd"
    # depthwise
    assert served("convolution", 2, 128, 64, groups=64) == "onednn"
    assert served("convolution", 3, 128, 64, groups=64) == "simd"
    assert served("convolution", 3, 60, 256, groups=256) == "simd"
    assert served("convolution", 2, 128, 64, groups=64, dilation=2) == "simd"
    assert served("convolution", 2, 128, 64, groups=64, **first) == "simd"
    assert served(data, 2, 128, 64, groups=64, stride=2, batch=4) == "onednn"
    assert served(data, 3, 128, 64, groups=64, stride=2, batch=4) == "simd"
    assert served(data, 2, 128, 64, groups=64) == "simd"
    assert served(weights, 3, 28, 144, groups=144) == "onednn"
    assert served(weights, 3, 28, 128, groups=128, batch=4) == "simd"
    assert served(weights, 5, 28, 144, groups=144) == "simd"
    assert served(weights, 3, 112, 256, groups=256, batch=4) == "simd"  # far
    assert served("convolution", 2, 128, 64, groups=64, **half) == "onednn"
    assert served("convolution", 3, 128, 64, groups=64, **half) == "simd"
    assert served("convolution", 2, 64, 128, groups=128, **half) == "simd"
    assert served(data, 2, 128, 64, groups=64, **half) == "onednn"
    assert served(data, 3, 128, 64, groups=64, **half) == "simd"
    assert served(weights, 3, 28, 144, groups=144, **half) == "simd"
