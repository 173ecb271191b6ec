"""Weights gradients of slices of the images, which vmap calls: equal to the loop over slices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import calls
import forcing
import pytest
import torch
from problems import Problem, problems
from samples import CASES, Case, one_each
from test_exact import DTYPES, FORMAT_PROBLEMS, of, report
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import torch_ops
import torch_ops.functional

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # functorch's own
NAMES = ("convolution_backward_weights", "conv_transpose_backward_weights")


# --- values ---------------------------------------------------------------------------------------


def weights_gradients(problem: Problem, dtype: torch.dtype, **formats: str) -> list[calls.Call]:
    return [
        call
        for call in calls.calls(problem, dtype, **formats)
        if call.operator in NAMES and len(call.args) == 2
    ]


def runs_of(call: calls.Call) -> Iterator[tuple[str, Callable[[], Tensor], Tensor]]:
    """Slices of one image and of all of them, and what they should give."""
    operator = getattr(torch.ops.convtbw, call.operator)
    first, second = call.args

    def one(first: Tensor, second: Tensor) -> Tensor:
        return operator(first, second, **call.kwargs)

    def image(first: Tensor, second: Tensor) -> Tensor:
        return one(first[None], second[None])

    if len(first):
        with torch_ops.backends.use("reference"):
            expected = torch.stack([image(*both) for both in zip(first, second, strict=True)])
        yield "one image", lambda: torch.vmap(image)(first, second), expected
    slices = torch.stack([first, 2 * first, -first]), torch.stack([second] * 3)
    expected = call.expected.to(first.dtype)
    expected = torch.stack([expected, 2 * expected, -expected])
    yield "all images", lambda: torch.vmap(one)(*slices), expected


def failures(backend: str, cases: Iterable[tuple[Problem, calls.Call]]) -> list[str]:
    found = []
    for problem, call in cases:
        for name, run, expected in runs_of(call):
            blocks = [torch.full_like(expected, torch.nan) for _ in range(2)]
            del blocks  # what the allocator hands out next holds NaN
            result = forcing.run_forced(backend, run, planned=problem.batch > 0)
            difference = None if result is None else calls.first_difference(result, expected)
            if difference:
                found.append(f"{problem} {call.operator} {name} {backend}: {difference}")
    return found


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("family", ["convolution", "conv_transpose"])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_every_problem(backend: str, dtype: torch.dtype, family: str, rank: int) -> None:
    if backend == "onednn" and dtype == torch.float64:
        pytest.skip("onednn has no float64")
    found = failures(
        backend, ((p, call) for p in of(family, rank) for call in weights_gradients(p, dtype))
    )
    assert not found, report(found)


@pytest.mark.parametrize("target", forcing.supported_targets())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_problem_on_every_simd_target(dtype: torch.dtype, target: str) -> None:
    with torch_ops.backends.use("simd", target):
        found = failures(
            "simd", ((p, call) for p in problems() for call in weights_gradients(p, dtype))
        )
    assert not found, f"target {target}: {report(found)}"


@pytest.mark.parametrize("weights_format", ["OIX", "XIO", "IOX", "XOI"])
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_every_format(backend: str, data_format: str, weights_format: str) -> None:
    formats = {"data_format": data_format, "weights_format": weights_format}
    found = failures(
        backend,
        (
            (p, call)
            for p in FORMAT_PROBLEMS
            for layout in ("contiguous", "channels_last")
            for call in weights_gradients(p, torch.float32, layout=layout, **formats)
        ),
    )
    assert not found, report(found)


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("groups", [1, 4, 32])
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("slices", [1, 2, 7])
def test_bits_do_not_depend_on_threads(
    slices: int, data_format: str, groups: int, images: int
) -> None:
    case = Case(
        "convolution_backward_weights", src=(20, 20), kernel=(3, 3), strides=(1, 1),
        dilations=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), batch=slices * images, groups=groups,
        ic_per_group=32 // groups, oc_per_group=32 // groups, data_format=data_format,
    )  # fmt: skip
    inputs, results = case.tensors(torch.float32), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            with torch_ops.backends.use("simd"):
                results.append(of_slices(case, slices)(*inputs))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert torch.equal(result, results[0])
    whole = case.call(*(tensor.double() for tensor in inputs))
    torch.testing.assert_close(results[0].double().sum(0), whole, rtol=1e-4, atol=1e-3)


# --- the operator ---------------------------------------------------------------------------------


def arguments(case: Case, slices: int) -> dict[str, object]:
    return {**case.kwargs(), "weights_shape": [slices, *case.shape("w")]}


def of_slices(case: Case, slices: int) -> Callable[[Tensor, Tensor], Tensor]:
    operator = getattr(torch.ops.convtbw, f"_{case.op}_of_slices")
    return lambda first, second: operator(first, second, **arguments(case, slices))


def loop_over_slices(case: Case, slices: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda *both: torch.stack(
        [case.call(*parts) for parts in zip(*(one.chunk(slices) for one in both), strict=True)]
    )


SLICED = [
    replace(case, batch=4)
    for case in [*(case for case in CASES if case.op in NAMES and case.batch), *one_each()]
    if case.op in NAMES
]


@pytest.mark.parametrize("slices", [1, 2, 4])
@pytest.mark.parametrize("case", SLICED, ids=str)
def test_it_is_the_loop(case: Case, slices: int) -> None:
    inputs = case.tensors(integers=True)
    expected = loop_over_slices(case, slices)(*inputs)
    assert torch.equal(of_slices(case, slices)(*inputs), expected)


@pytest.mark.parametrize("name", NAMES)
def test_no_slices_and_slices_without_images(name: str) -> None:
    (case,) = [case for case in one_each(batch=0) if case.op == name]
    inputs = [tensor.requires_grad_() for tensor in case.tensors()]
    for slices in (0, 3):
        result = of_slices(case, slices)(*inputs)
        assert torch.equal(result, torch.zeros(slices, *case.shape("w")).double())
        gradients = torch.autograd.grad(result.sum(), inputs)
        assert [one.shape for one in gradients] == [one.shape for one in inputs]


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("case", SLICED, ids=str)
def test_derivatives(case: Case, slices: int) -> None:
    inputs = tuple(tensor.requires_grad_() for tensor in case.tensors())
    function = of_slices(case, slices)
    assert gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, inputs)


@pytest.mark.parametrize("case", [c for c in one_each(batch=4) if c.op in NAMES], ids=str)
def test_opcheck(case: Case) -> None:
    operator = getattr(torch.ops.convtbw, f"_{case.op}_of_slices").default
    inputs = tuple(tensor.requires_grad_() for tensor in case.tensors())
    torch.library.opcheck(operator, inputs, arguments(case, 2))


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 0), (1, -1)])
@pytest.mark.parametrize("case", SLICED, ids=str)
def test_vmap(case: Case, in_dims: tuple[int | None, int | None]) -> None:
    parts = zip(*(case.tensors(seed=seed, integers=True) for seed in range(3)), strict=True)
    tensors = [
        tensors[0] if dim is None else torch.stack(tensors, dim)
        for tensors, dim in zip(parts, in_dims, strict=True)
    ]
    result = torch.vmap(of_slices(case, 2), in_dims)(*tensors)
    expected = torch.vmap(loop_over_slices(case, 2), in_dims)(*tensors)
    assert torch.equal(result, expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", [c for c in one_each() if c.op in NAMES], ids=str)
def test_compiled(case: Case, dynamic: bool) -> None:
    torch._dynamo.reset()
    inputs = [torch.stack([one, -one, 2 * one]) for one in case.tensors(integers=True)]

    def gradients(first: Tensor, second: Tensor) -> Tensor:
        return torch.vmap(case.call)(first, second).square().sum()

    function = torch.func.grad(gradients, (0, 1))
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    assert all(map(torch.equal, compiled(*inputs), function(*inputs)))


@pytest.mark.parametrize("name", NAMES)
def test_errors(name: str) -> None:
    (case,) = [case for case in one_each(batch=4) if case.op == name]
    inputs = case.tensors()
    operator = getattr(torch.ops.convtbw, f"_{name}_of_slices")
    for slices in (0, 3, 5):
        with pytest.raises(RuntimeError, match=rf"src has batch size 4; .* of slices, {slices}"):
            of_slices(case, slices)(*inputs)
    with pytest.raises(RuntimeError, match=r"weights_shape has 4 entries .*; expected 5, one more"):
        operator(*inputs, **case.kwargs())
    with pytest.raises(RuntimeError, match="weights_shape has extent -1 in dimension 0"):
        of_slices(case, -1)(*inputs)


def test_explain() -> None:
    x, y = torch.randn(4, 8, 9, 9), torch.randn(4, 16, 9, 9)
    attributes = {"strides": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1],
                  "data_format": "NCX", "weights_format": "OIX"}  # fmt: skip
    operator = torch.ops.convtbw._convolution_backward_weights_of_slices
    with torch_ops.backends.use("simd"):
        found = torch_ops.backends.explain(
            operator, x, y, **attributes, weights_shape=[2, 16, 8, 3, 3]
        )
        whole = torch_ops.backends.explain(
            "convolution_backward_weights", x, y, **attributes, weights_shape=[16, 8, 3, 3]
        )
    assert "wgrad" in found.kernel
    assert "slices" in found.kernel
    assert "slices" not in whole.kernel
    assert found.flops == whole.flops


# --- per-sample gradients -------------------------------------------------------------------------


class Recorded(TorchDispatchMode):
    """The operators that are called, and their results' elements where these are new."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[str, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.made[str(func)] = result.numel()
        return result


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_nothing_is_copied(name: str, data_format: str) -> None:
    (case,) = [case for case in one_each(batch=5, data_format=data_format) if case.op == name]
    inputs = case.tensors()
    with Recorded() as recorded:
        result = torch.vmap(lambda first, second: case.call(first[None], second[None]))(*inputs)
    assert recorded.made == {f"convtbw._{name}_of_slices.default": result.numel()}
    assert result.is_contiguous()


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["conv", "conv_transpose"])
def test_derivatives_of_per_sample_gradients(
    kind: str, rank: int, groups: int, data_format: str
) -> None:
    function = getattr(torch_ops.functional, f"{kind}{rank}d")
    weight = torch.randn(4, 4 // groups, *[2] * rank).double()
    images = torch.randn(3, 4, *[4] * rank).double()
    if data_format == "NXC":
        images = images.movedim(1, -1)

    def loss(weight: Tensor, image: Tensor) -> Tensor:
        out = function(
            image[None], weight, stride=2, padding=1, groups=groups, data_format=data_format
        )
        return out.sin().sum()

    per_sample = torch.func.grad(loss)

    def all_samples(weight: Tensor, images: Tensor) -> Tensor:
        return torch.vmap(per_sample, (None, 0))(weight, images)

    def loop(weight: Tensor, images: Tensor) -> Tensor:
        return torch.stack([per_sample(weight, image) for image in images])

    torch.testing.assert_close(all_samples(weight, images), loop(weight, images))

    def norms(per_sample_gradients: Callable[[Tensor, Tensor], Tensor]) -> Callable:
        return lambda weight, images: per_sample_gradients(weight, images).square().sum()

    both, tangents = (weight, images), (torch.randn_like(weight), torch.randn_like(images))
    torch.testing.assert_close(
        torch.func.grad(norms(all_samples), (0, 1))(*both),
        torch.func.grad(norms(loop), (0, 1))(*both),
    )
    torch.testing.assert_close(
        torch.func.jvp(all_samples, both, tangents), torch.func.jvp(loop, both, tangents)
    )
    # Of several weights, for each of several batches, and both.
    weights, batches = torch.stack([weight, -weight]), torch.stack([images, 2 * images])
    for in_dims in ((0, None), (None, 0), (0, 0)):
        arguments = [
            several if dim == 0 else one
            for several, one, dim in zip((weights, batches), both, in_dims, strict=True)
        ]
        torch.testing.assert_close(
            torch.vmap(all_samples, in_dims)(*arguments), torch.vmap(loop, in_dims)(*arguments)
        )


def test_one_image_and_none() -> None:
    weight = torch.randn(4, 4, 3, 3)

    def loss(weight: Tensor, image: Tensor) -> Tensor:
        return torch_ops.functional.conv2d(image, weight).square().sum()

    per_sample = torch.vmap(torch.func.grad(loss), (None, 0))
    image = torch.randn(1, 4, 6, 6)
    torch.testing.assert_close(
        per_sample(weight, image)[0], torch.func.grad(loss)(weight, image[0])
    )
    assert per_sample(weight, image[:0]).shape == (0, 4, 4, 3, 3)
