"""Every problem on every backend equals the oracle exactly, in every dtype."""

from __future__ import annotations

from collections.abc import Iterable

import calls
import forcing
import oracle
import pytest
import torch
from problems import Problem, problems

import torch_ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def leave_nan_in_free_memory(call: calls.Call) -> None:
    """What the allocator hands out next holds NaN: reading it before writing it then shows."""
    dtype = call.args[0].dtype
    blocks = [torch.full(call.expected.shape, torch.nan, dtype=dtype) for _ in range(2)]
    blocks += [torch.full((n,), torch.nan) for n in (64, 256, 1024, 4096, 16384) for _ in range(2)]
    del blocks


def failures(backend: str, cases: Iterable[tuple[Problem, list[calls.Call]]]) -> list[str]:
    found = []
    for problem, problem_calls in cases:
        for call in problem_calls:
            leave_nan_in_free_memory(call)
            message = calls.check(
                problem,
                backend,
                call,
                # An empty batch is answered before any backend is chosen.
                lambda c=call, p=problem: forcing.run_forced(backend, c.run, planned=p.batch > 0),
            )
            if message:
                found.append(message)
    return found


def report(found: list[str]) -> str:
    return "\n".join([f"{len(found)} failures", *found[:12]])


def of(family: str, rank: int) -> list[Problem]:
    return [p for p in problems() if p.family == family and p.rank == rank]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("family", ["convolution", "conv_transpose"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_problem(backend: str, dtype: torch.dtype, family: str, rank: int) -> None:
    found = failures(backend, ((p, calls.calls(p, dtype)) for p in of(family, rank)))
    assert not found, report(found)


@pytest.mark.unforced
@pytest.mark.parametrize("family", ["convolution", "conv_transpose"])
def test_every_problem_in_float64_on_reference(family: str) -> None:
    with torch_ops.backends.use("reference"):
        cases = ((p, calls.calls(p, torch.float64)) for r in (1, 2, 3) for p in of(family, r))
        found = failures("reference", cases)
    assert not found, report(found)


@pytest.mark.parametrize("family", ["convolution", "conv_transpose"])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_every_problem_on_the_backend_of_the_planners_choice(
    dtype: torch.dtype, family: str
) -> None:
    found = []
    for problem in (p for r in (1, 2, 3) for p in of(family, r)):
        for call in calls.calls(problem, dtype):
            leave_nan_in_free_memory(call)
            message = calls.check(problem, "unforced", call, call.run)
            found += [message] if message else []
    assert not found, report(found)


@pytest.mark.unforced
@pytest.mark.parametrize("target", forcing.supported_targets())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_problem_on_every_simd_target(dtype: torch.dtype, target: str) -> None:
    with torch_ops.backends.use("simd", target):
        found = failures("simd", ((p, calls.calls(p, dtype)) for p in problems() if p.batch))
    assert not found, f"target {target}: {report(found)}"


# One problem for each structure that formats could confuse: all extents and channel counts differ.
FORMAT_PROBLEMS = [
    Problem(family, 2, g, c, q, i, k, s, d, pb, pe, output_padding=op)
    for family in ("convolution", "conv_transpose")
    for g, c, q in ((1, 3, 5), (3, 2, 4), (2, 9, 1), (6, 1, 1), (2, 1, 3))
    for i, k, s, d, pb, pe, op in (
        ((7,), (3,), (2,), (1,), (1,), (2,), None),
        ((5, 6), (3, 2), (1, 2), (1, 3), (0, 1), (2, 1), None),
        ((4, 3, 5), (2, 3, 1), (2, 1, 3), (1, 1, 2), (1, 1, 0), (0, 1, 0), None),
        *(
            [((4, 5), (2, 3), (3, 2), (1, 1), (0, 1), (1, 0), (2, 1))]
            if family == "conv_transpose"
            else []
        ),
    )
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weights_format", oracle.WEIGHTS_FORMATS)
@pytest.mark.parametrize("data_format", oracle.DATA_FORMATS)
def test_every_format_and_reading(
    backend: str, data_format: str, weights_format: str, dtype: torch.dtype
) -> None:
    found = []
    for problem in FORMAT_PROBLEMS:
        for reading in oracle.readings(problem.family, weights_format):
            for layout in ("contiguous", "channels_last"):
                formatted = calls.calls(
                    problem,
                    dtype,
                    data_format=data_format,
                    weights_format=weights_format,
                    reading=reading,
                    layout=layout,
                )
                label = f"{problem} {data_format} {weights_format} group-on-{reading} {layout}"
                found += [f"{label}: {m}" for m in failures(backend, [(problem, formatted)])]
    assert not found, report(found)


@pytest.mark.unforced
def test_onednn_runs_a_healthy_share_of_float32() -> None:
    """A backend that declines everything would pass every other test."""
    if "onednn" not in torch_ops.backends.supported():
        pytest.skip("onednn is not supported here: there is no share to measure")
    ran = total = 0
    with torch_ops.backends.use("onednn"):
        for problem in (p for p in problems() if p.batch):
            for call in calls.calls(problem, torch.float32):
                total += 1
                ran += forcing.run_forced("onednn", call.run) is not None
    assert ran > 0.6 * total, f"onednn ran {ran} of {total}; {forcing.summary()}"


def test_reference_is_always_there_and_last() -> None:
    assert torch_ops.backends.supported()[-1] == "reference"
