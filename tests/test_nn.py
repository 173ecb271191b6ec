"""torch_ops.nn: torch's modules in everything but who computes."""

from __future__ import annotations

import copy
import inspect
import io
import itertools
import pickle
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parametrizations, parametrize

import torch_ops.nn

# Above the operators: once is enough.
pytestmark = pytest.mark.unforced

NAMES = torch_ops.nn.__all__
every_module = pytest.mark.parametrize("name", NAMES)

# Constructor's arguments beyond channels and kernel.
OPTIONS: dict[str, list[dict]] = {
    "Conv": [
        {},
        {"stride": 2, "padding": 1, "dilation": 2, "groups": 2, "bias": False},
        {"padding": "same"},
        {"padding": "valid", "stride": 2},
        {"padding": 1, "padding_mode": "reflect"},
        {"padding": "same", "padding_mode": "circular"},
        {"padding": 2, "padding_mode": "replicate", "stride": 2},
        {"dtype": torch.float64, "device": "cpu"},
    ],
    "ConvTranspose": [
        {},
        {"stride": 3, "padding": 1, "output_padding": 2, "groups": 2, "bias": False},
        {"stride": 2, "dilation": 2, "padding_mode": "zeros"},
        {"dtype": torch.float64, "device": "cpu"},
    ],
}
CASES = [(name, options) for name in NAMES for options in OPTIONS[name.removesuffix(name[-2:])]]
every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=str)


def both(name: str, options: dict) -> tuple[torch.nn.Module, torch.nn.Module]:
    torch.manual_seed(0)
    mine = getattr(torch_ops.nn, name)(4, 6, 3, **options)
    torch.manual_seed(0)
    return mine, getattr(torch.nn, name)(4, 6, 3, **options)


def example(name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(2, 4, *[6] * int(name[-2]), dtype=dtype)


@every_case
def test_module(name: str, options: dict) -> None:
    mine, torch_s = both(name, options)
    assert isinstance(mine, type(torch_s))
    assert repr(mine) == repr(torch_s)
    for (key, value), (other, expected) in zip(
        mine.state_dict().items(), torch_s.state_dict().items(), strict=True
    ):
        assert key == other
        assert torch.equal(value, expected)  # initialised alike, from the same random numbers
    x = example(name, options.get("dtype", torch.float32))
    for one in (x, x[0]):
        result, expected = mine(one), torch_s(one)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    result.square().sum().backward()
    expected.square().sum().backward()
    for parameter, other in zip(mine.parameters(), torch_s.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-3, atol=1e-3)


@every_module
def test_constructor(name: str) -> None:
    mine, torch_s = (inspect.signature(getattr(nn, name)) for nn in (torch_ops.nn, torch.nn))
    assert list(mine.parameters) == list(torch_s.parameters)
    for parameter, other in zip(mine.parameters.values(), torch_s.parameters.values(), strict=True):
        assert (parameter.kind, parameter.default) == (other.kind, other.default)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 3}, "in_channels must be divisible by groups"),
        ({"groups": 0}, "groups must be a positive integer"),
        ({"padding": "full"}, "Invalid padding string 'full'"),
        ({"padding_mode": "mirror"}, "padding"),
    ],
)
@every_module
def test_constructor_s_errors(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(torch_ops.nn, name)(4, 6, 3, **options)


def test_errors_of_the_call() -> None:
    with pytest.raises(ValueError, match="'same' is not supported for strided"):
        torch_ops.nn.Conv2d(4, 6, 3, stride=2, padding="same")
    with pytest.raises(RuntimeError, match="to have 4 channels, but got 3 channels instead"):
        torch_ops.nn.Conv2d(4, 6, 3)(torch.randn(1, 3, 5, 5))
    module = torch_ops.nn.ConvTranspose2d(4, 6, 3)
    module.padding_mode = "reflect"
    with pytest.raises(ValueError, match="Only `zeros` padding mode is supported for ConvTransp"):
        module(torch.randn(1, 4, 5, 5))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("options", [{"stride": 3}, {"stride": 3, "padding": 1, "dilation": 2}])
def test_output_size(rank: int, options: dict) -> None:
    """Taken and refused as by torch's module."""
    mine, torch_s = both(f"ConvTranspose{rank}d", {**options, "output_padding": 1})
    x = example(f"ConvTranspose{rank}d")
    taken = 0
    for size in itertools.product(range(15, 24), repeat=1):
        size = size * rank
        for one, whole in ((x, [2, 6, *size]), (x[0], [6, *size])):
            for output_size in (list(size), whole):
                try:
                    expected = torch_s(one, output_size=output_size)
                except ValueError:
                    with pytest.raises(ValueError, match="requested an output size of"):
                        mine(one, output_size=output_size)
                else:
                    taken += 1
                    result = mine(one, output_size)
                    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    assert taken == 3 * 4
    with pytest.raises(ValueError, match="output_size must have"):
        mine(x, output_size=[1] * (rank + 1))


@pytest.mark.parametrize("name", ["Conv2d", "ConvTranspose2d"])
def test_padding_beyond_torch(name: str) -> None:
    pads = ((0, 2), (1, 0))
    module = getattr(torch_ops.nn, name)(4, 6, 3, padding=pads)
    x = example(name)
    function = getattr(torch_ops.functional, name.lower().replace("transpose", "_transpose"))
    expected = function(x, module.weight, module.bias, padding=pads)
    assert torch.equal(module(x), expected)
    assert "padding=((0, 2), (1, 0))" in repr(module)
    module = torch_ops.nn.Conv2d(4, 6, 3, padding=pads, padding_mode="circular")
    around = torch.nn.functional.pad(x, (1, 0, 0, 2), mode="circular")
    expected = torch_ops.functional.conv2d(around, module.weight, module.bias)
    assert torch.equal(module(x), expected)
    module = torch_ops.nn.ConvTranspose2d(4, 6, 3, 2, padding="same")
    assert module(x).shape == (2, 6, 12, 12)
    assert "padding=same" in repr(module)
    assert copy.deepcopy(module)(x).shape == (2, 6, 12, 12)


@every_module
def test_state_dicts_are_exchanged(name: str) -> None:
    mine, torch_s = both(name, {})
    with torch.no_grad():
        torch_s.weight.add_(1)
    mine.load_state_dict(torch_s.state_dict())
    assert torch.equal(mine.weight, torch_s.weight)
    torch_s.load_state_dict(mine.state_dict())


@every_module
def test_copies(name: str) -> None:
    module, x = getattr(torch_ops.nn, name)(4, 6, 3), example(name)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for other in (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(file, weights_only=False),
    ):
        assert type(other) is type(module)
        assert torch.equal(other(x), module(x))


@pytest.mark.parametrize("name", ["Conv2d", "ConvTranspose2d"])
@pytest.mark.parametrize(
    "change",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        parametrizations.orthogonal,
        torch.nn.utils.weight_norm,
        torch.nn.utils.spectral_norm,
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_reparametrizations(name: str, change) -> None:
    mine, torch_s = both(name, {})
    for module in (mine, torch_s):
        torch.manual_seed(0)
        change(module)
    x = example(name)
    torch.testing.assert_close(mine(x), torch_s(x), rtol=1e-4, atol=1e-5)
    mine(x).sum().backward()
    assert all(parameter.grad is not None for parameter in mine.parameters())
    if parametrize.is_parametrized(mine):
        parametrize.remove_parametrizations(mine, "weight")
        assert type(mine) is getattr(torch_ops.nn, name)


@pytest.mark.parametrize("name", ["Conv2d", "ConvTranspose2d"])
def test_memory_format_and_dtype(name: str) -> None:
    mine, torch_s = both(name, {})
    x = example(name).bfloat16()
    for module in (mine, torch_s):
        module.to(torch.bfloat16, memory_format=torch.channels_last)
    result, expected = mine(x), torch_s(x)
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ["Conv2d", "ConvTranspose2d"])
def test_compile_and_export(name: str) -> None:
    torch._dynamo.reset()
    module, x = getattr(torch_ops.nn, name)(4, 6, 3, stride=2, padding=1), example(name)
    expected = module(x)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: batch},), strict=True)
    torch.testing.assert_close(exported.module()(x), expected)
    torch.testing.assert_close(exported.module()(torch.cat([x, x]))[:2], expected)
    assert any("convtbw" in str(node.target) for node in exported.graph.nodes)


def test_functional_call_and_ensembles() -> None:
    """torch.func over a module: per-sample gradients, and several models in one call."""
    module, x = torch_ops.nn.Conv2d(4, 6, 3), example("Conv2d")
    parameters = dict(module.named_parameters())

    def loss(parameters, one):
        return torch.func.functional_call(module, parameters, (one,)).square().sum()

    gradients = torch.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for index, one in enumerate(x):
        expected = torch.autograd.grad(loss(parameters, one), module.weight)[0]
        torch.testing.assert_close(gradients["weight"][index], expected)


def test_expanded_weights() -> None:
    """torch's other way to per-sample gradients, for which torch computes."""
    from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

    mine, torch_s = both("Conv2d", {})
    x = example("Conv2d")
    for module in (mine, torch_s):
        call_for_per_sample_grads(module)(x).square().sum().backward()
    torch.testing.assert_close(
        mine.weight.grad_sample, torch_s.weight.grad_sample, rtol=1e-4, atol=1e-3
    )


def test_sizes_that_are_known_at_run_time_only() -> None:
    """The batch is a count that the traced program computes."""
    torch._dynamo.reset()
    module, x = torch_ops.nn.Conv2d(4, 6, 3), torch.randn(3, 4, 6, 6)
    keep = torch.tensor([True, False, True])
    for images in (x, x.to(memory_format=torch.channels_last)):
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            compiled = torch.compile(
                lambda x, keep: module(x[keep]), backend="aot_eager", fullgraph=True
            )
            result = compiled(images, keep)
        expected = module(images[keep])
        torch.testing.assert_close(result, expected)
        assert result.stride() == expected.stride()


def test_importing_is_enough() -> None:
    """A pickled module loads in a process that has imported only torch."""
    data = pickle.dumps(torch_ops.nn.Conv1d(1, 1, 1))
    script = f"import pickle, torch; print(type(pickle.loads({data!r})).__module__)"
    child = subprocess.run(
        [sys.executable, "-P", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert child.stdout.strip() == "torch_ops.nn"
