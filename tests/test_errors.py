"""Bad input gets one RuntimeError in the caller's words, and nothing else happens.

One row per check of the specification: which argument of a good call is changed, and what the
message must contain. The fragments are regular expressions, matched without regard to case.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from samples import OPERATORS, Case
from torch import Tensor

import torch_ops  # noqa: F401  registers torch.ops.convtbw

pytestmark = pytest.mark.unforced

HUGE = 2**62
MAXIMUM = 2**63 - 1
OVERFLOW = r"overflow|64.bit"
Change = Any  # a value, or a function of the good value


@dataclass(frozen=True)
class Row:
    name: str
    op: str
    spatial: int
    changes: dict[str, Change]
    says: tuple[str, ...]
    start: dict[str, Any] = field(default_factory=dict)  # another good call to start from
    # Whether the same error can be had from fake tensors: not for layouts, devices, shape tensors.
    on_meta: bool = True

    def __str__(self) -> str:
        return f"{self.op}-{self.spatial}d-{self.name}"


# --- good calls, and ways to spoil an argument ----------------------------------------------------


def good_case(op: str, spatial: int, **attributes: Any) -> Case:
    """Two groups; IC 4, OC 6. First axis: convolution 7 to 4, transposed 4 to 8, window 3."""
    transposed = OPERATORS[op].transposed
    lists = {
        "src": (4, 5, 3) if transposed else (7, 8, 5),
        "kernel": (3, 2, 1),
        "strides": (2, 1, 1),
        "dilations": (1, 2, 1),
        "pads_begin": (1, 0, 0),
        "pads_end": (1, 1, 0),
    }
    if transposed:
        lists["output_padding"] = (1, 1, 0)
    values: dict[str, Any] = {key: value[:spatial] for key, value in lists.items()}
    return Case(op, **(values | {"groups": 2, "weights_format": "XIO"} | attributes))


def arguments(case: Case) -> dict[str, Any]:
    tensors = case.tensors(torch.float32)
    names = (*case.operator.names, "bias")[: len(tensors)]
    return dict(zip(names, tensors, strict=True)) | case.kwargs()


def size(dim: int, extent: int) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        shape = list(tensor.shape)
        shape[dim] = extent
        return torch.ones(shape, dtype=tensor.dtype)

    return change


def shape(*extents: int) -> Tensor:
    return torch.ones(extents)


def entry(index: int, value: int) -> Callable[[list[int]], list[int]]:
    return lambda values: [*values[:index], value, *values[index + 1 :]]


def longer(values: list[int]) -> list[int]:
    return [*values, 1]


def shorter(values: list[int]) -> list[int]:
    return values[:-1]


def cast(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.to(dtype)


def quantised(tensor: Tensor) -> Tensor:
    return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


def nested(tensor: Tensor) -> Tensor:
    return torch.nested.nested_tensor(list(tensor.unbind()))


def on_meta(tensor: Tensor) -> Tensor:
    return tensor.to("meta")


# --- the table ------------------------------------------------------------------------------------

_W = r"\bweights\b"
FORWARD = ("convolution", "conv_transpose")
WGRAD = tuple(name for name, row in OPERATORS.items() if row.result == "w")
E_OPERATORS = tuple(name for name, row in OPERATORS.items() if row.may_omit_pads)


def _attributes() -> list[Row]:
    """Lengths, signs and strings: for every operator that has the attribute."""
    rows = []
    for turn, (op, row) in enumerate(OPERATORS.items()):
        spatial = 1 + turn % 3
        lists = ["strides", "dilations", "pads_begin", "pads_end"]
        if row.transposed:
            lists.append("output_padding")
        for name in lists:
            expected = rf"\b{spatial}\b"
            rows += [
                Row(f"{name}-too-long", op, spatial, {name: longer},
                    (name, rf"\b{spatial + 1}\b", expected)),
                Row(f"{name}-too-short", op, 3, {name: shorter}, (name, r"\b2\b", r"\b3\b")),
            ]  # fmt: skip
        for name in ("strides", "dilations"):
            rows += [
                Row(f"{name}-{value}", op, spatial, {name: entry(spatial - 1, value)},
                    (name, rf"(?<!\w){value}\b", r"\b1\b"))
                for value in (0, -2)
            ]  # fmt: skip
        for name in lists[2:]:
            rows.append(
                Row(f"{name}-negative", op, spatial, {name: entry(spatial - 1, -3)},
                    (name, r"-3\b", r"\b0\b"))
            )  # fmt: skip
        rows += [
            Row(f"groups-{value}", op, spatial, {"groups": value},
                ("groups", rf"(?<!\w){value}\b", r"\b1\b"))
            for value in (0, -1)
        ]  # fmt: skip
        rows += [
            Row("auto_pad-unknown", op, spatial, {"auto_pad": "same"},
                ("auto_pad", r"\bsame\b", "none", "valid", "same_upper", "same_lower")),
            Row("data_format-unknown", op, spatial, {"data_format": "NHWC"},
                ("data_format", "NHWC", "NXC", "NCX")),
            Row("format-unknown", op, spatial, {row.format: "HWIO"},
                (row.format, "HWIO", "OIX", "XIO", "IOX", "XOI")),
            Row("format-empty", op, spatial, {row.format: ""}, (row.format, "OIX", "XIO")),
        ]  # fmt: skip
        if row.shape is not None:
            full = spatial + 2
            rows += [
                Row("shape-too-long", op, spatial, {row.shape: longer},
                    (row.shape, rf"\b{full + 1}\b", rf"\b{full}\b")),
                Row("shape-too-short", op, spatial, {row.shape: shorter},
                    (row.shape, rf"\b{full - 1}\b", rf"\b{full}\b")),
                Row("shape-zero", op, spatial, {row.shape: entry(1, 0)},
                    (row.shape, r"\b0\b")),
                Row("shape-negative", op, spatial, {row.shape: entry(1, -5)},
                    (row.shape, r"-5\b")),
            ]  # fmt: skip
    # No auto_pad, so no empty pads either; and one entry per axis even where auto_pad ignores them.
    for op in ("convolution", "conv_transpose", "convolution_backward_data"):
        rows.append(Row("pads-empty", op, 2, {"pads_begin": []}, ("pads_begin", r"\b2\b")))
        rows.append(
            Row("ignored-pads-too-long", op, 2, {"auto_pad": "valid", "pads_end": [0, 0, 0]},
                ("pads_end", r"\b3\b", r"\b2\b"))
        )  # fmt: skip
    return rows


def _tensors() -> list[Row]:
    """Ranks, types, devices and layouts of the two tensors."""
    rows = []
    for turn, (op, row) in enumerate(OPERATORS.items()):
        spatial, (first, second) = 1 + turn % 3, row.names
        named = rf"\b{first}\b"
        both = (rf"\b{first}\b", rf"\b{second}\b")
        other = spatial % 3 + 1
        rows += [
            Row("rank-2", op, spatial, {first: shape(4, 4)}, (named, r"\b2\b", r"\b3\b")),
            Row("rank-6", op, spatial, {first: shape(1, 1, 1, 1, 1, 4)},
                (named, r"\b6\b", r"\b5\b")),
            Row("ranks-2-both", op, spatial, {first: shape(4, 4), second: shape(4, 4)},
                (r"rank|dim", r"\b2\b", r"\b3\b")),
            Row("ranks-unequal", op, spatial, {second: torch.ones((1,) * (other + 2))},
                (*both, rf"\b{spatial + 2}\b", rf"\b{other + 2}\b")),
            Row("types-mixed", op, spatial, {second: cast(torch.float64)},
                (*both, "float32|float", "float64|double")),
            Row("types-16-bit-mixed", op, spatial,
                {first: cast(torch.float16), second: cast(torch.bfloat16)},
                (*both, "float16|half", "bfloat16")),
        ]  # fmt: skip
        bad_type = (torch.int32, torch.int64, torch.complex64, torch.bool)[turn % 4]
        spelt = ("int32|int", "int64|long", "complex", "bool")[turn % 4]
        rows.append(
            Row(f"type-{spelt.split('|')[0]}", op, spatial,
                {first: cast(bad_type), second: cast(bad_type)},
                (rf"\b({first}|{second})\b", spelt, "float32", "float64", "bfloat16"))
        )  # fmt: skip
        spoilers = {
            "sparse-coo": (Tensor.to_sparse, "sparse"),
            "quantised": (quantised, "quant|qint8"),
            "mkldnn": (Tensor.to_mkldnn, "mkldnn"),
            "nested": (nested, "nested"),
            "meta-beside-cpu": (on_meta, r"\bmeta\b"),
        }
        for name, (spoil, word) in spoilers.items():
            for which in (first, second):
                if name == "nested" and which != first:
                    continue  # weights are not a batch of anything
                rows.append(
                    Row(f"{which}-{name}", op, spatial, {which: spoil},
                        (rf"\b{which}\b" if name != "meta-beside-cpu" else named, word),
                        on_meta=False)
                )  # fmt: skip
        rows.append(Row("sparse-csr", op, 1, {first: Tensor.to_sparse_csr}, (named, "sparse"),
                        on_meta=False))  # fmt: skip
    return rows


def _channels() -> list[Row]:
    """Batch, channels, groups, and the two readings of the weights. NXC: channels are last."""
    rows = []
    for turn, op in enumerate(FORWARD):
        rows += [
            Row("ic-not-divisible", op, 1 + turn, {"src": size(-1, 5)},
                (r"\bsrc\b", r"\b5\b", "groups", r"\b2\b")),
            Row("groups-do-not-divide", op, 2 + turn, {"groups": 3},
                (r"\bsrc\b", r"\b4\b", "groups", r"\b3\b")),
            Row("ic-zero", op, 2, {"src": size(-1, 0)}, (r"\bsrc\b", r"\b0\b")),
            Row("oc-zero", op, 2, {"weights": size(-1, 0)}, (_W, r"\b0\b")),
        ]  # fmt: skip
    for op in WGRAD:
        row = OPERATORS[op]
        first, second = row.names
        rows += [
            Row("batch", op, 2, {second: size(0, 3)},
                (rf"\b{first}\b", rf"\b{second}\b", r"\b2\b", r"\b3\b")),
            Row("ic-not-divisible", op, 2, {first: size(-1, 5)},
                (rf"\b{first}\b", r"\b5\b", "groups", r"\b2\b")),
            Row("oc-not-divisible", op, 1, {second: size(-1, 7)},
                (rf"\b{second}\b", r"\b7\b", "groups", r"\b2\b")),
            Row("ic-zero", op, 2, {first: size(-1, 0)}, (rf"\b{first}\b", r"\b0\b")),
            Row("oc-zero", op, 3, {second: size(-1, 0)}, (rf"\b{second}\b", r"\b0\b")),
        ]  # fmt: skip
    for op in ("convolution_backward_data", "conv_transpose_backward_data"):
        rows += [
            Row("oc-not-divisible", op, 2, {"diff_dst": size(-1, 7)},
                (r"\bdiff_dst\b", r"\b7\b", "groups", r"\b2\b")),
            Row("oc-zero", op, 2, {"diff_dst": size(-1, 0)}, (r"\bdiff_dst\b", r"\b0\b")),
        ]  # fmt: skip
    rows += [
        Row("oc-not-divisible", "convolution", 2, {"weights": size(-1, 7)},
            (_W, r"\b7\b", "groups", r"\b2\b")),
        Row("batch", "convolution_backward_data", 2, {"src_shape": entry(0, 3)},
            (r"\bsrc_shape\b", r"\bdiff_dst\b", r"\b3\b", r"\b2\b")),
        Row("ic-not-divisible", "convolution_backward_data", 2, {"src_shape": entry(3, 5)},
            (r"\bsrc_shape\b", r"\b5\b", "groups", r"\b2\b")),
        # XIO of a convolution is (X, IC/g, OC), of a transposed one (X, IC, OC/g).
        Row("weights-ic", "convolution", 2, {"weights": size(2, 3)}, (_W, "3, 2, 3, 6", "3, 2, 2")),
        Row("weights-oc", "convolution_backward_data", 2, {"weights": size(3, 8)},
            (_W, "3, 2, 2, 8", "3, 2, 2, 6")),
        Row("weights-ic", "convolution_backward_data", 2, {"weights": size(2, 3)},
            (_W, "3, 2, 3, 6", "3, 2, 2, 6")),
        Row("weights-ic", "conv_transpose", 2, {"weights": size(2, 6)},
            (_W, "3, 2, 6, 3", "3, 2, 4")),
        Row("weights-oc", "conv_transpose_backward_data", 2, {"weights": size(3, 4)},
            (_W, "3, 2, 4, 4", r"3, 2, [^\]]*, 3\b")),
        # Both readings are accepted, so both are printed.
        Row("weights-readings", "conv_transpose", 2, {"weights": size(3, 5)},
            (_W, "3, 2, 3, 5", r", 4[\])]", r", 2[\])]"), {"weights_format": "XOI"}),
        Row("weights-readings", "conv_transpose", 1, {"weights": size(0, 5)},
            (_W, "5, 3, 3", r"[\[(]4, ", r"[\[(]2, "), {"weights_format": "IOX"}),
        Row("weights-readings", "conv_transpose_backward_data", 2, {"weights": size(2, 4)},
            (_W, "3, 2, 4, 4", "3, 2, 3, ", "3, 2, 6, "), {"weights_format": "XOI"}),
    ]  # fmt: skip
    for op in ("conv_transpose_backward_weights", "conv_transpose_backprop_filters"):
        name = OPERATORS[op].shape
        rows += [
            Row("shape-readings", op, 2, {name: entry(3, 5)},
                (name, "3, 2, 3, 5", "3, 2, 3, 4", "3, 2, 6, 2"), {"weights_format": "XOI"}),
            Row("shape-readings", op, 1, {name: entry(1, 7)},
                (name, "4, 7, 3", "4, 3, 3", "2, 6, 3"), {"weights_format": "IOX"}),
            Row("shape-channels", op, 2, {name: entry(2, 2)}, (name, "3, 2, 2, 3", "3, 2, 4, 3")),
        ]  # fmt: skip
    for op in E_OPERATORS:
        name = OPERATORS[op].shape
        rows += [
            Row("shape-ic", op, 2, {name: entry(2, 4)}, (name, "3, 2, 4, 6", "3, 2, 2, 6")),
            Row("shape-oc", op, 1, {name: entry(2, 3)}, (name, "3, 2, 3", "3, 2, 6")),
        ]  # fmt: skip
    return rows


def _geometry() -> list[Row]:
    rows = []
    for op in ("convolution_backward_weights", "convolution_backprop_filters"):
        (first, second), name = OPERATORS[op].names, OPERATORS[op].shape
        rows += [
            Row("dst-extent", op, 2, {second: size(1, 5)}, (rf"\b{second}\b", r"\b5\b", r"\b4\b")),
            Row("window-exceeds-src", op, 2, {name: entry(0, 12)},
                (f"{first}|{name}", r"\b12\b", r"\b[79]\b")),
            Row("pads-change-dst", op, 1, {"pads_end": [5]}, (second, r"\b4\b", r"\b6\b")),
            Row("omitted-pads-impossible", op, 1,
                {second: size(1, 1), "pads_begin": [], "pads_end": []},
                (second, r"\b1\b", r"\b7\b")),
            Row("only-pads_end", op, 2, {"pads_begin": []}, ("pads_begin", "pads_end")),
            Row("only-pads_begin", op, 2, {"pads_end": []}, ("pads_begin", "pads_end")),
            Row("same_upper-dst", op, 2, {"auto_pad": "same_upper", second: size(1, 5)},
                (second, r"\b5\b", r"\b4\b")),
        ]  # fmt: skip
    for op in ("conv_transpose_backward_weights", "conv_transpose_backprop_filters"):
        second, name = OPERATORS[op].names[1], OPERATORS[op].shape
        rows += [
            Row("dst-extent", op, 2, {second: size(1, 10)},
                (rf"\b{second}\b", r"\b10\b", r"\b8\b")),
            Row("strict-output_padding", op, 2, {"output_padding": [0, 0]},
                (rf"\b{second}\b", r"\b8\b", r"\b7\b")),
            Row("implied-output_padding", op, 1, {second: size(1, 9), "output_padding": None},
                (rf"\b{second}\b", r"\b9\b")),
            Row("implied-output_padding-negative", op, 1,
                {second: size(1, 6), "output_padding": None}, (rf"\b{second}\b", r"\b6\b")),
            Row("output_padding-too-large", op, 1,
                {"output_padding": [2], second: size(1, 9)}, ("output_padding", r"\b2\b")),
            Row("shape-extent", op, 1, {name: entry(0, 5)},
                (rf"\b{second}\b", r"\b8\b", r"\b10\b")),
        ]  # fmt: skip
    for op in WGRAD:
        first, second = OPERATORS[op].names
        rows += [
            Row("src-empty-extent", op, 2, {first: size(1, 0)}, (rf"\b{first}\b", r"\b0\b")),
            Row("dst-empty-extent", op, 2, {second: size(2, 0)}, (rf"\b{second}\b", r"\b0\b")),
            Row("no-shape", op, 1, {OPERATORS[op].shape: None},
                (OPERATORS[op].shape + r"\b", OPERATORS[op].shape + "_tensor")),
        ]  # fmt: skip
    window = (r"\b(src|src_shape|weights)\b", r"\b12\b", r"\b[79]\b")
    rows += [
        Row("window-exceeds-src", "convolution", 2, {"weights": size(0, 12)}, window),
        Row("window-dilated", "convolution", 2, {"dilations": [9, 2]}, (r"\b19\b", r"\b[79]\b")),
        Row("window-valid", "convolution", 1, {"auto_pad": "valid", "weights": size(0, 8)},
            (r"\b8\b", r"\b7\b")),
        Row("src-empty-extent", "convolution", 3, {"src": size(2, 0)}, (r"\bsrc\b", r"\b0\b")),
        Row("src-empty-extent", "conv_transpose", 2, {"src": size(2, 0)}, (r"\bsrc\b", r"\b0\b")),
        Row("kernel-empty", "convolution", 2, {"weights": size(1, 0)}, (_W, r"\b0\b")),
        Row("kernel-empty", "conv_transpose", 1, {"weights": size(0, 0)}, (_W, r"\b0\b")),
        Row("kernel-empty", "convolution_backward_data", 3, {"weights": size(0, 0)},
            (_W, r"\b0\b")),
        Row("kernel-empty", "conv_transpose_backward_data", 3, {"weights": size(1, 0)},
            (_W, r"\b0\b")),
        Row("dst-empty-extent", "convolution_backward_data", 2, {"diff_dst": size(1, 0)},
            (r"\bdiff_dst\b", r"\b0\b")),
        Row("dst-empty-extent", "conv_transpose_backward_data", 2, {"diff_dst": size(1, 0)},
            (r"\bdiff_dst\b", r"\b0\b")),
        Row("dst-below-1", "conv_transpose", 1, {"pads_begin": [10]}, (r"-1\b", r"\b1\b")),
        Row("dst-zero", "conv_transpose", 1, {"pads_begin": [9]}, (r"(?<![-\w])0\b", r"\b1\b")),
        Row("output_padding-too-large", "conv_transpose", 1, {"output_padding": [2]},
            ("output_padding", r"\b2\b")),
        Row("output_padding-dilated", "conv_transpose", 2, {"output_padding": [0, 2]},
            ("output_padding", r"\b2\b")),
        Row("output_padding-too-large", "conv_transpose_backward_data", 1,
            {"output_padding": [2], "diff_dst": size(1, 9)}, ("output_padding", r"\b2\b")),
        Row("strict-output_padding", "conv_transpose_backward_data", 2, {"output_padding": [0, 0]},
            (r"\bdiff_dst\b", r"\b8\b", r"\b7\b|output_padding")),
        Row("window-exceeds-dst", "conv_transpose_backward_data", 1,
            {"output_padding": None, "weights": size(0, 12)}, (r"\b12\b", r"\b8\b|\b10\b")),
        Row("dst-extent", "convolution_backward_data", 2, {"diff_dst": size(1, 5)},
            (r"\bdiff_dst\b", r"\b5\b", r"\b4\b")),
        Row("src_shape-extent", "convolution_backward_data", 1, {"src_shape": entry(1, 11)},
            (r"\b(diff_dst|src_shape)\b", r"\b4\b", r"\b6\b|\b11\b")),
        Row("window-exceeds-src", "convolution_backward_data", 1, {"weights": size(0, 12)}, window),
        Row("same_lower-dst", "convolution_backward_data", 1,
            {"auto_pad": "same_lower", "diff_dst": size(1, 5)},
            (r"\bdiff_dst\b", r"\b5\b", r"\b4\b")),
        Row("same_upper-dst", "conv_transpose_backward_data", 1,
            {"auto_pad": "same_upper", "diff_dst": size(1, 19), "output_padding": [0]},
            (r"\bdiff_dst\b", r"\b19\b")),
    ]  # fmt: skip
    return rows


def _shape_tensors() -> list[Row]:
    rows = []
    for op in WGRAD:
        name = OPERATORS[op].shape
        tensor = f"{name}_tensor"
        absent = {name: None}
        values = good_case(op, 2).shape("w")
        rows += [
            Row("tensor-rank-2", op, 2, absent | {tensor: torch.tensor([values])},
                (tensor, r"\b2\b", r"\b1\b")),
            Row("tensor-rank-0", op, 2, absent | {tensor: torch.tensor(3)},
                (tensor, r"\b0\b", r"\b1\b")),
            Row("tensor-length", op, 2, absent | {tensor: torch.tensor([*values, 1])},
                (tensor, r"\b5\b", r"\b4\b")),
            Row("tensor-empty", op, 1, absent | {tensor: torch.tensor([], dtype=torch.int64)},
                (tensor, r"\b0\b", r"\b3\b")),
            Row("tensor-type", op, 2, absent | {tensor: torch.tensor(values, dtype=torch.float32)},
                (tensor, "float", "int32|int", "int64|long")),
            Row("tensor-int16", op, 2, absent | {tensor: torch.tensor(values, dtype=torch.int16)},
                (tensor, "int16|short", "int64|long")),
            Row("tensor-on-meta", op, 2,
                absent | {tensor: torch.tensor(values, device="meta")}, (tensor, "meta|unknown")),
            Row("tensor-sparse", op, 2, absent | {tensor: torch.tensor(values).to_sparse()},
                (tensor, "sparse")),
            Row("tensor-zero", op, 2, absent | {tensor: torch.tensor([0, *values[1:]])},
                (name, r"\b0\b")),
            Row("tensor-negative", op, 2, absent | {tensor: torch.tensor([-4, *values[1:]])},
                (name, r"-4\b")),
            # It overrides a good attribute, so its values are checked and not the attribute's.
            Row("tensor-overrides", op, 2, {tensor: torch.tensor([*values[:3], 11])},
                (name, r"\b11\b")),
        ]  # fmt: skip
    return [Row(r.name, r.op, r.spatial, r.changes, r.says, on_meta=False) for r in rows]


def _bias() -> list[Row]:
    start = {"bias": True}
    rows = []
    for op in FORWARD:
        rows += [
            Row("bias-rank-2", op, 2, {"bias": shape(1, 6)}, ("bias", "1, 6", r"\[6\]"), start),
            Row("bias-rank-0", op, 2, {"bias": shape()}, ("bias", r"\[\]", r"\[6\]"), start),
            Row("bias-length", op, 1, {"bias": shape(5)}, ("bias", r"\b5\b", r"\b6\b"), start),
            Row("bias-length-1", op, 3, {"bias": shape(1)}, ("bias", r"\b1\b", r"\b6\b"), start),
            Row("bias-type", op, 2, {"bias": cast(torch.float64)},
                ("bias", "float64|double", "float32|float"), start),
            Row("bias-sparse", op, 2, {"bias": Tensor.to_sparse}, ("bias", "sparse"), start,
                on_meta=False),
            Row("bias-on-meta", op, 2, {"bias": on_meta}, ("bias|src", "meta"), start,
                on_meta=False),
        ]  # fmt: skip
    return rows


def _overflows() -> list[Row]:
    """Extents and products beyond 64 bits. Nothing may be allocated, nothing may wrap around."""
    rows = []
    for op in OPERATORS:
        rows.append(Row("dilation-overflow", op, 1, {"dilations": [HUGE]}, (OVERFLOW,)))
        rows.append(Row("pads-overflow", op, 1, {"pads_begin": [MAXIMUM], "pads_end": [MAXIMUM]},
                        (OVERFLOW,)))  # fmt: skip
    transposed_shape = {"output_padding": None}
    rows += [
        Row("stride-overflow", "conv_transpose", 1, {"strides": [HUGE]}, (OVERFLOW,)),
        Row("stride-overflow", "conv_transpose_backward_weights", 1,
            {"strides": [HUGE]} | transposed_shape, (OVERFLOW,)),
        Row("stride-overflow", "conv_transpose_backprop_filters", 1,
            {"strides": [HUGE]} | transposed_shape, (OVERFLOW,)),
        Row("result-overflow", "conv_transpose", 2, {"strides": [2**40, 2**40]}, (OVERFLOW,)),
        Row("result-bytes-overflow", "conv_transpose", 1, {"strides": [2**57]}, (OVERFLOW,)),
        Row("output-overflow", "convolution", 2,
            {"pads_begin": [2**40, 2**40], "strides": [1, 1]}, (OVERFLOW,)),
        Row("result-overflow", "convolution_backward_data", 1,
            {"src_shape": [2, MAXIMUM - 5, 4]}, (OVERFLOW + r"|diff_dst",)),
        Row("result-overflow", "convolution_backward_weights", 2,
            {"weights_shape": [2**40, 2**40, 2, 6], "diff_dst": shape(2, 1, 1, 6),
             "pads_begin": [2**40 - 7, 2**41 - 8 - 1], "pads_end": [0, 0], "strides": [1, 1]},
            (OVERFLOW,)),
    ]  # fmt: skip
    return rows


ROWS = [
    *_attributes(), *_tensors(), *_channels(), *_geometry(), *_shape_tensors(), *_bias(),
    *_overflows(),
]  # fmt: skip


# --- the tests ------------------------------------------------------------------------------------


def _spoilt(row: Row) -> dict[str, Any]:
    spoilt = arguments(good_case(row.op, row.spatial, **row.start))
    for name, change in row.changes.items():
        spoilt[name] = change(spoilt[name]) if callable(change) else change
    return spoilt


def _operator(op: str) -> Callable[..., Tensor]:
    return getattr(torch.ops.convtbw, op)


def _raises_in_the_callers_words(row: Row, call: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(f"convtbw::{row.op}: "), message
    for fragment in row.says:
        assert re.search(fragment, message, re.IGNORECASE), f"{fragment!r} is not in: {message}"


def _is_plain(tensor: object) -> bool:
    return (
        isinstance(tensor, Tensor)
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_nested
        and not tensor.is_quantized
    )


def test_the_table_is_about_every_operator() -> None:
    assert len(ROWS) >= 80
    assert {row.op for row in ROWS} == set(OPERATORS)
    assert {row.spatial for row in ROWS} == {1, 2, 3}


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_the_calls_to_spoil_are_good(op: str, spatial: int) -> None:
    # Otherwise a row could pass for another reason than its own.
    for attributes in ({}, {"weights_format": "XOI"}, {"weights_format": "IOX"}):
        case = good_case(op, spatial, **attributes)
        assert tuple(_operator(op)(**arguments(case)).shape) == case.shape(case.operator.result)


# The modes reach the operator through different dispatch keys: each must give the same answer.
MODES: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "plain": contextlib.nullcontext,
    "requires_grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_error(row: Row) -> None:
    good = arguments(good_case(row.op, row.spatial, **row.start))
    expected = _operator(row.op)(**good)
    for mode, context in MODES.items():
        spoilt = _spoilt(row)
        if mode == "requires_grad":
            for tensor in spoilt.values():
                if isinstance(tensor, Tensor) and tensor.is_floating_point():
                    with contextlib.suppress(RuntimeError):  # quantised tensors cannot
                        tensor.requires_grad_()
        before = {name: value.clone() for name, value in spoilt.items() if _is_plain(value)}

        with context():
            _raises_in_the_callers_words(row, lambda spoilt=spoilt: _operator(row.op)(**spoilt))

        for name, copy in before.items():
            assert torch.equal(spoilt[name], copy), (mode, name)
            assert spoilt[name].grad is None
            assert spoilt[name]._version == 0
        assert torch.equal(_operator(row.op)(**good), expected), mode


@pytest.mark.parametrize("row", [row for row in ROWS if row.on_meta], ids=str)
def test_the_same_error_without_data(row: Row) -> None:
    # Eager and traced calls must fail alike, or an export succeeds that cannot run.
    spoilt = {
        name: value.to("meta") if isinstance(value, Tensor) else value
        for name, value in _spoilt(row).items()
    }
    _raises_in_the_callers_words(row, lambda: _operator(row.op)(**spoilt))


@pytest.mark.parametrize("op", OPERATORS)
def test_error_inside_transforms(op: str) -> None:
    case = good_case(op, 2)
    good = arguments(case)
    bad = good | {"dilations": [0, 1]}
    first = case.operator.names[0]
    row = Row("transforms", op, 2, {}, ("dilations", r"\b0\b"))

    def value(tensor: Tensor, attributes: dict[str, Any]) -> Tensor:
        return _operator(op)(**(attributes | {first: tensor})).sum()

    for transform in (torch.func.grad, torch.func.jacrev):
        _raises_in_the_callers_words(
            row, lambda transform=transform: transform(value)(good[first], bad)
        )
    tangent = (torch.ones_like(good[first]),)
    _raises_in_the_callers_words(
        row, lambda: torch.func.jvp(lambda tensor: value(tensor, bad), (good[first],), tangent)
    )
    # No functorch level is left behind.
    assert torch.func.grad(value)(good[first], good).shape == good[first].shape


@pytest.mark.parametrize("op", OPERATORS)
def test_jagged_tensors_are_refused_by_name(op: str) -> None:
    # A Python subclass of Tensor: torch may answer before any kernel, but the operator is named.
    bad = arguments(good_case(op, 2))
    first = OPERATORS[op].names[0]
    bad[first] = torch.nested.nested_tensor(list(bad[first].unbind()), layout=torch.jagged)
    for mode in (contextlib.nullcontext, torch.inference_mode):
        with mode(), pytest.raises(RuntimeError, match=op):
            _operator(op)(**bad)


def test_failing_calls_keep_nothing_alive() -> None:
    import gc
    import weakref

    case = good_case("convolution_backward_weights", 2)
    bad = arguments(case) | {"strides": [0, 1]}
    tensor = torch.ones_like(bad["src"], requires_grad=True)
    bad["src"] = tensor
    reference = weakref.ref(tensor)
    with contextlib.suppress(RuntimeError):
        torch.ops.convtbw.convolution_backward_weights(**bad)
    del tensor, bad
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("op", OPERATORS)
def test_strings_are_case_insensitive(op: str) -> None:
    good = arguments(good_case(op, 2))
    expected = _operator(op)(**good)
    name = OPERATORS[op].format
    shouted = good | {"auto_pad": "NONE", "data_format": "nxc", name: good[name].lower()}
    assert torch.equal(_operator(op)(**shouted), expected)
