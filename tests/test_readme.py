"""What the README and the documents show runs as it stands."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unforced

ROOT = Path(__file__).parents[1]
BLOCKS = [
    (path.name, block)
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.S)
]


@pytest.mark.parametrize(
    ("name", "block"),
    BLOCKS,
    ids=[f"{name}-{block.strip().splitlines()[-1][:40]}" for name, block in BLOCKS],
)
def test_block_runs(name: str, block: str) -> None:
    exec(compile(block, name, "exec"), {"__name__": "__main__"})


def test_the_example_is_there() -> None:
    assert "conv_transpose_backward_weights" in BLOCKS[0][1]


def test_the_documents_have_examples() -> None:
    assert {name for name, _ in BLOCKS} >= {
        "README.md",
        "accumulation.md",
        "cpp.md",
        "enable.md",
        "functional.md",
        "scaling.md",
    }
