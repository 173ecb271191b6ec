"""Any number of threads, any thread, and a forked child: the same results."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from samples import CASES, OPERATORS, Case, torch_form

import torch_ops

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def large_enough_to_split(name: str, groups: int = 2) -> Case:
    return Case(
        name, src=(9, 11), kernel=(3, 3), strides=(2, 1), dilations=(1, 2), pads_begin=(1, 2),
        pads_end=(0, 2), batch=3, groups=groups, ic_per_group=6, oc_per_group=5,
    )  # fmt: skip


def test_concurrent_callers_and_changing_thread_counts() -> None:
    problems = [*CASES[::3], *(large_enough_to_split(name) for name in OPERATORS)]
    jobs = []
    for dtype in (torch.float32, torch.float64):
        for case in problems:
            inputs = case.tensors(dtype, integers=True)
            exact = torch_form(case)(*(tensor.double() for tensor in inputs))
            jobs.append((case, inputs, exact))

    def caller(number: int) -> list[str]:
        wrong = []
        for turn in range(3):
            for index in range(len(jobs)):
                # Each caller in its own order, and with its own, changing, number of threads.
                case, inputs, exact = jobs[(index * (2 * number + 1) + 7 * turn) % len(jobs)]
                if index % 5 == 0:
                    torch.set_num_threads(1 + (number + index // 5) % 3)
                if not torch.equal(case.call(*inputs).double(), exact):
                    wrong.append(str(case))
        return wrong

    with ThreadPoolExecutor(6) as pool:
        assert [name for wrong in pool.map(caller, range(6)) for name in wrong] == []


def test_concurrent_callers_while_plans_are_dropped() -> None:
    # A plan that is cleared from the cache while it runs must outlive the run.
    case = large_enough_to_split("conv_transpose_backward_weights")
    inputs = case.tensors(torch.float32, integers=True)
    exact = torch_form(case)(*(tensor.double() for tensor in inputs))

    def caller(number: int) -> bool:
        good = True
        for _ in range(50):
            if number == 0:
                torch_ops.backends.clear_cache()
            good &= torch.equal(case.call(*inputs).double(), exact)
        return good

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(caller, range(4)))


@pytest.mark.unforced
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_reference_is_bitwise_the_same_for_any_number_of_threads(
    name: str, dtype: torch.dtype, groups: int
) -> None:
    case = large_enough_to_split(name, groups)
    inputs = case.tensors(dtype)
    results = []
    for threads in (1, 2, 3, 4, 8):
        torch.set_num_threads(threads)
        with torch_ops.backends.use("reference"):
            results.append(case.call(*inputs))
    for result in results[1:]:
        assert torch.equal(result, results[0])


# A hang must fail the test, so each script runs in a process of its own under a timeout. The child
# calls nothing of torch that is parallel: after a fork that would hang by itself.
_PREPARE = """
import os, sys
sys.path.insert(0, {here!r})
import torch
import torch_ops
from samples import Case, torch_form

torch.set_num_threads(2)
CASES = [
    Case(name, src=(17, 16), kernel=(3, 3), strides=(1, 2), dilations=(1, 1), pads_begin=(1, 1),
         pads_end=(1, 0), batch=2, ic_per_group=8, oc_per_group=16)
    for name in ("convolution", "convolution_backward_data", "convolution_backward_weights",
                 "conv_transpose", "conv_transpose_backward_data",
                 "conv_transpose_backward_weights")
]
JOBS = []
for case in CASES:
    inputs = case.tensors(torch.float32, integers=True)
    exact = torch_form(case)(*(tensor.double() for tensor in inputs)).float()
    # The pool has threads, and every backend has run on it, before the process forks.
    for backend in torch_ops.backends.supported():
        with torch_ops.backends.use(backend):
            assert torch.equal(case.call(*inputs), exact), (backend, str(case))
    assert torch.equal(case.call(*inputs), exact)
    JOBS.append((case, inputs, exact))


def check():
    for case, inputs, exact in JOBS:
        if not torch.equal(case.call(*inputs), exact):
            return "wrong: " + str(case)
        plan = torch_ops.backends.explain(case.op, *inputs, **case.kwargs())
        if plan.backend == "onednn":
            return "onednn in a forked child: " + str(case)
        if "onednn" in torch_ops.backends.supported():
            try:
                with torch_ops.backends.use("onednn"):
                    case.call(*inputs)
                return "onednn in a forked child, forced: " + str(case)
            except RuntimeError as error:
                if "forked process" not in str(error):
                    return "another reason: " + str(error)
    return "good"
"""
_OS_FORK = """
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    try:
        answer = check()
    except BaseException as error:
        answer = repr(error)
    os.write(writer, answer.encode())
    os._exit(0)
os.close(writer)
answer = os.fdopen(reader).read()
os.waitpid(child, 0)
assert answer == "good", answer
"""
_MULTIPROCESSING = """
import multiprocessing


def work(number):
    return check()


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        answers = pool.map(work, range(4), chunksize=1)
    assert answers == ["good"] * 4, answers
"""
# The parent's own pool must survive its children.
_PARENT_AGAIN = """
for case, inputs, exact in JOBS:
    assert torch.equal(case.call(*inputs), exact), str(case)
print("done")
"""


@pytest.mark.unforced
@pytest.mark.parametrize("fork", [_OS_FORK, _MULTIPROCESSING], ids=["os.fork", "multiprocessing"])
def test_forked_child_computes_the_same(fork: str, tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(_PREPARE.format(here=str(HERE)) + fork + _PARENT_AGAIN)
    process = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == "done"


@pytest.mark.unforced
def test_forced_onednn_in_a_forked_child_declines(tmp_path: Path) -> None:
    if "onednn" not in torch_ops.backends.supported():
        # Nothing to force: the name must be refused here as in a child.
        with pytest.raises(RuntimeError, match="reference"), torch_ops.backends.use("onednn"):
            pass
        return
    body = """
def check():
    case, inputs, exact = JOBS[0]
    try:
        with torch_ops.backends.use("onednn"):
            case.call(*inputs)
    except RuntimeError as error:
        text = str(error)
        return "good" if "declines" in text and "forked process" in text else text
    return "no error"
"""
    script = tmp_path / "forced.py"
    script.write_text(_PREPARE.format(here=str(HERE)) + body + _OS_FORK + _PARENT_AGAIN)
    process = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == "done"
