"""torch_ops.functional and torch_ops.nn under every transform of torch, in all ranks.

The transforms of torch's own convolutions say what to expect. A call that vmap would loop over
raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo import compiled_autograd
from torch.export import Dim, export
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import torch_ops.nn
from torch_ops import functional_call

# Above the operators: once is enough. The warnings are torch's own.
pytestmark = [pytest.mark.unforced, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def no_loops() -> Iterator[None]:
    torch._C._functorch._set_vmap_fallback_enabled(False)
    yield
    torch._C._functorch._set_vmap_fallback_enabled(True)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@dataclass(frozen=True)
class Problem:
    """A function here and its definition in torch's."""

    name: str
    kind: str  # plain, groups, unbatched, NXC, pairs

    def __str__(self) -> str:
        return f"{self.name}-{self.kind}"

    @property
    def rank(self) -> int:
        return int(self.name[-2])

    @property
    def transposed(self) -> bool:
        return "transpose" in self.name

    @property
    def groups(self) -> int:
        return 2 if self.kind == "groups" else 1

    def tensors(self, batch: int = 2, longer: int = 0, seed: int = 0) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        channels = (2, 4 // self.groups) if self.transposed else (4, 2 // self.groups)
        extents = [extent + longer for extent in (5, 4, 3)[: self.rank]]
        shapes = (batch, 2, *extents), (*channels, *(3, 2, 2)[: self.rank]), (4,)
        x, weight, bias = (
            torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
        )
        if self.kind == "unbatched":
            x = x[0]
        if self.kind == "NXC":
            x = x.movedim(1, -1).contiguous()
        return x, weight, bias

    def here(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        padding = [(0, 1), (1, 0), (1, 2)][: self.rank] if self.kind == "pairs" else 1
        words = {"data_format": "NXC"} if self.kind == "NXC" else {}
        return getattr(torch_ops.functional, self.name)(
            x, weight, bias, stride=2, padding=padding, groups=self.groups, **words
        )

    def in_torch(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        function = getattr(F, self.name)
        if self.kind == "NXC":
            result = function(x.movedim(-1, 1), weight, bias, stride=2, padding=1)
            return result.movedim(1, -1)
        if self.kind != "pairs":
            return function(x, weight, bias, stride=2, padding=1, groups=self.groups)
        around = [pad for pair in ((0, 1), (1, 0), (1, 2))[self.rank - 1 :: -1] for pad in pair]
        if not self.transposed:
            return function(F.pad(x, around), weight, bias, stride=2)
        return F.pad(function(x, weight, bias, stride=2), [-pad for pad in around])


NAMES = [f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)]
KINDS = ("plain", "groups", "unbatched", "NXC", "pairs")
PROBLEMS = [Problem(name, kind) for name in NAMES for kind in KINDS]
every_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=str)
# For what takes seconds: every rank, and everything in one rank.
few_problems = pytest.mark.parametrize(
    "problem", [p for p in PROBLEMS if p.kind == "plain" or p.rank == 2], ids=str
)

Function = Callable[..., Tensor]


def loss(function: Function) -> Function:
    return lambda *tensors: function(*tensors).sin().sum()


def close(actual: object, expected: object) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


# --- torch.func -----------------------------------------------------------------------------------

EVERY = (0, 1, 2)
TRANSFORMS: dict[str, Callable[[Function, tuple[Tensor, ...], tuple[Tensor, ...]], object]] = {
    "grad": lambda f, at, _: grad(loss(f), EVERY)(*at),
    "grad of grad": lambda f, at, _: grad(
        lambda *t: sum(part.square().sum() for part in grad(loss(f), EVERY)(*t)), EVERY
    )(*at),
    "vjp": lambda f, at, _: vjp(f, *at)[1](f(*at).cos()),
    "jvp": lambda f, at, along: jvp(f, at, along),
    "linearize": lambda f, at, along: linearize(f, *at)[1](*along),
    "jvp of grad": lambda f, at, along: jvp(grad(loss(f), EVERY), at, along),
    "grad of jvp": lambda f, at, along: grad(
        lambda *t: jvp(f, t, along)[1].square().sum(), EVERY
    )(*at),
    "jacrev": lambda f, at, _: jacrev(f, EVERY)(*at),
    "jacfwd": lambda f, at, _: jacfwd(f, EVERY)(*at),
    "hessian": lambda f, at, _: hessian(loss(f), (1, 2))(*at),
    "jacrev of jacfwd": lambda f, at, _: jacrev(jacfwd(loss(f), 1), 1)(*at),
    "vmap": lambda f, at, along: vmap(f)(*map(torch.stack, zip(at, along, strict=True))),
    "vmap of vmap": lambda f, at, along: vmap(
        lambda x: vmap(lambda w: f(x, w, at[2]))(torch.stack([at[1], along[1]]))
    )(torch.stack([at[0], along[0]])),
    "vmap of grad": lambda f, at, along: vmap(grad(loss(f), EVERY), (0, None, None))(
        torch.stack([at[0], along[0]]), *at[1:]
    ),
    "vmap of jvp": lambda f, at, along: vmap(lambda x: jvp(lambda x: f(x, *at[1:]), (x,), (x,)))(
        torch.stack([at[0], along[0]])
    ),
    "jacrev of vmap": lambda f, at, along: jacrev(
        lambda w: vmap(lambda x: f(x, w, at[2]))(torch.stack([at[0], along[0]]))
    )(at[1]),
}  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS)
@every_problem
def test_torch_func(problem: Problem, transform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at, along = problem.tensors(), problem.tensors(seed=1)
    expected = TRANSFORMS[transform](problem.in_torch, at, along)
    if problem.kind in ("plain", "groups", "unbatched"):  # the short cut, without a second way
        monkeypatch.setattr(functional_call, "convolution", None)
        monkeypatch.setattr(functional_call, "conv_transpose", None)
    close(TRANSFORMS[transform](problem.here, at, along), expected)


def helper_calls(problem: Problem) -> Iterator[tuple[Function, tuple[Tensor, ...]]]:
    """The gradients as functions of (weight, grad_output) and of (input, grad_output)."""
    x, weight, _ = problem.tensors()
    cotangent = problem.in_torch(x, weight)
    attributes = {"stride": 2, "padding": 1, "groups": problem.groups}
    if problem.kind == "NXC":
        attributes["data_format"] = "NXC"
    of_input, of_weight = (
        getattr(torch_ops.functional, f"{problem.name}_{wanted}") for wanted in ("input", "weight")
    )
    yield lambda w, y: of_input(x.shape, w, y, **attributes), (weight, cotangent)
    yield lambda x, y: of_weight(x, weight.shape, y, **attributes), (x, cotangent)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["plain", "groups", "NXC"])
def test_torch_func_of_the_gradients(name: str, kind: str) -> None:
    """Bilinear, so that a Jacobian is the function of unit tensors."""
    for function, tensors in helper_calls(Problem(name, kind)):
        expected = torch.autograd.functional.jacobian(function, tensors)
        close(jacrev(function, (0, 1))(*tensors), expected)
        close(jacfwd(function, (0, 1))(*tensors), expected)
        first, second = tensors
        close(jvp(function, tensors, tensors)[1], 2 * function(*tensors))
        batch = torch.stack([first, 2 * first])
        close(vmap(function, (0, None))(batch, second)[1], 2 * function(*tensors))
        gradient = grad(lambda *t, f=function: f(*t).square().sum() / 2, (0, 1))(*tensors)
        for part, tensor in zip(gradient, tensors, strict=True):
            close((part * tensor).sum(), function(*tensors).square().sum())


# --- compilation ----------------------------------------------------------------------------------

# The compiler takes sizes that were equal once to be equal always: none is equal to another here.
SIZES = ((9, 0), (3, 4), (5, 9))


def sized(problem: Problem, batch: int, longer: int) -> tuple[Tensor, ...]:
    tensors = problem.tensors(batch, longer + 3, seed=batch)
    return tuple(tensor.requires_grad_() for tensor in tensors)


def with_gradients(function: Function, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    result = function(*tensors)
    return result, *torch.autograd.grad(result.sin().sum(), tensors)


@pytest.mark.parametrize("name", NAMES)
def test_the_functions_themselves_are_compiled(name: str, fresh_compiler: None) -> None:
    """As they are, where a dynamic compiler makes symbols of all integers that it finds."""
    problem = Problem(name, "plain")
    x, weight, _ = problem.tensors()
    function = getattr(torch_ops.functional, name)
    output = function(x, weight)
    for wanted, arguments in (
        ("", (x, weight)),
        ("_input", (x.shape, weight, output)),
        ("_weight", (x, weight.shape, output)),
    ):
        function = getattr(torch_ops.functional, name + wanted)
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
        close(compiled(*arguments), function(*arguments))


@few_problems
def test_compiled_once_for_all_sizes(problem: Problem, fresh_compiler: None) -> None:
    graphs = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(problem.here, fullgraph=True, backend=graphs, dynamic=True)
    for size in SIZES:
        tensors = sized(problem, *size)
        close(with_gradients(compiled, tensors), with_gradients(problem.in_torch, tensors))
    assert graphs.frame_count == 1


@pytest.mark.parametrize("name", torch_ops.nn.__all__)
def test_modules_are_compiled_once_for_all_sizes(name: str, fresh_compiler: None) -> None:
    rank = int(name[-2])
    module = getattr(torch_ops.nn, name)(2, 4, 3, 2, 1).double()
    graphs = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, fullgraph=True, backend=graphs, dynamic=True)
    for batch, longer in SIZES:
        x = torch.randn(batch, 2, *[e + longer for e in (11, 10, 8)[:rank]], dtype=torch.float64)
        results = [
            with_gradients(lambda x, *_, m=m: m(x), (x.requires_grad_(), *module.parameters()))
            for m in (compiled, module)
        ]
        close(*results)
    assert graphs.frame_count == 1


@pytest.mark.parametrize(
    ("options", "strict"),
    [
        ({"stride": 2, "padding": 1}, False),
        ({"stride": 2, "padding": 1}, True),
        ({"padding": "same"}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", torch_ops.nn.__all__)
def test_export_with_dynamic_sizes(name: str, options: dict, strict: bool) -> None:
    """Batch and extents; the program is made of the operators alone, and saved as others are."""
    rank = int(name[-2])
    module = getattr(torch_ops.nn, name)(2, 4, 3, **options).double()
    extents = (9, 8, 7)[:rank]
    x = torch.randn(3, 2, *extents, dtype=torch.float64)
    dynamic = {0: Dim("batch", min=1, max=64)}
    dynamic |= {2 + axis: Dim(f"extent{axis}", min=4, max=64) for axis in range(rank)}
    program = export(module, (x,), dynamic_shapes=({**dynamic},), strict=strict)
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert any(target.startswith("convtbw.") for target in called)
    assert not any(target.startswith(("convtbw_functional", "aten.conv")) for target in called)
    for batch, longer in ((1, 0), (2, 7), (5, 20)):
        sample = torch.randn(batch, 2, *[e + longer for e in extents], dtype=torch.float64)
        close(program.module()(sample), module(sample))
        close(program.run_decompositions().module()(sample), module(sample))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@few_problems
def test_make_fx(problem: Problem, mode: str) -> None:
    """Only the operators appear in the graph, not what calls them."""

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        return with_gradients(problem.here, tensors)

    traced = make_fx(function, tracing_mode=mode)(*sized(problem, *SIZES[0]))
    targets = [str(node.target) for node in traced.graph.nodes if node.op == "call_function"]
    assert sum(target.startswith("convtbw.") for target in targets) == 3
    assert not any(target.startswith(("convtbw_functional", "aten.conv")) for target in targets)
    for size in SIZES if mode == "symbolic" else SIZES[:1]:
        tensors = sized(problem, *size)
        close(traced(*tensors), with_gradients(problem.in_torch, tensors))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_compiled_autograd(name: str, dynamic: bool, fresh_compiler: None) -> None:
    problem = Problem(name, "plain")
    for size in SIZES[:2] if dynamic else SIZES[:1]:
        ours, theirs = sized(problem, *size), sized(problem, *size)
        compiler = torch.compile(backend="aot_eager", fullgraph=True, dynamic=dynamic)
        with compiled_autograd._enable(compiler, dynamic=dynamic):
            problem.here(*ours).sin().sum().backward()
        problem.in_torch(*theirs).sin().sum().backward()
        close([tensor.grad for tensor in ours], [tensor.grad for tensor in theirs])


@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap of grad", "hessian"])
@pytest.mark.parametrize("name", NAMES)
def test_compiled_transforms(name: str, transform: str, fresh_compiler: None) -> None:
    problem = Problem(name, "plain")
    at, along = problem.tensors(), problem.tensors(seed=1)
    program = torch.compile(
        lambda at, along: TRANSFORMS[transform](problem.here, at, along),
        backend="aot_eager",
        fullgraph=True,
    )
    close(program(at, along), TRANSFORMS[transform](problem.in_torch, at, along))
