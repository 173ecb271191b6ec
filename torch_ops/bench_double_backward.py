"""The second derivative of a transposed convolution, which gradient penalties need."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torch_ops.bench_cases import Case
from torch_ops.bench_measure import Contender, Effort, Ours, measure
from torch_ops.bench_shapes import Shape

SHAPE = Shape("double_backward", True, 8, 128, 64, (32, 32), 4, stride=2, padding=1)


def double_backward(
    dtype: str, ours: Ours, effort: Effort, shape: Shape = SHAPE
) -> dict[str, object]:
    """Milliseconds of ours and of torch's, for NCX data.

    Timed is the second derivative alone: from cotangents of both gradients (of src and of the
    weights) to gradients of src, of the weights and of dst's cotangent.
    """
    case = Case(shape, "NCX", dtype, "forward")
    geometry = list(shape.stride), list(shape.padding), list(shape.dilation)
    rest = (*geometry, True, list(shape.output_padding), shape.groups)

    def by_torch(src: Tensor, weights: Tensor) -> Tensor:
        return torch.ops.aten.convolution(src, weights, None, *rest)

    def by_us(src: Tensor, weights: Tensor) -> Tensor:
        return torch.ops.convtbw.conv_transpose(src, weights, **case.attributes)

    contenders = {"ours": ours.contender(_second_derivative(by_us, *case.ours))}
    reasons: dict[str, str] = {}
    try:
        contenders["torch"] = Contender(_second_derivative(by_torch, *case.theirs))
    except RuntimeError as error:  # on AVX2-VNNI-2 torch refuses bf16 gradients
        reasons["torch"] = str(error).splitlines()[0]
    times = measure(contenders, effort)
    reasons |= times.declined
    row = {"shape": shape.name, "dtype": dtype}
    row |= {f"ms_{name}": times.ms(name) for name in ("ours", "torch")}
    row |= {f"declined_{name}": reasons.get(name) for name in ("ours", "torch")}
    both = row["ms_ours"] and row["ms_torch"]
    return row | {"ratio": row["ms_torch"] / row["ms_ours"] if both else None, "once": times.once}


def _second_derivative(
    forward: Callable[[Tensor, Tensor], Tensor], src: Tensor, diff_dst: Tensor, weights: Tensor
) -> Callable[[], object]:
    """Records both gradients; what it returns differentiates them, again with every call."""
    src, diff_dst, weights = (t.detach().requires_grad_() for t in (src, diff_dst, weights))
    dst = forward(src, weights)
    gradients = torch.autograd.grad(dst, (src, weights), diff_dst, create_graph=True)
    cotangents = [torch.randn_like(gradient) for gradient in gradients]
    inputs = (src, weights, diff_dst)
    return lambda: torch.autograd.grad(gradients, inputs, cotangents, retain_graph=True)
