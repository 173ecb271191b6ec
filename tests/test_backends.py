"""Choosing a backend: forcing, explaining, remembering, and what each may be asked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from forcing import supported_targets
from samples import CASES, DATA_FORMATS, OPERATORS, Case, one_each, with_layout

import torch_ops
from torch_ops import backends

pytestmark = pytest.mark.unforced

SUPPORTED = backends.supported()
every_operator = pytest.mark.parametrize("name", OPERATORS)


def plain_case(name: str, **attributes: object) -> Case:
    """A problem that every backend takes: float32, no groups, no unusual padding."""
    shape = {
        "src": (6, 7), "kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1),
        "pads_begin": (1, 1), "pads_end": (1, 1), "ic_per_group": 4, "oc_per_group": 8,
    }  # fmt: skip
    return Case(name, **(shape | attributes))


def explain(case: Case, dtype: torch.dtype = torch.float32) -> backends.Explanation:
    return backends.explain(case.op, *case.tensors(dtype), **case.kwargs())


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


# --- names ----------------------------------------------------------------------------------------


def test_lists() -> None:
    assert set(SUPPORTED) <= set(backends.available())
    assert SUPPORTED[-1] == "reference"  # accepts everything, is never the best choice
    assert len(set(backends.available())) == len(backends.available())
    assert isinstance(backends.targets(), list)
    # Lists of the caller's own: changing one must not change the choice.
    backends.available().clear()
    backends.supported().clear()
    assert backends.supported() == SUPPORTED


@pytest.mark.parametrize("name", ["fast", "", "Reference", "one dnn"])
def test_unknown_backend_is_refused_with_the_legal_names(name: str) -> None:
    with pytest.raises(RuntimeError) as caught, backends.use(name):
        pass
    assert repr(name) in str(caught.value) or f'"{name}"' in str(caught.value)
    for legal in SUPPORTED:
        assert legal in str(caught.value)


@pytest.mark.parametrize("name", SUPPORTED)
def test_unknown_target_is_refused_with_the_legal_names(name: str) -> None:
    with pytest.raises(RuntimeError) as caught, backends.use(name, target="avx9"):
        pass
    assert "avx9" in str(caught.value)
    for legal in supported_targets() if name == "simd" else ["none"]:
        assert legal in str(caught.value)
    # The failure forces nothing.
    case = plain_case("convolution")
    assert explain(case).backend == SUPPORTED[0]


# --- forcing --------------------------------------------------------------------------------------


def test_target_alone_leaves_the_backend_to_the_planner() -> None:
    script = """
import torch, torch_ops
ones = dict(strides=[1], pads_begin=[0], pads_end=[0], dilations=[1])
plan = torch_ops.backends.explain(
    "convolution", torch.ones(1, 3, 2), torch.ones(2, 2, 1), **ones)
print(plan.backend, plan.target)
"""
    process = _in_environment(script, CONVTBW_TARGET="generic")
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == ["simd", "generic"]


def test_forced_backend_keeps_the_target_of_the_environment() -> None:
    script = """
import torch, torch_ops
ones = dict(strides=[1], pads_begin=[0], pads_end=[0], dilations=[1])
for forced in (("simd",), ("simd", "generic512"), ("reference",)):
    with torch_ops.backends.use(*forced):
        print(torch_ops.backends.explain(
            "convolution", torch.ones(1, 3, 2), torch.ones(2, 2, 1), **ones).target)
"""
    process = _in_environment(script, CONVTBW_TARGET="generic")
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines() == ["generic", "generic512", ""]


@every_operator
@pytest.mark.parametrize("backend", SUPPORTED)
def test_forced_backend_is_used(backend: str, name: str) -> None:
    case = plain_case(name)
    with backends.use(backend):
        case.call(*case.tensors(torch.float32))
        assert backends.last_used() == backend
    assert backends.last_used() == backend  # leaving the block is not a call
    case.call(*case.tensors(torch.float32))
    assert backends.last_used() == SUPPORTED[0]


def test_forcing_nests_and_survives_exceptions() -> None:
    case = plain_case("conv_transpose")
    tensors = case.tensors(torch.float32)

    def used() -> str:
        case.call(*tensors)
        return backends.last_used()

    first, last = SUPPORTED[0], "reference"
    with backends.use(last):
        assert used() == last
        with backends.use(first):
            assert used() == first
            with backends.use(last):
                assert used() == last
            assert used() == first
        with pytest.raises(ZeroDivisionError), backends.use(first):
            raise ZeroDivisionError
        assert used() == last
        with pytest.raises(RuntimeError), backends.use("nonsense"):
            pass
        assert used() == last
    assert used() == first


def test_forcing_belongs_to_the_thread() -> None:
    case = plain_case("convolution_backward_weights")
    tensors = case.tensors(torch.float32)
    inside, done = threading.Event(), threading.Event()

    def other() -> tuple[str, str]:
        inside.wait(60)
        before = backends.last_used()
        case.call(*tensors)
        done.set()
        return before, backends.last_used()

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(other)
        with backends.use("reference"):
            case.call(*tensors)
            inside.set()
            assert done.wait(60)
            # The other thread's call has not touched this thread's record.
            assert backends.last_used() == "reference"
        # A thread that has not called has used nothing, and nothing is forced there.
        before, after = answer.result(60)
        assert before in ("", None)
        assert after == SUPPORTED[0]


def test_backward_follows_the_block_that_runs_it() -> None:
    case = plain_case("conv_transpose")
    inputs = [tensor.requires_grad_() for tensor in case.tensors(torch.float32)]
    loss = case.call(*inputs).sum()
    with backends.use("reference"):
        loss.backward()
        assert backends.last_used() == "reference"


@pytest.mark.skipif("onednn" not in SUPPORTED, reason="this build or machine has no onednn")
@every_operator
def test_forced_backend_that_declines_is_an_error_with_its_reason(name: str) -> None:
    case = plain_case(name)
    tensors = case.tensors(torch.float64)
    with pytest.raises(RuntimeError) as caught, backends.use("onednn"):
        case.call(*tensors)
    message = str(caught.value)
    assert message.startswith(f"convtbw::{name}: ")
    assert "onednn" in message
    assert "declines" in message
    assert re.search("float64|f64|double", message)
    # Unforced, another backend takes it.
    case.call(*tensors)
    assert backends.last_used() == "simd"


@every_operator
def test_deterministic_mode_excludes_onednn(name: str, deterministic: None) -> None:
    case = plain_case(name)
    plan = explain(case)
    assert plan.backend != "onednn"
    case.call(*case.tensors(torch.float32))
    assert backends.last_used() == plan.backend
    if "onednn" in SUPPORTED:
        with pytest.raises(RuntimeError, match="determin"), backends.use("onednn"):
            case.call(*case.tensors(torch.float32))


def test_plans_made_before_deterministic_mode_are_not_used_in_it() -> None:
    # A plan key that forgot the mode would serve the cached onednn plan.
    case = plain_case("convolution")
    tensors = case.tensors(torch.float32)
    case.call(*tensors)
    torch.use_deterministic_algorithms(True)
    try:
        case.call(*tensors)
        assert backends.last_used() != "onednn"
    finally:
        torch.use_deterministic_algorithms(False)
    case.call(*tensors)
    assert backends.last_used() == SUPPORTED[0]


# --- the environment ------------------------------------------------------------------------------

_CALL = """
import torch, torch_ops
ones = torch.ones(1, 4, 2)
torch.ops.convtbw.convolution(ones, torch.ones(3, 2, 2), strides=[1], pads_begin=[0], pads_end=[0],
                              dilations=[1])
print(torch_ops.backends.last_used())
"""


def _in_environment(body: str = _CALL, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if "CONVTBW" not in key}
    return subprocess.run(
        [sys.executable, "-P", "-c", body],  # -P: not the source tree's package
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("backend", SUPPORTED)
def test_environment_forces_a_backend(backend: str) -> None:
    process = _in_environment(CONVTBW_BACKEND=backend)
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == backend


def test_empty_environment_forces_nothing() -> None:
    process = _in_environment(CONVTBW_BACKEND="", CONVTBW_TARGET="")
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == SUPPORTED[0]


@pytest.mark.parametrize("variable", ["CONVTBW_BACKEND", "CONVTBW_TARGET"])
def test_wrong_environment_is_an_error_with_the_legal_names(variable: str) -> None:
    process = _in_environment(**{variable: "fsat"})
    assert process.returncode != 0
    assert "RuntimeError" in process.stderr
    error = process.stderr[process.stderr.find("RuntimeError") :]
    assert "fsat" in error
    for legal in SUPPORTED if variable == "CONVTBW_BACKEND" else supported_targets():
        assert legal in error


def test_block_overrides_the_environment() -> None:
    body = _CALL.replace("ones = ", "force = torch_ops.backends.use('reference')\n"
                         "force.__enter__()\nones = ")  # fmt: skip
    process = _in_environment(body, CONVTBW_BACKEND=SUPPORTED[0])
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == "reference"


# --- explain --------------------------------------------------------------------------------------


def _is_complete(plan: backends.Explanation) -> None:
    assert plan.backend in SUPPORTED
    assert plan.target in ("", None, *backends.targets())
    assert isinstance(plan.kernel, str)
    assert plan.kernel
    # Everything that is not used says why, and nothing else is listed.
    assert set(plan.declined) == set(backends.available()) - {plan.backend}
    assert all(isinstance(reason, str) and reason for reason in plan.declined.values())
    assert isinstance(plan.flops, int)
    assert plan.flops > 0
    assert isinstance(plan.workspace, int)
    assert plan.workspace >= 0
    assert isinstance(plan.reorders, (list, tuple))
    assert all(isinstance(reorder, str) for reorder in plan.reorders)
    assert isinstance(plan.reading, str)
    assert plan.reading
    assert plan.threads >= 1


@every_operator
@pytest.mark.parametrize("backend", [None, *SUPPORTED])
def test_explain(backend: str | None, name: str) -> None:
    case = plain_case(name)
    if backend is None:
        plan = explain(case)
        assert plan.backend == SUPPORTED[0]
    else:
        with backends.use(backend):
            plan = explain(case)
        assert plan.backend == backend
    _is_complete(plan)
    text = str(plan)
    for word in (name, plan.backend, plan.kernel, plan.reading, *plan.declined):
        assert word in text
    assert "\n" in text  # prints well: not one line of fields


@pytest.mark.parametrize("case", CASES, ids=str)
def test_explain_any_case(case: Case) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        plan = explain(case, dtype)
        _is_complete(plan)
        case.call(*case.tensors(dtype))
        assert backends.last_used() == plan.backend


@every_operator
def test_explain_takes_names_and_operators(name: str) -> None:
    case = plain_case(name)
    arguments, kwargs = case.tensors(torch.float32), case.kwargs()
    packet = getattr(torch.ops.convtbw, name)
    plans = [
        backends.explain(op, *arguments, **kwargs)
        for op in (name, f"convtbw::{name}", packet, packet.default)
    ]
    assert all(plan == plans[0] for plan in plans)
    named = dict(zip(case.operator.names, arguments, strict=True))
    assert backends.explain(name, **named, **kwargs) == plans[0]


def test_explain_refuses_what_the_operator_refuses() -> None:
    case = plain_case("convolution")
    with pytest.raises(RuntimeError, match=r"^convtbw::convolution: .*strides"):
        backends.explain("convolution", *case.tensors(torch.float32),
                         **(case.kwargs() | {"strides": [0, 1]}))  # fmt: skip
    with pytest.raises((ValueError, RuntimeError, AttributeError), match="deconvolution"):
        backends.explain("deconvolution")


def test_explain_leaves_no_trace() -> None:
    case = plain_case("convolution")
    with backends.use("reference"):
        case.call(*case.tensors(torch.float32))
    explain(case)
    assert backends.last_used() == "reference"
    with backends.use(SUPPORTED[0]):
        explain(case)
    assert backends.last_used() == "reference"


def test_explain_neither_records_nor_changes_anything() -> None:
    case = plain_case("convolution_backward_weights")
    tensors = [tensor.requires_grad_() for tensor in case.tensors(torch.float32)]
    copies = [tensor.detach().clone() for tensor in tensors]
    backends.explain(case.op, *tensors, **case.kwargs())
    for tensor, copy in zip(tensors, copies, strict=True):
        assert torch.equal(tensor, copy)
        assert tensor._version == 0
    # An explanation that failed must not turn the next call into an explanation.
    with pytest.raises(RuntimeError):
        backends.explain(case.op, *tensors, **(case.kwargs() | {"groups": 0}))
    assert case.call(*tensors).abs().sum() > 0


@every_operator
def test_flops_of_an_unpadded_problem(name: str) -> None:
    case = plain_case(name, pads_begin=(0, 0), pads_end=(0, 0), groups=2, batch=3)
    transposed = case.operator.transposed
    small = case.src if transposed else case.dst
    taps = case.kernel[0] * case.kernel[1] * small[0] * small[1]
    products = case.batch * case.groups * case.ic_per_group * case.oc_per_group * taps
    assert explain(case).flops == 2 * products


def test_explain_names_the_reading_of_the_weights() -> None:
    readings = {}
    for group_on in "IO":
        case = plain_case("conv_transpose_backward_weights", groups=2, weights_format="XOI",
                          group_on=group_on)  # fmt: skip
        readings[group_on] = explain(case).reading
    assert readings["I"] != readings["O"]
    assert re.search(r"\bI\b", readings["I"])
    assert re.search(r"\bO\b", readings["O"])


def test_explain_reports_the_threads_of_the_plan() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert explain(plain_case("convolution")).threads == 1
    finally:
        torch.set_num_threads(before)


# --- the cache of plans ---------------------------------------------------------------------------


def test_cache_counts_hits_and_misses() -> None:
    case = plain_case("convolution")
    tensors = case.tensors(torch.float32)
    backends.clear_cache()
    assert backends.cache_info().entries == 0
    start = backends.cache_info()
    case.call(*tensors)
    first = backends.cache_info()
    assert first.misses == start.misses + 1
    assert first.entries == 1
    for _ in range(3):
        case.call(*tensors)
    again = backends.cache_info()
    assert again.hits == first.hits + 3
    assert again.misses == first.misses
    assert again.entries == 1
    backends.clear_cache()
    assert backends.cache_info().entries == 0
    assert backends.cache_info().bytes == 0
    case.call(*tensors)  # and it serves again


@pytest.mark.parametrize("backend", SUPPORTED)
def test_cache_is_bounded(backend: str) -> None:
    backends.clear_cache()
    weights = torch.ones(1, 1, 1)
    with backends.use(backend):
        for count in range(5000):
            src = torch.ones(1, 1 + count % 100, 1)
            padding = [count // 100]
            result = torch.ops.convtbw.convolution(
                src, weights, strides=[1], pads_begin=padding, pads_end=[0], dilations=[1]
            )
            if count % 500 == 0:
                assert result.sum() == src.sum()
                info = backends.cache_info()
                assert info.entries <= info.capacity
                assert info.bytes <= info.byte_capacity
    info = backends.cache_info()
    assert 0 < info.entries <= info.capacity < 5000
    assert info.bytes <= info.byte_capacity
    assert info.misses >= 5000
    backends.clear_cache()


def test_different_problems_do_not_share_a_plan() -> None:
    # Each of these differs from the first in one field; each must be planned for itself.
    base = plain_case("convolution")
    variants = [
        base,
        plain_case("convolution", batch=3),
        plain_case("convolution", src=(7, 7)),
        plain_case("convolution", kernel=(3, 2)),
        plain_case("convolution", strides=(2, 1)),
        plain_case("convolution", dilations=(1, 2)),
        plain_case("convolution", pads_begin=(0, 1)),
        plain_case("convolution", pads_end=(2, 1)),
        plain_case("convolution", ic_per_group=5),
        plain_case("convolution", oc_per_group=9),
        plain_case("convolution", groups=2, ic_per_group=2, oc_per_group=4),
        plain_case("convolution", weights_format="XIO"),
        plain_case("convolution_backward_data"),
        plain_case("convolution_backward_weights"),
    ]
    for index, case in enumerate(variants):
        backends.clear_cache()
        base.call(*base.tensors(torch.float32))
        misses = backends.cache_info().misses
        case.call(*case.tensors(torch.float32))
        assert backends.cache_info().misses == misses + (index > 0), str(case)
    backends.clear_cache()
    base.call(*base.tensors(torch.float32))
    misses = backends.cache_info().misses
    base.call(*base.tensors(torch.bfloat16))
    assert backends.cache_info().misses == misses + 1


# --- formats cost no copy -------------------------------------------------------------------------


@every_operator
@pytest.mark.parametrize("backend", SUPPORTED)
def test_equal_memory_gives_equal_bits(backend: str, name: str) -> None:
    # NXC contiguous and NCX channels_last are the same memory, so the same plan must serve both.
    nxc, ncx = (plain_case(name, data_format=data_format) for data_format in DATA_FORMATS)
    inputs = nxc.tensors(torch.float32)
    renamed = tuple(
        tensor if role == "w" else tensor.movedim(-1, 1)
        for tensor, role in zip(inputs, nxc.operator.roles, strict=True)
    )
    with backends.use(backend):
        first, second = nxc.call(*inputs), ncx.call(*renamed)
        plans = [
            backends.explain(name, *tensors, **case.kwargs())
            for case, tensors in ((nxc, inputs), (ncx, renamed))
        ]
    if nxc.operator.result != "w":
        assert second.is_contiguous(memory_format=torch.channels_last)
        second = second.movedim(1, -1)
    assert first.stride() == second.stride()
    assert torch.equal(first, second)
    assert plans[0].kernel == plans[1].kernel
    assert plans[0].workspace == plans[1].workspace
    # No copy of a data tensor on the way.
    for reorder in (*plans[0].reorders, *plans[1].reorders):
        assert re.match(r"(weights|filter)", reorder), reorder


@pytest.mark.parametrize("layout", ["channels_last", "sliced"])
@pytest.mark.parametrize("case", one_each() + one_each(data_format="NCX"), ids=str)
def test_any_strides_on_any_backend(case: Case, layout: str) -> None:
    inputs = case.tensors(torch.float32, integers=True)
    expected = case.call(*(tensor.double() for tensor in inputs)).float()
    for backend in SUPPORTED:
        with backends.use(backend):
            try:
                result = case.call(
                    *(with_layout(tensor, layout, case.data_format) for tensor in inputs)
                )
            except RuntimeError as error:
                assert "declines" in str(error)  # noqa: PT017  the only excuse
                assert backend != "reference"
                continue
        assert torch.equal(result, expected)


def test_public_names() -> None:
    for name in ("available", "supported", "targets", "use", "last_used", "explain", "cache_info",
                 "clear_cache"):  # fmt: skip
        assert getattr(backends, name).__doc__
    assert torch_ops.backends is backends


def test_use_cannot_be_traced_and_leaves_nothing_forced() -> None:
    case = plain_case("convolution")
    inputs = case.tensors(torch.float32)

    def forced(*tensors: torch.Tensor) -> torch.Tensor:
        with backends.use("reference"):
            return case.call(*tensors)

    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(forced, backend="eager")(*inputs), forced(*inputs))
    case.call(*inputs)
    assert backends.last_used() == SUPPORTED[0]


def test_leaving_a_block_restores_even_a_wrong_environment() -> None:
    body = (
        """
import torch_ops
try:
    with torch_ops.backends.use("reference"):
        raise KeyError("mine")
except KeyError:
    print("mine")
"""
        + _CALL
    )
    process = _in_environment(body, CONVTBW_BACKEND="fsat")
    assert process.stdout.strip() == "mine"
    assert "environment: CONVTBW_BACKEND" in process.stderr


def test_explain_takes_no_memory_for_the_result() -> None:
    src = torch.empty(1, 1, 1).expand(2**20, 1, 2**20)
    plan = backends.explain(
        "conv_transpose",
        src,
        torch.empty(1, 1024, 2),
        strides=[2],
        pads_begin=[0],
        pads_end=[0],
        dilations=[1],
        data_format="NCX",
        weights_format="IOX",
    )
    assert plan.backend == "simd"
