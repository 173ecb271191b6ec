"""How far results are from the exact ones: ours, torch's and those of a float32 gemm."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from torch_ops.bench_cases import Case
from torch_ops.bench_shapes import Shape

MATRIX_BYTES = 2**30  # the gemm is left out where its im2col matrix would be larger


def errors(case: Case, with_ours: bool, with_torch: bool) -> dict[str, float | None]:
    """RMS errors relative to the RMS of the result that torch computes in float64.

    All start from the same data, already rounded to the case's dtype. What is left out is None:
    results that cannot be had, or only slowly, by the caller's choice, and a gemm too large.
    """
    exact = case.torch_run(torch.float64)()
    results = {
        "ours": case.our_result() if with_ours else None,
        "torch": case.torch_run()() if with_torch else None,
        "gemm": gemm(case) if _matrix_bytes(case.shape) <= MATRIX_BYTES else None,
    }
    return {
        f"error_{name}": None
        if result is None
        else ((result.double() - exact).norm() / exact.norm()).item()
        for name, result in results.items()
    }


def gemm(case: Case) -> Tensor:
    """The case's sums by one float32 matrix product a group, rounded once to the case's dtype.

    This is the yardstick for float32 accumulation: the library behind ``torch.bmm`` walks the
    dimension that is summed in blocks, keeps a block's partial sum in registers and adds it to the
    result, so its errors grow like those of any well-built kernel and not like one running sum's.
    The im2col matrix is made of strided windows, in any number of spatial dimensions.
    """
    s = case.shape
    src, dst, weights = (tensor.float() for tensor in case.theirs)
    big, small = (dst, src) if s.transposed else (src, dst)  # the roles x and y of docs/design.md
    wants_big = (case.partial == "data") != s.transposed

    groups, axes = s.groups, len(s.spatial)
    y = small.reshape(s.batch, groups, small.shape[1] // groups, -1)  # n g q j
    w = weights.reshape(groups, weights.shape[0] // groups, weights.shape[1], -1)  # g q c k
    big = big.contiguous().detach()
    if case.partial != "weights" and wants_big:
        # The gradient of taking windows adds the taps that meet in an element: col2im.
        columns = torch.einsum("ngqj,gqck->ngcjk", y, w)
        with torch.enable_grad():
            big.requires_grad_()
            windows = _windows(big, s)
            (result,) = torch.autograd.grad(windows, big, columns.reshape(windows.shape))
        return result.to(case.theirs[0].dtype)
    windows = _windows(big, s)
    pixels, taps = prod(windows.shape[2 : 2 + axes]), prod(s.kernel)
    x = windows.reshape(s.batch, groups, windows.shape[1] // groups, pixels, taps)  # n g c j k
    if case.partial == "weights":
        result = torch.einsum("ngqj,ngcjk->gqck", y, x).reshape(weights.shape)
    else:
        result = torch.einsum("ngcjk,gqck->ngqj", x, w).reshape(small.shape)
    return result.to(case.theirs[0].dtype)


def _windows(x: Tensor, s: Shape) -> Tensor:
    """View of x (N, C, spatial) as (N, C, positions of y, taps)."""
    small = s.spatial if s.transposed else s.dst_spatial
    x = functional.pad(x, [p for p in reversed(s.padding) for _ in range(2)])
    for axis, extent in enumerate(small):
        reach = (s.kernel[axis] - 1) * s.dilation[axis] + 1
        x = x.unfold(2 + axis, reach, s.stride[axis])[..., :: s.dilation[axis]]
        x = x.narrow(2 + axis, 0, extent)  # output_padding may leave room for one window more
    return x


def _matrix_bytes(s: Shape) -> int:
    pixels = prod(s.spatial if s.transposed else s.dst_spatial)
    channels = s.outputs if s.transposed else s.inputs
    return 4 * s.batch * channels * pixels * prod(s.kernel)
