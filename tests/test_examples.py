"""Each recipe of examples/ runs in a small setting: torch's losses, and something to look at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rich", reason="the extra 'examples' is not installed")

pytestmark = pytest.mark.unforced

EXAMPLES = Path(__file__).parents[1] / "examples"
RECIPES = sorted({path.stem for path in EXAMPLES.glob("*.py")} - {"recipe"})


@pytest.mark.parametrize("name", RECIPES)
def test_recipe(name: str, tmp_path: Path) -> None:
    # One thread: tests run side by side, and threads that wait for each other would take turns.
    sizes = ["--small", "--steps", "2", "--compared", "3", "--rounds", "1", "--threads", "1"]
    command = [sys.executable, EXAMPLES / f"{name}.py", *sizes, "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "losses apart" in done.stdout
    written = list(tmp_path.iterdir())
    assert written
    assert all(path.stat().st_size > 1000 for path in written)
