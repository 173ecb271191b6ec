"""Calls of the eight operators, each beside the same function in torch.nn.functional.

A `Case` is written in the caller's words (forward src, forward dst). `torch_form` is the same
function of the same tensors in PyTorch's own differentiable operators, so that any transform of
the one can be compared with that transform of the other. It pads and crops with `F.pad` and calls
`F.conv*`: it shares no formula with the library, only the definition in the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CONV = (F.conv1d, F.conv2d, F.conv3d)
CONV_TRANSPOSE = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
DATA_FORMATS = ("NXC", "NCX")
WEIGHTS_FORMATS = ("OIX", "XIO", "IOX", "XOI")


@dataclass(frozen=True)
class Operator:
    """One row of the specification's table: which tensor plays which role of T(x, w, y)."""

    name: str
    transposed: bool
    names: tuple[str, str]
    roles: tuple[str, str]
    result: str
    shape: str | None = None  # the attribute that spells the result's shape
    bias: bool = False

    @property
    def format(self) -> str:
        return "filter_format" if self.name.endswith("filters") else "weights_format"

    @property
    def default_format(self) -> str:
        xoi = self.name in ("conv_transpose", "conv_transpose_backward_weights")
        return "XOI" if xoi else "XIO"

    @property
    def may_omit_pads(self) -> bool:
        return not self.transposed and self.result == "w"


_FORWARD = ("src", "weights")
_DATA = ("diff_dst", "weights")
_WEIGHTS = ("src", "diff_dst")
_FILTERS = ("input_forward", "output_delta")
OPERATORS = {
    row.name: row
    for row in (
        Operator("conv_transpose_backward_weights", True, _WEIGHTS, ("y", "x"), "w",
                 "weights_shape"),
        Operator("conv_transpose_backprop_filters", True, _FILTERS, ("y", "x"), "w",
                 "filter_shape"),
        Operator("conv_transpose_backward_data", True, _DATA, ("x", "w"), "y"),
        Operator("convolution_backprop_filters", False, _FILTERS, ("x", "y"), "w", "filter_shape"),
        Operator("convolution_backward_weights", False, _WEIGHTS, ("x", "y"), "w",
                 "weights_shape"),
        Operator("convolution_backward_data", False, _DATA, ("y", "w"), "x", "src_shape"),
        Operator("conv_transpose", True, _FORWARD, ("y", "w"), "x", bias=True),
        Operator("convolution", False, _FORWARD, ("x", "w"), "y", bias=True),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One problem, one operator. `auto_pad="omitted"` leaves the pads of an E operator out."""

    op: str
    src: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]
    output_padding: tuple[int, ...] | None = None
    groups: int = 1
    batch: int = 2
    ic_per_group: int = 2
    oc_per_group: int = 3
    data_format: str = "NXC"
    weights_format: str = "OIX"
    group_on: str = ""  # "" is the family's standard reading, else "I" or "O"
    auto_pad: str = "none"
    bias: bool = False

    def __str__(self) -> str:
        def digits(extents: Sequence[int]) -> str:
            return "x".join(map(str, extents))

        text = (
            f"{self.op}-n{self.batch}g{self.groups}i{self.ic_per_group}o{self.oc_per_group}"
            f"_s{digits(self.src)}k{digits(self.kernel)}t{digits(self.strides)}"
            f"d{digits(self.dilations)}p{digits(self.pads_begin)}e{digits(self.pads_end)}"
            f"-{self.data_format}-{self.weights_format}{self.group_on}"
        )
        if self.auto_pad != "none":
            text += f"-{self.auto_pad}"
        if self.output_padding is not None:
            text += f"-op{digits(self.output_padding)}"
        return text + ("-bias" if self.bias else "")

    @property
    def operator(self) -> Operator:
        return OPERATORS[self.op]

    @property
    def spatial(self) -> int:
        return len(self.src)

    @property
    def reading(self) -> str:
        return self.group_on or ("I" if self.operator.transposed else "O")

    def window(self, axis: int) -> int:
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def pads(self, axis: int) -> tuple[int, int]:
        if self.auto_pad == "none":
            return self.pads_begin[axis], self.pads_end[axis]
        if self.auto_pad == "valid":
            return 0, 0
        window, stride, extent = self.window(axis), self.strides[axis], self.src[axis]
        if self.operator.transposed:
            total = max(0, window - stride)
        else:
            total = max(0, (-(-extent // stride) - 1) * stride + window - extent)
        begin = (total + 1) // 2 if self.auto_pad == "same_lower" else total // 2
        return begin, total - begin

    @property
    def dst(self) -> tuple[int, ...]:
        extents = []
        for axis, (extent, stride) in enumerate(zip(self.src, self.strides, strict=True)):
            padding, window = sum(self.pads(axis)), self.window(axis)
            if self.operator.transposed:
                extra = self.output_padding[axis] if self.output_padding else 0
                extents.append(stride * (extent - 1) + window - padding + extra)
            else:
                extents.append((extent + padding - window) // stride + 1)
        return tuple(extents)

    def shape(self, role: str) -> tuple[int, ...]:
        """The shape, in the operator's own formats, of the tensor that plays `role`."""
        ic, oc = self.groups * self.ic_per_group, self.groups * self.oc_per_group
        if role == "w":
            channels = {"I": ic, "O": oc}
            per_group = "I" if self.reading == "O" else "O"
            channels[per_group] //= self.groups
            extents = {letter: (extent,) for letter, extent in channels.items()}
            extents["X"] = self.kernel
            return sum((extents[letter] for letter in self.weights_format), ())
        is_src = (role == "y") == self.operator.transposed
        extents, channels = (self.src, ic) if is_src else (self.dst, oc)
        if self.data_format == "NXC":
            return (self.batch, *extents, channels)
        return (self.batch, channels, *extents)

    def kwargs(self) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "strides": list(self.strides),
            "dilations": list(self.dilations),
            "groups": self.groups,
            "data_format": self.data_format,
            self.operator.format: self.weights_format,
        }
        if self.auto_pad == "none":
            attributes |= {"pads_begin": list(self.pads_begin), "pads_end": list(self.pads_end)}
        elif self.auto_pad != "omitted":
            attributes |= {"pads_begin": [], "pads_end": [], "auto_pad": self.auto_pad}
        if self.operator.shape is not None:
            attributes[self.operator.shape] = list(self.shape(self.operator.result))
        if self.output_padding is not None:
            attributes["output_padding"] = list(self.output_padding)
        return attributes

    def tensors(self, dtype: torch.dtype = torch.float64, *, seed: int = 0,
                integers: bool = False) -> tuple[Tensor, ...]:  # fmt: skip
        """The operator's floating inputs. Small integers make every order of summation exact."""
        generator = torch.Generator().manual_seed(seed)
        shapes = [self.shape(role) for role in self.operator.roles]
        if self.bias:
            shapes.append((self.groups * self.oc_per_group,))
        if integers:
            return tuple(
                torch.randint(-3, 4, shape, generator=generator).to(dtype) for shape in shapes
            )
        return tuple(
            torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            for shape in shapes
        )

    def call(self, *tensors: Tensor) -> Tensor:
        return getattr(torch.ops.convtbw, self.op)(*tensors, **self.kwargs())


def torch_form(case: Case) -> Callable[..., Tensor]:
    """The same function of the same tensors as `case.call`, in torch.nn.functional."""

    def data_in(tensor: Tensor) -> Tensor:
        return tensor.movedim(-1, 1) if case.data_format == "NXC" else tensor

    def data_out(tensor: Tensor) -> Tensor:
        return tensor.movedim(1, -1) if case.data_format == "NXC" else tensor

    def function(first: Tensor, second: Tensor, bias: Tensor | None = None) -> Tensor:
        slots = {
            role: _weights_in(case, tensor) if role == "w" else data_in(tensor)
            for role, tensor in zip(case.operator.roles, (first, second), strict=True)
        }
        if case.operator.result == "w":
            return _weights_out(case, _wgrad(case, slots["x"], slots["y"]))
        if case.operator.result == "y":
            result = _fprop(case, slots["x"], slots["w"])
        else:
            result = _dgrad(case, slots["w"], slots["y"])
        if bias is not None:
            result = result + bias.reshape(-1, *(1,) * case.spatial)
        return data_out(result)

    return function


def _small(case: Case) -> tuple[int, ...]:
    return case.src if case.operator.transposed else case.dst


def _big(case: Case) -> tuple[int, ...]:
    return case.dst if case.operator.transposed else case.src


def _reached(case: Case, axis: int) -> int:
    """How far the windows reach, from the first tap of the first to the last tap of the last."""
    return (_small(case)[axis] - 1) * case.strides[axis] + case.window(axis)


def _fit(case: Case, x: Tensor) -> Tensor:
    """x as the windows see it: negative entries of F.pad crop what no window reaches."""
    pads: list[int] = []
    for axis in reversed(range(case.spatial)):
        begin = case.pads(axis)[0]
        pads += [begin, _reached(case, axis) - begin - _big(case)[axis]]
    return F.pad(x, pads)


def _fprop(case: Case, x: Tensor, w: Tensor) -> Tensor:
    return CONV[case.spatial - 1](
        _fit(case, x),
        w.contiguous(),
        stride=case.strides,
        dilation=case.dilations,
        groups=case.groups,
    )  # fmt: skip  (PyTorch's depthwise backward refuses weights that are not contiguous)


def _dgrad(case: Case, w: Tensor, y: Tensor) -> Tensor:
    full = CONV_TRANSPOSE[case.spatial - 1](
        y, w.contiguous(), stride=case.strides, dilation=case.dilations, groups=case.groups
    )
    pads: list[int] = []
    for axis in reversed(range(case.spatial)):
        begin = case.pads(axis)[0]
        pads += [-begin, _big(case)[axis] + begin - _reached(case, axis)]
    return F.pad(full, pads)


def _wgrad(case: Case, x: Tensor, y: Tensor) -> Tensor:
    """A convolution over the batch whose kernel is y; stride and dilation change places."""
    conv = CONV[case.spatial - 1]
    parts = [
        conv(
            xs.transpose(0, 1),
            ys.transpose(0, 1).contiguous(),
            stride=case.dilations,
            dilation=case.strides,
        )
        for xs, ys in zip(_fit(case, x).chunk(case.groups, 1), y.chunk(case.groups, 1), strict=True)
    ]
    return torch.cat([part.transpose(0, 1) for part in parts])


def _weights_in(case: Case, weights: Tensor) -> Tensor:
    """Any format and reading to PyTorch's (channels of y, channels of x per group, kernel)."""
    i, o = _channel_dims(case)
    small, big = (i, o) if case.operator.transposed else (o, i)
    weights = weights.movedim((small, big), (0, 1))
    if _is_standard(case):
        return weights
    # (channels of y per group, channels of x): the groups move to the first dimension.
    return weights.unflatten(1, (case.groups, -1)).transpose(0, 1).flatten(0, 1)


def _weights_out(case: Case, weights: Tensor) -> Tensor:
    if not _is_standard(case):
        weights = weights.unflatten(0, (case.groups, -1)).transpose(0, 1).flatten(1, 2)
    i, o = _channel_dims(case)
    small, big = (i, o) if case.operator.transposed else (o, i)
    return weights.movedim((0, 1), (small, big))


def _is_standard(case: Case) -> bool:
    return case.reading == ("I" if case.operator.transposed else "O")


def _channel_dims(case: Case) -> tuple[int, int]:
    rank, order = case.spatial + 2, case.weights_format
    return tuple(  # type: ignore[return-value]
        order.index(letter) if order.index(letter) < order.index("X")
        else order.index(letter) - 3 + rank
        for letter in "IO"
    )  # fmt: skip


def _per_operator(transposed: bool, **attributes: Any) -> list[Case]:
    """The same problem for each operator of a family, formats in rotation over the operators."""
    names = [op for op, row in OPERATORS.items() if row.transposed == transposed]
    cases = []
    for turn, name in enumerate(names):
        formats = {
            "data_format": DATA_FORMATS[turn % 2],
            "weights_format": WEIGHTS_FORMATS[turn % 4],
        }
        cases.append(Case(name, **(formats | attributes)))
    return cases


def _two_axes(**attributes: Any) -> dict[str, Any]:
    return {
        "src": (4, 3), "kernel": (2, 2), "strides": (1, 2), "dilations": (2, 1),
        "pads_begin": (1, 0), "pads_end": (0, 1), "batch": 2,
    } | attributes  # fmt: skip


def _cases() -> list[Case]:
    none = {"pads_begin": (0, 0), "pads_end": (0, 0)}
    one = {"src": (5,), "kernel": (3,), "strides": (2,), "dilations": (1,), "oc_per_group": 1}
    three = {
        "src": (2, 3, 2), "kernel": (1, 2, 2), "strides": (1, 2, 1), "dilations": (1, 1, 1),
        "pads_begin": (0, 1, 0), "pads_end": (0, 0, 1), "batch": 1, "ic_per_group": 1,
        "oc_per_group": 2,
    }  # fmt: skip
    cases: list[Case] = []
    for transposed in (False, True):
        cases += _per_operator(transposed, **one, pads_begin=(1,), pads_end=(0,))
        cases += _per_operator(
            transposed, **_two_axes(groups=2, ic_per_group=1, oc_per_group=2, batch=1)
        )
        cases += _per_operator(transposed, **three)
        for auto_pad in ("same_upper", "same_lower"):
            cases += _per_operator(
                transposed, auto_pad=auto_pad,
                **_two_axes(
                    src=(3, 4), kernel=(3, 2), batch=1, ic_per_group=1, oc_per_group=1, **none
                ),
            )  # fmt: skip
    # Padding beyond the kernel's extent; extents that no tap reaches.
    cases += _per_operator(False, src=(4,), kernel=(2,), strides=(3,), dilations=(1,),
                           pads_begin=(4,), pads_end=(0,), weights_format="OIX")  # fmt: skip
    # Legal where the dilation exceeds the stride, and beyond what the windows reach.
    cases += _per_operator(True, src=(3,), kernel=(2,), strides=(1,), dilations=(3,),
                           pads_begin=(1,), pads_end=(0,), output_padding=(2,))  # fmt: skip
    # Both readings of the ambiguous formats.
    for group_on in "IO":
        for weights_format in ("IOX", "XOI"):
            cases += _per_operator(
                True, src=(3,), kernel=(2,), strides=(2,), dilations=(1,), pads_begin=(0,),
                pads_end=(1,), groups=2, ic_per_group=1, oc_per_group=2, batch=1,
                weights_format=weights_format, group_on=group_on,
            )  # fmt: skip
    for name in ("convolution", "conv_transpose"):
        for data_format in DATA_FORMATS:
            shape = _two_axes(groups=2, ic_per_group=1, oc_per_group=1, batch=1)
            cases.append(
                Case(name, **shape, data_format=data_format, weights_format="XOI", bias=True)
            )
    for name in ("convolution_backward_weights", "convolution_backprop_filters"):
        cases.append(Case(name, **one, pads_begin=(), pads_end=(), auto_pad="omitted"))
    return cases


CASES = _cases()


def one_each(**attributes: Any) -> list[Case]:
    """One 2-D case per operator: groups, stride, dilation and asymmetric pads at once."""
    base = _two_axes(groups=2, ic_per_group=1, oc_per_group=2) | attributes
    return [Case(name, **base) for name in OPERATORS]


def with_layout(tensor: Tensor, layout: str, data_format: str = "NCX") -> Tensor:
    """Equal values in other strides."""
    if layout == "contiguous":
        return tensor.contiguous()
    if layout == "channels_last":  # the other data format's memory
        if data_format == "NCX":
            return tensor.movedim(1, -1).contiguous().movedim(-1, 1)
        return tensor.movedim(-1, 1).contiguous().movedim(1, -1)
    if layout == "sliced":
        wider = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), float("nan"))
        view = wider[..., 1::2]
        view.copy_(tensor)
        return view
    raise ValueError(layout)
