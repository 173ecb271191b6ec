"""torch_ops.convert: which modules it swaps, which not, and that nothing else changes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import torch_ops

# Above the operators: once is enough.
pytestmark = pytest.mark.unforced


class WeightStandardized(nn.Conv2d):
    """A convolution that computes something else."""

    def forward(self, input):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(input, weight, self.bias)


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
        nn.ReLU(),
        nn.ModuleDict({"up": nn.ConvTranspose2d(4, 3, 4, 2, 1)}),
        WeightStandardized(3, 4, 3),
    )


def run(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model[3](model[2]["up"](model[1](model[0](x))))


def test_swapped_and_kept() -> None:
    network, x = model(), torch.randn(2, 3, 8, 8)
    expected = run(network, x)
    report = torch_ops.convert(network)
    assert report.swapped == {"0": "Conv2d", "2.up": "ConvTranspose2d"}
    assert report.kept == {
        "3": "is a test_convert.WeightStandardized, which may differ from its base class"
    }
    assert type(network[0]) is torch_ops.nn.Conv2d
    assert type(network[2]["up"]) is torch_ops.nn.ConvTranspose2d
    assert type(network[3]) is WeightStandardized
    torch.testing.assert_close(run(network, x), expected, rtol=1e-4, atol=1e-5)


def test_report() -> None:
    assert str(torch_ops.convert(model())).splitlines() == [
        "2 of 3 convolutions swapped",
        "  0: Conv2d",
        "  2.up: ConvTranspose2d",
        "kept:",
        "  3: is a test_convert.WeightStandardized, which may differ from its base class",
    ]
    assert str(torch_ops.convert(nn.ReLU())) == "0 of 0 convolutions swapped"
    assert "(the model): Conv2d" in str(torch_ops.convert(nn.Conv2d(1, 1, 1)))


@pytest.mark.parametrize("name", torch_ops.nn.__all__)
def test_every_class(name: str) -> None:
    module = getattr(nn, name)(2, 3, 3)
    x = torch.randn(1, 2, *[5] * int(name[-2]))
    expected = module(x)
    assert torch_ops.convert(module).swapped == {"": name}
    assert type(module) is getattr(torch_ops.nn, name)
    torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_identity_state_and_hooks_stay() -> None:
    network, x = model(), torch.randn(2, 3, 8, 8)
    calls = []
    first = network[0]
    first.register_forward_hook(lambda *_: calls.append("forward"))
    first.register_forward_pre_hook(lambda *_: calls.append("before"))
    first.register_full_backward_hook(lambda *_: calls.append("backward"))
    first.weight.register_hook(lambda _: calls.append("weight"))
    first.eval()
    first.weight.requires_grad_(True)
    first.bias.requires_grad_(False)
    first.note = "mine"
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad])
    before = {name: (id(p), p.requires_grad) for name, p in network.named_parameters()}
    state = {name: value.clone() for name, value in network.state_dict().items()}
    torch_ops.convert(network)
    assert network[0] is first
    assert before == {name: (id(p), p.requires_grad) for name, p in network.named_parameters()}
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
    assert first.note == "mine"
    assert not first.training
    assert network[2].training
    run(network, x).sum().backward()
    assert sorted(calls) == ["backward", "before", "forward", "weight"]
    optimizer.step()
    assert not torch.equal(first.weight, state["0.weight"])


def test_twice() -> None:
    network = model()
    torch_ops.convert(network)
    report = torch_ops.convert(network)
    assert report.swapped == {}
    assert report.kept["0"] == "is a torch_ops.nn.Conv2d already"


def test_shared_modules_are_swapped_once() -> None:
    shared = nn.Conv1d(2, 2, 3)
    network = nn.Sequential(shared, shared)
    assert torch_ops.convert(network).swapped == {"0": "Conv1d"}
    assert network[1] is network[0]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("change", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrized_modules(change) -> None:
    network = nn.Sequential(change(nn.Conv2d(2, 3, 3).eval()))
    other = copy.deepcopy(network)
    x = torch.randn(1, 2, 5, 5)
    expected = network.eval()(x)
    assert torch_ops.convert(network).swapped == {"0": "Conv2d"}
    assert type(network[0]).__mro__[1] is torch_ops.nn.Conv2d
    assert parametrize.is_parametrized(network[0], "weight")
    torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-5)
    assert "already" in torch_ops.convert(network).kept["0"]
    assert not isinstance(other[0], torch_ops.nn.Conv2d)  # a copy shares no class with it
    copy.deepcopy(network)(x)
    parametrize.remove_parametrizations(network[0], "weight")
    assert type(network[0]) is torch_ops.nn.Conv2d
    torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-5)


def test_parametrizations_are_not_computed() -> None:
    """A spectral norm in training mode takes a step whenever its weight is asked for."""
    module = parametrizations.spectral_norm(nn.Conv2d(2, 3, 3))
    state = copy.deepcopy(module.state_dict())
    assert torch_ops.convert(module).swapped
    for name, value in module.state_dict().items():
        assert torch.equal(value, state[name]), name


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("change", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_reparametrized_by_hooks(change) -> None:
    module = change(nn.Conv2d(2, 3, 3)).eval()
    x = torch.randn(1, 2, 5, 5)
    expected = module(x)
    assert torch_ops.convert(module).swapped
    torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-5)


def test_lazy_modules() -> None:
    network = nn.Sequential(nn.LazyConv2d(3, 3), nn.LazyConvTranspose2d(2, 3))
    kept = torch_ops.convert(network).kept
    assert kept["0"].startswith("is a LazyConv2d without weights; convert again")
    assert kept["1"].startswith("is a LazyConvTranspose2d without weights")
    network(torch.randn(1, 2, 5, 5))
    assert set(torch_ops.convert(network).swapped) == {"0", "1"}
    network(torch.randn(1, 2, 5, 5))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_modules() -> None:
    network = torch.jit.script(nn.Sequential(nn.Conv2d(2, 3, 3)))
    assert torch_ops.convert(network).kept == {"0": "is compiled by torch.jit"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"dtype": torch.complex64},
            "has weight of torch.complex64 on cpu (torch.strided, Parameter)",
        ),
        ({"dtype": torch.float8_e4m3fn}, "has weight of torch.float8_e4m3fn on cpu"),
    ],
)
def test_weights_that_torch_computes(options: dict, reason: str) -> None:
    module = nn.utils.skip_init(nn.Conv2d, 2, 3, 3, **options)
    assert torch_ops.convert(module).kept[""].startswith(reason)
    assert type(module) is nn.Conv2d


def test_meta_modules() -> None:
    """Built without memory, as large models are, and loaded later."""
    network = nn.Sequential(nn.Conv2d(2, 3, 3, device="meta"))
    assert torch_ops.convert(network).swapped == {"0": "Conv2d"}
    network.to_empty(device="cpu")
    assert network(torch.randn(1, 2, 5, 5)).shape == (1, 3, 3, 3)


def test_compiled_model() -> None:
    torch._dynamo.reset()
    network, x = nn.Sequential(nn.Conv2d(2, 3, 3)), torch.randn(1, 2, 5, 5)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    expected = compiled(x)
    assert torch_ops.convert(compiled).swapped == {"_orig_mod.0": "Conv2d"}
    torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-5)


def test_symbolic_trace() -> None:
    """torch.fx records calls of the functions."""
    network, x = (
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.ConvTranspose2d(3, 2, 3)),
        torch.ones(1, 2, 5, 5),
    )
    torch_ops.convert(network)
    traced = torch.fx.symbolic_trace(network)
    assert torch.equal(traced(x), network(x))
    functions = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert functions == [torch_ops.functional.conv2d, torch_ops.functional.conv_transpose2d]


def test_training_is_torch_s() -> None:
    torch.manual_seed(0)
    networks = [model() for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    torch_ops.convert(networks[1])
    x = torch.randn(2, 3, 8, 8)
    losses = []
    for network in networks:
        optimizer = torch.optim.Adam(network.parameters(), 1e-2)
        for _ in range(5):
            optimizer.zero_grad()
            loss = run(network, x).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_not_a_module() -> None:
    with pytest.raises(TypeError, match="model is list; expected a torch"):
        torch_ops.convert([nn.Conv2d(1, 1, 1)])
