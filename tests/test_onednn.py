"""What the oneDNN backend declines because the library would do it wrong."""

from __future__ import annotations

import contextlib

import pytest
import torch

from torch_ops import backends

pytestmark = [
    pytest.mark.unforced,
    pytest.mark.skipif("onednn" not in backends.supported(), reason="built without oneDNN"),
]


def test_onednn_declines_what_it_would_count_in_32_bits() -> None:
    """Its AVX-512 weights gradient read wrong pixels of such a tensor, without an error."""
    src = torch.empty(1, 2, 2**30 + 8, dtype=torch.bfloat16)  # planned, never touched
    with pytest.raises(RuntimeError, match=r"2\^31 elements"), backends.use("onednn"):
        backends.explain(
            "convolution",
            src,
            torch.empty(1, 2, 1, dtype=torch.bfloat16),
            strides=[2**20],
            pads_begin=[0],
            pads_end=[0],
            dilations=[1],
            data_format="NCX",
            weights_format="OIX",
        )


@pytest.mark.parametrize("channels", [6, 24])
def test_onednn_runs_no_kernel_that_writes_behind_its_scratchpad(channels: int) -> None:
    """Of one tap with strides, where channels fill no vectors (onednn.cpp)."""
    src, dst = torch.empty(16, 80, 80, channels), torch.empty(16, 40, 40, 16)
    attributes = {
        "strides": [2, 2], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1],
        "data_format": "NXC", "weights_format": "OIX", "weights_shape": [16, channels, 1, 1],
    }  # fmt: skip
    with backends.use("onednn"), contextlib.suppress(RuntimeError):  # it may have no other
        report = backends.explain("convolution_backward_weights", src, dst, **attributes)
        assert not report.kernel.startswith("jit_1x1")
