"""What the README shows a newcomer runs as it stands."""

import re
from pathlib import Path

import pytest

BLOCKS = re.findall(
    r"^```python\n(.*?)^```", (Path(__file__).parents[1] / "README.md").read_text(), re.M | re.S
)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.strip().splitlines()[-1][:40])
def test_block_runs(block: str) -> None:
    exec(compile(block, "README.md", "exec"), {})


def test_the_example_is_there() -> None:
    assert "conv_transpose_backward_weights" in BLOCKS[0]
