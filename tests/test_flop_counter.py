"""FlopCounterMode counts for the operators what it counts for torch's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from samples import CASES, Case
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import torch_ops.functional

# Above the operators: once is enough.
pytestmark = [pytest.mark.unforced, pytest.mark.filterwarnings("ignore")]

FUNCTIONS = [f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)]


def counted(function: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def multiply_adds(case: Case) -> int:
    """Of the trilinear form: images, windows, taps, and the channels of each group."""
    windows = case.src if case.operator.transposed else case.dst
    terms = case.batch * case.groups * case.ic_per_group * case.oc_per_group
    for axis in range(case.spatial):
        terms *= windows[axis] * case.kernel[axis]
    return terms


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_operator(case: Case) -> None:
    """Twice the multiply-adds; torch counts all pairs of channels in a weights gradient."""
    expected = 2 * multiply_adds(case)
    if case.operator.result == "w":
        expected *= case.groups
    assert counted(lambda: case.call(*case.tensors())) == expected


@pytest.mark.parametrize("kind", ["real", "fake", "meta"])
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_torch_s(name: str, groups: int, data_format: str, kind: str) -> None:
    """Forward and backward, and all that differentiates the backward."""
    rank, transposed = int(name[-2]), "transpose" in name
    channels = (4, 6 // groups) if transposed else (6, 4 // groups)
    shapes = (2, 4, *(7, 5, 6)[:rank]), (*channels, *(3, 2, 1)[:rank]), (6,)
    attributes = {"stride": 2, "padding": 1, "dilation": (2, 1, 1)[:rank], "groups": groups}
    if transposed:
        attributes["output_padding"] = 1

    def count(function: Callable[..., Tensor], movedim: bool, orders: int) -> int:
        x, weight, bias = (torch.randn(shape) for shape in shapes)
        if movedim:
            x = x.movedim(1, -1).contiguous()
        tensors = [tensor.to("meta") if kind == "meta" else tensor for tensor in (x, weight, bias)]
        if kind == "fake":
            mode = FakeTensorMode()
            tensors = [mode.from_tensor(tensor) for tensor in tensors]
        tensors = [tensor.requires_grad_() for tensor in tensors]

        def run() -> None:
            value = function(*tensors, **attributes)
            for _ in range(orders):
                gradients = torch.autograd.grad(value.square().sum(), tensors, create_graph=True)
                value = gradients[0]

        return counted(run)

    def ours(*tensors: Tensor, **attributes) -> Tensor:
        function = getattr(torch_ops.functional, name)
        return function(*tensors, **attributes, data_format=data_format)

    for orders in (0, 1):
        expected = count(getattr(F, name), False, orders)
        assert expected > 0
        assert count(ours, data_format == "NXC", orders) == expected


def test_pads_that_differ() -> None:
    """Those of the equivalent convolution of torch, which convolves zeros too."""
    x, weight = torch.randn(2, 4, 7, 8), torch.randn(6, 4, 3, 3)
    ours = counted(lambda: torch_ops.functional.conv2d(x, weight, padding=((0, 2), (1, 3))))
    assert ours == counted(lambda: F.conv2d(F.pad(x, (1, 3, 0, 2)), weight))
    weight = torch.randn(4, 6, 3, 3)
    ours = counted(lambda: torch_ops.functional.conv_transpose2d(x, weight, None, 2, "same"))
    assert ours == counted(lambda: F.conv_transpose2d(x, weight, None, 2))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_compiled(name: str, backend: str) -> None:
    x, weight = torch.randn(2, 4, 6, 6), torch.randn(4, 4, 3, 3, requires_grad=True)

    def count(function: Callable[..., Tensor]) -> int:
        torch._dynamo.reset()
        compiled = torch.compile(lambda: function(x, weight).sum(), backend=backend)
        compiled()
        return counted(lambda: compiled().backward())

    assert count(getattr(torch_ops.functional, name)) == count(getattr(F, name)) > 0


def test_by_module() -> None:
    """Under the modules' names, forward and backward."""
    totals = []
    for nn in (torch.nn, torch_ops.nn):
        model = torch.nn.Sequential(nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 3, 3, 2))
        with FlopCounterMode(display=False) as counter:
            model(torch.randn(2, 3, 8, 8)).sum().backward()
        totals.append({name: sum(c.values()) for name, c in counter.get_flop_counts().items()})
    assert totals[0] == totals[1]
    assert set(totals[0]) == {"Global", "Sequential", "Sequential.0", "Sequential.1"}
