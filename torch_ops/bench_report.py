"""What was measured as tables: for the terminal, as Markdown, JSON and CSV."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

Row = dict[str, object]

# Shapes of the list that was measured before the project began are reported apart from later ones.
PARTS = {"measured": ("measured",), "added": ("threads", "networks")}

SUBSETS: dict[str, Callable[[Row], bool]] = {
    "all": lambda row: True,
    "dense": lambda row: row["kind"] == "dense",
    "dense, K >= 3": lambda row: row["kind"] == "dense" and row["largest_kernel"] >= 3,
    "grouped": lambda row: row["kind"] == "grouped",
    "depthwise": lambda row: row["kind"] == "depthwise",
    "weights": lambda row: row["partial"] == "weights",
    "data": lambda row: row["partial"] == "data",
    "forward": lambda row: row["partial"] == "forward",
    "NCX": lambda row: row["format"] == "NCX",
    "NXC": lambda row: row["format"] == "NXC",
}

# Whose share of the machine's limit is told: of each kind the mean and the least.
LIMITED: dict[str, Callable[[Row], bool]] = {
    "dense, 16 channels and more: NXC, data and forward": lambda row: (
        row["kind"] == "dense"
        and row["least_channels"] >= 16
        and row["format"] == "NXC"
        and row["partial"] != "weights"
    ),
    "dense, 16 channels and more: weights, and NCX": lambda row: (
        row["kind"] == "dense"
        and row["least_channels"] >= 16
        and (row["format"] == "NCX" or row["partial"] == "weights")
    ),
    "dense, 3 channels on one side": lambda row: (
        row["kind"] == "dense" and row["least_channels"] == 3
    ),
    "depthwise: weights": lambda row: row["kind"] == "depthwise" and row["partial"] == "weights",
}


@dataclass
class Sheet:
    """A table of texts. In the columns named ``…/ours`` a number below 1 is a loss."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    def rich(self) -> Table:
        table = Table(row_styles=["", "dim"])
        for index, column in enumerate(self.columns):
            numeric = any(_is_number(row[index]) for row in self.rows)
            table.add_column(column, justify="right" if numeric else "left", no_wrap=numeric)
        for row in self.rows:
            table.add_row(*map(self._coloured, self.columns, row))
        return table

    def markdown(self) -> str:
        lines = [f"### {self.title}", "", _line(self.columns), _line(["---"] * len(self.columns))]
        return "\n".join(lines + [_line(row) for row in self.rows]) + "\n"

    @staticmethod
    def _coloured(column: str, text: str) -> Text:
        if "/ours" not in column or not _is_number(text):
            return Text(text)
        return Text(text, style="green" if float(text) >= 1 else "red")


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def summary(rows: list[Row]) -> list[Row]:
    """Geometric means and worst cases of both ratios, a part, dtype and subset at a time.

    Cases without a ratio, where ours or every other contender declined, are left out and counted.
    """
    means = []
    for part, sets in PARTS.items():
        for dtype in dict.fromkeys(row["dtype"] for row in rows):
            here = [row for row in rows if row["set"] in sets and row["dtype"] == dtype]
            told: list[list[Row]] = []
            for subset, belongs in SUBSETS.items():
                chosen = [row for row in here if belongs(row)]
                if not chosen or chosen in told:  # the same cases under another name
                    continue
                told.append(chosen)
                mean = {"part": part, "dtype": dtype, "subset": subset, "cases": len(chosen)}
                for key in ("ratio", "ratio_to_best"):
                    mean |= _mean_and_worst(chosen, key)
                means.append(mean)
    return means


def _mean_and_worst(rows: list[Row], key: str) -> Row:
    measured = [row for row in rows if row[key] is not None]
    worst = min(measured, key=lambda row: row[key], default=None)
    return {
        f"{key}_mean": geometric_mean([row[key] for row in measured]) if measured else None,
        f"{key}_min": worst[key] if worst else None,
        f"{key}_min_case": case_name(worst) if worst else None,
        f"{key}_missing": len(rows) - len(measured),
    }


def case_name(row: Row) -> str:
    return " ".join(str(row[key]) for key in ("shape", "format", "dtype", "partial"))


# ---- sheets -------------------------------------------------------------------------------------


def sheets(document: dict) -> list[Sheet]:
    """Everything that was measured; sheets without rows are left out."""
    made = [_cases(part, document["rows"]) for part in PARTS]
    made += [
        _summary(document["summary"]),
        _shares(document["rows"]),
        _against_f32(document["rows"]),
        _double_backward(document["double_backward"]),
        _accumulation(document["accumulation"]),
        _overhead(document["overhead"]),
    ]
    return [sheet for sheet in made if sheet.rows]


def header(machine: Row) -> list[str]:
    """A line for each thing that the results depend on."""
    return [f"{key}: {_text(value)}" for key, value in machine.items() if value != {}]


def _cases(part: str, rows: list[Row]) -> Sheet:
    rows = [row for row in rows if row["set"] in PARTS[part]]
    with_errors = any("error_ours" in row for row in rows)
    columns = ["shape", "format", "dtype", "partial", "ms ours", "ms torch", "ms onednn"]
    columns += [
        "torch/ours",
        "best/ours",
        "GFLOP/s",
        "% of limit",
        "MiB",
        "backend, target, kernel",
    ]
    errors = ["error_ours", "error_torch", "error_gemm"] if with_errors else []
    columns += [error.replace("_", " ") for error in errors]
    title = {"measured": "Shapes of the first measurements", "added": "Shapes added later"}[part]
    return Sheet(
        f"{title} (best: the better of torch and oneDNN; *: ran once)",
        columns,
        [
            [
                *(str(row[key]) for key in ("shape", "format", "dtype", "partial")),
                *(_milliseconds(row, name) for name in ("ours", "torch", "onednn")),
                _ratio(row["ratio"]),
                _ratio(row["ratio_to_best"]),
                _number(row["gflops"], ".3g"),
                _number(row["share_of_limit"], ".0%").removesuffix("%"),
                _number(row["workspace_mib"], ".1f"),
                row["plan"] or f"declined: {row['declined_ours']}",
                *(_number(row[error], ".1e") for error in errors),
            ]
            for row in rows
        ],
    )


def _summary(means: list[Row]) -> Sheet:
    columns = ["shapes", "dtype", "subset", "cases"]
    for other in ("torch/ours", "best/ours"):
        columns += [other, f"least {other}", "of"]
    columns.append("missing")
    return Sheet(
        "Geometric means of the ratios of times, and the least one",
        columns,
        [
            [
                *(str(mean[key]) for key in ("part", "dtype", "subset", "cases")),
                _ratio(mean["ratio_mean"]),
                _ratio(mean["ratio_min"]),
                mean["ratio_min_case"] or "-",
                _ratio(mean["ratio_to_best_mean"]),
                _ratio(mean["ratio_to_best_min"]),
                mean["ratio_to_best_min_case"] or "-",
                str(mean["ratio_missing"]),
            ]
            for mean in means
        ],
    )


def _shares(rows: list[Row]) -> Sheet:
    sheet = Sheet(
        "Share of the limit in float32, %", ["shapes", "kind", "cases", "mean", "least", "of"], []
    )
    for part, sets in PARTS.items():
        for kind, belongs in LIMITED.items():
            told = [
                row
                for row in rows
                if row["set"] in sets
                and row["dtype"] == "f32"
                and row["share_of_limit"]
                and belongs(row)
            ]
            if not told:
                continue
            shares = [100 * row["share_of_limit"] for row in told]
            least = min(told, key=lambda row: row["share_of_limit"])
            mean = sum(shares) / len(shares)
            sheet.rows.append(
                [part, kind, str(len(told)), f"{mean:.0f}", f"{min(shares):.0f}", case_name(least)]
            )
    return sheet


def _against_f32(rows: list[Row]) -> Sheet:
    sheet = Sheet(
        "Time over that of our own float32, side by side: geometric mean, and the most",
        ["shapes", "dtype", "partial", "cases", "mean", "above 1.05", "most", "of"],
        [],
    )
    for part, sets in PARTS.items():
        for dtype, partial in sorted({(row["dtype"], row["partial"]) for row in rows}):
            here = [row for row in rows if (row["dtype"], row["partial"]) == (dtype, partial)]
            told = [row for row in here if row["set"] in sets and row["ratio_to_f32"]]
            if not told:
                continue
            ratios = [row["ratio_to_f32"] for row in told]
            most = max(told, key=lambda row: row["ratio_to_f32"])
            sheet.rows.append(
                [
                    *(part, dtype, partial, str(len(told)), _ratio(geometric_mean(ratios))),
                    str(sum(ratio > 1.05 for ratio in ratios)),
                    *(_ratio(max(ratios)), case_name(most)),
                ]
            )
    return sheet


def _double_backward(rows: list[Row]) -> Sheet:
    return Sheet(
        "Double backward of conv_transpose2d, 8 x 128 -> 64, 32 x 32, kernel 4, stride 2",
        ["dtype", "ms ours", "ms torch", "torch/ours"],
        [
            [
                row["dtype"],
                *(_milliseconds(row, name) for name in ("ours", "torch")),
                _ratio(row["ratio"]),
            ]
            for row in rows
        ],
    )


def _accumulation(rows: list[Row]) -> Sheet:
    columns = ["data", "gradient", "MiB"]
    ways = {"ours": "in the kernel", "then_added": "then added", "alone": "alone"}
    columns += [f"ms {way}" for way in ways.values()] + ["then added/ours"]
    columns += [f"peak MiB {way}" for way in ways.values()]
    return Sheet(
        "A weights gradient added to an existing one: conv_transpose2d, 4 x 1024 -> 1024, 4 x 4, "
        "kernel 4, stride 2",
        columns,
        [
            [
                row["dtype"],
                row["held"],
                _number(row["gradient_mib"], ".0f"),
                *(_milliseconds(row, way) for way in ways),
                _ratio(row["ratio"]),
                *(_number(row.get(f"peak_mib_{way}"), ".1f") for way in ways),
            ]
            for row in rows
        ],
    )


def _overhead(rows: list[Row]) -> Sheet:
    return Sheet(
        "Overhead: gradients of 2 x 8 channels x 4 x 4 from Python, f32",
        ["shape", "partial", "us ours", "us torch", "us ours on meta tensors"],
        [
            [
                row["shape"],
                row["partial"],
                *(_number(row[f"us_{name}"], ".1f") for name in ("ours", "torch", "meta")),
            ]
            for row in rows
        ],
    )


def _milliseconds(row: Row, name: str) -> str:
    """Four digits; a star says that it ran only once."""
    return _number(row[f"ms_{name}"], ".4g") + ("*" if name in row["once"] else "")


def _ratio(value: float | None) -> str:
    return _number(value, ".2f")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _is_number(text: str) -> bool:
    return text.removesuffix("*").replace(".", "", 1).isdigit()


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# ---- files --------------------------------------------------------------------------------------


def write_json(document: dict, path: Path) -> None:
    path.write_text(json.dumps(document, indent=1))


def write_csv(rows: list[Row], path: Path) -> None:
    """One line a case."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({**row, "once": " ".join(row["once"])} for row in rows)


def write_markdown(document: dict, path: Path) -> None:
    lines = [f"- {line}" for line in header(document["machine"])]
    tables = [sheet.markdown() for sheet in sheets(document)]
    path.write_text("\n".join(lines) + "\n\n" + "\n".join(tables))
