"""The benchmark measures what it says and writes what it says. No test looks at a time."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib", reason="the extra 'bench' is not installed")
pytest.importorskip("rich", reason="the extra 'bench' is not installed")

from torch_ops import backends, bench, bench_measure, bench_report
from torch_ops.bench_accumulation import accumulation
from torch_ops.bench_accuracy import errors
from torch_ops.bench_cases import FORMATS, PARTIALS, Case
from torch_ops.bench_double_backward import double_backward
from torch_ops.bench_measure import Contender, Effort, Limits, Ours, intensity, measure
from torch_ops.bench_overhead import SHAPES, overhead
from torch_ops.bench_shapes import SET_OF, SETS, Shape, choose

ALL = [shape for shapes in SETS.values() for shape in shapes]
SMALLEST = sorted(ALL, key=lambda shape: shape.macs)[:4]
TINY = Shape("tiny", True, 2, 6, 4, (5, 4), (3, 2), stride=(2, 1), padding=(1, 0), groups=2)


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits from small matrices and copies: the tests need any, quickly."""
    monkeypatch.setattr(bench, "Limits", lambda: Limits(extent=64, elements=4096))


# ---- shapes and cases ---------------------------------------------------------------------------


def test_the_list() -> None:
    assert [len(shapes) for shapes in SETS.values()] == [16, 17, 28]
    assert len(SET_OF) == len(ALL), "a name occurs twice"
    added = [*SETS["threads"], *SETS["networks"]]
    for shapes in (added, SETS["networks"]):
        large = [s for s in shapes if s.kind == "dense" and max(s.kernel) >= 3]
        assert 2 * len(large) >= len(shapes)


@pytest.mark.parametrize("shape", ALL, ids=lambda shape: shape.name)
def test_extents_are_torch_s(shape: Shape) -> None:
    expected = {"weights": shape.weights, "data": shape.src, "forward": shape.dst}
    for data_format in FORMATS:
        for partial in PARTIALS:
            with torch.device("meta"):
                case = Case(shape, data_format, "f32", partial)
            assert case.torch_run()().shape == expected[partial]
            assert case.our_result().shape == expected[partial]


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("partial", PARTIALS)
@pytest.mark.parametrize("shape", [TINY, *SMALLEST], ids=lambda shape: shape.name)
def test_results_are_torch_s(shape: Shape, partial: str, data_format: str) -> None:
    assert Case(shape, data_format, "f32", partial).difference() < 1e-5


def test_shape_takes_one_number_or_one_per_axis() -> None:
    assert TINY.kernel == (3, 2)
    assert TINY.dilation == (1, 1)
    assert TINY.dst_spatial == (9, 5)
    assert TINY.macs == 2 * 20 * 6 * 6 * 4 // 2
    with pytest.raises(ValueError, match="kernel has 3 entries for 2 spatial axes"):
        Shape("bad", False, 1, 1, 1, (4, 4), (1, 2, 3))


def test_choose_by_part_of_a_name_and_by_pattern() -> None:
    names = [shape.name for shape in choose(["dcgan", "*_dw3"], list(SETS))]
    assert names == ["dcgan_g2", "dcgan_g4", "dcgan_last", "x3d_dw3"]
    assert [shape.name for shape in choose(["dil2"], list(SETS))] == ["dil2"]  # not k7dil2_183815
    assert choose(["*"], ["measured"]) == list(SETS["measured"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shapes", "nowhere"], "no shape matches 'nowhere'; there are: dcgan_g2, "),
        (["--shapes", "x3d", "--set", "measured"], "no shape matches 'x3d'"),
        (["--quick", "--shapes", "dcgan_g2"], "--quick leaves out"),
        (["--backend", "nobody"], "nobody"),
        (["--target", "avx2"], "--target needs --backend"),
        (["--partial", "bias"], "invalid choice: 'bias'"),
    ],
)
def test_unknown_names(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench.parse(arguments)
    assert message in capsys.readouterr().err


# ---- measuring ----------------------------------------------------------------------------------


def test_slow_contenders_run_once_and_declining_ones_give_a_reason() -> None:
    calls = dict.fromkeys(("quick", "slow"), 0)

    def count(name: str) -> None:
        calls[name] += 1

    def decline() -> None:
        raise RuntimeError("not today\nand not tomorrow")

    contenders = {name: Contender(lambda name=name: count(name)) for name in calls}
    assert measure({"slow": contenders["slow"]}, Effort(3, 0, once_above=-1)).once == ["slow"]
    assert calls["slow"] == 1
    times = measure({"quick": contenders["quick"], "no": Contender(decline)}, Effort(3, 0, 60))
    assert calls["quick"] > 4
    assert times.declined == {"no": "not today"}
    assert times.ms("quick") >= 0
    assert times.ms("no") is None
    with pytest.raises(RuntimeError, match="not today"):
        measure({"ours": Contender(decline, may_decline=False)}, Effort(1, 0, 60))


def test_limit_is_the_lower_one_of_sgemm_and_memory() -> None:
    limits = Limits(extent=8, elements=8)
    limits.sgemm_gflops, limits.copy_gbytes, limits.read_gbytes = 100.0, 10.0, 20.0
    assert limits.at(2.0) == 40.0
    assert limits.at(50.0) == 100.0
    # 240 multiply-adds; 2 x 6 x 20 + 6 x 2 x 6 + 2 x 4 x 45 elements
    assert intensity(TINY, itemsize=2) == 2 * TINY.macs / (2 * (240 + 72 + 360))


def test_environment_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in bench_measure.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    assert bench_measure.machine()["environment"] == {}
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    about = bench_measure.machine()
    assert "environment: ONEDNN_MAX_CPU_ISA=AVX2" in bench_report.header(about)


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("partial", PARTIALS)
@pytest.mark.parametrize("transposed", [False, True])
def test_errors_are_rounding(transposed: bool, partial: str, data_format: str) -> None:
    shape = Shape("s", transposed, 2, 6, 4, (7, 6), (3, 2), (2, 1), (1, 0), (1, 2), groups=2)
    # One rounding of the result to 8 bits is at most 2^-9 and on the average less.
    for dtype, bound in (("f32", 1e-6), ("bf16", 2**-9)):
        found = errors(Case(shape, data_format, dtype, partial), with_ours=True, with_torch=True)
        assert set(found) == {"error_ours", "error_torch", "error_gemm"}
        assert 0 < found["error_gemm"] < bound
        assert 0 < found["error_ours"] < bound


def test_double_backward_and_overhead() -> None:
    row = double_backward("f32", Ours(), Effort(1, 0), TINY)
    assert row["ratio"] == row["ms_torch"] / row["ms_ours"] > 0
    row = overhead(SHAPES[0], "weights", Ours("reference"), Effort(1, 0))
    assert min(row["us_ours"], row["us_torch"], row["us_meta"]) > 0


def test_accumulation() -> None:
    shape = Shape("s", True, 1, 256, 256, (2, 2), 4, stride=2, padding=1)  # a gradient of 4 MiB
    row = accumulation("bf16", torch.float32, Ours("simd"), Effort(1, 0), shape)
    assert row["ratio"] == row["ms_then_added"] / row["ms_ours"] > 0
    assert row["gradient_mib"] == 4
    assert (row["peak_mib_ours"] or 0) < row["gradient_mib"]  # None: the system does not tell
    document = {"rows": [], "summary": [], "double_backward": [], "overhead": []}
    (sheet,) = bench_report.sheets(document | {"accumulation": [row]})
    assert len(sheet.rows[0]) == len(sheet.columns)
    declined = accumulation("f32", torch.float32, Ours("onednn"), Effort(1, 0), shape)
    assert declined["ms_ours"] is None


# ---- reports ------------------------------------------------------------------------------------


def made_up(shape: str, ratio: float | None, **changes: object) -> dict:
    s = next(s for s in ALL if s.name == shape)
    row = {"set": SET_OF[shape], "shape": shape, "format": "NCX", "dtype": "f32", "kind": s.kind}
    row |= {"partial": "weights", "largest_kernel": max(s.kernel), "ratio": ratio}
    row |= {"least_channels": min(s.inputs, s.outputs), "ratio_to_f32": None}
    return row | {"ratio_to_best": ratio and ratio / 2} | changes


def whole(row: dict) -> dict:
    """With what the table of cases shows beside."""
    shown = ("ours", "torch", "onednn")
    row = {f"ms_{name}": None for name in shown} | dict.fromkeys(("gflops", "workspace_mib")) | row
    return {"plan": "simd", "once": []} | row


def test_geometric_means_and_worst_cases() -> None:
    rows = [
        made_up("dcgan_g2", 2.0),
        made_up("unet_up1", 8.0),
        made_up("dw3", 0.5, format="NXC"),
        made_up("dw_up2", None),
        made_up("sam_up1", 3.0, dtype="bf16"),
    ]
    means = {(m["part"], m["dtype"], m["subset"]): m for m in bench_report.summary(rows)}
    whole = means["measured", "f32", "all"]
    assert whole["ratio_mean"] == pytest.approx(2.0)
    assert whole["ratio_to_best_mean"] == pytest.approx(1.0)
    assert (whole["cases"], whole["ratio_missing"]) == (4, 1)
    assert (whole["ratio_min"], whole["ratio_min_case"]) == (0.5, "dw3 NXC f32 weights")
    assert means["measured", "f32", "dense"]["ratio_mean"] == pytest.approx(4.0)
    assert means["measured", "f32", "dense, K >= 3"]["ratio_mean"] == pytest.approx(2.0)
    assert means["measured", "f32", "depthwise"]["ratio_min"] == 0.5
    assert means["added", "bf16", "all"]["ratio_mean"] == pytest.approx(3.0)
    # The same cases are not told twice: all of them are weights gradients.
    assert ("measured", "f32", "weights") not in means


def test_shares_of_the_limit_and_16_bits_beside_float32() -> None:
    rows = [
        made_up("dcgan_g2", 2.0, share_of_limit=0.5),
        made_up("unet_up1", 2.0, share_of_limit=0.9, format="NXC"),
        made_up("unet_up1", 2.0, share_of_limit=0.8, format="NXC", partial="data"),
        made_up("dcgan_last", 2.0, share_of_limit=0.7),
        made_up("dw3", 2.0, share_of_limit=None),
        made_up("dil2", 2.0, share_of_limit=9.0, dtype="bf16", ratio_to_f32=0.5),
        made_up("dw3", 2.0, share_of_limit=9.0, dtype="bf16", ratio_to_f32=1.125),
    ]
    document = dict.fromkeys(("summary", "double_backward", "accumulation", "overhead"), ())
    shares, beside = (
        sheet
        for sheet in bench_report.sheets({"rows": [whole(row) for row in rows]} | document)
        if "Share" in sheet.title or "float32" in sheet.title
    )
    dense = "dense, 16 channels and more"
    assert shares.rows == [
        ["measured", f"{dense}: NXC, data and forward", "1", "80", "80", "unet_up1 NXC f32 data"],
        ["measured", f"{dense}: weights, and NCX", "2", "70", "50", "dcgan_g2 NCX f32 weights"],
        [
            "measured",
            "dense, 3 channels on one side",
            "1",
            "70",
            "70",
            "dcgan_last NCX f32 weights",
        ],
    ]
    assert beside.rows == [
        ["measured", "bf16", "weights", "2", "0.75", "1", "1.12", "dw3 NCX bf16 weights"]
    ]


@pytest.mark.unforced
def test_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = ["up3_dw_47341", "c8k5"]
    markdown = tmp_path / "tables.md"
    arguments = [
        "--quick",
        "--rounds",
        "1",
        "--seconds",
        "0",
        "--shapes",
        *shapes,
        "--partial",
        "weights",
        "data",
    ]
    arguments += ["--format", "NXC", "--sections", "cases", "overhead", "--accuracy"]
    arguments += ["--out", str(tmp_path), "--markdown", str(markdown)]
    assert bench.main(arguments) == 0
    printed = capsys.readouterr().out
    for words in ("Shapes added later", "Geometric means", "Overhead", "sgemm_gflops", "c8k5"):
        assert words in printed

    document = json.loads((tmp_path / "bench.json").read_text())
    sections = {"double_backward", "accumulation", "overhead"}
    assert set(document) == {"machine", "rows", "summary"} | sections
    about = document["machine"]
    assert about["threads"] == torch.get_num_threads()
    assert about["memory_gbytes"] == max(about["copy_gbytes"], about["read_gbytes"]) > 0
    assert document["double_backward"] == document["accumulation"] == []
    assert len(document["overhead"]) == 4
    rows = document["rows"]
    assert [(row["shape"], row["partial"]) for row in rows] == [
        (shape, partial)
        for shape in ("up3_dw_47341", "c8k5_27974")
        for partial in ("weights", "data")
    ]
    for row in rows:
        assert row["set"] == "threads"
        assert row["difference"] < 1e-5
        assert row["error_ours"] < 1e-5
        assert row["ratio"] == row["ms_torch"] / row["ms_ours"]
        others = [ms for ms in (row["ms_torch"], row["ms_onednn"]) if ms]
        assert row["ratio_to_best"] == min(others) / row["ms_ours"]
        roof = min(about["sgemm_gflops"], row["flop_per_byte"] * about["memory_gbytes"])
        assert row["share_of_limit"] == row["gflops"] / roof
        assert row["plan"].split()[0] in backends.supported()
        assert row["workspace_mib"] >= 0
        assert ("onednn" in backends.supported()) == (row["declined_onednn"] is None)
    mean = document["summary"][0]["ratio_mean"]
    assert mean == pytest.approx(math.prod(row["ratio"] for row in rows) ** (1 / len(rows)))

    with (tmp_path / "bench.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["shape"] for line in lines] == [row["shape"] for row in rows]
    assert set(lines[0]) == set(rows[0])
    for picture in ("speedup.png", "roofline.png"):
        content = (tmp_path / picture).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 10_000
    assert "| c8k5_27974 | NXC | f32 | weights |" in markdown.read_text()


@pytest.mark.unforced
def test_forcing_concerns_ours_alone(tmp_path: Path) -> None:
    arguments = ["--quick", "--rounds", "1", "--seconds", "0", "--shapes", "up3_dw"]
    arguments += ["--format", "NXC", "--partial", "weights", "--sections", "cases"]
    arguments += ["--backend", "reference"]
    bench.main([*arguments, "--out", str(tmp_path)])
    document = json.loads((tmp_path / "bench.json").read_text())
    assert document["machine"]["ours"] == "reference, forced"
    (row,) = document["rows"]
    assert row["plan"].split()[0] == "reference"
    assert (row["ms_onednn"] is None) == ("onednn" not in backends.supported())
