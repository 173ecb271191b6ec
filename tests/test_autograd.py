"""Every operator is differentiable to any order, in every mode that PyTorch has.

Gradients are checked against finite differences, and against PyTorch's own transforms of the same
function written in torch.nn.functional.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from samples import CASES, OPERATORS, Case, one_each, torch_form, with_layout
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import torch_ops  # noqa: F401  registers torch.ops.convtbw

every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_operator = pytest.mark.parametrize("case", one_each(), ids=str)
# Batching rules are torch's own affair: its loop over the batch is correct, and says it is slow.
pytestmark = pytest.mark.filterwarnings("ignore:.*performance drop.*")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    # Thousands of calls on a dozen elements: waking a pool for each costs more than all of them.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def leaves(case: Case, seed: int = 0) -> tuple[Tensor, ...]:
    return tuple(tensor.requires_grad_() for tensor in case.tensors(seed=seed))


def close(actual: object, expected: object) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


class CountedOperators(TorchDispatchMode):
    """The convtbw operators that run below autograd, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "convtbw":
            self.names.append(func._schema.name.removeprefix("convtbw::"))
        return func(*args, **(kwargs or {}))


# --- finite differences ---------------------------------------------------------------------------


@every_case
def test_gradcheck(case: Case) -> None:
    assert gradcheck(
        case.call, leaves(case), check_forward_ad=True, check_batched_grad=True,
        check_batched_forward_grad=True, check_undefined_grad=True,
    )  # fmt: skip


@every_case
def test_gradgradcheck(case: Case) -> None:
    assert gradgradcheck(
        case.call, leaves(case), check_fwd_over_rev=True, check_rev_over_rev=True, fast_mode=True
    )


@every_operator
def test_gradgradcheck_entry_by_entry(case: Case) -> None:
    assert gradgradcheck(case.call, leaves(case), check_fwd_over_rev=True, check_batched_grad=True)


# --- against PyTorch's transforms of the same function --------------------------------------------


@every_case
def test_three_orders_equal_pytorch(case: Case) -> None:
    def orders(function: Callable[..., Tensor]) -> list[Tensor]:
        inputs = leaves(case)
        value = function(*inputs).sin().sum()
        found = []
        for _ in range(3):
            gradients = torch.autograd.grad(value, inputs, create_graph=True)
            found += gradients
            value = sum((gradient * gradient.cos()).sum() for gradient in gradients)
        return found

    close(orders(case.call), orders(torch_form(case)))


@every_operator
def test_functional_grad_and_jvp(case: Case) -> None:
    first, second = case.tensors()
    tangents = case.tensors(seed=1)

    def loss(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *inputs: function(*inputs).sin().sum()

    ours, theirs = loss(case.call), loss(torch_form(case))
    for argnums in (0, 1, (0, 1)):
        close(
            torch.func.grad(ours, argnums)(first, second),
            torch.func.grad(theirs, argnums)(first, second),
        )
    close(
        torch.func.jvp(case.call, (first, second), tangents),
        torch.func.jvp(torch_form(case), (first, second), tangents),
    )
    # One tangent only: the other input's is a zero that is never materialised.
    for which in (0, 1):

        def partial(function: Callable[..., Tensor], which: int = which) -> Callable[..., Tensor]:
            fixed = (first, second)[1 - which]
            return lambda moving: function(*((moving, fixed) if which == 0 else (fixed, moving)))

        point, tangent = (first, second)[which], tangents[which]
        close(
            torch.func.jvp(partial(case.call), (point,), (tangent,)),
            torch.func.jvp(partial(torch_form(case)), (point,), (tangent,)),
        )
    # Forward over reverse, and reverse over forward.
    gradient, expected = torch.func.grad(ours, (0, 1)), torch.func.grad(theirs, (0, 1))
    close(
        torch.func.jvp(gradient, (first, second), tangents),
        torch.func.jvp(expected, (first, second), tangents),
    )

    def directional(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *inputs: torch.func.jvp(function, inputs, tangents)[1]

    close(
        torch.func.grad(directional(ours), (0, 1))(first, second),
        torch.func.grad(directional(theirs), (0, 1))(first, second),
    )


@every_operator
@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 0), (1, 2)], ids=str)
def test_per_sample_gradients(case: Case, in_dims: tuple[int | None, int | None]) -> None:
    samples = [case.tensors(seed=seed) for seed in range(3)]
    inputs = [
        tensors[0] if dim is None else torch.stack(tensors, dim)
        for tensors, dim in zip(zip(*samples, strict=True), in_dims, strict=True)
    ]

    def per_sample(function: Callable[..., Tensor]) -> Callable[..., object]:
        gradient = torch.func.grad(lambda *inputs: function(*inputs).sin().sum(), (0, 1))
        return torch.func.vmap(gradient, in_dims)

    close(per_sample(case.call)(*inputs), per_sample(torch_form(case))(*inputs))
    close(
        torch.func.vmap(case.call, in_dims)(*inputs),
        torch.func.vmap(torch_form(case), in_dims)(*inputs),
    )


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.spatial == 1 and case.groups == 1], ids=str
)
def test_second_derivatives_by_functional_transforms(case: Case) -> None:
    inputs = case.tensors()

    def value(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *inputs: function(*inputs).sin().sum()

    ours, theirs = value(case.call), value(torch_form(case))
    close(torch.func.hessian(ours, (0, 1))(*inputs), torch.func.hessian(theirs, (0, 1))(*inputs))
    close(
        torch.func.jacfwd(torch.func.jacrev(ours, (0, 1)), (0, 1))(*inputs),
        torch.func.jacfwd(torch.func.jacrev(theirs, (0, 1)), (0, 1))(*inputs),
    )
    close(
        torch.func.jacrev(torch.func.jacfwd(ours, (0, 1)), (0, 1))(*inputs),
        torch.func.jacrev(torch.func.jacfwd(theirs, (0, 1)), (0, 1))(*inputs),
    )


# --- layouts and types ----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["channels_last", "sliced"])
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
@pytest.mark.parametrize("name", OPERATORS)
def test_strides_of_inputs_and_cotangent_do_not_matter(
    name: str, data_format: str, layout: str
) -> None:
    (case,) = (case for case in one_each(data_format=data_format) if case.op == name)
    plain = leaves(case)
    other = tuple(
        with_layout(tensor.detach(), layout, data_format).requires_grad_() for tensor in plain
    )
    expected, actual = case.call(*plain), case.call(*other)
    close(actual, expected)
    cotangent = torch.randn_like(expected.contiguous())
    expected_gradients = torch.autograd.grad(expected, plain, cotangent)
    for variant in (cotangent, with_layout(cotangent, layout, data_format)):
        close(torch.autograd.grad(actual, other, variant, retain_graph=True), expected_gradients)


@every_operator
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_gradients_keep_the_type(case: Case, dtype: torch.dtype) -> None:
    # Small integers: every product and sum is exact in every type, so is every gradient.
    exact = [tensor.requires_grad_() for tensor in case.tensors(integers=True)]
    inputs = [tensor.detach().to(dtype).requires_grad_() for tensor in exact]
    gradients = torch.autograd.grad(case.call(*inputs).sum(), inputs)
    expected = torch.autograd.grad(torch_form(case)(*exact).sum(), exact)
    for gradient, wanted in zip(gradients, expected, strict=True):
        assert gradient.dtype == dtype
        assert torch.equal(gradient.double(), wanted)


@every_case
def test_zero_stride_cotangent(case: Case) -> None:
    inputs = leaves(case)
    result = case.call(*inputs)
    materialised = torch.autograd.grad(result, inputs, torch.ones_like(result), retain_graph=True)
    result.sum().backward()
    close([tensor.grad for tensor in inputs], list(materialised))


# --- what is computed, and what is kept -----------------------------------------------------------


@every_operator
@pytest.mark.parametrize("needed", [(True, False), (False, True), (True, True)], ids=str)
def test_only_needed_partials_are_computed(case: Case, needed: tuple[bool, bool]) -> None:
    inputs = [
        tensor.requires_grad_(needs) for tensor, needs in zip(case.tensors(), needed, strict=True)
    ]
    with CountedOperators() as forward:
        result = case.call(*inputs)
    with CountedOperators() as backward:
        result.sum().backward()
    assert forward.names == [case.op]
    assert len(backward.names) == sum(needed)
    for tensor, needs in zip(inputs, needed, strict=True):
        assert (tensor.grad is not None) == needs


@pytest.mark.parametrize("name", ["convolution", "conv_transpose"])
def test_bias_alone_costs_no_convolution(name: str) -> None:
    (case,) = (case for case in one_each(bias=True) if case.op == name)
    src, weights, bias = case.tensors()
    bias.requires_grad_()
    result = case.call(src, weights, bias)
    cotangent = torch.randn_like(result)
    with CountedOperators() as backward:
        result.backward(cotangent)
    assert backward.names == []
    close(bias.grad, cotangent.sum((0, 1, 2)))


@every_operator
def test_second_order_computes_only_what_is_asked(case: Case) -> None:
    first, second = leaves(case)
    result = case.call(first, second)
    (gradient,) = torch.autograd.grad(result, first, torch.ones_like(result), create_graph=True)
    with CountedOperators() as counted:
        torch.autograd.grad(gradient.sum(), second)
    assert len(counted.names) == 1


@every_operator
def test_nothing_is_recorded_without_need(case: Case) -> None:
    first, second = case.tensors()
    assert not case.call(first, second).requires_grad
    first.requires_grad_()
    with torch.no_grad():
        assert not case.call(first, second).requires_grad
    with torch.inference_mode():
        assert case.call(first, second).is_inference()


@every_operator
@pytest.mark.parametrize("which", [0, 1])
def test_changing_a_saved_input_in_place_is_noticed(case: Case, which: int) -> None:
    inputs = leaves(case)
    loss = case.call(*inputs).sum()
    with torch.no_grad():
        inputs[which].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@every_operator
def test_backward_twice_needs_retain_graph(case: Case) -> None:
    inputs = leaves(case)
    loss = case.call(*inputs).sin().sum()
    loss.backward(retain_graph=True)
    once = [tensor.grad.clone() for tensor in inputs]
    loss.backward()
    close([tensor.grad for tensor in inputs], [2 * gradient for gradient in once])
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@every_operator
def test_one_input_used_twice(case: Case) -> None:
    def twice(function: Callable[..., Tensor], first: Tensor, second: Tensor) -> Tensor:
        return (function(first, second) * function(first * 2, second.sin())).sum()

    inputs = leaves(case)
    close(
        torch.autograd.grad(twice(case.call, *inputs), inputs),
        torch.autograd.grad(twice(torch_form(case), *inputs), inputs),
    )


@pytest.mark.parametrize("transposed", [False, True])
def test_one_tensor_in_both_slots(transposed: bool) -> None:
    name = "conv_transpose_backward_weights" if transposed else "convolution_backward_weights"
    case = Case(name, src=(5,), kernel=(1,), strides=(1,), dilations=(1,), pads_begin=(0,),
                pads_end=(0,), ic_per_group=2, oc_per_group=2)  # fmt: skip
    tensor = torch.randn(case.shape("x"), dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda tensor: case.call(tensor, tensor), (tensor,), check_forward_ad=True)


@every_operator
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(case: Case, use_reentrant: bool) -> None:
    plain, checkpointed = leaves(case), leaves(case)
    case.call(*plain).sin().sum().backward()
    checkpoint(case.call, *checkpointed, use_reentrant=use_reentrant).sin().sum().backward()
    for tensor, expected in zip(checkpointed, plain, strict=True):
        assert torch.equal(tensor.grad, expected.grad)


@every_operator
def test_saved_tensor_hooks(case: Case) -> None:
    inputs = leaves(case)
    packed: list[tuple[int, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tuple(tensor.shape))
        return tensor.detach().clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = case.call(*inputs).sum()
    gradients = torch.autograd.grad(loss, inputs)
    # The two inputs are kept, and nothing besides: no workspace, no copy in another layout.
    assert sorted(packed) == sorted(tuple(tensor.shape) for tensor in inputs)
    close(gradients, torch.autograd.grad(torch_form(case)(*inputs).sum(), inputs))
    with torch.autograd.graph.save_on_cpu():
        loss = case.call(*inputs).sum()
    close(torch.autograd.grad(loss, inputs), gradients)


@every_operator
def test_saved_tensors_are_freed_by_backward(case: Case) -> None:
    inputs = leaves(case)
    result = case.call(*inputs)
    node = result.grad_fn
    assert node is not None
    result.sum().backward()
    with pytest.raises(RuntimeError):
        torch.autograd.grad(result, inputs, torch.ones_like(result))


@every_operator
def test_hooks_and_names_of_the_graph(case: Case) -> None:
    inputs = leaves(case)
    result = case.call(*inputs)
    assert case.op.replace("_", "") in result.grad_fn.name().replace("_", "").lower()
    seen: list[int] = []
    result.grad_fn.register_prehook(lambda cotangents: seen.append(len(cotangents)))
    result.grad_fn.register_hook(lambda gradients, cotangents: seen.append(len(gradients)))
    result.sum().backward()
    assert seen[0] == 1
    assert len(seen) == 2


# --- compiled autograd ----------------------------------------------------------------------------


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()


@pytest.mark.unforced
@every_operator
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_compiled_autograd(case: Case, compiler: str, fresh_compiler: None) -> None:
    from torch._dynamo import compiled_autograd

    expected = leaves(case)
    case.call(*expected).sin().sum().backward()
    # Twice with equal metadata, then other values: a graph that baked in a value would show.
    for seed in (0, 0, 1):
        inputs, wanted = leaves(case, seed), leaves(case, seed)
        with compiled_autograd._enable(torch.compile(backend=compiler)):
            case.call(*inputs).sin().sum().backward()
        torch_form(case)(*wanted).sin().sum().backward()
        close([tensor.grad for tensor in inputs], [tensor.grad for tensor in wanted])


@pytest.mark.unforced
@every_operator
def test_compiled_autograd_keeps_calls_apart(case: Case, fresh_compiler: None) -> None:
    # Two calls that differ in one attribute must not share a cached backward graph.
    from dataclasses import replace

    from torch._dynamo import compiled_autograd

    other = replace(case, pads_begin=case.pads_end, pads_end=case.pads_begin)
    for variant in (case, other, case):
        inputs, wanted = leaves(variant), leaves(variant)
        with compiled_autograd._enable(torch.compile(backend="eager")):
            variant.call(*inputs).sin().sum().backward()
        torch_form(variant)(*wanted).sin().sum().backward()
        close([tensor.grad for tensor in inputs], [tensor.grad for tensor in wanted])
