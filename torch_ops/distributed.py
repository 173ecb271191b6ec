"""The operators on torch.distributed's sharded tensors, ``torch.distributed.tensor.DTensor``.

DDP and FSDP2 need nothing of this: their tensors are plain ones while a model computes. Importing
the package does not import torch.distributed; importing this module does.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import prod

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.distributed.tensor import DeviceMesh, DTensor, Partial, Placement, Replicate, Shard

from torch_ops import ops

__all__ = ["register_sharding"]


@dataclass(frozen=True)
class _Operator:
    """Which argument plays which role of T(x, w, y), as in docs/design.md."""

    transposed: bool
    roles: Mapping[str, str]  # of the differentiable operands; the result has the third
    shape: str | None = None  # the attribute that spells the result's shape
    added_to: str | None = None  # the argument that is changed, of an operator without a result

    @property
    def result(self) -> str:
        (role,) = set("xwy").difference(self.roles.values())
        return role


_OPERATORS = {
    "convolution": _Operator(False, {"src": "x", "weights": "w"}),
    "convolution_backward_data": _Operator(False, {"diff_dst": "y", "weights": "w"}, "src_shape"),
    "convolution_backward_weights": _Operator(
        False, {"src": "x", "diff_dst": "y"}, "weights_shape"
    ),
    "convolution_backprop_filters": _Operator(
        False, {"input_forward": "x", "output_delta": "y"}, "filter_shape"
    ),
    "conv_transpose": _Operator(True, {"src": "y", "weights": "w"}),
    "conv_transpose_backward_data": _Operator(True, {"diff_dst": "x", "weights": "w"}),
    "conv_transpose_backward_weights": _Operator(
        True, {"src": "y", "diff_dst": "x"}, "weights_shape"
    ),
    "conv_transpose_backprop_filters": _Operator(
        True, {"input_forward": "y", "output_delta": "x"}, "filter_shape"
    ),
    "convolution_backward_weights_add_": _Operator(
        False, {"src": "x", "diff_dst": "y"}, added_to="diff_weights"
    ),
    "conv_transpose_backward_weights_add_": _Operator(
        True, {"src": "y", "diff_dst": "x"}, added_to="diff_weights"
    ),
}


@cache
def register_sharding() -> None:
    """Lets every operator, and so its derivatives, take and return DTensors; once a process.

    Per dimension of the mesh one index of the sum may be sharded, in whatever tensors have it: the
    batch, the groups, or, where there is one group, the channels of either data tensor. A result
    without the index is ``Partial``. Of these, and of computing everything everywhere, the one
    serves that moves the least of the operands; results are exact for shards of any size. Space is
    not sharded: such operands are gathered first. Operators that add keep the placement of what
    they add to; they add in place where it is that of the result.

    Rules of ``torch.distributed.tensor.experimental.register_sharding`` would not do. They cannot
    change an attribute, such as ``groups`` or ``weights_shape``, for a shard; and torch 2.13 looks
    them up without the keyword arguments that are lists or strings, so that a second call with
    other pads would be given the shape of the first.
    """
    for name, operator in _OPERATORS.items():
        rule = partial(_sharded, operator, inspect.signature(getattr(ops, name)))
        torch.library.register_torch_dispatch(f"convtbw::{name}", DTensor, rule)


def _sharded(
    operator: _Operator,
    signature: inspect.Signature,
    cls: type,
    overload: OpOverload,
    types: Sequence[type],
    args: Sequence,
    kwargs: Mapping,
) -> DTensor | None:
    """One call, below autograd: everywhere the same decision, then each rank its part."""
    call = signature.bind(*args, **kwargs)
    call.apply_defaults()
    arguments = call.arguments
    mesh = _mesh(overload, operator, arguments)
    _read_shape_tensor(operator, arguments)
    with torch.no_grad():  # gradients are those of the call, not of its parts
        on_meta = {name: _on_meta(value) for name, value in arguments.items()}
        result = overload(**on_meta)
        if operator.added_to:
            result = on_meta[operator.added_to]
        problem = _Problem.of(operator, arguments, result.shape)
        sharded = _choose(operator, problem, arguments, mesh)
        placements = partial(problem.placements, sharded)
        for name, role in operator.roles.items():
            arguments[name] = _local(arguments[name], placements(role, Replicate()))
        wanted = placements(operator.result, Partial())
        held = arguments.get(operator.added_to)
        placed_so = held is not None and list(held.placements) == wanted
        if placed_so:
            arguments[operator.added_to] = held.to_local()
        local = _compute(overload, operator, arguments, mesh, wanted, problem, sharded)
        if placed_so:  # it was added there
            return None
        local = DTensor.from_local(local, mesh, wanted, shape=result.shape, stride=result.stride())
        if held is None:
            return local
        _add(held, local)
        return None


def _mesh(overload: OpOverload, operator: _Operator, arguments: Mapping) -> DeviceMesh:
    """The mesh that all tensors lie on."""
    names = [*operator.roles, *([operator.added_to] if operator.added_to else [])]
    names += ["bias"] if arguments.get("bias") is not None else []
    for name in names:
        if not isinstance(arguments[name], DTensor):
            raise RuntimeError(
                f"{overload.name()}: {name} is not a DTensor but another argument is; expected "
                f"{', '.join(names)} on one mesh (torch.distributed.tensor.distribute_tensor)"
            )
    first = arguments[names[0]].device_mesh
    for name in names[1:]:
        mesh = arguments[name].device_mesh
        if mesh != first:
            raise RuntimeError(f"{overload.name()}: {name} lies on {mesh}, {names[0]} on {first}")
    return first


def _read_shape_tensor(operator: _Operator, arguments: dict) -> None:
    """A shape tensor becomes the attribute, which can be told of a shard."""
    name = f"{operator.shape}_tensor"
    tensor = arguments.get(name)
    if tensor is not None:
        values = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        arguments |= {operator.shape: values.tolist(), name: None}


def _on_meta(value):
    """Global sizes without data: the operator checks them, and knows the result's."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _dimension(order: str, letter: str, rank: int) -> int:
    """Where a letter of a format stands in a tensor; X stands for all spatial axes."""
    index = order.index(letter)
    return index + (rank - 3 if index > order.index("X") else 0)


def _chunk(extent: int, size: int, coordinate: int = 0) -> int:
    """The extent of one shard, which is that of torch.chunk; the first is the largest."""
    chunk = -(-extent // size)
    return max(0, min(chunk, extent - coordinate * chunk))


@dataclass(frozen=True)
class _Problem:
    """A call as the sum over n, g, c, q that it is: x has n g c, w has g c q, y has n g q."""

    extents: Mapping[str, int]  # of n, g, and per group c and q
    dimensions: Mapping[str, Mapping[str, int]]  # by role and index
    shapes: Mapping[str, Sequence[int]]  # by role

    @classmethod
    def of(cls, operator: _Operator, arguments: Mapping, result: Sequence[int]) -> "_Problem":
        shapes = {role: arguments[name].shape for name, role in operator.roles.items()}
        shapes[operator.result] = result
        rank, groups = len(result), arguments["groups"]
        order = arguments.get("weights_format", arguments.get("filter_format")).upper()
        channel = _dimension(arguments["data_format"].upper(), "C", rank)
        c = _dimension(order, "O" if operator.transposed else "I", rank)
        q = _dimension(order, "I" if operator.transposed else "O", rank)
        channels = {role: shapes[role][channel] for role in "xy"}
        # With groups, one of the weights' channel dimensions spans them all.
        g = c if shapes["w"][c] == channels["x"] else q
        return cls(
            {
                "n": shapes["x"][0],
                "g": groups,
                "c": channels["x"] // groups,
                "q": channels["y"] // groups,
            },
            {
                "x": {"n": 0, "g": channel, "c": channel},
                "w": {"g": g, "c": c, "q": q},
                "y": {"n": 0, "g": channel, "q": channel},
            },
            shapes,
        )

    def shardable(self, extents: Mapping[str, int], size: int) -> list[str]:
        """The indices that a dimension of the mesh may shard, given what is left of each."""
        groups = extents["g"]
        if groups == 1:
            return ["n", "c", "q"]
        # DTensor shards channels, not groups: the cuts must fall between groups.
        whole = groups > 0 and all(
            _chunk(groups * extents[index], size) == _chunk(groups, size) * extents[index]
            for index in "cq"
        )
        return ["n", "g"] if whole else ["n"]

    def placement(self, index: str | None, role: str, without: Placement) -> Placement:
        """Of a tensor where `index` is sharded; `without`: of one that has not this index."""
        if index is None:
            return Replicate()
        dimension = self.dimensions[role].get(index)
        return without if dimension is None else Shard(dimension)

    def placements(
        self, indices: Sequence[str | None], role: str, without: Placement
    ) -> list[Placement]:
        return [self.placement(index, role, without) for index in indices]

    def local_shape(self, role: str, extents: Mapping[str, int]) -> list[int]:
        """The shape of one rank's part, whose sums have these extents."""
        shape = list(self.shapes[role])
        dimensions = self.dimensions[role]
        if "n" in dimensions:
            shape[0] = extents["n"]
        for index in "cq":
            if index in dimensions:
                spans = dimensions[index] == dimensions["g"]
                shape[dimensions[index]] = extents[index] * (extents["g"] if spans else 1)
        return shape


def _choose(
    operator: _Operator, problem: _Problem, arguments: Mapping, mesh: DeviceMesh
) -> list[str | None]:
    """The index that each dimension of the mesh shards, or None. The same on every rank."""
    left, chosen = dict(problem.extents), []
    for axis in range(mesh.ndim):
        size = mesh.size(axis)
        held = {role: arguments[name].placements[axis] for name, role in operator.roles.items()}
        cost = partial(_cost, problem, held)
        best = min([None, *problem.shardable(left, size)], key=cost)  # the first of equals
        chosen.append(best)
        if best == "g" and left["g"] % size:
            # The ranks have different numbers of groups: what is left of g, c and q differs in
            # kind, and no second cut suits all of them.
            left |= {"g": 0}
        elif best is not None:
            left[best] = _chunk(left[best], size)
    return chosen


def _cost(problem: _Problem, held: Mapping[str, Placement], index: str | None) -> tuple[int, int]:
    """What the ranks exchange, in elements, and how many operands change, to shard `index`."""
    after = {role: problem.placement(index, role, Replicate()) for role in held}
    exchanged = sum(
        _exchanged(held[role], after[role]) * prod(problem.shapes[role]) for role in held
    )
    return exchanged, sum(held[role] != after[role] for role in held)


def _exchanged(before: Placement, after: Placement) -> int:
    """In parts of the tensor, times (size - 1) / size of the mesh's dimension."""
    if before == after or before.is_replicate():
        return 0
    # On CPU an all-to-all is an all-gather (DTensor), a reduce-scatter an all-reduce (gloo).
    return 2 if before.is_partial() else 1


def _local(tensor: DTensor, placements: list[Placement]) -> Tensor:
    if list(tensor.placements) != placements:
        tensor = tensor.redistribute(placements=placements)
    return tensor.to_local()


def _add(held: DTensor, part: DTensor) -> None:
    """In place, where the tensors are placed differently: DTensor's own += needs placements alike.

    A part that is not Partial is added to one term of a sum.
    """
    pairs = list(zip(held.placements, part.placements, strict=True))
    for there in held.placements:
        if there.is_partial() and there != Partial():
            raise RuntimeError(f"diff_weights is placed as {there}; expected Partial(sum) or none")
    once = [there.is_partial() and not here.is_partial() for there, here in pairs]
    placements = [
        Replicate() if alone else there for alone, (there, _) in zip(once, pairs, strict=True)
    ]
    local = _local(part, placements)
    coordinates = held.device_mesh.get_coordinate() or []
    if not any(alone and at > 0 for alone, at in zip(once, coordinates, strict=False)):
        held.to_local().add_(local)


def _compute(
    overload: Callable[..., Tensor],
    operator: _Operator,
    arguments: dict,
    mesh: DeviceMesh,
    wanted: Sequence[Placement],
    problem: _Problem,
    sharded: Sequence[str | None],
) -> Tensor:
    """This rank's part of the result, from its parts of the operands.

    Of what is added to: the part, where that is a tensor; a new one, where it is a DTensor.
    """
    bias = arguments.get("bias")
    if bias is not None:
        # One entry for each channel of the result; summed Partial results may have it once.
        along = [
            Shard(0) if placement.is_shard() and index != "n" else Replicate()
            for placement, index in zip(wanted, sharded, strict=True)
        ]
        bias = _local(bias, along)
    operand = arguments[next(iter(operator.roles))]
    coordinates = mesh.get_coordinate()
    if coordinates is None:  # this process is not part of the mesh
        return operand.new_empty(0)
    extents = dict(problem.extents)
    for axis, index in enumerate(sharded):
        if index is not None:
            extents[index] = _chunk(extents[index], mesh.size(axis), coordinates[axis])
    shape = problem.local_shape(operator.result, extents)
    held = arguments.get(operator.added_to)
    zeros = partial(torch.zeros, shape, dtype=(operand if held is None else held).dtype)
    if not all(extents[index] for index in "gcq"):  # more ranks than channels
        return zeros()
    arguments["groups"] = extents["g"]
    if operator.shape:
        arguments[operator.shape] = shape
    if bias is not None:
        added_elsewhere = any(
            placement.is_partial() and coordinate > 0
            for placement, coordinate in zip(wanted, coordinates, strict=True)
        )
        arguments["bias"] = None if added_elsewhere else bias
    if isinstance(held, DTensor):
        arguments[operator.added_to] = zeros()
    result = overload(**arguments)
    return arguments[operator.added_to] if operator.added_to else result
