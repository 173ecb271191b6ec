"""The SIMD backend where lanes are the channels of all groups, and those of x are spread."""

from __future__ import annotations

import pytest
import torch
from layers import PARTIALS, Layer, call_of
from targets import every_target, multiplies_pairs, supported_targets

import torch_ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
LANES = {"avx512": 16, "generic512": 16, "generic_amx": 16, "avx2": 8, "generic": 4}
# Channels of x and y in a group, and of all of x: vectors of any target, and some more.
CHANNELS = {
    (2, 2): 22, (4, 4): 36, (8, 8): 40, (16, 16): 48, (3, 16): 9, (16, 3): 48, (1, 32): 3,
    (5, 24): 15,
}  # fmt: skip
GROUPS = pytest.mark.parametrize("group", CHANNELS, ids=lambda group: "{} to {}".format(*group))


def spreading(target: str, group: tuple[int, int], partial: str, dtype: torch.dtype) -> str:
    """Where lanes are spread, channels last, by the kernels; in the words of explain()."""
    planes, lanes = reversed(group) if partial == "dgrad" else group
    if dtype == torch.float64:
        return ""
    if planes == lanes and lanes in (2, 4, 8) and lanes < LANES[target]:
        return "spread in registers"
    if dtype == torch.bfloat16 and multiplies_pairs(target):
        return ""
    whole = lanes == LANES[target] and (lanes == 8 or (lanes == 16 and partial != "wgrad"))
    return "broadcast" if lanes % LANES[target] == 0 and (planes <= 6 or whole) else ""


def found_in(kernel: str) -> str:
    return next((word for word in ("spread in registers", "broadcast") if word in kernel), "")


def layers(group: tuple[int, int], data_format: str) -> tuple[Layer, ...]:
    """Of one image at least and the group's CHANNELS, if no others are told."""

    def layer(
        *pixels: int,
        kernel: tuple[int, ...],
        images: int = 1,
        channels: int = CHANNELS[group],
        **of,
    ) -> Layer:
        of.setdefault("padding", (0,) * len(kernel))
        extents = (images, channels, *pixels)
        x, y = group
        return Layer(extents, kernel, **of, data_format=data_format, group=x, results=y)

    return (
        # In every number of pieces of taps and of pixels.
        *(layer(3, 3 + taps * 3, kernel=(2, taps)) for taps in range(1, 14)),
        *(layer(4, 2 + pixels, kernel=(3, 3), images=2) for pixels in range(1, 31)),
        # With padding: windows of fewer taps at each end, or all of them.
        *(layer(6, 15, kernel=(3, k), padding=(1, k // 2)) for k in (3, 5, 7, 11)),
        layer(4, 3, kernel=(5, 9), padding=(4, 8)),
        # Strides and dilations: windows that overlap by half, that share every second tap, or none.
        *(layer(9, 40, kernel=(3, k), stride=(2, 2)) for k in (2, 4, 5, 6, 7)),
        layer(12, 24, kernel=(4, 4), padding=(1, 1), stride=(2, 2)),
        layer(8, 30, kernel=(3, 4), padding=(1, 2), dilation=(1, 2)),
        # Rows too short, so that columns or images are neighbours instead.
        layer(40, 2, kernel=(5, 1), padding=(2, 0)),
        layer(3, 3, kernel=(3, 3), padding=(1, 1), images=20),
        # Pixels so far apart that few lie in the cache together: copied.
        layer(5, 14, kernel=(3, 3), padding=(1, 1), channels=512 // max(group) * group[0]),
        # No vector is filled.
        layer(6, 30, kernel=(3, 3), padding=(1, 1), channels=2 * group[0]),
        layer(300, kernel=(9,), padding=(4,)),
        layer(5, 6, 17, kernel=(3, 3, 4), padding=(1, 1, 1)),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@GROUPS
@every_target
def test_values(target: str, group: tuple[int, int], data_format: str, dtype: torch.dtype) -> None:
    found = {partial: set() for partial in PARTIALS}
    with torch_ops.backends.use("simd", target):
        for layer in layers(group, data_format):
            operands = layer.operands(dtype)
            for partial in PARTIALS:
                call = call_of(partial, *operands, layer)
                found[partial].add(found_in(call.kernel()))
                assert torch.equal(call.run(), call.exact()), (layer, partial, call.kernel())
    for partial in PARTIALS:
        where = spreading(target, group, partial, dtype)
        if where == "broadcast":  # channels last, and not where rows are short or taps many
            assert found[partial] == ({"broadcast", ""} if data_format == "NXC" else {""})
        elif data_format == "NXC":
            assert found[partial] == {where}
        else:
            assert where in found[partial] <= {where, ""}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@GROUPS
@every_target
def test_what_is_not_finite_reaches_its_group_alone(
    target: str, group: tuple[int, int], value: float, dtype: torch.dtype
) -> None:
    x_group, y_group = group
    extents = (1, CHANNELS[group], 6, 30)
    layer = Layer(extents, (3, 3), (1, 1), data_format="NXC", group=x_group, results=y_group)
    for column in (0, 6, 29):
        x, w, y = layer.operands(dtype)
        x[0, 2, column, x_group + 1] = value
        for partial in ("fprop", "wgrad"):
            call = call_of(partial, x, w.fill_(1), y.fill_(1), layer)
            with torch_ops.backends.use("simd", target):
                assert found_in(call.kernel()) == spreading(target, group, partial, x.dtype)
                assert call.is_exact(), (partial, column)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("group", [(1, 2), (2, 1), (3, 3), (2, 5), (7, 7), (11, 11)], ids=str)
@every_target
def test_channels_are_spread_from_where_they_lie(
    target: str, group: tuple[int, int], dtype: torch.dtype
) -> None:
    """Of whole vectors and less, at the end of their memory, and where channels have gaps."""
    x_group, y_group = group
    for groups in (2, 3, 7):
        for pixels, kernel, padding in (((5, 9), (3, 3), (1, 1)), ((1, 1), (1, 1), (0, 0))):
            extents = (2, groups * x_group, *pixels)
            of = {"data_format": "NXC", "group": x_group, "results": y_group}
            layer = Layer(extents, kernel, padding, **of)
            x, w, y = layer.operands(dtype)
            wider = x.new_full((2, *pixels, groups * x_group + 5), float("nan"))
            wider[..., 5:] = x
            for operand in (x, wider[..., 5:]):
                for partial in PARTIALS:
                    call = call_of(partial, operand, w, y, layer)
                    with torch_ops.backends.use("simd", target):
                        assert call.is_exact(), (groups, partial, call.kernel())


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_many_planes_are_computed_group_by_group(dtype: torch.dtype) -> None:
    """Channels of all groups in lanes only where that saves products."""
    if "avx512" not in supported_targets():
        pytest.skip("the CPU has no AVX-512")

    def together(groups: int, channels: int, kernel: int, **of: tuple[int, int]) -> list[bool]:
        extents = (1, groups * channels, 28, 28)
        layer = Layer(extents, (kernel,) * 2, (1, 1), **of, data_format="NXC", group=channels,
                      results=channels)  # fmt: skip
        operands = layer.operands(dtype)
        with torch_ops.backends.use("simd", "avx512"):
            kernels = [call_of(partial, *operands, layer).kernel() for partial in PARTIALS[:2]]
        return ["channels of all groups" in kernel for kernel in kernels]

    pairs = dtype == torch.bfloat16 and multiplies_pairs("avx512")
    assert together(3, 11, 3) == [False, False]
    assert together(3, 11, 1) == [True, True]
    assert together(8, 10, 3) == [not pairs] * 2
    assert together(8, 7, 3) == [True, True]
    assert together(8, 7, 5) == [not pairs] * 2
    assert together(16, 5, 3) == [True, True]
    assert together(8, 7, 3, stride=(2, 2)) == [False, True]
