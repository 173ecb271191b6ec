"""Which backend the planner chooses for a layer, and the CPUs that have rules of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torch_ops import backends

CPU = Path("/proc/cpuinfo").read_text()
intel = "GenuineIntel" in CPU
zen_3_or_4 = "AuthenticAMD" in CPU and "cpu family\t: 25\n" in CPU
avx512 = torch.cpu._is_avx512_supported()
zen_3 = zen_3_or_4 and not avx512
zen_4 = zen_3_or_4 and avx512
zen_5 = avx512 and not (intel or zen_3_or_4)
matrix_registers = "amx_bf16" in CPU
bfloat16_products = torch.cpu._is_avx512_bf16_supported() and not matrix_registers


def served(
    op: str,
    kernel: int,
    extent: int,
    channels: int,
    groups: int = 1,
    stride: int = 1,
    dilation: int = 1,
    axes: int = 2,
    data_format: str = "NXC",
    dtype: torch.dtype = torch.float32,
    batch: int = 2,
    results: int = 0,  # channels of dst, if not those of src
    padded: bool = True,
    more_padding: int = 0,
    gaps: bool = False,  # NXC: half of the channels of larger tensors
) -> str:
    pad = dilation * (kernel - 1) // 2 if padded else 0
    pad += more_padding
    result = (extent + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
    attributes = {
        "strides": [stride] * axes, "dilations": [dilation] * axes, "groups": groups,
        "pads_begin": [pad] * axes, "pads_end": [pad] * axes, "data_format": data_format,
    }  # fmt: skip

    def data(extent: int, channels: int) -> torch.Tensor:
        spatial = [extent] * axes
        shape = [*spatial, channels] if data_format == "NXC" else [channels, *spatial]
        if gaps:
            return torch.empty(batch, *spatial, 2 * channels, dtype=dtype)[..., channels:]
        return torch.empty(batch, *shape, dtype=dtype)

    results = results or channels
    src, dst = data(extent, channels), data(result, results)
    weights = torch.empty(*[kernel] * axes, channels // groups, results, dtype=dtype)
    if op == "convolution":
        tensors = src, weights
    elif op.endswith("weights"):
        tensors = src, dst
        attributes["weights_shape"] = list(weights.shape)
    else:
        tensors = dst, weights
        attributes["src_shape"] = list(src.shape)
    return backends.explain(op, *tensors, **attributes).backend


def onednn_if(faster: bool) -> str:
    return "onednn" if faster else "simd"


with_onednn = pytest.mark.skipif(
    "onednn" not in backends.supported(), reason="built without oneDNN"
)
