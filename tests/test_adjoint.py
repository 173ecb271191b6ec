"""One trilinear form: <y, fprop(x, w)> = <x, dgrad(w, y)> = <w, wgrad(x, y)>, on any geometry."""

from __future__ import annotations

import pytest
import torch
from calls import Call
from calls import calls as calls_of
from forcing import run_forced
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import MAX_ELEMENTS, MAX_MACS, Problem

import torch_ops


@st.composite
def geometries(draw: st.DrawFn) -> Problem:
    """Any legal problem of modest size, in any format. No bias towards what we thought of."""
    family = draw(st.sampled_from(("convolution", "conv_transpose")))
    rank = draw(st.integers(1, 3))

    def per_axis(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    stride, dilation = per_axis(1, 4), per_axis(1, 4)
    op = None
    if family == "conv_transpose" and draw(st.booleans()):
        both = zip(stride, dilation, strict=True)
        op = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in both)
    problem = Problem(
        family,
        draw(st.integers(1, 3)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 5)),
        draw(st.integers(1, 5)),
        per_axis(1, 8),
        per_axis(1, 4),
        stride,
        dilation,
        per_axis(0, 4),
        per_axis(0, 4),
        draw(st.sampled_from(("none", "none", "valid", "same_upper", "same_lower"))),
        op,
        draw(st.sampled_from(("NXC", "NCX"))),
        draw(st.sampled_from(("OIX", "XIO", "IOX", "XOI"))),
    )
    pads = zip(problem.i, problem.ek, *problem.pads, strict=True)
    assume(problem.transposed or all(ek <= i + pb + pe for i, ek, pb, pe in pads))
    assume(min(problem.o) >= 1)
    big = max(torch.Size(problem.x_shape).numel(), torch.Size(problem.y_shape).numel())
    assume(problem.macs <= MAX_MACS and big <= MAX_ELEMENTS)
    return problem


def inner(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() * b.double()).sum())


def pairings(problem: Problem, dtype: torch.dtype) -> tuple[tuple[Call, torch.Tensor], ...]:
    """The three operators, each with the tensor to pair its result with."""
    found = calls_of(problem, dtype)
    forward = next(c for c in found if c.operator == problem.family)
    data = next(c for c in found if c.operator.endswith("backward_data"))
    weights = next(c for c in found if c.operator.endswith("backward_weights"))
    (src, w), (cotangent, _) = forward.args, data.args
    return (forward, cotangent), (data, src), (weights, w)


def randomise(three: tuple[tuple[Call, torch.Tensor], ...]) -> None:
    """Real numbers in place of the integers (the tensors are shared between the calls)."""
    for _, tensor in three:
        tensor.copy_(torch.randn(tensor.shape, dtype=tensor.dtype))


@settings(deadline=None, max_examples=150)
@given(problem=geometries())
def test_adjoint_in_float64(problem: Problem) -> None:
    three = pairings(problem, torch.float64)
    torch.manual_seed(0)
    randomise(three)
    values = [inner(call.run(), other) for call, other in three]
    # Sums of at most macs terms of size about 1 in float64.
    size = max(1.0, abs(values[0]), problem.macs**0.5)
    assert max(values) - min(values) <= 1e-11 * size, f"{problem}: {values}"


@pytest.mark.unforced
@pytest.mark.parametrize("name", torch_ops.backends.supported())
def test_adjoint_exactly_in_float32(name: str) -> None:
    """Integers, so equality is exact on every backend."""

    @settings(deadline=None, max_examples=100)
    @given(problem=geometries())
    def holds(problem: Problem) -> None:
        values = []
        with torch_ops.backends.use(name):
            for call, other in pairings(problem, torch.float32):
                result = run_forced(name, call.run)
                if result is not None:  # None: onednn declined this one
                    values.append(inner(result, other))
        assert len(set(values)) <= 1, f"{problem} {name}: {values}"

    holds()
