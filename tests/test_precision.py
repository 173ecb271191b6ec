"""16-bit weights gradients: float32 accumulation and one rounding, however large the batch.

The bound. A product of two 16-bit numbers is exact in float32 (bfloat16 has 8 significant bits,
float16 has 11: 16 or 22 of float32's 24). So an accumulator errs by additions only: with n
positive terms, in whatever order and however split into partial sums, every one of the n - 1
additions errs by at most u = 2^-24 of a partial sum that is at most the total T, so

    |accumulator - T| <= (n - 1)·u·T·(1 + small),     small < n·u < 2^-9 for n <= 2^15.

The rounding to the result's type then adds at most half a unit in the last place of the
accumulator: T's own, or that of the next binade when the accumulator's error crosses a power of
two (bounded by taking it at |T| + the accumulator's error). Half a unit is 2^-8·2^floor(log2 T)
for bfloat16 and 2^-11·2^floor(log2 T) for float16; partial sums kept in 16 bits, or one rounding
per image, err by many times as much at N = 64 and 512.
"""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from forcing import run_forced

import torch_ops  # noqa: F401  (registers the operators)

SIGNIFICANT_BITS = {torch.bfloat16: 8, torch.float16: 11}
FLOAT32_U = 2.0**-24


def half_unit(value: np.ndarray, bits: int) -> np.ndarray:
    return np.exp2(np.floor(np.log2(value)) - bits)


@pytest.mark.parametrize("data_format", oracle.DATA_FORMATS)
@pytest.mark.parametrize("family", ["convolution", "conv_transpose"])
@pytest.mark.parametrize("batch", [1, 8, 64, 512])
@pytest.mark.parametrize("dtype", SIGNIFICANT_BITS, ids=str)
def test_weights_gradient_is_rounded_once(
    backend: str, dtype: torch.dtype, batch: int, family: str, data_format: str
) -> None:
    # 4 channels, 3x3, 6x6 with pads 1: both sides of both families are 6x6.
    shape = (batch, 6, 6, 4) if data_format == "NXC" else (batch, 4, 6, 6)
    src, dst = (torch.rand(shape).add(0.05).to(dtype) for _ in range(2))
    attributes = {
        "strides": [1, 1],
        "dilations": [1, 1],
        "pads_begin": [1, 1],
        "pads_end": [1, 1],
        "data_format": data_format,
        "weights_format": "OIX",
        "weights_shape": [4, 4, 3, 3],
    }
    operator = f"{family}_backward_weights"
    exact = oracle.to_numpy(oracle.call(operator, src, dst, **attributes))
    # Beyond 65504 float16 would overflow, which is another test's business.
    assert dtype != torch.float16 or exact.max() < 60_000

    result = run_forced(
        backend, lambda: getattr(torch.ops.convtbw, operator)(src, dst, **attributes)
    )
    if result is None:
        return
    assert result.dtype == dtype
    terms = batch * 6 * 6
    accumulated = (terms - 1) * FLOAT32_U * exact * (1 + 2.0**-9)
    bound = half_unit(exact + accumulated, SIGNIFICANT_BITS[dtype]) + accumulated
    error = np.abs(oracle.to_numpy(result) - exact)
    worst = np.unravel_index(np.argmax(error / bound), error.shape)
    assert (error <= bound).all(), (
        f"{operator} {dtype} N={batch} {data_format} {backend}: at {list(map(int, worst))} "
        f"{oracle.to_numpy(result)[worst]} vs {exact[worst]}, "
        f"error {error[worst]:.3g} > {bound[worst]:.3g}"
    )
