"""The oracle against torch's own convolutions and their autograd, in float64."""

from __future__ import annotations

from collections.abc import Iterator

import calls
import oracle
import pytest
import torch
import torch.nn.functional as F
from problems import Problem, problems

pytestmark = pytest.mark.unforced


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Thousands of tiny calls: waking a second thread for each costs more than they do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def padded_axes(begin: tuple[int, ...], end: tuple[int, ...]) -> list[int]:
    """Pads in the order of F.pad: last axis first."""
    return [v for b, e in zip(reversed(begin), reversed(end), strict=True) for v in (b, e)]


def torch_partials(p: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """fprop, and by autograd dgrad and wgrad, of the convolution behind either family."""
    values = calls.integers(p, torch.float64)
    x, y = (torch.from_numpy(a.copy()) for a in (values.x, values.y))
    w = torch.from_numpy(values.w.copy()).flatten(0, 1)
    x.requires_grad_(), w.requires_grad_()
    # Pad so that exactly the wanted outputs exist: y's last window may end before or after x's end.
    rows = zip(p.y_extent, p.stride, p.ek, p.x_extent, p.pads[0], strict=True)
    end = tuple((j - 1) * s + ek - big - pb for j, s, ek, big, pb in rows)
    out = CONV[p.rank](
        F.pad(x, padded_axes(p.pads[0], end)),
        w,
        stride=p.stride,
        dilation=p.dilation,
        groups=p.groups,
    )
    dx, dw = torch.autograd.grad(out, (x, w), y)
    return out.detach(), dx, dw.unflatten(0, (p.groups, p.q))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_partials_equal_torch(rank: int) -> None:
    for p in problems():
        if p.rank != rank or p.batch == 0:
            continue
        values = calls.integers(p, torch.float64)
        results = (values.fprop, values.dgrad, values.wgrad)
        for name, ours, theirs in zip(
            ("fprop", "dgrad", "wgrad"), results, torch_partials(p), strict=True
        ):
            difference = calls.first_difference(torch.from_numpy(ours), theirs)
            assert difference is None, f"{p} {name}: {difference}"


def test_the_operators_layer_equals_the_canonical_one() -> None:
    """`oracle.call` infers pads, shapes and readings from the arguments alone."""
    for p in problems():
        for reading in oracle.readings(p.family, p.weights_format):
            for c in calls.calls(p, torch.float64, reading=reading):
                result = oracle.call(c.operator, *c.args, **c.kwargs)
                difference = calls.first_difference(result, c.expected)
                assert difference is None, f"{p} {c.operator} {reading}: {difference}"


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_conv_transpose_equals_torch(rank: int, groups: int) -> None:
    """Directly, with torch's own weights format and output_padding, op >= stride included."""
    transpose = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[rank]
    for stride, dilation, padding, op in ((1, 3, 1, 2), (2, 1, 0, 1), (3, 2, 2, 2), (2, 3, 1, 2)):
        src = torch.randn(2, 2 * groups, *(4, 3, 2)[:rank], dtype=torch.float64)
        w = torch.randn(2 * groups, 3, *(3, 2, 3)[:rank], dtype=torch.float64)
        b = torch.randn(3 * groups, dtype=torch.float64)
        theirs = transpose(src, w, b, stride, padding, op, groups, dilation)
        ours = oracle.call(
            "conv_transpose",
            src,
            w,
            b,
            strides=[stride] * rank,
            dilations=[dilation] * rank,
            pads_begin=[padding] * rank,
            pads_end=[padding] * rank,
            output_padding=[op] * rank,
            groups=groups,
            data_format="NCX",
            weights_format="IOX",
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
