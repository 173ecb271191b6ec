"""Under torch.autocast the operators are cast as torch's convolutions are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torch_ops.functional

# Above the operators: once is enough.
pytestmark = [pytest.mark.unforced, pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")]

RAW = {
    "conv2d": lambda x, w, b=None: torch.ops.convtbw.convolution(
        x, w, b, strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1],
        data_format="NCX", weights_format="OIX",
    ),
    "conv_transpose2d": lambda x, w, b=None: torch.ops.convtbw.conv_transpose(
        x, w, b, strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1],
        data_format="NCX", weights_format="IOX",
    ),
}  # fmt: skip
TOLERANCE = {"rtol": 2e-2, "atol": 2e-2}


def in_words_of_torch(name: str, module) -> Callable[..., Tensor]:
    return lambda x, w, b=None: getattr(module, name)(x, w, b, 2, 1)


# The operator, the function here, the one of torch.
Three = tuple[Callable[..., Tensor], ...]


@pytest.fixture(params=["conv2d", "conv_transpose2d"])
def three(request: pytest.FixtureRequest) -> Three:
    name = request.param
    return RAW[name], *(in_words_of_torch(name, module) for module in (torch_ops.functional, F))


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=str)
def autocast(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    with torch.autocast("cpu", request.param):
        yield request.param


def tensors(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, 6, 6), (4, 4, 3, 3), (4,)
    return tuple(
        torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes
    )


def test_forward(three: Three, autocast: torch.dtype) -> None:
    *ours, torch_s = three
    expected = torch_s(*tensors())
    for function in ours:
        result = function(*tensors())
        assert result.dtype == expected.dtype == autocast
        torch.testing.assert_close(result, expected, **TOLERANCE)


def test_mixed_tensors(three: Three, autocast: torch.dtype) -> None:
    x, w, b = tensors()
    for function in three:
        for one in (x.to(autocast), x.half(), x.bfloat16()):
            assert function(one, w, b).dtype == autocast
        assert function(x, w.to(autocast), b).dtype == autocast
        assert function(x, w, b.to(autocast)).dtype == autocast


def test_float64_is_left_as_it_is(three: Three, autocast: torch.dtype) -> None:
    for function in three:
        assert function(*tensors(torch.float64)).dtype == torch.float64
        with pytest.raises(RuntimeError):
            function(tensors(torch.float64)[0], *tensors()[1:])


def test_nothing_is_cast_where_it_is_disabled(three: Three, autocast: torch.dtype) -> None:
    for function in three:
        with torch.autocast("cpu", enabled=False):
            assert function(*tensors()).dtype == torch.float32
            with torch.autocast("cpu", torch.bfloat16):
                assert function(*tensors()).dtype == torch.bfloat16
                with torch.autocast("cpu", torch.float16):
                    assert function(*tensors()).dtype == torch.float16
                assert function(*tensors()).dtype == torch.bfloat16
            assert function(*tensors()).dtype == torch.float32
        assert function(*tensors()).dtype == autocast


def gradients(function: Callable[..., Tensor], inside: bool) -> list[Tensor]:
    """Of first and second order; the backward inside autocast too, or not."""
    leaves = tensors()
    with torch.autocast("cpu", torch.bfloat16):
        result = function(*leaves)
    with torch.autocast("cpu", torch.bfloat16, enabled=inside):
        first = torch.autograd.grad(result.float().square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), leaves[:2])
    return [*first, *second]


@pytest.mark.parametrize("inside", [False, True])
def test_backward_and_double_backward(three: Three, inside: bool) -> None:
    *ours, torch_s = three
    expected = gradients(torch_s, inside)
    for function in ours:
        result = gradients(function, inside)
        assert [part.dtype for part in result] == [torch.float32] * 5
        for part, other in zip(result, expected, strict=True):
            assert (part - other).abs().max() <= 3e-2 * other.abs().max()


def test_a_float32_forward_keeps_its_gradients(three: Three, autocast: torch.dtype) -> None:
    """The gradients are not on autocast's list: they take what the forward saved."""
    for function in three:
        leaves = tensors()
        with torch.autocast("cpu", enabled=False):
            result = function(*leaves)
            expected = torch.autograd.grad(result.sum(), leaves, retain_graph=True)
        for part, other in zip(torch.autograd.grad(result.sum(), leaves), expected, strict=True):
            assert torch.equal(part, other)


def casts(function: Callable[..., Tensor], calls: int) -> int:
    x, w, b = tensors()
    with (
        torch.profiler.profile() as profiler,
        torch.autocast("cpu", torch.bfloat16),
    ):
        for _ in range(calls):
            function(x.detach(), w, b)
    return sum(event.name == "aten::_to_copy" for event in profiler.events())


def test_weights_are_cast_once(three: Three) -> None:
    """In one block, as autocast caches what it casts for torch's."""
    for function in three:
        assert casts(function, 1) == 3
        assert casts(function, 4) == 4 + 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(three: Three, dynamic: bool) -> None:
    for function in three[:2]:
        torch._dynamo.reset()

        def program(*tensors: Tensor, function=function) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return function(*tensors)

        compiled = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        leaves = tensors()
        result, expected = compiled(*leaves), program(*leaves)
        assert result.dtype == torch.bfloat16
        assert torch.equal(result, expected)
        for part, other in zip(
            torch.autograd.grad(result.float().sum(), leaves),
            torch.autograd.grad(expected.float().sum(), leaves),
            strict=True,
        ):
            torch.testing.assert_close(part, other)


def test_vmap_and_forward_mode(three: Three, autocast: torch.dtype) -> None:
    x, w, b = (tensor.detach() for tensor in tensors())
    for function in three[:2]:
        result = torch.vmap(function, (0, None, None))(torch.stack([x, x]), w, b)
        assert torch.equal(result, torch.stack([function(x, w, b)] * 2))
        _, tangent = torch.func.jvp(lambda x, f=function: f(x, w, b), (x,), (x,))
        torch.testing.assert_close(tangent, function(x, w), **TOLERANCE)
