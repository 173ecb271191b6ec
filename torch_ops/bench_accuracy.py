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
        "gemm": gemm(case) if _matrix_bytes(case) <= MATRIX_BYTES else None,
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
    The im2col matrix is made of strided windows, in any number of spatial dimensions; where a
    stride spreads the operand, of its zero-inserted form, so that a result is one sum here too.
    """
    s = case.shape
    src, dst, weights = (tensor.float() for tensor in case.theirs)
    big, small = (dst, src) if s.transposed else (src, dst)  # the roles x and y of docs/design.md
    groups = s.groups
    y = small.reshape(s.batch, groups, small.shape[1] // groups, -1)  # n g q j
    w = weights.reshape(groups, weights.shape[0] // groups, weights.shape[1], -1)  # g q c k
    if _wants_big(case):
        x = _grouped(_windows_over_small(small, s), groups)  # n g q h k
        result = torch.einsum("ngqhk,gqck->ngch", x, w.flip(-1)).reshape(big.shape)
        return result.to(case.theirs[0].dtype)
    x = _grouped(_windows_over_big(big, s), groups)  # n g c j k
    if case.partial == "weights":
        result = torch.einsum("ngqj,ngcjk->gqck", y, x).reshape(weights.shape)
    else:
        result = torch.einsum("ngcjk,gqck->ngqj", x, w).reshape(small.shape)
    return result.to(case.theirs[0].dtype)


def _wants_big(case: Case) -> bool:
    return case.partial != "weights" and (case.partial == "data") != case.shape.transposed


def _extents(s: Shape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Spatial extents of the roles x and y."""
    return (s.dst_spatial, s.spatial) if s.transposed else (s.spatial, s.dst_spatial)


def _grouped(windows: Tensor, groups: int) -> Tensor:
    """(N, C, positions..., taps...) as (N, groups, C / groups, positions, taps)."""
    axes = (windows.dim() - 2) // 2
    pixels, taps = prod(windows.shape[2 : 2 + axes]), prod(windows.shape[2 + axes :])
    return windows.reshape(windows.shape[0], groups, windows.shape[1] // groups, pixels, taps)


def _windows_over_big(x: Tensor, s: Shape) -> Tensor:
    """View of x (N, C, spatial) as (N, C, positions of y, taps)."""
    x = functional.pad(x, [p for p in reversed(s.padding) for _ in range(2)])
    for axis, extent in enumerate(_extents(s)[1]):
        reach = (s.kernel[axis] - 1) * s.dilation[axis] + 1
        x = x.unfold(2 + axis, reach, s.stride[axis])[..., :: s.dilation[axis]]
        x = x.narrow(2 + axis, 0, extent)  # output_padding may leave room for one window more
    return x


def _windows_over_small(y: Tensor, s: Shape) -> Tensor:
    """y (N, C, spatial) as (N, C, positions of x, taps in reverse)."""
    big, small = _extents(s)
    spread = y.new_zeros(
        *y.shape[:2], *((e - 1) * stride + 1 for e, stride in zip(small, s.stride, strict=True))
    )
    spread[(..., *(slice(None, None, stride) for stride in s.stride))] = y
    for axis, extent in enumerate(big):
        reach = (s.kernel[axis] - 1) * s.dilation[axis] + 1
        before = reach - 1 - s.padding[axis]
        after = extent + reach - 1 - before - spread.shape[2 + axis]
        pads = [0, 0] * (spread.dim() - 3 - axis) + [before, after]
        spread = functional.pad(spread, pads)  # negative: crops
        spread = spread.unfold(2 + axis, reach, 1)[..., :: s.dilation[axis]]
    return spread


def _matrix_bytes(case: Case) -> int:
    s = case.shape
    big, small = _extents(s)
    wide = (s.inputs, big) if s.transposed else (s.outputs, big)
    narrow = (s.outputs, small) if s.transposed else (s.inputs, small)
    channels, pixels = wide if _wants_big(case) else narrow
    return 4 * s.batch * channels * prod(pixels) * prod(s.kernel)
