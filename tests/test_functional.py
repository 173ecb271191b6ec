"""torch_ops.functional: torch's calls and errors, and what it has beyond torch."""

from __future__ import annotations

import inspect
import itertools
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torch_ops.functional as ours
from torch_ops import backends

# Above the operators: once is enough.
pytestmark = pytest.mark.unforced

RANKS = (1, 2, 3)
EXTENTS = (7, 5, 4)


def forms(name: str) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    return getattr(ours, name), getattr(F, name)


def tensors(
    rank: int, transposed: bool, groups: int = 1, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """input (2, 4, ...), weight of 6 output channels, bias."""
    channels = (4, 6 // groups) if transposed else (6, 4 // groups)
    shapes = ((2, 4, *EXTENTS[:rank]), (*channels, *(3, 2, 3)[:rank]), (6,))
    return tuple(torch.randn(shape, dtype=dtype) for shape in shapes)


X, W, WT = torch.randn(2, 4, 8, 8), torch.randn(6, 4, 3, 3), torch.randn(4, 6, 3, 3)

# Calls that torch refuses.
WRONG = {
    "conv2d": {
        "stride of three": (X, W, None, [1, 1, 1]),
        "stride float": (X, W, None, 1.0),
        "stride bool": (X, W, None, True),
        "stride zero": (X, W, None, 0),
        "stride word": (X, W, None, "2"),
        "padding negative": (X, W, None, 1, -1),
        "padding word": (X, W, None, 1, "full"),
        "padding upper case": (X, W, None, 1, "SAME"),
        "padding same with stride": (X, W, None, 2, "same"),
        "padding of four": (X, W, None, 1, (1, 1, 1, 1)),
        "padding float": (X, W, None, 1, 0.5),
        "dilation zero": (X, W, None, 1, 0, 0),
        "groups zero": (X, W, None, 1, 0, 1, 0),
        "groups float": (X, W, None, 1, 0, 1, 1.0),
        "groups three": (X, W, None, 1, 0, 1, 3),
        "bias of five": (X, W, torch.randn(5)),
        "bias of two dimensions": (X, W, torch.randn(6, 1)),
        "bias of another dtype": (X, W, torch.randn(6).double()),
        "weight of another dtype": (X, W.double()),
        "input of two dimensions": (X[0, 0], W),
        "input of five dimensions": (X[None], W),
        "weight of three dimensions": (X, W[0]),
        "no input": (None, W),
        "input a list": ([1.0], W),
        "no weight": (X, None),
        "kernel larger than input": (X[:, :, :2], W),
        "channels": (X[:, :3], W),
        "no output channels": (X, W[:0]),
        "no pixels": (X[:, :, :0], W),
    },
    "conv_transpose2d": {
        "stride of three": (X, WT, None, [1, 1, 1]),
        "padding negative": (X, WT, None, 1, -1),
        "padding beyond the output": (X[:, :, :1], WT, None, 1, 2),
        "output_padding as stride": (X, WT, None, 2, 0, 2),
        "output_padding negative": (X, WT, None, 2, 0, -1),
        "output_padding of three": (X, WT, None, 2, 0, (1, 1, 1)),
        "groups of the other reading": (X, WT[:2], None, 1, 0, 0, 2),
        "groups zero": (X, WT, None, 1, 0, 0, 0),
        "bias": (X, WT, torch.randn(3)),
        "channels": (X[:, :3], WT),
        "no input channels": (X[:, :0], WT[:0]),
        "no pixels": (X[:, :, :0], WT),
        "dilation zero": (X, WT, None, 1, 0, 0, 1, 0),
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in WRONG.items() for case in cases]
)
def test_errors_are_torch_s(name: str, case: str) -> None:
    mine, torch_s = forms(name)
    arguments = WRONG[name][case]
    with pytest.raises(Exception) as expected:  # noqa: PT011  (whichever torch raises)
        torch_s(*arguments)
    with pytest.raises(expected.type) as raised:
        mine(*arguments)
    # A TypeError lists the arguments given, and here they are all.
    if expected.type is TypeError:
        assert "received an invalid combination of arguments" in str(raised.value)
    else:
        assert str(raised.value) == str(expected.value)
    assert raised.value.__context__ is None


# Calls that torch accepts, though the operators know nothing of the kind.
UNUSUAL = {
    "conv2d": {
        "empty batch": (X[:0], W),
        "no channels": (X[:, :0], W[:, :0]),
        "stride of one entry": (X, W, None, [2]),
        "numpy integers": (X, W, None, np.int64(2), (np.int32(1), 1)),
        "a tensor": (X, W, None, torch.tensor(2)),
        "torch.Size": (X, W, None, torch.Size([2, 1])),
        "int64": (X.long(), W.long()),
        "complex": (X.cfloat(), W.cfloat()),
        "mkldnn": (X.to_mkldnn(), W.to_mkldnn()),
    },
    "conv_transpose2d": {
        "empty batch": (X[:0], WT),
        "output of no pixels": (X[:, :, :2], WT, None, 1, 2),
        "output_padding beyond the stride": (X, WT, None, 1, 0, 2, 1, 3),
        "numpy integers": (X, WT, None, np.int64(2), 1, np.int64(1)),
        "int64": (X.long(), WT.long()),
    },
}


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in UNUSUAL.items() for case in cases]
)
def test_unusual_calls(name: str, case: str) -> None:
    mine, torch_s = forms(name)
    result, expected = mine(*UNUSUAL[name][case]), torch_s(*UNUSUAL[name][case])
    assert result.layout == expected.layout
    torch.testing.assert_close(result.to_dense(), expected.to_dense(), rtol=1e-4, atol=1e-4)


def test_arguments_have_torch_s_names_and_order() -> None:
    x, w, b = tensors(2, False)
    keywords = {"input": x, "weight": w, "bias": b, "stride": 2, "padding": 1, "dilation": 1}
    assert torch.equal(ours.conv2d(**keywords), ours.conv2d(x, w, b, 2, 1, 1))
    torch.testing.assert_close(ours.conv2d(**keywords), F.conv2d(**keywords))
    x, w, b = tensors(2, True, 2)
    keywords = {"input": x, "weight": w, "bias": b, "stride": 3, "padding": 1, "output_padding": 2}
    result = ours.conv_transpose2d(**keywords, groups=2, dilation=2)
    assert torch.equal(result, ours.conv_transpose2d(x, w, b, 3, 1, 2, 2, 2))
    torch.testing.assert_close(result, F.conv_transpose2d(**keywords, groups=2, dilation=2))


@pytest.mark.parametrize("name", ours.__all__)
def test_documentation(name: str) -> None:
    function = getattr(ours, name)
    text = inspect.getdoc(function)
    for section in ("Args:", "Returns:", "Raises:", "Source"):
        assert section in text, section
    for parameter in inspect.signature(function).parameters:
        assert f"{parameter}:" in text, parameter
    assert "{" not in text
    assert (function.__name__, function.__qualname__) == (name, name)


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose3d", "conv2d_input"])
def test_functions_are_pickled_by_name(name: str) -> None:
    function = getattr(ours, name)
    assert pickle.loads(pickle.dumps(function)) is function


CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("name", ["conv", "conv_transpose"])
@pytest.mark.parametrize("where", ["neither", "input", "weight", "both"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_memory_format(name: str, rank: int, where: str, kernel: int) -> None:
    """Strides are those of torch's result: channels_last where the input or the weights are."""
    mine, torch_s = forms(f"{name}{rank}d")
    x, w = torch.randn(2, 4, *[5] * rank), torch.randn(4, 4, *[kernel] * rank)
    if where in ("input", "both"):
        x = x.to(memory_format=CHANNELS_LAST[rank + 2])
    if where in ("weight", "both"):
        w = w.contiguous(memory_format=CHANNELS_LAST[rank + 2]).clone()
    x.requires_grad_()
    result, expected = mine(x, w), torch_s(x, w)
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    (gradient,) = torch.autograd.grad(result.square().sum(), x)
    (gradient_of_torch,) = torch.autograd.grad(expected.square().sum(), x)
    torch.testing.assert_close(gradient, gradient_of_torch, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, :, ::2],
        lambda x: x[:, ::2],
        lambda x: x[:1],
        lambda x: x[0],
        lambda x: x[:, :, :1, :1].expand(-1, -1, 8, 8),
        lambda x: x.transpose(2, 3),
    ],
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_memory_format_of_views(view: Callable[[Tensor], Tensor], channels_last: bool) -> None:
    x = view(X.to(memory_format=torch.channels_last) if channels_last else X)
    w = torch.randn(6, x.shape[-3], 3, 3)
    assert ours.conv2d(x, w).stride() == F.conv2d(x, w).stride()


def padded_and_cropped(
    name: str, x: Tensor, w: Tensor, b: Tensor | None, pads: list[tuple[int, int]], **attributes
) -> Tensor:
    """The definition: zeros around the input of a convolution, or a crop of the other's output."""
    function = getattr(F, f"{name}{len(pads)}d")
    if name == "conv":
        x = F.pad(x, [pad for pair in reversed(pads) for pad in pair])
        return function(x, w, b, **attributes)
    result = function(x, w, None, **attributes)
    crop = [-pad for pair in reversed(pads) for pad in pair]
    shape = (-1, *[1] * len(pads))
    return F.pad(result, crop) + (0 if b is None else b.reshape(shape))


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", ["conv", "conv_transpose"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("unbatched", [False, True])
def test_asymmetric_padding(name: str, rank: int, dtype: torch.dtype, unbatched: bool) -> None:
    """Also of what torch computes."""
    x, w, b = tensors(rank, name != "conv", 2, dtype)
    x = x[0] if unbatched else x
    pads = [(0, 2), (1, 3), (3, 0)][:rank]
    for attributes in ({}, {"stride": 2}, {"stride": 2, "dilation": 2}):
        if name != "conv":
            attributes = {**attributes, "output_padding": attributes.get("stride", 1) - 1}
        expected = padded_and_cropped(name, x, w, b, pads, groups=2, **attributes)
        function = getattr(ours, f"{name}{rank}d")
        result = function(x, w, b, padding=pads, groups=2, **attributes)
        torch.testing.assert_close(result, expected)
        last = function(
            x.movedim(-rank - 1, -1), w, b, padding=pads, groups=2, data_format="NXC", **attributes
        )
        torch.testing.assert_close(last.movedim(-1, -rank - 1), expected)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", ["conv", "conv_transpose"])
def test_nxc(name: str, rank: int) -> None:
    mine, torch_s = forms(f"{name}{rank}d")
    x, w, b = tensors(rank, name != "conv")
    expected = torch_s(x, w, b, 2, 1)
    result = mine(x.movedim(1, -1).contiguous(), w, b, 2, 1, data_format="NXC")
    assert result.is_contiguous()
    torch.testing.assert_close(result.movedim(-1, 1), expected)
    unbatched = mine(x[0].movedim(0, -1), w, b, 2, 1, data_format="NXC")
    torch.testing.assert_close(unbatched, result[0])


@pytest.mark.parametrize("rank", RANKS)
def test_output_size(rank: int) -> None:
    """As of torch's modules: the spatial part or the whole shape."""
    function = getattr(ours, f"conv_transpose{rank}d")
    x, w, b = tensors(rank, True)
    size = [3 * (i - 1) + k - 1 + 2 for i, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    pads = [(0, 1)] * rank
    expected = function(x, w, b, 3, pads, 2)
    for output_size in (size, tuple(size), expected.shape, torch.Size(size)):
        assert torch.equal(function(x, w, b, 3, pads, output_size=output_size), expected)
    assert torch.equal(function(x[0], w, b, 3, pads, output_size=expected.shape[1:]), expected[0])
    last = function(x.movedim(1, -1), w, b, 3, pads, output_size=[2, *size, 6], data_format="NXC")
    torch.testing.assert_close(last.movedim(-1, 1), expected)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"output_size": (20, 20)}, ValueError, r"requested an output size of \[20, 20\], but va"),
        ({"stride": 2, "output_size": (16, 17)}, ValueError, r"from \[17, 17\] to \[18, 18\]"),
        ({"output_size": (1, 2, 3)}, ValueError, "must have 2 or 4 elements"),
        ({"stride": 2, "output_size": 18, "output_padding": 1}, ValueError, "output_padding=1"),
        (
            {"stride": 2, "padding": "same", "output_padding": 1},
            ValueError,
            "padding='same' decides",
        ),
        ({"padding": "full"}, RuntimeError, "Invalid padding string: 'full'"),
        ({"padding": ((1, 2),)}, RuntimeError, r"list of 2 pairs \(begin, end\)"),
        ({"padding": ((1, 2), 3)}, RuntimeError, r"list of 2 pairs \(begin, end\)"),
        ({"padding": ((1, 2), (1, -3))}, RuntimeError, "negative padding is not supported"),
        ({"padding": ((1, 2), (1, 0.5))}, TypeError, "integer"),
        (
            {"padding": ((9, 2), (1, 1))},
            RuntimeError,
            "leaves extent -1 of the output in spatial axis 0",
        ),
        ({"data_format": "NHWC"}, ValueError, "data_format is 'NHWC'; expected 'NCX' or 'NXC'"),
        ({"data_format": "NXC"}, RuntimeError, "to have 4 channels, but got 8 channels instead"),
    ],
)
def test_errors_of_what_torch_has_not(
    arguments: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ours.conv_transpose2d(X, WT, **arguments)


def test_a_forced_backend_that_declines_is_an_error() -> None:
    x, w, _ = tensors(2, False)
    if "onednn" not in backends.supported():
        pytest.skip("no oneDNN")
    with backends.use("onednn"), pytest.raises(RuntimeError, match="onednn"):
        ours.conv2d(x, w)


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_autocast(name: str) -> None:
    mine, torch_s = forms(name)
    x, w = X.clone().requires_grad_(), (W if name == "conv2d" else WT).clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        result, expected = mine(x, w), torch_s(x, w)
        assert mine(result.detach()[:, :4], w).dtype == torch.bfloat16  # mixed with float32
        assert mine(x.double(), w.double()).dtype == torch_s(x.double(), w.double()).dtype
    assert result.dtype == expected.dtype == torch.bfloat16
    # torch's own, without AVX-512, rounds each tap's sum of a transposed convolution.
    expected = torch_s(x.bfloat16().float(), w.bfloat16().float())
    torch.testing.assert_close(result.float(), expected, rtol=2e-2, atol=2e-2)
    gradients = torch.autograd.grad(result.float().sum(), (x, w))
    assert [gradient.dtype for gradient in gradients] == [torch.float32] * 2


def test_autocast_in_a_compiled_program() -> None:
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def program(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return ours.conv2d(x, W)

    with torch.autocast("cpu", torch.bfloat16):
        expected = ours.conv2d(X, W)
    assert torch.equal(program(X), expected)


def test_meta_tensors() -> None:
    result = ours.conv2d(X.to("meta"), W.to("meta"), stride=2)
    assert result.is_meta
    assert result.shape == (2, 6, 3, 3)


class Logged(Tensor):
    """A subclass that leaves __torch_function__ as it is."""


class Overriding(Tensor):
    """A subclass that knows torch's functions."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is F.conv2d:
            return "conv2d"
        return super().__torch_function__(function, types, args, kwargs or {})


def test_subclasses() -> None:
    result = ours.conv2d(X.as_subclass(Logged), W)
    assert type(result) is Logged
    torch.testing.assert_close(result.as_subclass(Tensor), ours.conv2d(X, W))
    assert ours.conv2d(X.as_subclass(Overriding), W) == "conv2d"


def test_parameters_and_default_device() -> None:
    with torch.device("cpu"):
        result = ours.conv2d(X, torch.nn.Parameter(W))
    assert torch.equal(result, ours.conv2d(X, W))
    assert result.requires_grad


@pytest.mark.parametrize("rank", RANKS)
def test_random_geometries(rank: int) -> None:
    """Accepted and refused exactly where torch accepts and refuses."""
    random = np.random.default_rng(rank)
    accepted = 0
    for transposed in itertools.islice(itertools.cycle([False, True]), 120):
        mine, torch_s = forms(f"conv{'_transpose' * transposed}{rank}d")
        groups = int(random.integers(1, 3))
        channels = (4, 3) if transposed else (6, 4 // groups)
        x = torch.randn(1, 4, *random.integers(1, 6, rank))
        w = torch.randn(*channels, *random.integers(1, 4, rank))
        numbers = [random.integers(low, 4, rank).tolist() for low in (1, 0, 1)]
        stride, padding, dilation = numbers
        attributes = {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
        }
        if transposed:
            attributes["output_padding"] = random.integers(0, 2, rank).tolist()
        try:
            expected = torch_s(x, w, **attributes)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                mine(x, w, **attributes)
        else:
            accepted += 1
            torch.testing.assert_close(mine(x, w, **attributes), expected, rtol=1e-4, atol=1e-4)
    assert 20 < accepted < 120
