"""torch.profiler shows the operators under their names, with shapes, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import torch_ops.nn

# Above the operators: once is enough.
pytestmark = pytest.mark.unforced


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "Conv2d",
            {
                "convtbw::convolution": [[2, 3, 8, 7], [4, 3, 3, 3], [4]],
                "convtbw::convolution_backward_data": [[2, 4, 6, 5], [4, 3, 3, 3]],
                "convtbw::convolution_backward_weights": [[2, 3, 8, 7], [2, 4, 6, 5]],
            },
        ),
        (
            "ConvTranspose2d",
            {
                "convtbw::conv_transpose": [[2, 3, 8, 7], [3, 4, 3, 3], [4]],
                "convtbw::conv_transpose_backward_data": [[2, 4, 10, 9], [3, 4, 3, 3]],
                "convtbw::conv_transpose_backward_weights": [[2, 3, 8, 7], [2, 4, 10, 9]],
            },
        ),
    ],
)
def test_names_and_shapes(name: str, expected: dict[str, list[list[int]]]) -> None:
    module = getattr(torch_ops.nn, name)(3, 4, 3)
    x = torch.randn(2, 3, 8, 7, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        module(x).sum().backward()
    events = {event.name: event.input_shapes for event in profiler.events()}
    for operator, shapes in expected.items():
        assert events[operator][: len(shapes)] == shapes, operator
    forward = next(iter(expected))
    assert f"autograd::engine::evaluate_function: {forward}Backward" in events
    assert f"{forward}Backward" in events
    # By operator and shape, as print(profiler.key_averages(...).table()) shows it.
    rows = {row.key: row for row in profiler.key_averages(group_by_input_shape=True)}
    assert rows[forward].count == 1
    assert rows[forward].cpu_time_total > 0
