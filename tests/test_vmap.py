"""vmap of every operator: one call, equal to the loop over the batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from samples import CASES, Case, one_each
from torch import Tensor

import torch_ops.functional

BATCH = 3
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # functorch's own


@pytest.fixture(autouse=True)
def no_loops() -> Iterator[None]:
    """A call that vmap would loop over raises."""
    torch._C._functorch._set_vmap_fallback_enabled(False)
    yield
    torch._C._functorch._set_vmap_fallback_enabled(True)


def in_dims_of(case: Case) -> list[tuple[int | None, ...]]:
    """Which tensors are batched, and along which of their dimensions."""
    dims: list[tuple[int | None, ...]] = [(0, None), (None, 0), (0, 0), (1, -1)]
    if not case.bias:
        return dims
    return [(*both, bias) for both in dims for bias in (None, 0, 1)] + [(None, None, 0)]


def stacked(case: Case, in_dims: tuple[int | None, ...]) -> list[Tensor]:
    parts = [case.tensors(seed=seed, integers=True) for seed in range(BATCH)]
    return [
        tensors[0] if dim is None else torch.stack(tensors, dim)
        for tensors, dim in zip(zip(*parts, strict=True), in_dims, strict=True)
    ]


def looped(call, tensors: list[Tensor], in_dims: tuple[int | None, ...]) -> Tensor:
    return torch.stack(
        [
            call(
                *(
                    tensor if dim is None else tensor.select(dim, index)
                    for tensor, dim in zip(tensors, in_dims, strict=True)
                )
            )
            for index in range(BATCH)
        ]
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_vmap_is_the_loop(case: Case) -> None:
    for in_dims in in_dims_of(case):
        tensors = stacked(case, in_dims)
        result = torch.vmap(case.call, in_dims)(*tensors)
        assert torch.equal(result, looped(case.call, tensors, in_dims)), in_dims


@pytest.mark.parametrize("case", one_each(), ids=str)
def test_nested(case: Case) -> None:
    """One tensor in the outer vmap, the other one in the inner, and both in both."""
    first, second = case.tensors(integers=True)
    a, b = torch.stack([first, first + 1]), torch.stack([second, second - 1, 2 * second])
    result = torch.vmap(lambda a: torch.vmap(lambda b: case.call(a, b))(b))(a)
    expected = torch.stack([torch.stack([case.call(one, other) for other in b]) for one in a])
    assert torch.equal(result, expected)
    result = torch.vmap(torch.vmap(case.call))(torch.stack([a, a]), torch.stack([b[:2], b[1:]]))
    expected = [[case.call(one, other) for one, other in zip(a, c, strict=True)]
                for c in (b[:2], b[1:])]  # fmt: skip
    assert torch.equal(result, torch.stack([torch.stack(row) for row in expected]))


@pytest.mark.parametrize("case", one_each(), ids=str)
def test_tensors_of_the_outer_vmap_alone(case: Case) -> None:
    first, second = stacked(case, (0, 0))
    scales = torch.arange(5).double()
    result = torch.vmap(
        lambda first, second: torch.vmap(lambda scale: scale * case.call(first, second))(scales)
    )(first, second)
    expected = torch.vmap(case.call)(first, second)
    assert torch.equal(result, torch.stack([scale * expected for scale in scales], 1))


@pytest.mark.parametrize("case", one_each(), ids=str)
def test_derivatives(case: Case) -> None:
    """grad in vmap and vmap in grad, through one level and two."""
    first, second = (
        torch.stack(part)
        for part in zip(*(case.tensors(seed=seed) for seed in range(BATCH)), strict=True)
    )

    def gradient(first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        return torch.func.grad(lambda *both: case.call(*both).sin().sum(), (0, 1))(first, second)

    def second_order(first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        return torch.func.grad(
            lambda *both: sum(part.cos().sum() for part in gradient(*both)), (0, 1)
        )(first, second)

    for function in (gradient, second_order):
        expected = [
            torch.stack(parts)
            for parts in zip(*map(function, first, second), strict=True)
        ]  # fmt: skip
        torch.testing.assert_close(list(torch.vmap(function)(first, second)), expected)
        whole = torch.func.grad(
            lambda first, second: torch.vmap(case.call)(first, second).sin().sum(), (0, 1)
        )(first, second)
        if function is gradient:
            torch.testing.assert_close(list(whole), expected)


@pytest.mark.parametrize("case", one_each(), ids=str)
def test_jacobians(case: Case) -> None:
    """jacrev and jacfwd, which are vmaps, against torch.autograd's loop."""
    tensors = case.tensors()
    expected = torch.autograd.functional.jacobian(case.call, tensors)
    torch.testing.assert_close(torch.func.jacrev(case.call, (0, 1))(*tensors), expected)
    torch.testing.assert_close(torch.func.jacfwd(case.call, (0, 1))(*tensors), expected)


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_per_sample_gradients(name: str, data_format: str) -> None:
    """Of weights and bias, for each image of a batch."""
    function = getattr(torch_ops.functional, name)
    weight, bias = torch.randn(4, 4, 3, 3, dtype=torch.float64), torch.randn(4).double()
    images = torch.randn(5, 4, 6, 6, dtype=torch.float64)
    if data_format == "NXC":
        images = images.movedim(1, -1)

    def loss(weight: Tensor, bias: Tensor, image: Tensor) -> Tensor:
        return function(image, weight, bias, 2, 1, data_format=data_format).square().sum()

    gradient = torch.func.grad(loss, (0, 1))
    result = torch.vmap(gradient, (None, None, 0))(weight, bias, images)
    expected = [
        torch.stack(parts)
        for parts in zip(*(gradient(weight, bias, image) for image in images), strict=True)
    ]
    torch.testing.assert_close(list(result), expected)


@pytest.mark.unforced
@pytest.mark.parametrize("case", one_each(), ids=str)
def test_compiled(case: Case) -> None:
    torch._dynamo.reset()
    tensors = stacked(case, (0, 0))
    compiled = torch.compile(torch.vmap(case.call), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*tensors), torch.vmap(case.call)(*tensors))


def test_memory_format() -> None:
    """Images that are channels_last stay it."""
    images = torch.randn(2, 3, 4, 6, 6).movedim(2, -1).contiguous().movedim(-1, 2)
    weight = torch.randn(4, 4, 3, 3)
    result = torch.vmap(torch_ops.functional.conv2d, (0, None))(images, weight)
    assert result[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("case", one_each(), ids=str)
def test_no_calls(case: Case) -> None:
    for in_dims in in_dims_of(case):
        tensors = [
            tensor if dim is None else tensor.narrow(dim, 0, 0)
            for tensor, dim in zip(stacked(case, in_dims), in_dims, strict=True)
        ]
        result = torch.vmap(case.call, in_dims)(*tensors)
        assert result.shape == (0, *case.call(*case.tensors()).shape)


def test_errors_are_those_of_one_call() -> None:
    (case,) = [case for case in one_each() if case.op == "convolution"]
    first, second = stacked(case, (0, 0))
    with pytest.raises(
        RuntimeError, match=r"convtbw::convolution: weights is \[.*\] in format OIX"
    ):
        torch.vmap(case.call)(first, second[:, :, :1].expand(-1, -1, 3, -1, -1))
    with pytest.raises(RuntimeError, match="convtbw::convolution: weights has dtype"):
        torch.vmap(case.call)(first, second.float())


def test_shape_tensors() -> None:
    (case,) = [case for case in one_each() if case.op == "convolution_backward_weights"]
    tensors, attributes = stacked(case, (0, 0)), case.kwargs()
    shape = torch.tensor(attributes.pop("weights_shape"))
    operator = torch.ops.convtbw.convolution_backward_weights
    result = torch.vmap(lambda *both: operator(*both, shape, **attributes))(*tensors)
    assert torch.equal(result, torch.vmap(case.call)(*tensors))
    with pytest.raises(RuntimeError, match="weights_shape_tensor is batched; expected one shape"):
        torch.vmap(lambda *three: operator(*three, **attributes))(*tensors, shape.expand(BATCH, -1))
