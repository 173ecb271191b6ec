"""The operator calls of one problem: arguments in the problem's formats, and the exact results.

The data are small integers, thinned until no sum of absolute products can exceed what the dtype
(or the float32 accumulator) represents exactly: then every order of summation is exact.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import oracle
import torch
from problems import Problem

Array = np.ndarray

# dtype -> (largest integer up to which all are representable, largest factor drawn)
EXACT: dict[torch.dtype, tuple[int, int]] = {
    torch.float64: (2**24, 4),
    torch.float32: (2**24, 4),
    torch.float16: (2**11, 2),
    torch.bfloat16: (2**8, 1),
}


@dataclass(frozen=True)
class Integers:
    """Operands in the canonical layouts, a bias of each family, and the three partials."""

    x: Array
    w: Array
    y: Array
    bias: Array
    fprop: Array
    dgrad: Array
    wgrad: Array


@dataclass(frozen=True)
class Call:
    operator: str
    args: tuple[torch.Tensor | None, ...]
    kwargs: dict[str, object]
    expected: torch.Tensor

    def run(self) -> torch.Tensor:
        return getattr(torch.ops.convtbw, self.operator)(*self.args, **self.kwargs)


def _partials(p: Problem, x: Array, w: Array, y: Array) -> tuple[Array, Array, Array]:
    return (
        oracle.fprop(x, w, p.y_extent, **p.incidence),
        oracle.dgrad(y, w, p.x_extent, **p.incidence),
        oracle.wgrad(x, y, p.k, p.groups, **p.incidence),
    )


def _base_shapes(p: Problem) -> dict[str, tuple[int, ...]]:
    """Shapes before broadcasting: the layout "expanded" wants equal values along some axes."""
    shapes = {"x": p.x_shape, "w": p.w_shape, "y": p.y_shape}
    if p.layout == "expanded":
        src, cotangent = ("y", "x") if p.transposed else ("x", "y")
        shapes[src] = (min(p.batch, 1), *shapes[src][1:])
        shapes["w"] = (*p.w_shape[:-1], 1)
        shapes[cotangent] = (1,) * len(shapes[cotangent])  # as y.sum().backward() makes it
    return shapes


@functools.cache
def integers(p: Problem, dtype: torch.dtype) -> Integers:
    limit, factor = EXACT[dtype]
    rng = np.random.default_rng(zlib.crc32(str(p).encode()))
    full = {"x": p.x_shape, "w": p.w_shape, "y": p.y_shape}
    base = {}
    for role, shape in _base_shapes(p).items():
        base[role] = rng.integers(-factor, factor + 1, shape).astype(np.float64)
        if base[role].size == 1:
            base[role][...] = 1.0  # a zero here would test nothing
    uses = {0: "xw", 1: "yw", 2: "xy"}
    while True:
        x, w, y = (np.broadcast_to(base[r], full[r]) for r in "xwy")
        sums = _partials(p, *map(np.abs, (x, w, y)))
        over = [n for n, s in enumerate(sums) if s.max(initial=0) + factor > limit]
        if not over:
            break
        for role in {r for n in over for r in uses[n] if base[r].size > 1}:
            base[role] *= rng.random(base[role].shape) < 0.8
    channels = p.groups * (p.c if p.transposed else p.q)
    bias = rng.integers(-factor, factor + 1, channels).astype(np.float64)
    if p.layout == "expanded":
        bias[...] = 1.0
    return Integers(x, w, y, bias, *_partials(p, x, w, y))


# ---- memory layouts ---------------------------------------------------------------------------


def sliced(t: torch.Tensor) -> torch.Tensor:
    """Every second element of a larger tensor, along the last and the second dimension.

    What lies between is NaN, so that reading it shows.
    """
    shape = list(t.shape)
    for dim in {1 % t.ndim, t.ndim - 1}:
        shape[dim] = 2 * shape[dim] + 1
    view = torch.full(shape, torch.nan, dtype=t.dtype)[..., 1::2]
    view = view[:, 1::2] if t.ndim > 1 else view
    return view.copy_(t)


def reversed_memory(t: torch.Tensor) -> torch.Tensor:
    order = list(reversed(range(t.ndim)))
    return t.permute(order).contiguous().permute(order)


def channels_inside(t: torch.Tensor, channels_first: bool) -> torch.Tensor:
    """The other memory order of the same logical order: NXC memory for NCX, and the reverse."""
    there, back = ((1, -1), (-1, 1)) if channels_first else ((-1, 1), (1, -1))
    return t.movedim(*there).contiguous().movedim(*back)


def lay_out(
    t: torch.Tensor, layout: str, *, channels_first: bool, constant: str = ""
) -> torch.Tensor:
    """The same values in another memory layout. `constant` says where "expanded" finds equals."""
    t = t.contiguous()
    if layout == "sliced":
        return sliced(t)
    if layout == "transposed":
        return reversed_memory(t)
    if layout == "channels_last" and t.ndim > 2:
        return channels_inside(t, channels_first)
    if layout == "expanded" and constant == "all":
        return t.new_ones(()).expand(t.shape)
    if layout == "expanded" and constant == "batch":
        return t[:1].expand(t.shape)
    if layout == "expanded" and constant == "last tap axis":
        axis = t.ndim - 1 if channels_first else t.ndim - 3
        return t.narrow(axis, 0, 1).expand(t.shape)
    return t


# ---- calls ------------------------------------------------------------------------------------


def calls(
    p: Problem,
    dtype: torch.dtype,
    *,
    data_format: str | None = None,
    weights_format: str | None = None,
    reading: str | None = None,
    layout: str | None = None,
) -> list[Call]:
    """Every operator of the problem's family, each form of its arguments that means the same."""
    data_format = data_format or p.data_format
    weights_format = weights_format or p.weights_format
    reading = reading or oracle.standard_reading(p.family)
    layout = layout or p.layout
    values = integers(p, dtype)

    def data(a: Array) -> torch.Tensor:
        return torch.from_numpy(oracle.data_from_canonical(a, data_format).copy()).to(dtype)

    def weights(a: Array) -> torch.Tensor:
        a = oracle.weights_from_canonical(a, p.family, weights_format, reading)
        return torch.from_numpy(a.copy()).to(dtype)

    def biased(a: Array) -> torch.Tensor:
        return data(a + values.bias.reshape(1, -1, *[1] * p.rank))

    channels_first = data_format == "NCX"
    src, dst = (values.y, values.x) if p.transposed else (values.x, values.y)
    s = lay_out(data(src), layout, channels_first=channels_first, constant="batch")
    t = lay_out(data(dst), layout, channels_first=channels_first, constant="all")
    w = lay_out(
        weights(values.w),
        layout,
        channels_first=weights_format.endswith("X"),
        constant="last tap axis",
    )
    b = lay_out(
        torch.from_numpy(values.bias).to(dtype), layout, channels_first=True, constant="all"
    )
    result_forward, result_data = (
        (values.dgrad, values.fprop) if p.transposed else (values.fprop, values.dgrad)
    )

    common: dict[str, object] = {
        "strides": p.stride,
        "dilations": p.dilation,
        "pads_begin": p.pads_begin,
        "pads_end": p.pads_end,
        "auto_pad": p.auto_pad,
        "groups": p.groups,
        "data_format": data_format,
    }
    padding = {"output_padding": p.output_padding} if p.transposed else {}
    shape = tuple(weights(values.w).shape)
    forward = {**common, **padding, "weights_format": weights_format}
    found = [
        Call(p.family, (s, w), forward, data(result_forward)),
        Call(p.family, (s, w, b), forward, biased(result_forward)),
    ]

    backward = dict(forward)
    if not p.transposed:
        backward["src_shape"] = tuple(s.shape)
    found.append(Call(f"{p.family}_backward_data", (t, w), backward, data(result_data)))

    for suffix, letter in (("backward_weights", "weights"), ("backprop_filters", "filter")):
        named = {**common, **padding, f"{letter}_format": weights_format}
        by_attribute = {**named, f"{letter}_shape": shape}
        found.append(Call(f"{p.family}_{suffix}", (s, t), by_attribute, weights(values.wgrad)))
    # The shape as a tensor, beside an attribute that it overrides or without one.
    as_tensor = torch.tensor(shape, dtype=torch.int32 if p.batch % 2 else torch.int64)
    operator = f"{p.family}_backprop_filters"
    found.append(Call(operator, (s, t, as_tensor), named, weights(values.wgrad)))
    if p.output_padding is not None:
        # Weights gradients find the output padding in the shapes when it is not given.
        implied = {**by_attribute, "output_padding": None}
        found.append(Call(operator, (s, t), implied, weights(values.wgrad)))
    return found


def first_difference(actual: torch.Tensor, expected: torch.Tensor) -> str | None:
    """None when the tensors are equal; otherwise where they differ first, and by what."""
    if actual.dtype != expected.dtype:
        return f"dtype {actual.dtype}, expected {expected.dtype}"
    if actual.shape != expected.shape:
        return f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if torch.equal(actual, expected):
        return None
    wrong = ~((actual == expected) | (actual.isnan() & expected.isnan()))
    if not wrong.any():
        return None  # NaN in the same places
    index = tuple(wrong.nonzero()[0].tolist())
    return (
        f"differs at {list(index)}: {actual[index].item()} vs {expected[index].item()} expected "
        f"({int(wrong.sum())} of {wrong.numel()} elements)"
    )


def check(
    problem: object, backend: str, call: Call, run: Callable[[], torch.Tensor | None]
) -> str | None:
    """The failure message of one call, or None when it is right or was declined."""
    label = f"{problem} {call.operator} ({len(call.args)} tensors) {backend}"
    try:
        actual = run()
    except Exception as error:  # the message must name the problem, whatever went wrong
        first_line = (str(error).splitlines() or [""])[0]
        return f"{label}: {type(error).__name__}: {first_line}"
    if actual is None:
        return None
    difference = first_difference(actual, call.expected.to(actual.dtype))
    return None if difference is None else f"{label}: {difference}"
