"""NaN and Inf: no finite result where a present tap brings one, none non-finite beyond its window.

Three sets of result elements, for one non-finite element of one operand:
present   a tap that exists joins the two: the result must not be finite, on any backend;
window    the same with x (for the partial by x: y) extended by padding: a backend that
          multiplies zeros may lose the result here, as im2col does; `reference` may not;
the rest  must be exactly what finite data give.
"""

from __future__ import annotations

import calls
import numpy as np
import oracle
import pytest
import torch
from forcing import run_forced
from planner import matrix_registers
from problems import Problem

import torch_ops  # noqa: F401  (registers the operators)

Array = np.ndarray
MARGIN = 24  # further than any window here reaches beyond an edge

PROBLEMS = [
    Problem(family, 2, g, c, q, i, k, s, d, pb, pe, data_format=data_format)
    for data_format in ("NXC", "NCX")
    for family, g, c, q, i, k, s, d, pb, pe in (
        ("convolution", 1, 3, 4, (6,), (3,), (1,), (1,), (1,), (1,)),
        ("convolution", 2, 5, 2, (6, 5), (3, 3), (1, 1), (1, 1), (0, 1), (1, 1)),  # mirrored
        ("convolution", 2, 3, 2, (6, 5), (3, 2), (2, 2), (1, 1), (1, 0), (1, 1)),
        ("convolution", 1, 2, 5, (8, 7), (3, 2), (3, 3), (1, 1), (0, 0), (0, 0)),  # leftovers
        ("convolution", 4, 1, 1, (5, 6), (3, 3), (1, 1), (2, 1), (2, 1), (2, 1)),
        ("convolution", 1, 2, 3, (3, 4, 4), (2, 3, 2), (1, 2, 1), (1, 1, 1), (1, 1, 0), (0, 1, 1)),
        ("convolution", 1, 2, 2, (3, 6), (2, 1), (1, 1), (1, 1), (3, 0), (2, 0)),  # beyond kernel
        ("conv_transpose", 1, 3, 4, (5,), (3,), (2,), (1,), (1,), (1,)),
        ("conv_transpose", 2, 2, 3, (4, 3), (2, 3), (2, 1), (1, 2), (0, 1), (1, 1)),
        ("conv_transpose", 1, 2, 2, (3, 4), (2, 1), (3, 2), (1, 1), (0, 0), (0, 0)),  # gaps
        ("conv_transpose", 5, 1, 1, (4, 4), (3, 3), (1, 2), (1, 1), (1, 1), (1, 1)),
    )
]


def at(p: Problem, margin_x: int = 0, margin_y: int = 0) -> dict[str, tuple[int, ...]]:
    """The incidence after x or y grew by a margin on both sides of every axis."""
    begin = tuple(pb - margin_x + margin_y * s for pb, s in zip(p.pads[0], p.stride, strict=True))
    return {**p.incidence, "pads_begin": begin}


def grown(shape: tuple[int, ...], margin: int) -> Array:
    return np.ones((*shape[:2], *(n + 2 * margin for n in shape[2:])))


def touched(p: Problem, result: str, role: str, bad: Array, margin: int) -> Array:
    """The elements of the result that an operand's bad elements reach.

    With a margin, the third tensor (the one that absent taps would read) goes on beyond its edges.
    """
    if result == "y":
        if role == "x":
            reach = oracle.fprop(bad, np.ones(p.w_shape), p.y_extent, **at(p))
        else:
            reach = oracle.fprop(grown(p.x_shape, margin), bad, p.y_extent, **at(p, margin))
    elif result == "x":
        if role == "y":
            reach = oracle.dgrad(bad, np.ones(p.w_shape), p.x_extent, **at(p))
        else:
            y = grown(p.y_shape, margin)
            reach = oracle.dgrad(y, bad, p.x_extent, **at(p, 0, margin))
    elif role == "x":
        # The pixels of w's window are those of y, which has no padding: nothing beyond its edges.
        reach = oracle.wgrad(bad, np.ones(p.y_shape), p.k, p.groups, **at(p))
    else:
        x = grown(p.x_shape, margin)
        reach = oracle.wgrad(x, bad, p.k, p.groups, **at(p, margin))
    return reach > 0


def partial(p: Problem, result: str, operands: dict[str, Array]) -> Array:
    with np.errstate(invalid="ignore"):
        if result == "y":
            return oracle.fprop(operands["x"], operands["w"], p.y_extent, **p.incidence)
        if result == "x":
            return oracle.dgrad(operands["y"], operands["w"], p.x_extent, **p.incidence)
        return oracle.wgrad(operands["x"], operands["y"], p.k, p.groups, **p.incidence)


def places(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """First, last and middle element: both corners, where padding is, and the inside."""
    first, last = (0,) * len(shape), tuple(n - 1 for n in shape)
    return sorted({first, last, tuple(n // 2 for n in shape)})


def operator_of(p: Problem, result: str) -> str:
    if result == "w":
        return f"{p.family}_backward_weights"
    forward = result == ("x" if p.transposed else "y")
    return p.family if forward else f"{p.family}_backward_data"


def run(
    p: Problem, result: str, operands: dict[str, Array], dtype: torch.dtype, backend: str
) -> Array | None:
    """The operator whose result has this role, on these operands; back in the canonical layout."""
    tensors = {
        role: torch.from_numpy(oracle.data_from_canonical(operands[role], p.data_format).copy())
        for role in "xy"
        if role in operands
    }
    reading = oracle.standard_reading(p.family)
    form = (p.family, p.weights_format, reading)
    w = operands.get("w", np.zeros(p.w_shape))
    tensors["w"] = torch.from_numpy(oracle.weights_from_canonical(w, *form).copy())
    tensors = {role: t.to(dtype) for role, t in tensors.items()}
    operator = operator_of(p, result)
    call = next(c for c in calls.calls(p, dtype) if c.operator == operator)
    src, dst = ("y", "x") if p.transposed else ("x", "y")
    if result == "w":
        args = (tensors[src], tensors[dst])
    else:
        args = (tensors[src if operator == p.family else dst], tensors["w"])
    got = run_forced(backend, lambda: getattr(torch.ops.convtbw, operator)(*args, **call.kwargs))
    if got is None:
        return None
    if result == "w":
        return oracle.weights_to_canonical(oracle.to_numpy(got), *form, p.groups)
    return oracle.data_to_canonical(oracle.to_numpy(got), p.data_format)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("result", ["y", "x", "w"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
def test_nonfinite(backend: str, bad: float, result: str, dtype: torch.dtype) -> None:
    if (backend, result, dtype) == ("onednn", "x", torch.bfloat16) and matrix_registers:
        pytest.xfail("oneDNN's kernels for AMX multiply zeros between the pixels of a stride")
    for p in PROBLEMS:
        values = calls.integers(p, dtype)
        clean = {role: getattr(values, role) for role in "xwy" if role != result}
        finite = partial(p, result, clean)
        for role in clean:
            for place in places(clean[role].shape):
                dirty = {r: a.copy() for r, a in clean.items()}
                dirty[role][place] = bad
                mark = np.zeros(dirty[role].shape)
                mark[place] = 1.0
                label = f"{p} {operator_of(p, result)} {backend}: {bad} in {role}{list(place)}"

                got = run(p, result, dirty, dtype, backend)
                if got is None:
                    continue
                present = touched(p, result, role, mark, 0)
                window = touched(p, result, role, mark, MARGIN)
                assert not (present & ~window).any(), "the test's own sets are wrong"
                lost = present & np.isfinite(got)
                assert not lost.any(), f"{label}: finite at {np.argwhere(lost)[0]}"
                exact = ~present if backend == "reference" else ~window
                wrong = exact & (got != finite)
                assert not wrong.any(), (
                    f"{label}: {got[wrong][0]} instead of {finite[wrong][0]} "
                    f"at {np.argwhere(wrong)[0]}, which it does not touch"
                )
                if backend == "reference":
                    np.testing.assert_array_equal(got, partial(p, result, dirty), label)


@pytest.mark.parametrize("family", ["convolution", "conv_transpose"])
def test_nonfinite_bias_stays_in_its_channel(backend: str, family: str) -> None:
    p = Problem(family, 2, 2, 2, 2, (5, 4), (3, 3), (1, 2), (1, 1), (1, 1), (1, 1))
    call = calls.calls(p, torch.float32)[1]
    src, w, bias = call.args
    bias = bias.clone()
    bias[1] = torch.nan
    operator = getattr(torch.ops.convtbw, family)
    out = run_forced(backend, lambda: operator(src, w, bias, **call.kwargs))
    if out is not None:
        assert out[:, 1].isnan().all()
        rest = [0, 2, 3]
        assert torch.equal(out[:, rest], call.expected.float()[:, rest])


@pytest.mark.parametrize("name", ["convolution", "conv_transpose"])
def test_overflow_of_a_result_is_infinite_not_garbage(backend: str, name: str) -> None:
    """float16 sums beyond 65504: accumulated in float32, rounded once, to Inf."""
    src = torch.full((1, 3, 4), 200.0, dtype=torch.float16)
    w = torch.full((1, 4, 4), 200.0, dtype=torch.float16)
    out = run_forced(
        backend,
        lambda: getattr(torch.ops.convtbw, name)(
            src, w, strides=[1], dilations=[1], pads_begin=[0], pads_end=[0], weights_format="XIO"
        ),
    )
    assert out is None or out.isposinf().all()
