"""Extents, pads, output padding, shape arguments and memory formats of the results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import calls
import pytest
import torch
import torch.nn.functional as F
from forcing import run_forced
from problems import Problem

import torch_ops  # noqa: F401  (registers the operators)

ops = torch.ops.convtbw
FAMILIES = ("convolution", "conv_transpose")


def integers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randint(-3, 4, shape).to(dtype)


def expect(backend: str, problem: Problem, **formats: str) -> None:
    """Every operator of the problem, exactly."""
    for call in calls.calls(problem, torch.float32, **formats):
        message = calls.check(
            problem,
            backend,
            call,
            lambda c=call: run_forced(backend, c.run, planned=problem.batch > 0),
        )
        assert message is None, message


# ---- auto_pad ---------------------------------------------------------------------------------

# family, I, K, s, d -> pads of same_upper, pads of same_lower, O. Worked out by hand.
SAME = [
    ("convolution", 7, 3, 2, 1, (1, 1), (1, 1), 4),
    ("convolution", 8, 3, 2, 1, (0, 1), (1, 0), 4),
    ("convolution", 7, 2, 3, 1, (0, 1), (1, 0), 3),
    ("convolution", 5, 4, 1, 1, (1, 2), (2, 1), 5),
    ("convolution", 6, 1, 4, 1, (0, 0), (0, 0), 2),
    ("convolution", 5, 3, 2, 3, (3, 3), (3, 3), 3),
    ("convolution", 10, 4, 3, 1, (1, 2), (2, 1), 4),
    ("convolution", 1, 4, 1, 1, (1, 2), (2, 1), 1),
    ("conv_transpose", 4, 3, 2, 1, (0, 1), (1, 0), 8),
    ("conv_transpose", 7, 3, 2, 1, (0, 1), (1, 0), 14),  # I % s != 0
    ("conv_transpose", 5, 4, 1, 1, (1, 2), (2, 1), 5),
    ("conv_transpose", 3, 2, 3, 1, (0, 0), (0, 0), 8),
    ("conv_transpose", 4, 3, 3, 2, (1, 1), (1, 1), 12),
    ("conv_transpose", 5, 5, 2, 1, (1, 2), (2, 1), 10),
    ("conv_transpose", 1, 4, 1, 1, (1, 2), (2, 1), 1),
]


@pytest.mark.parametrize("auto_pad", ["same_upper", "same_lower", "SAME_Upper"])
@pytest.mark.parametrize("row", SAME, ids=lambda row: "-".join(map(str, row[:5])))
def test_same_pads(backend: str, row: tuple, auto_pad: str) -> None:
    family, i, k, s, d, upper, lower, o = row
    begin, end = upper if auto_pad.lower() == "same_upper" else lower
    explicit = Problem(family, 2, 1, 2, 3, (i,), (k,), (s,), (d,), (begin,), (end,))
    assert explicit.o == (o,), "the table is wrong"
    # The expected numbers are those of the explicit pads; the pads passed are to be ignored.
    for nonsense in ((), (9,)):
        for call in calls.calls(explicit, torch.float32):
            kwargs = {**call.kwargs, "auto_pad": auto_pad}
            kwargs |= {"pads_begin": nonsense, "pads_end": nonsense}
            automatic = dataclasses.replace(call, kwargs=kwargs)
            message = calls.check(
                f"{explicit} {auto_pad}",
                backend,
                automatic,
                lambda c=automatic: run_forced(backend, c.run),
            )
            assert message is None, message


@pytest.mark.parametrize("family", FAMILIES)
def test_valid_pads(backend: str, family: str) -> None:
    explicit = Problem(family, 1, 1, 2, 2, (6, 5), (3, 2), (2, 2), (1, 1), (0, 0), (0, 0))
    expect(backend, explicit)
    ignored = {"pads_begin": (3, 1), "pads_end": (0, 2)}
    expect(backend, dataclasses.replace(explicit, auto_pad="valid", **ignored))


def test_same_with_output_padding(backend: str) -> None:
    same = Problem(
        "conv_transpose", 2, 1, 2, 2, (3, 4), (3, 2), (2, 3), (1, 1), (), (), "same_lower", (1, 2)
    )
    assert same.o == (2 * 2 + 3 - 1 + 1, 3 * 3 + 2 - 0 + 2)
    expect(backend, same)


# I, O, K, s, d -> the pads that the weights gradients of a convolution derive when none are given
OMITTED = [
    (7, 7, 3, 1, 1, (1, 1)),
    (8, 4, 3, 2, 1, (0, 1)),
    (9, 4, 3, 2, 1, (0, 0)),
    (10, 4, 3, 2, 1, (0, 0)),  # a leftover pixel
    (5, 5, 4, 1, 1, (1, 2)),
    (3, 3, 2, 1, 3, (1, 2)),
    (2, 5, 3, 1, 1, (2, 3)),  # O larger than I
]


@pytest.mark.parametrize("row", OMITTED, ids=lambda row: "-".join(map(str, row[:5])))
@pytest.mark.parametrize("name", ["convolution_backprop_filters", "convolution_backward_weights"])
def test_omitted_pads(backend: str, name: str, row: tuple) -> None:
    i, o, k, s, d, (begin, end) = row
    explicit = Problem("convolution", 2, 1, 2, 3, (i,), (k,), (s,), (d,), (begin,), (end,))
    assert explicit.o == (o,), "the table is wrong"
    for call in calls.calls(explicit, torch.float32):
        if call.operator == name:
            kwargs = {k: v for k, v in call.kwargs.items() if not k.startswith("pads_")}
            omitted = dataclasses.replace(call, kwargs=kwargs)
            run: Callable = lambda c=omitted: run_forced(backend, c.run)  # noqa: E731
            message = calls.check(explicit, backend, omitted, run)
            assert message is None, message


@pytest.mark.parametrize("name", ["convolution_backprop_filters", "convolution_backward_weights"])
def test_omitted_pads_of_an_impossible_extent(name: str) -> None:
    shape = {f"{'filter' if 'filters' in name else 'weights'}_shape": [3, 2, 2]}
    with pytest.raises(RuntimeError) as error:  # an I of 47 gives 23, never 19
        getattr(ops, name)(
            integers(1, 47, 2), integers(1, 19, 2), strides=[2], dilations=[1], **shape
        )
    assert "47" in str(error.value)
    assert "19" in str(error.value)


@pytest.mark.parametrize("given", ["pads_begin", "pads_end"])
def test_omitting_one_of_the_pads_is_an_error(given: str) -> None:
    with pytest.raises(RuntimeError, match="pads"):
        ops.convolution_backward_weights(
            integers(1, 7, 2),
            integers(1, 7, 2),
            strides=[1],
            dilations=[1],
            weights_shape=[3, 2, 2],
            **{given: [1]},
        )


# ---- output_padding ---------------------------------------------------------------------------


def transposed_data(
    o: int, k: int, s: int, d: int, op: list[int] | None, pads: int = 0
) -> torch.Tensor:
    return ops.conv_transpose_backward_data(
        torch.ones(1, o, 1),
        torch.ones(k, 1, 1),
        strides=[s],
        dilations=[d],
        pads_begin=[pads],
        pads_end=[pads],
        output_padding=op,
    )


def test_backward_data_without_output_padding_takes_the_floor() -> None:
    assert transposed_data(8, 3, 2, 1, None).shape == (1, 3, 1)
    assert transposed_data(7, 3, 2, 1, None).shape == (1, 3, 1)
    assert transposed_data(9, 2, 1, 3, None).shape == (1, 6, 1)
    assert transposed_data(6, 3, 3, 1, None, pads=1).shape == (1, 2, 1)


def test_backward_data_with_output_padding() -> None:
    assert transposed_data(8, 3, 2, 1, [1]).shape == (1, 3, 1)
    assert transposed_data(7, 3, 2, 1, [0]).shape == (1, 3, 1)
    # d > s: several fit, and each means another shape
    for op, i in ((0, 6), (1, 5), (2, 4)):
        assert transposed_data(9, 2, 1, 3, [op]).shape == (1, i, 1)


@pytest.mark.parametrize(
    ("o", "k", "s", "d", "op"),
    [
        (8, 3, 2, 1, 0),  # explicit zeros are the strict form
        (7, 3, 2, 1, 1),
        (9, 3, 2, 1, 2),  # op < max(s, d)
        (10, 2, 1, 3, 3),
        (7, 3, 2, 1, -1),
    ],
)
def test_backward_data_with_an_illegal_output_padding(
    o: int, k: int, s: int, d: int, op: int
) -> None:
    with pytest.raises(RuntimeError, match="conv_transpose_backward_data"):
        transposed_data(o, k, s, d, [op])


def transposed_weights(o: int, op: list[int] | None, s: int = 2, d: int = 1) -> torch.Tensor:
    return ops.conv_transpose_backward_weights(
        torch.ones(1, 3, 1),
        torch.ones(1, o, 1),
        strides=[s],
        dilations=[d],
        pads_begin=[0],
        pads_end=[0],
        output_padding=op,
        weights_shape=[3, 1, 1],
    )


def test_weights_gradient_finds_the_output_padding_in_the_shapes() -> None:
    for o, op in ((7, 0), (8, 1)):
        assert torch.equal(transposed_weights(o, None), transposed_weights(o, [op]))
    for o, op in ((7, 0), (8, 1), (9, 2)):  # s = 1, d = 3: ek = 7, O = 2 + 7 + op
        a, b = transposed_weights(o + 2, None, 1, 3), transposed_weights(o + 2, [op], 1, 3)
        assert torch.equal(a, b)
        assert torch.equal(a, torch.full((3, 1, 1), 3.0))


@pytest.mark.parametrize(("o", "op"), [(6, None), (9, None), (8, [0]), (7, [1]), (9, [2])])
def test_weights_gradient_of_shapes_that_do_not_belong_together(
    o: int, op: list[int] | None
) -> None:
    with pytest.raises(RuntimeError, match="conv_transpose_backward_weights"):
        transposed_weights(o, op)


def test_forward_without_output_padding_is_the_one_with_zeros() -> None:
    src, w = integers(2, 4, 3), integers(3, 2, 3)
    common = {"strides": [2], "dilations": [1], "pads_begin": [1], "pads_end": [0]}
    a = ops.conv_transpose(src, w, **common)
    b = ops.conv_transpose(src, w, **common, output_padding=[0])
    assert a.shape == (2, 2 * 3 + 3 - 1, 2)
    assert torch.equal(a, b)


# ---- extents ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("i", "o"), [(7, 3), (8, 3), (9, 4), (3, 1), (4, 1)])
def test_floor_leftovers(backend: str, i: int, o: int) -> None:
    problem = Problem("convolution", 2, 1, 2, 2, (i,), (3,), (2,), (1,), (0,), (0,))
    assert problem.o == (o,)
    expect(backend, problem)


CORNERS = {
    "one pixel everywhere": ((1, 1), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0)),
    "one pixel, padded": ((1, 1), (3, 2), (1, 1), (1, 1), (1, 1), (1, 0)),
    "one pixel per axis": ((1, 6), (1, 3), (2, 1), (1, 1), (0, 1), (0, 1)),
    "stride beyond kernel": ((9, 8), (2, 1), (4, 3), (1, 1), (0, 0), (0, 0)),
    "stride beyond input": ((3, 2), (2, 2), (7, 5), (1, 1), (0, 0), (0, 0)),
    "dilation beyond input": ((4, 5), (2, 2), (1, 1), (7, 6), (4, 2), (4, 3)),
    "padding beyond kernel": ((6, 7), (2, 1), (1, 2), (1, 1), (4, 3), (0, 2)),
    "padding beyond kernel and input": ((8, 9), (1, 2), (2, 2), (1, 1), (5, 3), (1, 6)),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("groups", [1, 2])
def test_corners(backend: str, corner: str, family: str, groups: int) -> None:
    problem = Problem(family, 2, groups, 2, 3, *CORNERS[corner])
    if family == "conv_transpose" and min(problem.o) < 1:
        problem = dataclasses.replace(problem, output_padding=tuple(s - 1 for s in problem.stride))
        problem = dataclasses.replace(problem, i=tuple(i + 9 for i in problem.i))
    expect(backend, problem)


def test_kernel_beyond_input(backend: str) -> None:
    long = Problem("convolution", 2, 2, 2, 1, (2, 3), (5, 4), (1, 2), (1, 2), (2, 3), (3, 3))
    assert long.ek == (5, 7)
    expect(backend, long)
    short = Problem("conv_transpose", 2, 2, 2, 1, (2, 2), (5, 4), (1, 1), (1, 1), (2, 2), (2, 1))
    assert short.o == (2, 2)
    assert short.ek == (5, 4)
    expect(backend, short)


def test_taps_that_reach_nothing_give_exactly_zero(backend: str) -> None:
    """Written out in literals, apart from the oracle."""
    common = {"strides": [3], "dilations": [1], "data_format": "NCX"}

    # I = 4, K = 1, s = 3, pads (1, 1): j = 0, 1 are at h = -1, 2; 0, 1 and 3 are never reached.
    pads = {"pads_begin": [1], "pads_end": [1]}
    dx = run_forced(
        backend,
        lambda: ops.convolution_backward_data(
            torch.tensor([[[5.0, 7.0]]]),
            torch.ones(1, 1, 1),
            src_shape=[1, 1, 4],
            weights_format="OIX",
            **pads,
            **common,
        ),
    )
    assert dx is None or dx.tolist() == [[[0.0, 0.0, 7.0, 0.0]]]

    # I = 1, K = 4, pads (2, 2), s = 3: tap 2 of j = 0 reaches the pixel; the other taps none.
    wide = {"pads_begin": [2], "pads_end": [2]}
    dw = run_forced(
        backend,
        lambda: ops.convolution_backward_weights(
            torch.full((1, 1, 1), 3.0),
            torch.full((1, 1, 1), 2.0),
            weights_shape=[1, 1, 4],
            weights_format="OIX",
            **wide,
            **common,
        ),
    )
    assert dw is None or dw.tolist() == [[[0.0, 0.0, 6.0, 0.0]]]

    # Transposed, K = 1, s = 3, op = 2: only every third pixel of the result is reached.
    y = run_forced(
        backend,
        lambda: ops.conv_transpose(
            torch.tensor([[[5.0, 7.0]]]),
            torch.ones(1, 1, 1),
            pads_begin=[0],
            pads_end=[0],
            output_padding=[2],
            weights_format="IOX",
            **common,
        ),
    )
    assert y is None or y.tolist() == [[[5.0, 0.0, 0.0, 7.0, 0.0, 0.0]]]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_empty_batch(backend: str, family: str, data_format: str) -> None:
    problem = Problem(family, 0, 2, 3, 2, (5, 4), (3, 2), (2, 1), (1, 1), (1, 0), (0, 1))
    for call in calls.calls(problem, torch.float32, data_format=data_format):
        result = run_forced(backend, call.run, planned=False)
        assert result.shape == call.expected.shape
        assert result.dtype == torch.float32
        is_weights = "weights" in call.operator or "filters" in call.operator
        assert is_weights or result.numel() == 0
        assert not result.any()


# ---- shape arguments and strings --------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_shape_tensor_overrides_the_attribute(family: str, dtype: torch.dtype) -> None:
    # With pads (1, 1) a dst of 5 belongs to K = 3, one of 4 to K = 4 (transposed: 7 to K = 5).
    common = {"strides": [1], "dilations": [1], "pads_begin": [1], "pads_end": [1]}
    for suffix, letter in (("backward_weights", "weights"), ("backprop_filters", "filter")):
        operator = getattr(ops, f"{family}_{suffix}")
        for data_shape, k in (((1, 5, 2), 3), ((1, 4 if family == "convolution" else 7, 2), None)):
            k = k or (4 if family == "convolution" else 5)
            src, dst = integers(1, 5, 2), integers(*data_shape)
            plain = operator(
                src, dst, **common, **{f"{letter}_format": "XIO", f"{letter}_shape": [k, 2, 2]}
            )
            overriding = operator(
                src,
                dst,
                torch.tensor([k, 2, 2], dtype=dtype),
                **common,
                **{f"{letter}_format": "XIO", f"{letter}_shape": [9, 9, 9]},
            )
            alone = operator(
                src,
                dst,
                torch.tensor([k, 2, 2], dtype=dtype),
                **common,
                **{f"{letter}_format": "XIO"},
            )
            assert plain.shape == (k, 2, 2)
            assert torch.equal(plain, overriding)
            assert torch.equal(plain, alone)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("suffix", "letter"), [("backward_weights", "weights"), ("backprop_filters", "filter")]
)
def test_no_shape_at_all_is_an_error_that_names_both(family: str, suffix: str, letter: str) -> None:
    with pytest.raises(RuntimeError) as error:
        getattr(ops, f"{family}_{suffix}")(
            integers(1, 5, 2),
            integers(1, 5, 2),
            strides=[1],
            dilations=[1],
            pads_begin=[1],
            pads_end=[1],
        )
    message = str(error.value).replace(f"{letter}_shape_tensor", "<tensor>")
    assert "<tensor>" in message
    assert f"{letter}_shape" in message


@pytest.mark.parametrize("family", FAMILIES)
def test_strings_are_case_insensitive(family: str) -> None:
    problem = Problem(
        family, 1, 2, 2, 3, (5, 4), (3, 2), (2, 1), (1, 1), (), (), "same_lower", None, "NCX", "OIX"
    )
    mixed = {
        "auto_pad": "Same_LOWER",
        "data_format": "nCx",
        "weights_format": "oIx",
        "filter_format": "Oix",
    }
    for call in calls.calls(problem, torch.float32):
        kwargs = {name: mixed.get(name, value) for name, value in call.kwargs.items()}
        result = dataclasses.replace(call, kwargs=kwargs).run()
        assert calls.first_difference(result, call.expected.float()) is None, call.operator


# ---- readings of grouped weights --------------------------------------------------------------


@pytest.mark.parametrize("weights_format", ["IOX", "XOI"])
def test_both_readings_of_grouped_transposed_weights(backend: str, weights_format: str) -> None:
    groups, ic, oc, k = 2, 4, 6, 3
    src = integers(2, ic, 5)
    standard = integers(ic, oc // groups, k)  # torch's own
    # group on O: element (group, i, o, k) at [i, group·OC/g + o, k]
    other = standard.view(groups, ic // groups, oc // groups, k).movedim(0, 1)
    other = other.reshape(ic // groups, oc, k)
    out = F.conv_transpose1d(src, standard, stride=2, groups=groups)
    cotangent = integers(*out.shape)
    leaf = standard.clone().requires_grad_()
    grad = torch.autograd.grad(
        F.conv_transpose1d(src, leaf, stride=2, groups=groups), leaf, cotangent
    )[0]
    other_grad = grad.view(groups, ic // groups, oc // groups, k).movedim(0, 1).reshape(other.shape)
    grad_src = F.conv1d(cotangent, standard, stride=2, groups=groups)

    def spelled(t: torch.Tensor) -> torch.Tensor:
        return t if weights_format == "IOX" else t.permute(2, 1, 0)

    common = {
        "strides": [2],
        "dilations": [1],
        "pads_begin": [0],
        "pads_end": [0],
        "groups": groups,
        "data_format": "NCX",
        "weights_format": weights_format,
    }
    for w, dw in ((standard, grad), (other, other_grad)):
        forward = run_forced(backend, lambda w=w: ops.conv_transpose(src, spelled(w), **common))
        data = run_forced(
            backend,
            lambda w=w: ops.conv_transpose_backward_data(cotangent, spelled(w), **common),
        )
        weights = run_forced(
            backend,
            lambda w=w: ops.conv_transpose_backward_weights(
                src, cotangent, weights_shape=spelled(w).shape, **common
            ),
        )
        assert forward is None or torch.equal(forward, out)
        assert data is None or torch.equal(data, grad_src)
        assert weights is None or torch.equal(weights, spelled(dw))


@pytest.mark.parametrize("weights_format", ["OIX", "XIO"])
def test_other_formats_have_the_standard_reading_only(weights_format: str) -> None:
    common = {"strides": [1], "dilations": [1], "pads_begin": [0], "pads_end": [0], "groups": 2}
    common["weights_format"] = weights_format

    def spelled(i: int, o: int) -> torch.Tensor:
        t = integers(o, i, 1)
        return t if weights_format == "OIX" else t.permute(2, 1, 0)

    # IC = 4, OC = 6
    assert ops.convolution(integers(1, 5, 4), spelled(2, 6), **common).shape == (1, 5, 6)
    assert ops.conv_transpose(integers(1, 5, 4), spelled(4, 3), **common).shape == (1, 5, 6)
    with pytest.raises(RuntimeError, match="weights"):
        ops.convolution(integers(1, 5, 4), spelled(4, 3), **common)
    with pytest.raises(RuntimeError, match="weights"):
        ops.conv_transpose(integers(1, 5, 4), spelled(2, 6), **common)


# ---- strides of the results -------------------------------------------------------------------

CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def is_only_channels_last(t: torch.Tensor) -> bool:
    memory_format = CHANNELS_LAST.get(t.ndim - 2)
    if memory_format is None or t.is_contiguous():
        return False
    return t.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced", "transposed"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_result_strides(
    backend: str, family: str, rank: int, batch: int, layout: str, channels: int, data_format: str
) -> None:
    problem = Problem(
        family,
        batch,
        1,
        channels,
        3,
        (4, 5, 3)[:rank],
        (2, 3, 2)[:rank],
        (1,) * rank,
        (1,) * rank,
        (1,) * rank,
        (1,) * rank,
        data_format=data_format,
        layout=layout,
    )
    for call in calls.calls(problem, torch.float32):
        result = run_forced(backend, call.run)
        if result is None:
            continue
        shape = result.shape
        expected = torch.empty(shape).stride()
        gradient_of_weights = "weights" in call.operator or "filters" in call.operator
        if data_format == "NCX" and not gradient_of_weights and is_only_channels_last(call.args[0]):
            expected = torch.empty(shape, memory_format=CHANNELS_LAST[rank]).stride()
        # The stride of a dimension of extent 1 has no meaning.
        wrong = [d for d, n in enumerate(shape) if n > 1 and result.stride(d) != expected[d]]
        assert not wrong, f"{problem} {call.operator}: {result.stride()}, expected {expected}"
