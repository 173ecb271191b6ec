"""The SIMD backend where rows of a dilation that leave the same remainder are planes."""

from __future__ import annotations

import pytest
import torch
from dense import problem
from layers import Call
from targets import every_target, integers, multiplies_pairs

import torch_ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
PLAN = "dilated rows as planes"


def layer(partial: str, pixels: tuple[int, int], kernel: tuple[int, int] = (3, 3), **of) -> Call:
    """Of so many more channels than it yields that many dilations have the plan.

    Rows are so long that no copy of all of the operand is made.
    """
    channels = 140 if of["dtype"] == torch.bfloat16 else 70
    of = {"channels": channels, "into": 16, "dilation": (5, 5), "pad": 5} | of
    return problem(partial, of.pop("channels"), pixels, kernel, **of)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_rows_of_every_kind(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for what, pixels, kernel, attributes in (
            ("as many rows of each remainder", (30, 270), (3, 3), {}),
            ("a row more of some", (31, 270), (3, 3), {}),
            ("a row more of all but one", (34, 270), (3, 3), {}),
            ("one row of each", (10, 820), (3, 3), {"dilation": (10, 2), "pad": (10, 2)}),
            ("few windows a row", (20, 420), (3, 3), {"dilation": (15, 1), "pad": (15, 1)}),
            ("no padding", (45, 260), (3, 3), {"pad": 0}),
            ("padding of two dilations", (30, 270), (3, 3), {"pad": 10}),
            ("padding beyond the windows", (30, 270), (3, 3), {"pad": 15}),
            ("an even window", (30, 270), (2, 2), {"pad": (5, 0)}),
            ("rows alone", (40, 210), (3, 1), {"dilation": (4, 1), "pad": (4, 0)}),
            ("no dilation along rows", (40, 210), (3, 3), {"dilation": (8, 1), "pad": (8, 1)}),
            ("taps outside", (31, 270), (3, 3), {"weights_format": "XIO"}),
            ("groups", (31, 270), (3, 3), {"groups": 2}),
            ("sums that are folded", (31, 270), (3, 3), {"channels": 301}),
        ):  # fmt: skip
            for partial in ("fprop", "dgrad"):
                call = layer(partial, pixels, kernel, dtype=dtype, **attributes)
                assert PLAN in call.kernel(), (what, call.kernel())
                assert torch.equal(call.run(), call.exact()), (what, partial)


@every_target
def test_planes_have_plans_of_their_own(target: str) -> None:
    with torch_ops.backends.use("simd", target):
        call = layer("fprop", (40, 210), dilation=(8, 1), pad=(8, 1), dtype=torch.float32)
        assert PLAN in call.kernel()
        assert "Winograd" in call.kernel()


@every_target
def test_every_number_of_rows(target: str) -> None:
    """As many remainders as not have a row more, and some have a tap less."""
    with torch_ops.backends.use("simd", target):
        for rows in range(1, 40):
            pixels = (rows, 8000 // rows)
            call = layer("dgrad", pixels, (3, 1), pad=(5, 0), dtype=torch.float32)
            assert (PLAN in call.kernel()) == (rows >= 5)
            assert torch.equal(call.run(), call.exact()), rows


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_channels_last_where_they_have_to_be_converted(target: str, dtype: torch.dtype) -> None:
    converted = dtype == torch.float16 or (dtype == torch.bfloat16 and not multiplies_pairs(target))
    with torch_ops.backends.use("simd", target):
        for partial in ("fprop", "dgrad"):
            call = layer(partial, (31, 270), data_format="NXC", dtype=dtype)
            assert (PLAN in call.kernel()) == converted
            assert torch.equal(call.run(), call.exact()), partial


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_bias(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        call = layer("fprop", (31, 270), dtype=dtype).with_bias(integers(16, dtype=dtype))
        assert PLAN in call.kernel()
        assert torch.equal(call.run(), call.exact())


@every_target
def test_tensors_of_other_strides(target: str) -> None:
    with torch_ops.backends.use("simd", target):
        call = layer("fprop", (31, 270), dtype=torch.float32)
        strides = ((1, 2, 3, 5), (0, 18, 0, 1), (9000, 131, 97, 2), (1, 3, 1, 1))
        call.assert_exact_of(integers(90000), PLAN, *strides)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@every_target
def test_what_is_not_finite_reaches_its_own_results_alone(target: str, value: float) -> None:
    with torch_ops.backends.use("simd", target):
        call = layer("fprop", (31, 270), dtype=torch.float32)
        x, w = call.operands
        w.fill_(1)
        for row in (0, 4, 5, 15, 30):
            x.zero_()
            x[1, 1, row, 7] = value
            assert call.is_exact(), row


@every_target
def test_padding_that_is_no_multiple_of_the_dilation(target: str) -> None:
    """Rows of one tensor have other remainders than those of the other."""
    with torch_ops.backends.use("simd", target):
        for before, behind, served in ((5, 7, False), (4, 6, False), (0, 10, True)):
            call = layer("fprop", (30, 270), dtype=torch.float32)
            pads = {"pads_begin": [before, 5], "pads_end": [behind, 5]}
            call = Call(call.name, call.operands, call.attributes | pads)
            assert (PLAN in call.kernel()) == served
            assert torch.equal(call.run(), call.exact()), (before, behind)
            y = integers(*call.run().shape)
            shape = {"src_shape": [*call.operands[0].shape]}
            dgrad = Call(
                "convolution_backward_data", (y, call.operands[1]), call.attributes | shape
            )
            assert torch.equal(dgrad.run(), dgrad.exact()), (before, behind)


@every_target
def test_other_dilations_have_other_plans(target: str) -> None:
    with torch_ops.backends.use("simd", target):
        for what, pixels, attributes in (
            ("a stride", (30, 270), {"stride": (2, 1)}),
            ("few pixels, some remainders with a row more", (21, 18), {"channels": 2000}),
            ("a small dilation", (30, 270), {"dilation": (3, 5), "pad": (3, 5)}),
            ("more channels than are summed over", (30, 270), {"into": 96}),
        ):
            call = layer("fprop", pixels, dtype=torch.float32, **attributes)
            assert PLAN not in call.kernel(), what
            assert torch.equal(call.run(), call.exact()), what
