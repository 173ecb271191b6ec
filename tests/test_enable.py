"""torch's own convolutions on these kernels: torch_ops.enable, disable, enabled."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import ModuleInfo, module_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import torch_ops
from torch_ops.backends import explain, last_used, use

pytestmark = [pytest.mark.unforced, pytest.mark.filterwarnings("ignore")]

aten = torch.ops.aten
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch_ops.disable()
    torch.set_num_threads(threads)
    assert not torch_ops.is_enabled()


def channels_last(tensor: Tensor) -> Tensor:
    """A copy with the channels innermost, in 1-D too."""
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1)


def integers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """So small that every sum is exact in every dtype."""
    return torch.randint(-1, 2, shape).to(dtype)


def on_and_off(run: Callable[[], object]) -> tuple[object, object]:
    """What a function returns with torch's kernels and with ours."""
    theirs = run()
    with torch_ops.enabled():
        return theirs, run()


def assert_same(theirs: object, ours: object, **tolerance: float) -> None:
    for t, o in zip(tree_leaves(theirs), tree_leaves(ours), strict=True):
        assert (t is None) == (o is None)
        if t is None:
            continue
        assert (t.shape, t.dtype, t.stride()) == (o.shape, o.dtype, o.stride())
        torch.testing.assert_close(t, o, **(tolerance or {"rtol": 0, "atol": 0}))


# Strides and values


def arguments(rank: int, transposed: bool, stride: int = 1, groups: int = 1, padding: int = 1):
    """What follows the tensors in a call of aten::convolution."""
    return [stride] * rank, [padding] * rank, [1] * rank, transposed, [0] * rank, groups


def problems(rank: int, transposed: bool, dtype: torch.dtype):
    """Tensors and the other arguments of aten::convolution."""
    kernels = ((3, 1, 1), (1, 1, 0), (4, 2, 1))
    for (kernel, stride, padding), groups, batch, extent in itertools.product(
        kernels, (1, 2), (1, 2), (5, 1)
    ):
        if extent == 1 and kernel == 4 and not transposed:
            continue
        first, second = (4, 6 // groups) if transposed else (6, 4 // groups)
        data = integers(batch, 4, *[extent] * rank, dtype=dtype)
        weight = integers(first, second, *[kernel] * rank, dtype=dtype)
        rest = arguments(rank, transposed, stride, groups, padding)
        for x, w in itertools.product((data, channels_last(data)), (weight, channels_last(weight))):
            yield x, w, rest


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_results_are_torchs(rank: int, transposed: bool, dtype: torch.dtype, threads: int) -> None:
    torch.set_num_threads(threads)
    with use("simd"):  # the rules leave some of them to torch
        for x, w, rest in problems(rank, transposed, dtype):
            bias = integers(6, dtype=dtype)
            y, here = on_and_off(partial(aten.convolution, x, w, bias, *rest))
            assert_same(y, here)
            assert last_used() == ("torch" if dtype == torch.float64 else "simd")
            for grad in (torch.ones_like(y), channels_last(torch.ones_like(y))):
                run = partial(aten.convolution_backward, grad, x, w, [6], *rest, [True] * 3)
                assert_same(*on_and_off(run))


@pytest.mark.parametrize("mask", list(itertools.product([False, True], repeat=3)))
def test_every_output_mask(mask: tuple[bool, ...]) -> None:
    x, w, grad = integers(2, 4, 5, 5), integers(6, 4, 3, 3), integers(2, 6, 5, 5)
    run = partial(aten.convolution_backward, grad, x, w, [6], *arguments(2, False), mask)
    theirs, ours = on_and_off(run)
    assert [gradient is not None for gradient in ours] == list(mask)
    assert_same([t for t, asked in zip(theirs, mask, strict=True) if asked],
                [o for o in ours if o is not None])  # fmt: skip


@pytest.mark.parametrize(
    "name", [f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.int64])
def test_torchs_samples(name: str, dtype: torch.dtype) -> None:
    op = next(op for op in op_db if op.name == f"nn.functional.{name}")
    differentiable = dtype.is_floating_point
    for sample in op.sample_inputs("cpu", dtype, differentiable):

        def run(sample=sample) -> list[Tensor]:
            y = op(sample.input, *sample.args, **sample.kwargs)
            leaves = (sample.input, *sample.args, *sample.kwargs.values())
            inputs = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
            gradients = torch.autograd.grad(y.sum(), inputs) if inputs else ()
            return [y.detach(), *gradients]

        assert_same(*on_and_off(run), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv3d"])
def test_torchs_errors(name: str) -> None:
    op = next(op for op in op_db if op.name == f"nn.functional.{name}")
    for error in op.error_inputs("cpu"):
        sample = error.sample_input
        with torch_ops.enabled(), pytest.raises(error.error_type, match=error.error_regex):
            op(sample.input, *sample.args, **sample.kwargs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "info", [info for info in module_db if "Conv" in info.name], ids=lambda info: info.name
)
def test_torchs_modules(info: ModuleInfo, dtype: torch.dtype) -> None:
    for sample in info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=True
    ):
        made = sample.constructor_input
        module = info.module_cls(*made.args, **made.kwargs, dtype=dtype)
        args, kwargs = sample.forward_input.args, sample.forward_input.kwargs
        module(*args, **kwargs)  # lazy modules get their weights

        def run(module=module, args=args, kwargs=kwargs) -> list[Tensor]:
            y = module(*args, **kwargs)
            leaves = [*module.parameters(), *(x for x in args if x.requires_grad)]
            return [y.detach(), *torch.autograd.grad(y.square().sum(), leaves)]

        assert_same(*on_and_off(run), **CLOSE)


def test_one_value_for_all_axes() -> None:
    """torch.nn.grad calls so, and expects the bits of autograd."""
    x, w = torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3, requires_grad=True)
    with torch_ops.enabled():
        y = F.conv2d(x, w, padding=1)
        grad = torch.randn_like(y)
        (expected,) = torch.autograd.grad(y, w, grad)
        found = torch.nn.grad.conv2d_weight(x, w.shape, grad, padding=1)
        assert last_used() == "simd"
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert_same(*on_and_off(partial(aten.convolution, x, w, None, [1], [1], [1], False, [0], 1)),
                **CLOSE)  # fmt: skip


def test_what_is_left_to_torch() -> None:
    rest = arguments(2, False)
    x, w = integers(2, 4, 5, 5), integers(6, 4, 3, 3)
    for left in (
        partial(aten.convolution, x.double(), w.double(), None, *rest),
        partial(aten.convolution, x[:0], w, None, *rest),
        partial(aten.convolution, x[:, :0], w[:, :0], None, *rest),
    ):
        assert_same(*on_and_off(left))
        assert last_used() == "torch"
    conv = nn.Conv2d(4, 6, 3)
    with torch.no_grad():
        expected = conv(x)
        with torch_ops.enabled():
            dense = conv(x.to_mkldnn()).to_dense()
    torch.testing.assert_close(dense, expected)


# Switching


def served_here() -> bool:
    """Whether the next convolution is ours."""
    one = torch.ones(1, 1, 1)
    with use("simd"):
        torch_ops.convolution(one, one, strides=[1], pads_begin=[0], pads_end=[0], dilations=[1])
    with use("reference"):
        F.conv1d(one, one)
    return last_used() == "reference"


def test_idempotent_and_nested() -> None:
    assert not torch_ops.is_enabled()
    torch_ops.disable()
    assert not served_here()
    torch_ops.enable()
    torch_ops.enable()
    assert torch_ops.is_enabled()
    assert served_here()
    torch_ops.disable()
    assert not torch_ops.is_enabled()
    assert not served_here()
    with torch_ops.enabled():
        with torch_ops.enabled():
            pass
        assert torch_ops.is_enabled()
        torch_ops.enable()
    assert torch_ops.is_enabled()
    with torch_ops.enabled():
        torch_ops.disable()
        assert torch_ops.is_enabled()
    assert not torch_ops.is_enabled()
    with pytest.raises(KeyError), torch_ops.enabled():
        raise KeyError
    assert not served_here()


def test_silent() -> None:
    code = """if True:
        import torch, torch_ops
        torch_ops.enable()
        torch_ops.disable()
        torch_ops.enable()
        conv = torch.nn.Conv2d(2, 2, 3)
        conv(torch.randn(1, 2, 5, 5)).sum().backward()
        assert torch_ops.backends.last_used() == "simd"
    """
    run = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_switching_while_others_compute() -> None:
    x, w = integers(2, 4, 6, 6).requires_grad_(), integers(4, 4, 3, 3).requires_grad_()

    def step() -> tuple[Tensor, ...]:
        y = F.conv2d(x, w, padding=1)
        return y.detach(), *torch.autograd.grad(y.sum(), (x, w))

    expected, errors, ended = step(), [], threading.Event()

    def work() -> None:
        try:
            while not ended.is_set():
                assert_same(expected, step())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(5000):
        with torch_ops.enabled():
            assert torch_ops.is_enabled()
    ended.set()
    for thread in threads:
        thread.join()
    assert not errors


def test_blocks_overlap_between_threads() -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with torch_ops.enabled():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    with torch_ops.enabled():
        thread.start()
        entered.wait()
    assert torch_ops.is_enabled()
    leave.set()
    thread.join()
    assert not torch_ops.is_enabled()


# What torch does with its convolutions


class Model(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        conv, up = getattr(nn, f"Conv{rank}d"), getattr(nn, f"ConvTranspose{rank}d")
        self.layers = nn.Sequential(
            conv(3, 8, 3, padding=1), nn.ReLU(), conv(8, 8, 4, 2, 1, groups=8), nn.ReLU(),
            up(8, 8, 4, 2, 1), conv(8, 4, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def model_and_input(rank: int, last: bool) -> tuple[nn.Module, Tensor]:
    model, x = Model(rank), torch.randn(2, 3, *[8] * rank)
    if last:
        format = torch.channels_last if rank == 2 else torch.channels_last_3d
        return model.to(memory_format=format), x.to(memory_format=format)
    return model, x


def step(model: Callable[[Tensor], Tensor], parameters: list[Tensor], x: Tensor) -> list[Tensor]:
    y = model(x)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), parameters)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_compiled(compiler: str, rank: int, last: bool, batch: int, threads: int) -> None:
    if compiler == "inductor" and (threads, batch) != (1, 1) and (rank, last) != (2, True):
        pytest.skip("inductor compiles for seconds")
    torch.set_num_threads(threads)
    model, x = model_and_input(rank, last)
    x, parameters = x[:batch], list(model.parameters())
    expected = step(model, parameters, x)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=compiler, fullgraph=True)
    if compiler == "inductor":  # it has formats of its own
        for eager, found in zip(expected, step(compiled, parameters, x), strict=True):
            torch.testing.assert_close(eager, found, **CLOSE)
        expected = step(compiled, parameters, x)
    assert_same(expected, step(compiled, parameters, x), **CLOSE)
    with torch_ops.enabled():  # after compilation
        assert_same(expected, step(compiled, parameters, x), **CLOSE)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend=compiler, fullgraph=True)
        assert_same(expected, step(compiled, parameters, x), **CLOSE)
    assert_same(expected, step(compiled, parameters, x), **CLOSE)  # compiled with ours, run without


def test_not_traceable() -> None:
    torch._dynamo.reset()
    for switch in (torch_ops.enable, torch_ops.disable):
        with pytest.raises(Exception, match=r"cannot be traced|Unsupported"):
            torch.compile(switch, backend="eager", fullgraph=True)()
    assert not torch_ops.is_enabled()


def test_trains_the_same() -> None:
    def losses() -> list[float]:
        torch.manual_seed(0)
        model, x = model_and_input(2, False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
        found = []
        for _ in range(10):
            loss = (model(x) - x.mean()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    theirs, ours = on_and_off(losses)
    assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant: bool) -> None:
    model, x = model_and_input(2, False)
    x.requires_grad_()
    run = partial(checkpoint, model, use_reentrant=reentrant)

    def gradients() -> list[Tensor]:
        model.zero_grad()
        run(x).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    assert_same(*on_and_off(gradients), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    x, w = integers(2, 4, 5, 5), integers(6, 4, 3, 3).requires_grad_()

    def run() -> list[Tensor]:
        with torch.autocast("cpu", dtype):
            y = F.conv2d(x, w, padding=1)
        assert y.dtype == dtype
        return [y.detach(), *torch.autograd.grad(y.sum(), w)]

    assert_same(*on_and_off(run))
    assert last_used() == "simd"


def test_transforms_and_higher_orders() -> None:
    x, w = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    v = torch.randn_like(w)

    def loss(w: Tensor, x: Tensor = x) -> Tensor:
        return F.conv2d(x, w, padding=1).square().sum()

    def run() -> list[object]:
        return [
            torch.func.grad(loss)(w),
            torch.func.jvp(loss, (w,), (v,)),
            torch.func.jvp(torch.func.grad(loss), (w,), (v,)),
            torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x[:, None]),
            torch.autograd.functional.vhp(loss, w, v),
        ]

    assert_same(*on_and_off(run), rtol=1e-3, atol=1e-3)


class Names(TorchDispatchMode):
    """The operators that are called within."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_double_backward(rank: int, transposed: bool, groups: int) -> None:
    """One call for each term, whatever the groups; torch's is exact on the same integers."""
    conv = getattr(F, f"conv{'_transpose' * transposed}{rank}d")
    x = integers(3, 8, *(7, 6, 5)[:rank]).requires_grad_()
    w = integers(8, (4 if transposed else 8) // groups, *(3, 2, 3)[:rank]).requires_grad_()
    b = integers(4 if transposed else 8).requires_grad_()
    counts = []

    def run() -> list[Tensor]:
        y = conv(x, w, b, stride=2, padding=1, groups=groups)
        cotangent = torch.ones_like(y).requires_grad_()
        first = torch.autograd.grad(y, (x, w, b), cotangent, create_graph=True)
        weighted = sum((g * (i + 1)).square().sum() for i, g in enumerate(first))
        with Names() as called:
            second = torch.autograd.grad(weighted, (cotangent, x, w), create_graph=True)
        counts.append(sum(name.startswith("convolution") for name in called.names))
        third = torch.autograd.grad(sum(g.sum() for g in second), (cotangent, x, w))
        return [*first, *second, *third]

    theirs, ours = on_and_off(run)
    assert all(map(torch.equal, theirs, ours))
    assert counts[1] == 4
    # Some of the terms, as asked for; disabled, torch's own.
    assert all(map(torch.equal, theirs, run()))
    assert counts[2] == counts[0]


def test_double_backward_of_one_gradient() -> None:
    """As a gradient penalty needs it: of the data's gradient alone."""
    x, w = integers(2, 3, 6, 6).requires_grad_(), integers(4, 3, 3, 3).requires_grad_()

    def run() -> tuple[Tensor, ...]:
        y = F.conv2d(x, w, stride=2)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), (w,))

    # Not the strides: torch's is what is left of a larger result.
    assert all(map(torch.equal, *on_and_off(run)))


def test_models_in_threads() -> None:
    """As DataParallel does: one copy of a model and one part of a batch for each thread."""
    model, x = model_and_input(2, False)
    found: dict[int, list[Tensor]] = {}

    def work(i: int) -> None:
        found[i] = step(model, list(model.parameters()), x[i : i + 1])

    def run() -> list[list[Tensor]]:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [found[0], found[1]]

    assert_same(*on_and_off(run), **CLOSE)


def test_traced_and_exported() -> None:
    model, x = model_and_input(2, False)
    other = torch.randn_like(x)
    expected = model(other)
    with torch_ops.enabled():
        traced = torch.jit.trace(model, x)
        exported = torch.export.export(model, (x,)).module()
        for made in (traced, exported):
            torch.testing.assert_close(made(other), expected, **CLOSE)
    assert "convolution" in str(traced.inlined_graph)


# explain


def test_explain() -> None:
    rest = arguments(2, False)
    x, w = integers(2, 4, 5, 5), integers(6, 4, 3, 3)
    report = explain(aten.convolution, x, w, None, *rest)
    assert (report.op, report.backend) == ("aten::convolution", "simd")
    assert report == explain("aten::convolution", x, w, None, *rest)
    assert report == explain(aten.convolution.default, x, w, None, *rest)
    y = aten.convolution(x, w, None, *rest)
    for asked, contraction in ((0, "dgrad"), (1, "wgrad")):
        mask = [i == asked for i in range(3)]
        report = explain(aten.convolution_backward, y, x, w, [6], *rest, mask)
        assert (report.backend, report.op) == ("simd", "aten::convolution_backward")
        assert contraction in report.kernel
    with pytest.raises(RuntimeError, match="output_mask"):
        explain(aten.convolution_backward, y, x, w, [6], *rest, [False, False, True])
    with pytest.raises(ValueError, match="no operator named 'add'"):
        explain(aten.add, x, x)
    report = explain(aten.convolution, x.double(), w.double(), None, *rest)
    assert report.backend == "torch"
    assert "float32, bfloat16 or float16" in report.declined["simd"]
    assert "torch" in str(report)
    assert not torch_ops.is_enabled()


@pytest.mark.skipif(
    "onednn" not in torch_ops.backends.supported(), reason="without oneDNN no rule prefers torch"
)
def test_explain_says_that_torch_suits_best() -> None:
    x, w = torch.randn(1, 128, 28, 28), torch.randn(128, 128, 5, 5)  # on any CPU
    call = (x, w, None, *arguments(2, False))
    report = explain(aten.convolution, *call)
    assert report.backend == "torch"
    assert "suit" in report.declined["onednn"]
    with torch_ops.enabled():
        aten.convolution(*call)
    assert last_used() == "torch"
    with use("simd"):
        assert explain(aten.convolution, *call).backend == "simd"
