"""Networks that others wrote train the same under enable(). No test looks at a time."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("monai", reason="the extra 'bench' is not installed")
pytest.importorskip("rich", reason="the extra 'bench' is not installed")

from torch_ops import bench_models
from torch_ops.bench_measure import Effort
from torch_ops.bench_models import NETWORKS, Training
from torch_ops.bench_training import compare

pytestmark = pytest.mark.unforced

ONCE = Effort(rounds=1, seconds=0, once_above=float("inf"))
BY_NAME = {network.name: network for network in NETWORKS}


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(NETWORKS)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ["UNet_2d", "AutoEncoder_2d", "UNETR_3d"])
def test_trains_the_same(name: str, channels_last: bool) -> None:
    row = compare(partial(Training, BY_NAME[name], "f32", channels_last), ONCE)
    assert row["losses_apart"] < 1e-4
    assert row["ratio"] > 0


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--models", "AutoEncoder*", "--dtype", "f32", "--rounds", "1"]
    assert bench_models.main([*arguments, "--out", str(tmp_path)]) == 0
    (row,) = json.loads((tmp_path / "models.json").read_text())["rows"]
    assert row["name"] == "AutoEncoder_2d"
    assert "AutoEncoder_2d" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        bench_models.parse(["--models", "none"])
