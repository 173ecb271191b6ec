"""What the oneDNN backend declines because the library would do it wrong, and what it adds."""

from __future__ import annotations

import contextlib

import pytest
import torch
from layers import Call
from targets import integers

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


@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_bias_of_transposed_convolutions(dtype: torch.dtype, data_format: str) -> None:
    """It is added behind the primitive, which takes none, before the sums are rounded."""
    ran = 0
    for axes, groups, channels, kernel in (
        *((1, 1, 32, 3), (2, 1, 32, 3), (2, 1, 48, 1), (2, 2, 32, 3), (2, 5, 1, 3), (2, 1, 7, 3)),
        *((3, 1, 16, 2), (3, 1, 9, 3)),
    ):
        spatial = [9, 8, 7][:axes]
        src = integers(2, groups * channels, *spatial, dtype=dtype)
        src = src if data_format == "NCX" else src.movedim(1, -1).contiguous()
        weights = integers(groups * channels, channels, *[kernel] * axes, dtype=dtype)
        bias = torch.arange(groups * channels).remainder(7).sub(3).to(dtype)
        attributes = {
            "strides": [1] * axes, "pads_begin": [0] * axes, "pads_end": [0] * axes,
            "dilations": [1] * axes, "groups": groups, "data_format": data_format,
            "weights_format": "IOX", "bias": bias,
        }  # fmt: skip
        call = Call("conv_transpose", (src, weights), attributes)
        with backends.use("onednn"), contextlib.suppress(RuntimeError):  # 16 bits on some CPUs
            found = call.run()
            assert torch.equal(found, call.exact()), (axes, groups, channels, kernel)
            ran += 1
    assert ran == 8 or dtype != torch.float32
