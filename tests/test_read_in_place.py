"""The SIMD backend where tiles of fprop and dgrad read the operand where it lies."""

from __future__ import annotations

import pytest
import torch
from dense import problem
from layers import Call
from targets import every_target, integers, multiplies_pairs

import torch_ops

PLAN = "read in place"
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def layer(partial: str, pixels: tuple[int, ...], kernel: tuple[int, ...], **of) -> Call:
    """Of so few results that what would be copied is much beside the products."""
    of = {"channels": 70, "into": 16, "data_format": "NXC", "weights_format": "XIO"} | of
    return problem(partial, of.pop("channels"), pixels, kernel, **of)


def reads(target: str, dtype: torch.dtype) -> bool:
    """Whether nothing has to be converted."""
    return dtype != torch.bfloat16 or multiplies_pairs(target)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_windows_of_every_kind(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for what, pixels, kernel, attributes in (
            ("a dilation", (30, 18), (3, 3), {"dilation": (5, 5), "pad": 5}),
            ("a dilation of rows", (30, 18), (3, 1), {"dilation": (5, 1), "pad": (5, 0)}),
            ("no padding", (30, 18), (3, 3), {"dilation": (5, 5)}),
            ("windows without a whole one", (9, 9), (3, 3), {"dilation": (8, 8), "pad": 8}),
            ("padding beyond the windows", (30, 18), (3, 3), {"dilation": (7, 7), "pad": 15}),
            ("three axes", (9, 9, 9), (3, 3, 3), {"dilation": (4, 4, 4), "pad": 4}),
            ("one axis", (300,), (3,), {"dilation": 64, "pad": 64}),
            ("planes", (8, 9, 10), (3, 1, 1), {"pad": (1, 0, 0)}),
            ("groups", (30, 18), (3, 3), {"dilation": (5, 5), "pad": 5, "groups": 2}),
            ("taps inside", (30, 18), (3, 3), {"dilation": (5, 5), "weights_format": "OIX"}),
        ):
            for partial in ("fprop", "dgrad"):
                call = layer(partial, pixels, kernel, dtype=dtype, **attributes)
                assert torch.equal(call.run(), call.exact()), (what, partial)
                assert (PLAN in call.kernel()) == reads(target, dtype), (what, call.kernel())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_target
def test_every_number_of_channels(target: str, dtype: torch.dtype) -> None:
    """Of the operand a part: an odd number of channels that are an even number apart."""
    served = 0
    with torch_ops.backends.use("simd", target):
        for channels in (*range(1, 20), 31, 33, 63, 65):
            for into in (9, 16, 17, 32, 35, 50):
                call = layer(
                    "fprop", (20, 18), (3, 3), dilation=(5, 5), pad=5,
                    channels=channels, into=into, dtype=dtype,
                )  # fmt: skip
                x, w = call.operands
                memory = integers(2, 20, 18, channels + 2 + channels % 2, dtype=dtype)
                part = memory[..., 1 : 1 + channels]
                call = Call(call.name, (part, w), call.attributes)
                assert part.stride() != x.stride()
                assert torch.equal(call.run(), call.exact()), (channels, into)
                served += PLAN in call.kernel()
    assert served > 60 if reads(target, dtype) else served == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_target
def test_some_channels_at_a_time(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for partial in ("fprop", "dgrad"):
            call = layer(
                partial, (30, 18), (3, 3), dilation=(9, 9), pad=9, channels=2000, dtype=dtype
            )
            assert (PLAN in call.kernel()) == reads(target, dtype)
            assert torch.equal(call.run(), call.exact()), partial


@every_target
def test_pairs_that_do_not_lie_together_are_copied(target: str) -> None:
    with torch_ops.backends.use("simd", target):
        of = {"dilation": (5, 5), "pad": 5, "dtype": torch.bfloat16}
        call = layer("fprop", (30, 18), (3, 3), channels=71, **of)
        assert PLAN not in call.kernel()
        assert torch.equal(call.run(), call.exact())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_target
def test_bias(target: str, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        call = layer("fprop", (30, 18), (3, 3), dilation=(5, 5), pad=5, dtype=dtype)
        call = call.with_bias(integers(16, dtype=dtype))
        assert (PLAN in call.kernel()) == reads(target, dtype)
        assert torch.equal(call.run(), call.exact())


@every_target
def test_tensors_of_other_strides(target: str) -> None:
    with torch_ops.backends.use("simd", target):
        call = layer("fprop", (30, 18), (3, 3), dilation=(5, 5), pad=5, dtype=torch.float32)
        strides = ((1, 2, 3, 1), (0, 0, 0, 1), (40000, 1301, 71, 1), (1, 1, 1, 1))
        call.assert_exact_of(integers(90000), PLAN, *strides)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@every_target
def test_what_is_not_finite_reaches_its_own_results_alone(target: str, value: float) -> None:
    with torch_ops.backends.use("simd", target):
        call = layer("fprop", (30, 18), (3, 3), dilation=(5, 5), pad=5, dtype=torch.float32)
        assert PLAN in call.kernel()
        x, w = call.operands
        w.fill_(1)
        for pixel in (0, 4, 5, 12, 17):
            x.zero_()
            x[1, 29 - pixel, pixel, 69] = value
            assert call.is_exact(), pixel


@every_target
def test_the_number_of_threads_changes_no_bit(target: str) -> None:
    with torch_ops.backends.use("simd", target):
        call = layer("fprop", (30, 18), (3, 3), dilation=(5, 5), pad=5, dtype=torch.float32)
        real = Call(call.name, tuple(torch.randn_like(t) for t in call.operands), call.attributes)
        assert PLAN in real.kernel()
        threads = torch.get_num_threads()
        try:
            results = []
            for count in (1, 2, 3, 4, 8):
                torch.set_num_threads(count)
                results.append(real.run())
        finally:
            torch.set_num_threads(threads)
        assert all(torch.equal(result, results[0]) for result in results)


@every_target
def test_much_is_multiplied_where_copies_are_little(target: str) -> None:
    with torch_ops.backends.use("simd", target):
        for pixels, of in (((16, 16), {"pad": 1, "into": 256}), ((12, 12), {"into": 128})):
            call = layer("fprop", pixels, (4, 4), channels=32, dtype=torch.float32, **of)
            assert PLAN not in call.kernel()
