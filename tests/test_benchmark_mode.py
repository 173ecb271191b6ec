"""Benchmark mode: a clock chooses, once per problem. No test depends on what the clock says."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from samples import CASES, OPERATORS, Case, torch_form

from torch_ops import backends

pytestmark = pytest.mark.unforced

every_operator = pytest.mark.parametrize("name", OPERATORS)


@pytest.fixture(autouse=True)
def benchmark_mode() -> Iterator[None]:
    backends.clear_cache()
    backends.benchmark = True
    yield
    backends.benchmark = False
    torch.use_deterministic_algorithms(False)


def plain_case(name: str, **attributes: object) -> Case:
    shape = {
        "src": (9, 10), "kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1),
        "pads_begin": (1, 1), "pads_end": (1, 1), "ic_per_group": 4, "oc_per_group": 8,
    }  # fmt: skip
    return Case(name, **(shape | attributes))


def explain(case: Case, dtype: torch.dtype = torch.float32) -> backends.Explanation:
    return backends.explain(case.op, *case.tensors(dtype), **case.kwargs())


def accepting(case: Case, dtype: torch.dtype = torch.float32) -> list[str]:
    """Backends that the first call times: those that accept, `reference` only if alone."""
    names = []
    for name in backends.supported():
        with backends.use(name):
            try:
                explain(case, dtype)
            except RuntimeError as error:
                assert "declines" in str(error)  # noqa: PT017
                continue
        names.append(name)
    return names[:-1] or names  # reference is the last and accepts everything


# --- the attribute --------------------------------------------------------------------------------


def test_attribute_reads_what_was_set() -> None:
    assert backends.benchmark is True
    backends.benchmark = False
    assert backends.benchmark is False


@pytest.mark.parametrize("value", [1, 0, None, "on", "False", torch.tensor(True)], ids=repr)
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"torch_ops\.backends\.benchmark is .*True or False"):
        backends.benchmark = value
    assert backends.benchmark is True


def test_it_belongs_to_the_process() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: backends.benchmark).result() is True
        pool.submit(setattr, backends, "benchmark", False).result()
    assert backends.benchmark is False


# --- choosing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_right_whoever_wins(case: Case) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        inputs = case.tensors(dtype, integers=True)
        exact = torch_form(case)(*(tensor.double() for tensor in inputs)).to(dtype)
        for _ in range(2):  # timed, then remembered
            assert torch.equal(case.call(*inputs), exact)


@every_operator
def test_first_call_times_and_the_winner_is_remembered(name: str) -> None:
    case = plain_case(name)
    inputs = case.tensors(torch.float32)
    first = case.call(*inputs)
    winner = backends.last_used()
    assert winner in accepting(case)
    before = backends.cache_info()
    for _ in range(3):
        # The first result is the winner's too, to the bit.
        assert torch.equal(case.call(*inputs), first)
        assert backends.last_used() == winner
    after = backends.cache_info()
    assert after.hits == before.hits + 3
    assert (after.misses, after.entries) == (before.misses, before.entries)


@every_operator
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_explain_tells_the_times_of_the_losers(name: str, dtype: torch.dtype) -> None:
    case = plain_case(name)
    timed = accepting(case, dtype)
    case.call(*case.tensors(dtype))
    plan = explain(case, dtype)
    assert plan.backend == backends.last_used()
    assert set(plan.declined) == set(backends.available()) - {plan.backend}
    time = r"\d+\.\d+ (us|ms)"
    for loser, reason in plan.declined.items():
        found = re.fullmatch(f"slower: {time} against {time} of '{plan.backend}'", reason)
        assert bool(found) == (loser in timed), reason
    if plan.backend != "reference":
        assert plan.declined["reference"].startswith("not timed: ")
    assert explain(case, dtype) == plan


@every_operator
def test_explain_says_what_the_rules_choose_before_the_first_call(name: str) -> None:
    case = plain_case(name)
    plan = explain(case)
    backends.benchmark = False
    assert explain(case) == plan
    assert backends.cache_info().entries == 1  # the rules' plan; explaining times nothing


@every_operator
def test_switched_off_the_rules_choose_at_once(name: str) -> None:
    case = plain_case(name)
    inputs = case.tensors(torch.float32)
    backends.benchmark = False
    rules = explain(case)
    backends.benchmark = True
    case.call(*inputs)
    timed = explain(case)
    backends.benchmark = False
    assert explain(case) == rules
    case.call(*inputs)
    assert backends.last_used() == rules.backend
    # And on again, what was timed is still known.
    backends.benchmark = True
    misses = backends.cache_info().misses
    assert explain(case) == timed
    case.call(*inputs)
    assert backends.last_used() == timed.backend
    assert backends.cache_info().misses == misses


def test_every_number_of_threads_is_timed_for_itself() -> None:
    case = plain_case("convolution")
    inputs = case.tensors(torch.float32)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            misses = backends.cache_info().misses
            case.call(*inputs)
            assert backends.cache_info().misses == misses + 1
    finally:
        torch.set_num_threads(before)


@every_operator
def test_an_empty_batch_is_not_timed(name: str) -> None:
    case = plain_case(name, batch=0)
    result = case.call(*case.tensors(torch.float32))
    assert not result.any()
    assert not any("slower" in reason for reason in explain(case).declined.values())


# --- where the mode has no effect -----------------------------------------------------------------


@every_operator
@pytest.mark.parametrize("backend", backends.supported())
def test_forcing_wins(backend: str, name: str) -> None:
    case = plain_case(name)
    inputs = case.tensors(torch.float32)
    with backends.use(backend):
        for _ in range(2):
            case.call(*inputs)
            assert backends.last_used() == backend
        assert all("forced" in reason for reason in explain(case).declined.values())


@every_operator
def test_deterministic_mode_asks_no_clock_and_no_thread_count(name: str) -> None:
    case = plain_case(name)
    inputs = case.tensors(torch.float32)
    case.call(*inputs)  # timed, and not to be used below
    threads = torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    backends.benchmark = False
    rules = explain(case)
    backends.benchmark = True
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            plan = explain(case)
            assert (plan.backend, plan.target, plan.kernel, plan.declined) == (
                rules.backend, rules.target, rules.kernel, rules.declined)  # fmt: skip
            case.call(*inputs)
            assert backends.last_used() == rules.backend
            assert explain(case) == plan
    finally:
        torch.set_num_threads(threads)


def test_forked_child_asks_no_clock() -> None:
    case = plain_case("convolution_backward_weights")
    inputs = case.tensors(torch.float32, integers=True)
    expected = case.call(*inputs)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            same = torch.equal(case.call(*inputs), expected)
            answer = f"{same} {explain(case).declined}"
        except BaseException as error:
            answer = repr(error)
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    assert answer.startswith("True")
    assert "slower" not in answer
    assert "not timed" not in answer


# --- from several threads, compiled, differentiated -----------------------------------------------


def test_threads_may_time_the_same_problem_at_once() -> None:
    jobs = []
    for name in OPERATORS:
        case = plain_case(name)
        inputs = case.tensors(torch.float32, integers=True)
        exact = torch_form(case)(*(tensor.double() for tensor in inputs)).float()
        jobs.append((case, inputs, exact))

    def caller(number: int) -> bool:
        good = True
        for turn in range(10):
            if number == 0:
                backends.clear_cache()
                backends.benchmark = turn % 3 != 2
            for case, inputs, exact in jobs:
                good &= torch.equal(case.call(*inputs), exact)
        return good

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(caller, range(4), timeout=120))


@every_operator
def test_compiled_functions_follow_the_mode_when_they_run(name: str) -> None:
    case = plain_case(name)
    inputs = case.tensors(torch.float32, integers=True)
    exact = torch_form(case)(*(tensor.double() for tensor in inputs)).float()
    backends.benchmark = False
    torch._dynamo.reset()
    compiled = torch.compile(case.call, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*inputs), exact)
    entries = backends.cache_info().entries
    backends.benchmark = True
    assert torch.equal(compiled(*inputs), exact)
    assert backends.cache_info().entries == entries + 1  # chosen by time, beside the rules' choice
    assert backends.last_used() in accepting(case)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_setting_it_cannot_be_compiled(fullgraph: bool) -> None:
    case = plain_case("convolution")
    inputs = case.tensors(torch.float32)

    def switching(*tensors: torch.Tensor) -> torch.Tensor:
        backends.benchmark = True
        result = case.call(*tensors)
        backends.benchmark = False
        return result

    backends.benchmark = False
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match=r"backends\.benchmark cannot be traced"):
        torch.compile(switching, backend="eager", fullgraph=fullgraph)(*inputs)
    assert backends.benchmark is False
    switching(*inputs)


def test_setting_it_cannot_be_exported() -> None:
    class Switching(torch.nn.Module):
        def forward(self, src: torch.Tensor) -> torch.Tensor:
            backends.benchmark = False
            return src + 1

    with pytest.raises(RuntimeError, match=r"backends\.benchmark cannot be traced"):
        torch.export.export(Switching(), (torch.ones(2),))
    assert backends.benchmark is True


@every_operator
def test_gradients(name: str) -> None:
    case = plain_case(name, src=(4, 3), ic_per_group=2, oc_per_group=1)
    inputs = [tensor.requires_grad_() for tensor in case.tensors(torch.float64)]
    assert torch.autograd.gradcheck(case.call, inputs)
    single = [tensor.detach().float().requires_grad_() for tensor in inputs]
    reference = torch.autograd.grad(torch_form(case)(*inputs).square().sum(), inputs)
    found = torch.autograd.grad(case.call(*single).square().sum(), single)
    for gradient, expected in zip(found, reference, strict=True):
        torch.testing.assert_close(gradient.double(), expected, rtol=1e-4, atol=1e-4)
