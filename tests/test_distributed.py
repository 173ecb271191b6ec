"""Two processes compute what one does, by DTensor, DDP and FSDP2. `on_ranks_*` run in them."""

from __future__ import annotations

import itertools
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import TIMEOUT, Ranks
from samples import OPERATORS, Case
from torch import Tensor
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    ones,
)
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

import torch_ops
from torch_ops.distributed import register_sharding

pytestmark = pytest.mark.unforced  # above the operators: once is enough


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    two = Ranks(2, tmp_path_factory.mktemp("ranks"))
    yield two
    two.stop()


def assert_same(actual: Tensor, expected: Tensor, what: str) -> None:
    """To 1e-5 of the largest element: shards are summed in another order."""
    scale = expected.abs().max().item() if expected.numel() else 0.0
    torch.testing.assert_close(
        actual, expected, rtol=0, atol=1e-5 * scale, msg=lambda text: f"{what}: {text}"
    )


# --- DTensor ---


def cases(name: str) -> list[Case]:
    """Sizes that two ranks cannot halve, and fewer channels and examples than ranks."""
    two_axes = {
        "src": (4, 3), "kernel": (3, 2), "strides": (2, 1), "dilations": (1, 2),
        "pads_begin": (1, 0), "pads_end": (0, 1), "batch": 3,
    }  # fmt: skip
    formats = {"data_format": "NCX", "weights_format": "IOX"}
    variants = [
        {"ic_per_group": 5, "oc_per_group": 3, "weights_format": "XOI"},
        {"groups": 2, "ic_per_group": 2, "oc_per_group": 3, **formats},
        {"groups": 3, "ic_per_group": 1, "oc_per_group": 1},
        {"groups": 3, "ic_per_group": 2, "oc_per_group": 1, **formats},
        {"batch": 1, "ic_per_group": 1, "oc_per_group": 2, **formats},
    ]
    if OPERATORS[name].transposed:
        variants.append(variants[1] | {"group_on": "O"})
    bias = OPERATORS[name].bias
    return [Case(name, **(two_axes | variant), bias=bias) for variant in variants]


def distribute(tensor: Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    if any(placement.is_partial() for placement in placements):
        part = tensor if mesh.get_rank() == 0 else torch.zeros_like(tensor)
        return DTensor.from_local(part, mesh, placements)
    return distribute_tensor(tensor, mesh, placements)


def derivatives(
    case: Case, tensors: Sequence[Tensor], spread: Callable[[Tensor], Tensor] = torch.clone
) -> list[Tensor]:
    """The result, its gradients, and the gradients of those of the operands."""

    def cotangent(like: Tensor) -> Tensor:
        return spread(torch.arange(like.numel()).sin().reshape(like.shape))

    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    result = case.call(*leaves)
    of_result = cotangent(result).requires_grad_()
    first = torch.autograd.grad(result, leaves, of_result, create_graph=True)
    second = torch.autograd.grad(
        first[:2], (*leaves[:2], of_result), [cotangent(gradient) for gradient in first[:2]]
    )
    return [result, *first, *second]


def on_ranks_compare(name: str) -> None:
    register_sharding()
    mesh = init_device_mesh("cpu", (2,))
    spread = partial(distribute_tensor, device_mesh=mesh, placements=[Shard(0)])
    for number, case in enumerate(cases(name)):
        tensors = case.tensors(torch.float32)
        expected = derivatives(case, tensors)
        channel, spatial = (3, 1) if case.data_format == "NXC" else (1, 3)
        placements = [Replicate(), Shard(0), Shard(channel), Partial(), Shard(spatial)]
        pairs = [  # 10 of the 25, others for every case
            (first, placements[(index + turn) % 5])
            for turn in (number, number + 1)
            for index, first in enumerate(placements)
        ]
        for index, pair in enumerate(pairs):
            held = [*pair, (Replicate(), Shard(0))[index % 2]][: len(tensors)]
            distributed = [
                distribute(tensor, mesh, [placement])
                for tensor, placement in zip(tensors, held, strict=True)
            ]
            actual = derivatives(case, distributed, spread)
            for mine, plain in zip(actual, expected, strict=True):
                assert_same(mine.full_tensor(), plain, f"{case} {held}")


def on_ranks_add(family: str) -> None:
    register_sharding()
    mesh = init_device_mesh("cpu", (2,))
    for number, case in enumerate(cases(f"{family}_backward_weights")):
        kwargs = case.kwargs()
        operator = getattr(torch.ops.convtbw, f"{case.op}_add_")
        shape = kwargs.pop("weights_shape")
        for dtype, held_dtype in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
            first, second = case.tensors(dtype)
            held = torch.arange(float(math.prod(shape)), dtype=held_dtype).sin().reshape(shape)
            expected = held.clone()
            operator(expected, first, second, **kwargs)
            placements = [Replicate(), Shard(0), Shard(case.weights_format.index("X")), Partial()]
            for turn, placement in enumerate(placements):
                inputs = [
                    distribute(tensor, mesh, [(Shard(0), Replicate())[(turn + number) % 2]])
                    for tensor in (first, second)
                ]
                diff_weights = distribute(held.clone(), mesh, [placement])
                operator(diff_weights, *inputs, **kwargs)
                assert diff_weights.placements == (placement,)
                torch.testing.assert_close(diff_weights.full_tensor(), expected)


@pytest.mark.parametrize("family", ["convolution", "conv_transpose"])
def test_shards_are_added_to(ranks: Ranks, family: str) -> None:
    ranks.run(on_ranks_add, family)


@pytest.mark.parametrize("name", OPERATORS)
def test_shards_are_as_the_whole(ranks: Ranks, name: str) -> None:
    ranks.run(on_ranks_compare, name)


def on_ranks_compare_on_a_mesh(name: str) -> None:
    """Indices that two dimensions of a mesh cut, the same one or one each."""
    register_sharding()
    mesh = init_device_mesh("cpu", (2, 2))
    batch, channels, either = Shard(0), Shard(1), Replicate()
    spread = partial(distribute_tensor, device_mesh=mesh, placements=[batch, either])
    held = [
        ((batch, batch), (either, either)),
        ((batch, channels), (either, batch)),
        ((channels, channels), (batch, batch)),
    ]
    grouped = cases(name)[1]
    for case in (replace(grouped, groups=1, ic_per_group=5), grouped, replace(grouped, groups=4)):
        tensors = case.tensors(torch.float32)
        expected = derivatives(case, tensors)
        for placements in held:
            distributed = [
                distribute_tensor(tensor, mesh, place)
                for tensor, place in zip(tensors, (*placements, (batch, either)), strict=False)
            ]
            actual = derivatives(case, distributed, spread)
            for mine, plain in zip(actual, expected, strict=True):
                assert_same(mine.full_tensor(), plain, f"{case} {placements}")


def test_shards_on_a_mesh_of_two_dimensions(tmp_path: Path) -> None:
    four = Ranks(4, tmp_path)
    four.run(on_ranks_compare_on_a_mesh, "conv_transpose")
    four.stop()


def on_ranks_place(
    case: Case, held: Sequence[Placement], wanted: Placement, gradients: Sequence[Placement]
) -> None:
    register_sharding()
    mesh = init_device_mesh("cpu", (2,))
    tensors = case.tensors(torch.float32)
    leaves = [
        distribute_tensor(tensor, mesh, [placement]).requires_grad_()
        for tensor, placement in zip(tensors, held, strict=True)
    ]
    with CommDebugMode() as traffic:
        result = case.call(*leaves)
        assert result.placements == (wanted,)
        # The cotangent of a Partial result is whole, that of a shard a shard.
        whole = Replicate() if wanted.is_partial() else wanted
        cotangent = ones(result.shape, device_mesh=mesh, placements=[whole])
        actual = torch.autograd.grad(result, leaves, cotangent)
    assert [gradient.placements for gradient in actual] == [(each,) for each in gradients]
    assert traffic.get_total_counts() == 0, traffic.get_comm_counts()


GROUPED = {"groups": 2, "ic_per_group": 2, "oc_per_group": 3}


@pytest.mark.parametrize(
    ("attributes", "held", "wanted", "gradients"),
    [
        ({}, "RRR", "R", "RRR"),
        ({}, "0RR", "0", "0PP"),
        ({}, "R10", "1", "P10"),
        ({}, "10R", "P", "10R"),
        (GROUPED, "100", "1", "100"),
    ],
    ids=["replicated", "batch", "output channels", "input channels", "groups"],
)
def test_shards_that_suit_each_other_cost_no_traffic(
    ranks: Ranks, attributes: dict, held: str, wanted: str, gradients: str
) -> None:
    place = {"R": Replicate(), "P": Partial(), "0": Shard(0), "1": Shard(1)}
    case = Case(
        "conv_transpose", src=(4, 3), kernel=(3, 2), strides=(2, 1), dilations=(1, 1),
        pads_begin=(1, 0), pads_end=(0, 1), batch=3, data_format="NCX", weights_format="IOX",
        bias=True, **({"ic_per_group": 5, "oc_per_group": 3} | attributes),
    )  # fmt: skip
    ranks.run(
        on_ranks_place,
        case,
        [place[letter] for letter in held],
        place[wanted],
        [place[letter] for letter in gradients],
    )


def on_ranks_shape_tensor() -> None:
    register_sharding()
    mesh = init_device_mesh("cpu", (2,))
    case = cases("conv_transpose_backward_weights")[0]
    tensors = case.tensors(torch.float32)
    attributes = case.kwargs()
    shape = torch.tensor(attributes.pop("weights_shape"))
    operator = torch.ops.convtbw.conv_transpose_backward_weights
    held = [distribute_tensor(tensor, mesh, [Shard(0)]) for tensor in tensors]
    for given in (shape, distribute_tensor(shape, mesh, [Replicate()])):
        actual = operator(*held, given, weights_shape=[1, 1, 1, 1], **attributes)
        assert actual.placements == (Partial(),)
        assert_same(actual.full_tensor(), case.call(*tensors), "shape tensor")


def test_shape_tensor(ranks: Ranks) -> None:
    ranks.run(on_ranks_shape_tensor)


def on_ranks_err() -> None:
    register_sharding()
    mesh = init_device_mesh("cpu", (2,))
    case = cases("conv_transpose")[0]
    src, weights, bias = (
        distribute_tensor(tensor, mesh, [Shard(0)]) for tensor in case.tensors(torch.float32)
    )
    with pytest.raises(RuntimeError, match=r"conv_transpose: weights is not a DTensor but"):
        case.call(src, weights.full_tensor(), bias)
    elsewhere = distribute_tensor(
        weights.full_tensor(), DeviceMesh("cpu", [[0, 1]]), [Shard(0)] * 2
    )
    with pytest.raises(RuntimeError, match=r"weights lies on .*, src on "):
        case.call(src, elsewhere, bias)
    # Sizes in messages are those of the whole tensors.
    with pytest.raises(RuntimeError, match=r"src with 4 channels|src is \[3, 4, 3, 4\]"):
        case.call(distribute_tensor(torch.randn(3, 4, 3, 4), mesh, [Shard(0)]), weights, bias)


def test_errors_are_in_the_caller_s_words(ranks: Ranks) -> None:
    ranks.run(on_ranks_err)


def on_ranks_add_to_a_mean() -> None:
    register_sharding()
    mesh = init_device_mesh("cpu", (2,))
    case = cases("convolution_backward_weights")[0]
    kwargs = case.kwargs()
    held = DTensor.from_local(torch.zeros(kwargs.pop("weights_shape")), mesh, [Partial("avg")])
    inputs = [distribute(tensor, mesh, [Shard(0)]) for tensor in case.tensors(torch.float32)]
    with pytest.raises(RuntimeError, match=r"placed as .*avg.*; expected Partial\(sum\)"):
        torch.ops.convtbw.convolution_backward_weights_add_(held, *inputs, **kwargs)


def test_refuses_to_add_to_a_mean(ranks: Ranks) -> None:
    ranks.run(on_ranks_add_to_a_mean)


def on_ranks_outside() -> list[int]:
    register_sharding()
    mesh = DeviceMesh("cpu", [0])
    case = cases("conv_transpose")[0]
    tensors = case.tensors(torch.float32)
    result = case.call(*(distribute_tensor(tensor, mesh, [Replicate()]) for tensor in tensors))
    assert result.shape == case.call(*tensors).shape
    return list(result.to_local().shape)


def test_a_process_outside_of_the_mesh(ranks: Ranks) -> None:
    inside, outside = ranks.run(on_ranks_outside)
    assert inside == list(cases("conv_transpose")[0].shape("x"))
    assert outside == [0]


def test_importing_the_package_imports_nothing_distributed() -> None:
    script = (
        "import sys, torch; before = set(sys.modules); import torch_ops;"
        "print([m for m in set(sys.modules) - before if 'distributed' in m])"
    )
    child = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True
    )
    assert child.stdout.strip() == "[]"


# --- Training ---

EXAMPLES, STEPS = 6, 4
SPLITS = {"even": (3, 3), "uneven": (5, 1), "an empty batch": (6, 0)}


def make_model() -> torch.nn.Sequential:
    """Channels that two ranks cannot halve, asymmetric pads, groups; the same on every rank."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch_ops.nn.ConvTranspose2d(6, 9, 4, stride=2, padding="same", groups=3),
        torch.nn.Tanh(),
        torch_ops.nn.ConvTranspose2d(9, 5, 3, stride=2, padding=((0, 1), (1, 0))),
        torch.nn.Tanh(),
        torch_ops.nn.Conv2d(5, 3, 3, padding=1),
    )


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(STEPS, EXAMPLES, 6, 4, 5, generator=generator)
    targets = torch.randn(STEPS, EXAMPLES, 3, 16, 20, generator=generator)
    return inputs, targets


def train(
    model: torch.nn.Module,
    batches: Sequence[tuple[Tensor, Tensor, int]],
    ranks: int = 1,
) -> list[list[Tensor]]:
    """The gradients of each step. A batch says how many examples all ranks have in that step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    gradients = []
    for inputs, targets, examples in batches:
        loss = F.mse_loss(model(inputs), targets, reduction="sum") / examples
        # DDP and FSDP2 take the mean over the ranks; this makes it the sum.
        (ranks * loss).backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    return gradients


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def compare_with_one_process(model: torch.nn.Module, gradients: list[list[Tensor]]) -> None:
    alone = make_model()
    expected = train(alone, [(*batch, EXAMPLES) for batch in zip(*make_data(), strict=True)])
    for step, (mine, plain) in enumerate(zip(gradients, expected, strict=True)):
        for one, other in zip(mine, plain, strict=True):
            assert_same(whole(one), other, f"gradient of step {step}")
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert_same(whole(one.detach()), other.detach(), "parameter")


def share(split: Sequence[int]) -> list[tuple[Tensor, Tensor, int]]:
    """This rank's part of each batch."""
    inputs, targets = (tensor.split(list(split), dim=1)[dist.get_rank()] for tensor in make_data())
    return [(*batch, EXAMPLES) for batch in zip(inputs, targets, strict=True)]


def in_ddp(model: torch.nn.Module) -> torch.nn.Module:
    return DistributedDataParallel(model)


def in_fsdp(model: torch.nn.Module) -> torch.nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    for module in model:
        if list(module.parameters()):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


WRAPPERS = {"DDP": in_ddp, "FSDP2": in_fsdp}


def on_ranks_train(wrapper: str, split: Sequence[int]) -> None:
    model = WRAPPERS[wrapper](make_model())
    compare_with_one_process(model, train(model, share(split), ranks=2))


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS.keys())
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_training_is_as_in_one_process(ranks: Ranks, wrapper: str, split: Sequence[int]) -> None:
    ranks.run(on_ranks_train, wrapper, split)


def on_ranks_join() -> None:
    # The second rank has no batch in the last two steps: the first has all of their examples.
    rank, inputs, targets = dist.get_rank(), *make_data()
    batches = []
    for step, (all_inputs, all_targets) in enumerate(zip(inputs, targets, strict=True)):
        split = (4, 2) if step < STEPS - 2 else (EXAMPLES, 0)
        mine = (all_inputs.split(split)[rank], all_targets.split(split)[rank], EXAMPLES)
        if len(mine[0]) > 0:
            batches.append(mine)
    assert len(batches) == (STEPS, STEPS - 2)[rank]
    model = in_ddp(make_model())
    with Join([model]):
        gradients = train(model, batches, ranks=2)
    if rank == 0:  # the other did not see the last steps
        compare_with_one_process(model, gradients)


def test_ddp_where_one_rank_has_fewer_batches(ranks: Ranks) -> None:
    ranks.run(on_ranks_join)


def on_ranks_tensor_parallel() -> None:
    """Batch and channels sharded by placements alone, the model unchanged."""
    register_sharding()
    mesh = init_device_mesh("cpu", (2,))

    def shard(name: str, module: torch.nn.Module, mesh: DeviceMesh) -> None:
        # Output channels of the convolution, input channels of the second transposed one.
        for key, parameter in list(module.named_parameters(recurse=False)):
            sharded = (name, key) in (("2", "weight"), ("4", "weight"), ("4", "bias"))
            place = [Shard(0) if sharded else Replicate()]
            module.register_parameter(
                key, torch.nn.Parameter(distribute_tensor(parameter.detach(), mesh, place))
            )

    model = distribute_module(make_model(), mesh, shard)
    batches = [
        tuple(distribute_tensor(tensor, mesh, [Shard(0)]) for tensor in batch)
        for batch in zip(*make_data(), strict=True)
    ]
    compare_with_one_process(model, train(model, [(*batch, EXAMPLES) for batch in batches]))


def test_training_with_sharded_tensors(ranks: Ranks) -> None:
    ranks.run(on_ranks_tensor_parallel)


# --- Failure ---


def on_ranks_train_until_killed(wrapper: str, message: Path) -> None:
    model = WRAPPERS[wrapper](make_model())
    try:
        for step in itertools.count():
            train(model, share(SPLITS["even"]), ranks=2)
            if step == 1 and dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    except RuntimeError as error:
        message.write_text(str(error))
        # Not sys.exit: torch's threads still run, and Python's finalisation under them ends in
        # 1, in abort or, while faulthandler reports that, in a segmentation fault.
        os._exit(1)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_killing_one_rank_ends_the_other(ranks: Ranks, wrapper: str, tmp_path: Path) -> None:
    message = tmp_path / "message"
    ranks.send(on_ranks_train_until_killed, wrapper, message)
    survivor, victim = ranks.processes
    victim.join(2 * TIMEOUT)
    survivor.join(TIMEOUT)
    codes = (survivor.exitcode, victim.exitcode)
    ranks.kill()
    assert codes == (1, -signal.SIGKILL)
    assert "gloo" in message.read_text()
