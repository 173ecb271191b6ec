"""The gradient helpers of torch_ops.functional, against derivatives that torch takes itself."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torch_ops.functional as ours

# Above the operators: once is enough.
pytestmark = pytest.mark.unforced

RANKS = (1, 2, 3)
FAMILIES = ("conv", "conv_transpose")
EXTENTS = (7, 6, 5)
ATTRIBUTES = (
    {},
    {"stride": 2, "padding": 1},
    {"stride": 3, "padding": 2, "dilation": 2},
    {"stride": 2, "groups": 2},
    {"padding": "same", "dilation": 2},
    {"padding": "valid"},
)
every_case = pytest.mark.parametrize(
    ("family", "rank", "attributes"),
    [
        (family, rank, attributes)
        for family in FAMILIES
        for rank in RANKS
        for attributes in ATTRIBUTES
    ],
    ids=str,
)


def tensors(
    family: str, rank: int, groups: int = 1, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    channels = (4, 6 // groups) if family == "conv_transpose" else (6, 4 // groups)
    x = torch.randn(2, 4, *EXTENTS[:rank], dtype=dtype, requires_grad=True)
    w = torch.randn(*channels, *(3, 2, 3)[:rank], dtype=dtype, requires_grad=True)
    return x, w


def helpers(family: str, rank: int):
    return getattr(ours, f"{family}{rank}d_input"), getattr(ours, f"{family}{rank}d_weight")


def forward(family: str, rank: int, x: Tensor, w: Tensor, attributes: dict) -> Tensor:
    """Torch's, which has no words for transposed convolutions: `valid` is 0 where K > stride."""
    if family == "conv_transpose" and isinstance(attributes.get("padding"), str):
        if attributes["padding"] == "same":
            return getattr(ours, f"{family}{rank}d")(x, w, **attributes)
        attributes = {**attributes, "padding": 0}
    return getattr(F, f"{family}{rank}d")(x, w, **attributes)


@every_case
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_gradients(family: str, rank: int, attributes: dict, batched: bool) -> None:
    x, w = tensors(family, rank, attributes.get("groups", 1))
    x = x if batched else x[0]
    output = forward(family, rank, x, w, attributes)
    cotangent = torch.randn_like(output)
    expected = torch.autograd.grad(output, (x, w), cotangent)
    of_input, of_weight = helpers(family, rank)
    with torch.no_grad():
        result = (
            of_input(x.shape, w, cotangent, **attributes),
            of_weight(x, w.shape, cotangent, **attributes),
        )
        torch.testing.assert_close(result, expected)
        last = cotangent.movedim(-rank - 1, -1), x.movedim(-rank - 1, -1)
        of_last = of_input(last[1].shape, w, last[0], **attributes, data_format="NXC")
        torch.testing.assert_close(of_last.movedim(-1, -rank - 1), expected[0])
        torch.testing.assert_close(
            of_weight(last[1], w.shape, last[0], **attributes, data_format="NXC"), expected[1]
        )


@pytest.mark.parametrize("rank", RANKS)
def test_convolutions_take_what_torch_nn_grad_takes(rank: int) -> None:
    x, w = tensors("conv", rank, 2)
    cotangent = torch.randn_like(getattr(F, f"conv{rank}d")(x, w, None, 2, 1, 2, 2))
    for wanted, arguments in (("input", (x.shape, w)), ("weight", (x, w.shape))):
        torch_s = getattr(torch.nn.grad, f"conv{rank}d_{wanted}")
        mine = getattr(ours, f"conv{rank}d_{wanted}")
        torch.testing.assert_close(
            mine(*arguments, cotangent, 2, 1, 2, 2), torch_s(*arguments, cotangent, 2, 1, 2, 2)
        )
        names = list(inspect.signature(mine).parameters)
        assert names == [*inspect.signature(torch_s).parameters, "data_format"]


@pytest.mark.parametrize("output_padding", [0, 1, 2])
def test_output_padding_follows_from_the_sizes(output_padding: int) -> None:
    x, w = tensors("conv_transpose", 2)
    attributes = {"stride": 3, "padding": 1, "output_padding": output_padding}
    output = F.conv_transpose2d(x, w, **attributes)
    cotangent = torch.randn_like(output)
    expected = torch.autograd.grad(output, (x, w), cotangent)
    for given in (attributes, {"stride": 3, "padding": 1}):
        result = (
            ours.conv_transpose2d_input(x.shape, w, cotangent, **given),
            ours.conv_transpose2d_weight(x, w.shape, cotangent, **given),
        )
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_asymmetric_padding(family: str, dtype: torch.dtype) -> None:
    """Also where torch computes."""
    x, w = tensors(family, 2, dtype=dtype)
    attributes = {"padding": ((0, 2), (1, 3)), "stride": 2}
    output = getattr(ours, f"{family}2d")(x, w, **attributes)
    cotangent = torch.randn_like(output)
    of_input, of_weight = helpers(family, 2)
    with torch.no_grad():
        result = (
            of_input(x.shape, w, cotangent, **attributes),
            of_weight(x, w.shape, cotangent, **attributes),
        )
    torch.testing.assert_close(result, torch.autograd.grad(output, (x, w), cotangent))


@pytest.mark.parametrize("family", FAMILIES)
def test_they_are_differentiable(family: str) -> None:
    x, w = tensors(family, 1, 2)
    cotangent = torch.randn_like(getattr(F, f"{family}1d")(x, w, stride=2, groups=2))
    cotangent.requires_grad_()
    of_input, of_weight = helpers(family, 1)
    arguments = {"stride": 2, "groups": 2}
    assert torch.autograd.gradcheck(
        lambda w, cotangent: of_input(x.shape, w, cotangent, **arguments), (w, cotangent)
    )
    assert torch.autograd.gradcheck(
        lambda x, cotangent: of_weight(x, w.shape, cotangent, **arguments), (x, cotangent)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_memory_format(family: str) -> None:
    x, w = tensors(family, 2)
    of_input, of_weight = helpers(family, 2)
    cotangent = getattr(F, f"{family}2d")(x, w).detach()
    last = cotangent.to(memory_format=torch.channels_last)
    gradient = of_input(x.shape, w, last)
    assert gradient.is_contiguous(memory_format=torch.channels_last)
    assert of_input(x.shape, w, cotangent).is_contiguous()
    assert of_weight(x, w.shape, last).is_contiguous()


# name -> family, shapes of input, weight and grad_output, attributes, what the error says.
CONV = ("conv", (2, 4, 7, 6), (6, 4, 3, 3))
TRANSPOSED = ("conv_transpose", (2, 4, 5, 4), (4, 6, 3, 3))
STRIDE_2 = {"stride": 2, "output_padding": 0}
WRONG = {
    "output": (*CONV, (2, 6, 5, 5), {}, "grad_output has shape"),
    "batch": (*CONV, (1, 6, 5, 4), {}, "grad_output has shape"),
    "unbatched": (*CONV, (6, 5, 4), {}, "grad_output has"),
    "channels": (*CONV[:2], (6, 3, 3, 3), (2, 6, 5, 4), {}, "to have 3 channels"),
    "kernel": ("conv", (2, 4, 2, 6), (6, 4, 3, 3), (2, 6, 1, 4), {}, "Kernel size can't be"),
    "stride": (*CONV, (2, 6, 5, 4), {"stride": 0}, "non-positive"),
    "transposed output": (*TRANSPOSED, (2, 6, 8, 6), {}, "output padding must be"),
    "transposed small": (*TRANSPOSED, (2, 6, 6, 6), {}, "negative output_padding"),
    "transposed channels": (*TRANSPOSED[:2], (2, 6, 3, 3), (2, 6, 7, 6), {}, "to have 2 channels"),
    "transposed groups": (
        *("conv_transpose", (2, 4, 5, 4), (2, 6, 3, 3), (2, 6, 7, 6)),
        *({"groups": 2}, "to have 2 channels"),
    ),
    "transposed same": (*TRANSPOSED, (2, 6, 9, 8), {"padding": "same"}, "valid sizes"),
    "transposed output_padding": (*TRANSPOSED, (2, 6, 12, 10), STRIDE_2, "grad_output has shape"),
    "transposed batch": (*TRANSPOSED, (1, 6, 7, 6), {}, "grad_output has shape"),
}


@pytest.mark.parametrize("wanted", ["input", "weight"])
@pytest.mark.parametrize("case", WRONG)
def test_errors(case: str, wanted: str) -> None:
    family, x, w, cotangent, attributes, message = WRONG[case]
    function = getattr(ours, f"{family}2d_{wanted}")
    arguments = (x, torch.ones(w)) if wanted == "input" else (torch.ones(x), w)
    with pytest.raises((RuntimeError, ValueError), match=message):
        function(*arguments, torch.ones(cotangent), **attributes)
