"""The SIMD backend where tiles of fprop and dgrad read the operand in place, or one copy of it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from dense import problem
from layers import Call
from targets import every_target, integers, multiplies_pairs

import torch_ops

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SIXTEEN_LANES = ("avx512", "generic512", "generic_amx")


@dataclass(frozen=True)
class Reading:
    plan: str
    data_format: str

    def layer(self, partial: str, pixels: tuple[int, ...], kernel: tuple[int, ...], **of) -> Call:
        """Of so few results that what would be copied is much beside the products."""
        of = {"channels": 70, "into": 16, "data_format": self.data_format} | of
        of = {"weights_format": "XIO"} | of
        return problem(partial, of.pop("channels"), pixels, kernel, **of)

    def serves(self, target: str, dtype: torch.dtype) -> bool:
        """In place, where nothing has to be converted."""
        if self.plan == "copied once" or dtype in (torch.float32, torch.float64):
            return True
        return dtype == torch.bfloat16 and multiplies_pairs(target)

    def assert_serves(self, call: Call, target: str) -> None:
        dtype = call.operands[0].dtype
        # Beside the products of vectors of two, the copies of boxes may be little.
        if not (self.plan == "copied once" and target == "generic" and dtype == torch.float64):
            assert (self.plan in call.kernel()) == self.serves(target, dtype), call.kernel()


IN_PLACE = Reading("read in place", "NXC")
COPY = Reading("copied once", "NCX")
every_reading = pytest.mark.parametrize("reading", [IN_PLACE, COPY], ids=lambda r: r.data_format)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_reading
@every_target
def test_windows_of_every_kind(target: str, reading: Reading, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for what, pixels, kernel, attributes in (
            ("a dilation", (30, 18), (3, 3), {"dilation": (5, 5), "pad": 5}),
            ("a dilation of rows", (30, 18), (3, 1), {"dilation": (5, 1), "pad": (5, 0)}),
            ("no padding", (30, 18), (3, 3), {"dilation": (5, 5)}),
            ("windows without a whole one", (9, 9), (3, 3), {"dilation": (8, 8), "pad": 8}),
            ("padding beyond the windows", (30, 18), (3, 3), {"dilation": (7, 7), "pad": 15}),
            ("three axes", (9, 9, 9), (3, 3, 3), {"dilation": (4, 4, 4), "pad": 4}),
            ("one axis", (299,), (5,), {"dilation": 64, "pad": 128, "into": 32}),
            ("planes", (8, 9, 10), (3, 1, 1), {"pad": (1, 0, 0)}),
            ("groups", (30, 18), (3, 3), {"dilation": (5, 5), "pad": 5, "groups": 2}),
            ("taps inside", (30, 18), (3, 3), {"dilation": (5, 5), "weights_format": "OIX"}),
        ):
            for partial in ("fprop", "dgrad"):
                call = reading.layer(partial, pixels, kernel, dtype=dtype, **attributes)
                assert torch.equal(call.run(), call.exact()), (what, partial)
                reading.assert_serves(call, target)


@every_reading
@every_target
def test_phases(target: str, reading: Reading) -> None:
    """Strides; of fprop, a copy of all serves with 16 lanes alone."""
    with torch_ops.backends.use("simd", target):
        for partial in ("fprop", "dgrad"):
            of = {"dilation": (5, 5), "pad": 5, "stride": 2, "dtype": torch.float32}
            call = reading.layer(partial, (30, 18), (3, 3), **of)
            eight = reading == COPY and partial == "fprop" and target not in SIXTEEN_LANES
            assert (reading.plan in call.kernel()) != eight
            assert torch.equal(call.run(), call.exact()), partial


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_reading
@every_target
def test_every_number_of_channels(target: str, reading: Reading, dtype: torch.dtype) -> None:
    """Of the operand a part: an odd number of channels that are an even number apart."""
    served = 0
    with torch_ops.backends.use("simd", target):
        for channels in (*range(1, 20), 31, 33, 63, 65):
            for into in (9, 16, 17, 32, 35, 50):
                call = reading.layer(
                    "fprop", (20, 18), (3, 3), dilation=(5, 5), pad=5,
                    channels=channels, into=into, dtype=dtype,
                )  # fmt: skip
                x, w = call.operands
                if reading == IN_PLACE:
                    memory = integers(2, 20, 18, channels + 2 + channels % 2, dtype=dtype)
                    part = memory[..., 1 : 1 + channels]
                    assert part.stride() != x.stride()
                    call = Call(call.name, (part, w), call.attributes)
                assert torch.equal(call.run(), call.exact()), (channels, into)
                served += reading.plan in call.kernel()
    least = 60 if reading == IN_PLACE else 30
    assert served > least if reading.serves(target, dtype) else served == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_reading
@every_target
def test_some_channels_at_a_time(target: str, reading: Reading, dtype: torch.dtype) -> None:
    if reading == IN_PLACE:
        pixels, of = (30, 18), {"dilation": (9, 9), "pad": 9, "channels": 2000}
    else:  # a copy is smaller than a box, which has room for padding
        pixels, of = (7, 7), {"dilation": (6, 6), "pad": 6, "channels": 4001}
    with torch_ops.backends.use("simd", target):
        for partial in ("fprop", "dgrad"):
            call = reading.layer(partial, pixels, (3, 3), dtype=dtype, **of)
            reading.assert_serves(call, target)
            assert torch.equal(call.run(), call.exact()), partial


@every_target
def test_pairs_that_do_not_lie_together_are_copied(target: str) -> None:
    with torch_ops.backends.use("simd", target):
        of = {"dilation": (5, 5), "pad": 5, "channels": 71, "dtype": torch.bfloat16}
        call = IN_PLACE.layer("fprop", (30, 18), (3, 3), **of)
        assert IN_PLACE.plan not in call.kernel()
        # With 4 lanes there are so many parts that boxes would copy it more than eight times.
        assert (COPY.plan in call.kernel()) == (target in (*SIXTEEN_LANES, "generic"))
        assert torch.equal(call.run(), call.exact())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_target
def test_what_boxes_would_copy_many_times_is_copied_once(target: str, dtype: torch.dtype) -> None:
    """Channels last in 16 bits, of many channels or of few: with up to 8 lanes."""
    if target in SIXTEEN_LANES:
        pytest.skip("copied from fewer times on")
    with torch_ops.backends.use("simd", target):
        for channels, dilation in ((1024, 6), (64, 2)):
            of = {"dilation": (dilation,) * 2, "pad": dilation, "into": 32, "data_format": "NXC"}
            for partial in ("fprop", "dgrad"):
                call = problem(partial, channels, (14, 14), (3, 3), dtype=dtype, **of)
                assert (COPY.plan in call.kernel()) == (channels == 1024), call.kernel()
                assert torch.equal(call.run(), call.exact()), (channels, partial)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_reading
@every_target
def test_bias(target: str, reading: Reading, dtype: torch.dtype) -> None:
    with torch_ops.backends.use("simd", target):
        for groups in (1, 2):
            of = {"dilation": (5, 5), "pad": 5, "groups": groups, "dtype": dtype}
            call = reading.layer("fprop", (30, 18), (3, 3), **of)
            call = call.with_bias(integers(16 * groups, dtype=dtype))
            reading.assert_serves(call, target)
            assert torch.equal(call.run(), call.exact())


@every_reading
@every_target
def test_tensors_of_other_strides(target: str, reading: Reading) -> None:
    strides = {
        IN_PLACE: ((1, 2, 3, 1), (0, 0, 0, 1), (40000, 1301, 71, 1), (1, 1, 1, 1)),
        COPY: ((1, 2, 3, 5), (0, 18, 0, 1), (9000, 131, 97, 2), (1, 3, 1, 1), (700, 0, 0, 0)),
    }
    with torch_ops.backends.use("simd", target):
        of = {"dilation": (5, 5), "pad": 5, "dtype": torch.float32}
        call = reading.layer("fprop", (30, 18), (3, 3), **of)
        call.assert_exact_of(integers(90000), reading.plan, *strides[reading])


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@every_reading
@every_target
def test_what_is_not_finite_reaches_its_own_results_alone(
    target: str, reading: Reading, value: float
) -> None:
    with torch_ops.backends.use("simd", target):
        of = {"dilation": (5, 5), "pad": 5, "dtype": torch.float32}
        call = reading.layer("fprop", (30, 18), (3, 3), **of)
        assert reading.plan in call.kernel()
        x, w = call.operands
        w.fill_(1)
        for pixel in (0, 4, 5, 12, 17):
            x.zero_()
            channels_last = x if reading == IN_PLACE else x.movedim(1, -1)
            channels_last[1, 29 - pixel, pixel, 69] = value
            assert call.is_exact(), pixel


@every_reading
@every_target
def test_the_number_of_threads_changes_no_bit(target: str, reading: Reading) -> None:
    with torch_ops.backends.use("simd", target):
        of = {"dilation": (5, 5), "pad": 5, "dtype": torch.float32}
        call = reading.layer("fprop", (30, 18), (3, 3), **of)
        real = Call(call.name, tuple(torch.randn_like(t) for t in call.operands), call.attributes)
        assert reading.plan in real.kernel()
        threads = torch.get_num_threads()
        try:
            results = []
            for count in (1, 2, 3, 4, 8):
                torch.set_num_threads(count)
                results.append(real.run())
        finally:
            torch.set_num_threads(threads)
        assert all(torch.equal(result, results[0]) for result in results)


@every_reading
@every_target
def test_much_is_multiplied_where_copies_are_little(target: str, reading: Reading) -> None:
    with torch_ops.backends.use("simd", target):
        for pixels, of in (((16, 16), {"pad": 1, "into": 256}), ((12, 12), {"into": 128})):
            call = reading.layer("fprop", pixels, (4, 4), channels=32, dtype=torch.float32, **of)
            assert reading.plan not in call.kernel()


@every_target
def test_large_operands_have_no_copy(target: str) -> None:
    with torch_ops.backends.use("simd", target):
        for columns, copied in ((130, True), (280, False)):
            of = {"dilation": (5, 5), "pad": 5, "dtype": torch.float32}
            call = COPY.layer("fprop", (30, columns), (3, 3), **of)
            assert (COPY.plan in call.kernel()) == copied
            report = torch_ops.backends.explain(call.name, *call.operands, **call.attributes)
            assert report.workspace < 9 << 20
