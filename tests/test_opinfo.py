"""torch_ops.functional on the samples with which torch tests torch.nn.functional.

The samples and the expected errors are torch's (`torch.testing._internal`), and so is what is done
with them: values, strided inputs, reverse and forward derivatives of both orders, batched
derivatives, vmap, compilation, errors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import ErrorInput, OpInfo, SampleInput
from torch.utils._pytree import tree_leaves

import torch_ops.functional

# Torch's own warnings: vmap's slow path, same padding with even kernels, complex values.
# Above the operators: once is enough.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.unforced]

NAMES = [f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)]
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
IN_TORCH = (torch.complex64, torch.int64)  # passed on to torch
every_function = pytest.mark.parametrize("name", NAMES)


def op_info(name: str) -> OpInfo:
    return next(op for op in op_db if op.name == f"nn.functional.{name}")


def function(name: str):
    return getattr(torch_ops.functional, name)


def samples(
    name: str, dtype: torch.dtype = torch.float64, requires_grad: bool = False
) -> list[SampleInput]:
    """Torch's; each is followed by its unbatched twin."""
    return list(op_info(name).sample_inputs("cpu", dtype, requires_grad))


def in_torch(name: str, sample: SampleInput) -> Tensor:
    return op_info(name)(sample.input, *sample.args, **sample.kwargs)


def here(name: str, sample: SampleInput) -> Tensor:
    return function(name)(sample.input, *sample.args, **sample.kwargs)


def differentiable(sample: SampleInput) -> tuple[Tensor, ...]:
    return tuple(
        leaf for leaf in tree_leaves((sample.input, sample.args)) if isinstance(leaf, Tensor)
    )


def of_tensors(name: str, sample: SampleInput):
    """The sample's call as a function of its tensors alone, as gradcheck wants it."""

    def call(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return function(name)(input, weight, bias, **sample.kwargs)

    return call


@every_function
def test_there_are_samples(name: str) -> None:
    assert len(samples(name)) >= 8
    assert {sample.input.dim() - sample.args[0].dim() for sample in samples(name)} == {0, -1}


def mapped(sample: SampleInput, change: Callable[[Tensor], Tensor]) -> SampleInput:
    return sample.transform(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf)


@every_function
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_values(name: str, dtype: torch.dtype) -> None:
    """Within roundings of the exact sum, where torch's own float32 and 16-bit results are not."""
    for sample in samples(name, dtype):
        result = here(name, sample)
        exact = in_torch(name, mapped(sample, Tensor.double))
        magnitude = in_torch(name, mapped(sample, lambda tensor: tensor.abs().double()))
        assert ((result - exact).abs() <= 4 * torch.finfo(dtype).eps * magnitude).all()
        assert result.dtype == dtype
        assert result.stride() == in_torch(name, sample).stride()


@every_function
@pytest.mark.parametrize("dtype", IN_TORCH, ids=str)
def test_torch_computes_other_dtypes(name: str, dtype: torch.dtype) -> None:
    for sample in samples(name, dtype):
        assert torch.equal(here(name, sample), in_torch(name, sample))


@every_function
def test_it_is_not_torch_that_computes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every float sample reaches the operators."""
    from torch_ops import functional_call

    monkeypatch.setattr(functional_call, "_CONV", (None,) * 3)
    monkeypatch.setattr(functional_call, "_CONV_TRANSPOSE", (None,) * 3)
    for dtype in FLOATS:
        for sample in samples(name, dtype):
            here(name, sample)


@every_function
def test_noncontiguous(name: str) -> None:
    for sample in samples(name, requires_grad=True):
        strided = sample.noncontiguous()
        result, expected = here(name, strided), here(name, sample)
        torch.testing.assert_close(result, expected)
        cotangent = torch.randn_like(expected)
        grads = [
            torch.autograd.grad(output, differentiable(one), cotangent)
            for one, output in ((strided, result), (sample, expected))
        ]
        torch.testing.assert_close(*grads)


@every_function
def test_gradients_are_torch_s(name: str) -> None:
    for sample in samples(name, torch.float32, requires_grad=True):
        expected, result = in_torch(name, sample), here(name, sample)
        cotangent = torch.randn_like(expected)
        grads = [
            torch.autograd.grad(output, differentiable(sample), cotangent)
            for output in (result, expected)
        ]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


@every_function
def test_gradcheck(name: str) -> None:
    for sample in samples(name, requires_grad=True):
        assert gradcheck(
            of_tensors(name, sample),
            differentiable(sample),
            fast_mode=True,
            check_grad_dtypes=True,
            check_undefined_grad=True,
            check_batched_grad=True,
            check_forward_ad=True,
            check_batched_forward_grad=True,
        )


@every_function
def test_gradgradcheck(name: str) -> None:
    for sample in samples(name, requires_grad=True):
        assert gradgradcheck(
            of_tensors(name, sample),
            differentiable(sample),
            gen_non_contig_grad_outputs=True,
            fast_mode=True,
            check_grad_dtypes=True,
            check_batched_grad=True,
            check_fwd_over_rev=True,
        )


def batched(sample: SampleInput) -> Iterator[tuple[tuple[Tensor | None, ...], tuple]]:
    """Arguments and in_dims: each non-empty set of the tensors batched, along its own dimension."""
    tensors = (sample.input, *sample.args)
    places = [(None,) if tensor is None else (None, 0, -1) for tensor in tensors]
    for in_dims in itertools.product(*places):
        if all(dim is None for dim in in_dims):
            continue
        yield (
            tuple(
                tensor if dim is None else torch.stack([tensor, 2 * tensor, tensor.flip(0)], dim)
                for tensor, dim in zip(tensors, in_dims, strict=True)
            ),
            in_dims,
        )


@every_function
def test_vmap(name: str) -> None:
    for index, sample in enumerate(samples(name)):
        call = of_tensors(name, sample)
        for tensors, in_dims in list(batched(sample))[index % 3 :: 3]:
            slices = [
                [
                    None if tensor is None else tensor if dim is None else tensor.select(dim, i)
                    for tensor, dim in zip(tensors, in_dims, strict=True)
                ]
                for i in range(3)
            ]
            expected = torch.stack([call(*one) for one in slices])
            torch.testing.assert_close(torch.vmap(call, in_dims)(*tensors), expected)


@every_function
def test_vmap_of_grad(name: str) -> None:
    """The gradients of each example, as functorch's tests take them (test_vmapvjp)."""
    for sample in samples(name)[::2]:
        call, tensors = of_tensors(name, sample), differentiable(sample)
        pullback = torch.func.vjp(call, *tensors)[1]
        cotangents = torch.randn(3, *call(*tensors).shape, dtype=torch.float64)
        expected = [torch.stack(parts) for parts in zip(*map(pullback, cotangents), strict=True)]
        torch.testing.assert_close(list(torch.vmap(pullback)(cotangents)), expected)


@every_function
@torch._dynamo.config.patch(specialize_int=True)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compile(name: str, dynamic: bool) -> None:
    """Dynamic in the sizes: symbolic strides and pads make torch 2.13's guards slow, not wrong."""
    for sample in samples(name, requires_grad=True)[:: 4 if dynamic else 2]:
        torch._dynamo.reset()
        call, tensors = of_tensors(name, sample), differentiable(sample)
        compiled = torch.compile(call, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        expected, result = call(*tensors), compiled(*tensors)
        torch.testing.assert_close(result, expected)
        assert result.stride() == expected.stride()
        cotangent = torch.randn_like(expected)
        torch.testing.assert_close(
            torch.autograd.grad(result, tensors, cotangent),
            torch.autograd.grad(expected, tensors, cotangent),
        )


@every_function
def test_fake_tensors(name: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    for sample in samples(name, torch.float32):
        expected = here(name, sample)
        with FakeTensorMode() as mode:
            result = here(name, mapped(sample, mode.from_tensor))
        assert (result.shape, result.stride(), result.dtype) == (
            expected.shape,
            expected.stride(),
            expected.dtype,
        )


@every_function
def test_negated_views(name: str) -> None:
    for sample in samples(name):
        negated = mapped(sample, lambda tensor: torch._neg_view(-tensor))
        torch.testing.assert_close(here(name, negated), here(name, sample))


def error_inputs() -> Iterator[tuple[str, ErrorInput]]:
    for name in NAMES:
        if op_info(name).error_inputs_func is not None:
            for error in op_info(name).error_inputs("cpu"):
                yield name, error


ERRORS = list(error_inputs())


def test_there_are_error_inputs() -> None:
    assert {name for name, _ in ERRORS} == {"conv1d", "conv2d", "conv3d"}


@pytest.mark.parametrize(
    ("name", "error"), ERRORS, ids=[f"{name}-{error.error_regex[:40]}" for name, error in ERRORS]
)
def test_errors(name: str, error: ErrorInput) -> None:
    with pytest.raises(error.error_type, match=error.error_regex):
        here(name, error.sample_input)
