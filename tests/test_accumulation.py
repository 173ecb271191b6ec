"""Weights gradients that are added to existing ones: exact on integers, and in training loops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import calls
import forcing
import pytest
import torch
from problems import Problem, problems
from torch import Tensor, nn
from torch.func import vmap
from torch.profiler import ProfilerActivity, profile

import torch_ops
from torch_ops import backends

DTYPES = {
    "f32": (torch.float32, torch.float32),
    "bf16": (torch.bfloat16, torch.bfloat16),
    "f16 to f32": (torch.float16, torch.float32),
    "bf16 to f32": (torch.bfloat16, torch.float32),
    "f64": (torch.float64, torch.float64),
}
ops = torch.ops.convtbw


# --- the operators --------------------------------------------------------------------------------


def additions(p: Problem, dtype: torch.dtype) -> Iterator[calls.Call]:
    """The calls of weights gradients that name their shape by attribute."""
    for call in calls.calls(p, dtype):
        if call.operator.endswith("_backward_weights") and "weights_shape" in call.kwargs:
            kwargs = {k: v for k, v in call.kwargs.items() if k != "weights_shape"}
            yield calls.Call(f"{call.operator}_add_", call.args[:2], kwargs, call.expected)
            return


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced"])
@pytest.mark.parametrize("dtypes", DTYPES)
def test_every_problem(backend: str, dtypes: str, layout: str) -> None:
    dtype, held_dtype = DTYPES[dtypes]
    found = []
    for p in problems():
        for call in additions(p, dtype):
            # Of the result's size, so that the sum is exact where the result is.
            before = (call.expected.double() / -2).round()
            held = before.to(held_dtype, copy=True)
            diff_weights = calls.lay_out(held, layout, channels_first=True)
            version = diff_weights._version

            def add(call: calls.Call = call, to: Tensor = diff_weights) -> None:
                getattr(ops, call.operator)(to, *call.args, **call.kwargs)

            forcing.run_forced(backend, add, planned=p.batch > 0)
            if backend == "onednn" and p.batch > 0:  # it overwrites, and declines
                assert diff_weights._version == version
                continue
            assert diff_weights._version == version + 1
            if not torch.equal(diff_weights.double(), call.expected.double() + before):
                found.append(f"{p} {call.operator}")
    assert not found, "\n".join([f"{len(found)} failures", *found[:12]])


ATTRIBUTES = {
    "strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1],
    "data_format": "NCX", "weights_format": "IOX",
}  # fmt: skip


def arguments(dtype: torch.dtype = torch.float32, batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """diff_weights, src, diff_dst of a transposed convolution."""
    shapes = ((6, 4, 4, 4), (batch, 6, 5, 5), (batch, 4, 10, 10))
    return tuple(torch.randn(shape, dtype=dtype) for shape in shapes)


def add(diff_weights: Tensor, src: Tensor, diff_dst: Tensor, **changed: object) -> None:
    torch_ops.conv_transpose_backward_weights_add_(
        diff_weights, src, diff_dst, **(ATTRIBUTES | changed)
    )


def gradient(src: Tensor, diff_dst: Tensor) -> Tensor:
    return torch_ops.conv_transpose_backward_weights(
        src, diff_dst, weights_shape=[6, 4, 4, 4], **ATTRIBUTES
    )


@pytest.mark.unforced
def test_explain() -> None:
    held, src, diff_dst = arguments()
    before = held.clone()
    report = backends.explain(
        "conv_transpose_backward_weights_add_", held, src, diff_dst, **ATTRIBUTES
    )
    assert report.backend == "simd"
    assert torch.equal(held, before)
    assert held._version == 0
    if "onednn" in backends.supported():
        with backends.use("onednn"), pytest.raises(RuntimeError, match="gradients overwrite"):
            add(held, src, diff_dst)


@pytest.mark.unforced
def test_benchmark_mode_adds_once() -> None:
    held, src, diff_dst = arguments(torch.float64)
    expected = held + gradient(src, diff_dst)
    backends.benchmark = True
    try:
        add(held, src, diff_dst)
    finally:
        backends.benchmark = False
    torch.testing.assert_close(held, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_allocates_no_gradient(dtype: torch.dtype) -> None:
    src, diff_dst = torch.randn(1, 512, 2, 2).to(dtype), torch.randn(1, 512, 4, 4).to(dtype)
    held = torch.zeros(512, 512, 4, 4)  # 16 MiB
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        add(held, src, diff_dst)
    allocated = [event.cpu_memory_usage for event in profiler.key_averages()]
    assert max(allocated, default=0) < held.nbytes / 8
    report = backends.explain(
        "conv_transpose_backward_weights_add_", held, src, diff_dst, **ATTRIBUTES
    )
    assert report.workspace < held.nbytes / 2


# Under `-n 2` another test may run beside this one: threads are set per process.
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_same_bits_for_any_number_of_threads(threads: int) -> None:
    held, src, diff_dst = (t.contiguous() for t in arguments(batch=16))
    results = []
    before = torch.get_num_threads()
    for number in (1, threads):
        torch.set_num_threads(number)
        result = held.clone()
        add(result, src, diff_dst)
        results.append(result)
    torch.set_num_threads(before)
    assert torch.equal(*results)


@pytest.mark.parametrize("dtypes", DTYPES)
def test_opcheck(dtypes: str) -> None:
    dtype, held_dtype = DTYPES[dtypes]
    held, src, diff_dst = arguments(dtype)
    operator = ops.conv_transpose_backward_weights_add_.default
    torch.library.opcheck(operator, (held.to(held_dtype), src, diff_dst), ATTRIBUTES)
    shapes = ((5, 3, 3, 3), (2, 3, 9, 9), (2, 5, 4, 4))
    held, src, diff_dst = (torch.randn(shape, dtype=dtype) for shape in shapes)
    rest = {"strides": [2, 2], "dilations": [1, 1], "data_format": "NCX", "weights_format": "OIX"}
    operator = ops.convolution_backward_weights_add_.default
    torch.library.opcheck(operator, (held.to(held_dtype), src, diff_dst), rest)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic: bool) -> None:
    torch._dynamo.reset()

    def function(held: Tensor, src: Tensor, diff_dst: Tensor) -> Tensor:
        total = held * 2
        add(total, src, diff_dst)
        add(total, src, diff_dst)
        return total + 1

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for batch in (2, 3):
        inputs = arguments(torch.float64, batch)
        torch.testing.assert_close(compiled(*inputs), function(*inputs))


REFUSED = {
    "another shape": (lambda w, x, y: (w[..., :2], x, y), "diff_dst has extent 10"),
    "one dimension less": (lambda w, x, y: (w[0], x, y), "diff_weights has 3 entries"),
    "channels": (lambda w, x, y: (w[:5], x, y), r"diff_weights is \[5, 4, 4, 4\]"),
    "narrower": (lambda w, x, y: (w.half(), x, y), "has dtype Half but src has Float; expected Fl"),
    "wider": (lambda w, x, y: (w.double(), x, y), "has dtype Double but src has Float"),
    "no float": (lambda w, x, y: (w.int(), x, y), "has dtype Int but src has Float"),
    "16 bits": (
        lambda w, x, y: (w.half(), x.bfloat16(), y.bfloat16()),
        "expected BFloat16 or float32",
    ),
    "expanded": (
        lambda w, x, y: (w[:1].expand(w.shape), x, y),
        "diff_weights has several elements at one place",
    ),
    "an input's memory": (
        lambda w, x, y: (y.view(-1)[: w.numel()].view(w.shape), x, y),
        "diff_weights shares memory with diff_dst",
    ),
    "sparse": (lambda w, x, y: (w.to_sparse(), x, y), "diff_weights has layout Sparse"),
    "meta": (lambda w, x, y: (w.to("meta"), x, y), "diff_weights is on device meta"),
    "requires grad": (lambda w, x, y: (w, x.requires_grad_(), y), "expected torch.no_grad"),
    "is a parameter": (lambda w, x, y: (w.requires_grad_(), x, y), "expected torch.no_grad"),
    "nested": (
        lambda w, x, y: (torch.nested.nested_tensor(list(w)), x, y),
        "diff_weights is a nested tensor",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refuses(what: str) -> None:
    change, message = REFUSED[what]
    given = change(*arguments())
    before = None if given[0].is_meta or given[0].is_nested else given[0].detach().clone()
    with pytest.raises(RuntimeError, match=message):
        add(*given)
    if before is not None and not before.is_sparse:
        assert torch.equal(given[0], before)


def test_refuses_vmap() -> None:
    held, src, diff_dst = arguments()
    for dims in ((0, 0, 0), (None, 0, 0), (0, None, None)):
        batched = [
            t.expand(3, *t.shape) if d == 0 else t
            for t, d in zip((held, src, diff_dst), dims, strict=True)
        ]
        with pytest.raises(RuntimeError, match="under vmap"):
            vmap(add, in_dims=dims)(*batched)


def test_a_saved_tensor_notices() -> None:
    held, src, diff_dst = arguments()
    scale = torch.ones((), requires_grad=True)
    loss = (held * scale).sum()
    add(held, src, diff_dst)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# --- training loops -------------------------------------------------------------------------------


class Model(nn.Module):
    """Shared weights, a frozen convolution, and a transposed one with groups."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.head = nn.Conv2d(3, 8, 3, padding=1)
        self.shared = nn.Conv2d(8, 8, 3, padding=1)
        self.frozen = nn.Conv2d(8, 8, 1).requires_grad_(False)
        self.up = nn.ConvTranspose2d(8, 4, 4, 2, 1, groups=2)
        torch_ops.convert(self)

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(x)
        return self.up(self.shared(self.shared(y.tanh()).tanh()) + self.frozen(y))

    def weights(self) -> dict[str, nn.Parameter]:
        return {
            n: p for n, p in self.named_parameters() if n.endswith("weight") and p.requires_grad
        }


def batches(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(2)
    return [torch.randn(2, 3, 8, 8, dtype=torch.float64).to(dtype) for _ in range(3)]


def train(model: Model, accumulated: bool, autocast: bool = False) -> dict[str, Tensor]:
    for x in batches(model.head.weight.dtype):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(x).square().mean()
        with torch_ops.accumulate_gradients() if accumulated else nullcontext():
            loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def additions_by_kernels(run: object) -> int:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    return sum(e.count for e in profiler.key_averages() if e.key.endswith("weights_add_"))


def test_accumulates_what_torch_accumulates() -> None:
    model = Model().double()
    assert additions_by_kernels(lambda: train(model, accumulated=True)) >= 6
    torch.testing.assert_close(
        {name: p.grad for name, p in model.named_parameters() if p.grad is not None},
        train(Model().double(), accumulated=False),
    )
    assert model.frozen.weight.grad is None


def test_autocast_sums_are_not_rounded() -> None:
    """What 16-bit gradients lose is what torch's way loses."""
    exact = train(Model().double(), accumulated=False)
    errors = {}
    for accumulated in (False, True):
        found = train(Model(), accumulated, autocast=True)
        assert all(g.dtype == torch.float32 for g in found.values())
        errors[accumulated] = {n: (found[n] - exact[n]).norm() / exact[n].norm() for n in exact}
    for name in Model().weights():
        assert errors[True][name] <= 1.05 * errors[False][name], name
    # The last convolution's gradient has no other rounding behind it than that of its inputs.
    assert errors[True]["up.weight"] < errors[False]["up.weight"]


def test_low_precision_weights_with_float32_gradients() -> None:
    model = Model().bfloat16()
    for p in model.parameters():
        p.grad_dtype = torch.float32
    found = train(model, accumulated=True)
    assert all(g.dtype == torch.float32 for g in found.values())
    exact = train(Model().double(), accumulated=False)
    for name, g in found.items():
        assert (g - exact[name]).norm() <= 0.03 * exact[name].norm(), name


def _hook(p: nn.Parameter) -> None:
    p.register_hook(lambda g: 2 * g)


def _after(p: nn.Parameter) -> None:
    def double(p: nn.Parameter) -> None:
        p.grad *= 2

    p.register_post_accumulate_grad_hook(double)


@pytest.mark.parametrize("install", [_hook, _after])
def test_hooks_see_every_gradient(install: object) -> None:
    found = {}
    for accumulated in (False, True):
        model = Model().double()
        for p in model.parameters():
            if p.requires_grad:
                install(p)
        found[accumulated] = train(model, accumulated)
    torch.testing.assert_close(found[True], found[False])


def test_named_inputs_get_their_gradients() -> None:
    model = Model().double()
    train(model, accumulated=False)  # there is something to add to
    weights = list(model.weights().values())
    before = [p.grad.clone() for p in weights]
    loss = model(batches()[0]).square().mean()
    expected = torch.autograd.grad(loss, weights, retain_graph=True)
    with torch_ops.accumulate_gradients():
        found = torch.autograd.grad(loss, weights, retain_graph=True)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close([p.grad for p in weights], before)
        loss.backward(inputs=weights[:1], retain_graph=True)
        torch.testing.assert_close(weights[0].grad, before[0] + expected[0])
        torch.testing.assert_close([p.grad for p in weights[1:]], before[1:])
        again = torch.autograd.grad(loss, weights, create_graph=True)
        assert all(g.requires_grad for g in again)


def test_a_graph_of_gradients_is_kept() -> None:
    model = Model().double()
    train(model, accumulated=False)
    weight = model.up.weight
    with torch_ops.accumulate_gradients():
        model(batches()[0]).square().mean().backward(create_graph=True)
    assert weight.grad.requires_grad


def test_only_inside_the_block_and_on_this_thread() -> None:
    model = Model().double()
    train(model, accumulated=False)
    with torch_ops.accumulate_gradients():
        with torch_ops.accumulate_gradients():
            pass
        inside = additions_by_kernels(lambda: model(batches()[0]).square().mean().backward())
    outside = additions_by_kernels(lambda: model(batches()[0]).square().mean().backward())
    assert inside > 0
    assert outside == 0


def test_refuses_to_be_traced() -> None:
    torch._dynamo.reset()

    @torch.compile(backend="eager", fullgraph=True)
    def function(x: Tensor) -> Tensor:
        with torch_ops.accumulate_gradients():
            return x + 1

    with pytest.raises(Exception, match="cannot be traced"):
        function(torch.ones(1))
