"""Pictures of what was measured: speed-up bars, and the cases under the roofline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure  # draws to files without a display, unlike pyplot
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from torch_ops.bench_report import Row

COLOURS = {"NCX": "#3b6fb6", "NXC": "#e08a2c"}
MARKERS = {"weights": "o", "data": "s", "forward": "^"}


def _unique(rows: list[Row], key: str) -> list:
    return list(dict.fromkeys(row[key] for row in rows))


def speedup(rows: list[Row], title: str, path: Path) -> None:
    """Time of torch / ours: a line of bars for each shape, a column for each dtype and partial.

    The tick on a bar is the time of the better one of torch and oneDNN / ours.
    """
    groups = {
        name: _unique([row for row in rows if row["set"] == name], "shape")
        for name in _unique(rows, "set")
    }
    places, labels, place = {}, [], 0
    for shapes in groups.values():
        for shape in shapes:
            places[shape] = place
            labels.append(shape)
            place += 1
        place += 1  # an empty line between the sets
    columns = [(d, p) for d in _unique(rows, "dtype") for p in _unique(rows, "partial")]
    figure = Figure(figsize=(2.5 + 3.4 * len(columns), 1.8 + 0.24 * place), layout="constrained")
    figure.suptitle(f"Time of torch / ours (tick: better of torch and oneDNN / ours)\n{title}")
    all_axes = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for axes, (dtype, partial) in zip(all_axes, columns, strict=True):
        here = [row for row in rows if (row["dtype"], row["partial"]) == (dtype, partial)]
        _bars(axes, [row for row in here if row["ratio"] is not None], places)
        axes.set_title(f"{dtype} {partial}", fontsize=9)
    all_axes[0].set_yticks([places[shape] for shape in labels], labels)
    all_axes[0].set_ylim(place - 1.2, -1.4)  # the first shape on top
    beside = all_axes[0].get_yaxis_transform()
    for name, shapes in groups.items():
        where = (0.01, places[shapes[0]] - 0.7)
        all_axes[0].text(*where, name, transform=beside, fontsize=8, fontweight="bold")
    figure.savefig(path, dpi=110)


def _bars(axes: Axes, rows: list[Row], places: dict[str, int]) -> None:
    """The bars of one column; ``places`` are the shapes' heights."""
    formats = _unique(rows, "format")
    height = 0.8 / max(1, len(formats))
    for index, data_format in enumerate(formats):
        bars = [row for row in rows if row["format"] == data_format]
        y = np.array([places[row["shape"]] for row in bars]) + (index + 0.5) * height - 0.4
        ratios = np.array([row["ratio"] for row in bars])
        best = [row["ratio_to_best"] for row in bars]
        # On a log axis a bar from 1 to the ratio has the width ratio - 1 and may be negative.
        axes.barh(y, ratios - 1, height, left=1, color=COLOURS[data_format], label=data_format)
        axes.scatter(best, y, marker="|", s=60 * height, color="black", zorder=3)
        for ratio, centre in zip(ratios, y, strict=True):
            axes.annotate(
                f"{ratio:.2f}",
                (ratio, centre),
                (3 if ratio >= 1 else -3, 0),
                textcoords="offset points",
                ha="left" if ratio >= 1 else "right",
                va="center",
                fontsize=5.5,
            )
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.axvline(1, color="black", linewidth=0.8)
    axes.grid(axis="x", which="both", linewidth=0.3)
    axes.tick_params(labelsize=7)
    if bars_drawn := axes.get_legend_handles_labels()[0]:
        axes.legend(handles=bars_drawn, fontsize=7, loc="lower right")


def roofline(rows: list[Row], limits: Row, title: str, path: Path) -> None:
    """GFLOP/s of every case over its FLOP per byte, below sgemm's rate and the memory's slope.

    A panel for each dtype; a number stands for the shape, a marker for the partial, a colour for
    the format.
    """
    rows = [row for row in rows if row["gflops"] is not None]
    numbers = {shape: index + 1 for index, shape in enumerate(_unique(rows, "shape"))}
    dtypes = _unique(rows, "dtype") or [""]  # where ours declined everything: the limits alone
    figure = Figure(figsize=(3 + 9 * len(dtypes), 9), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(1, len(dtypes), sharex=True, sharey=True, squeeze=False)[0]
    for axes, dtype in zip(panels, dtypes, strict=True):
        _dots(axes, [row for row in rows if row["dtype"] == dtype], numbers)
        _roof(axes, limits, [row["flop_per_byte"] for row in rows])
        axes.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="GFLOP/s", title=dtype)
        axes.grid(which="both", linewidth=0.3)
    key = [_dot(MARKERS[partial], "grey", partial) for partial in _unique(rows, "partial")]
    key += [_dot("o", COLOURS[form], form) for form in _unique(rows, "format")]
    panels[-1].legend(handles=key, loc="lower right", fontsize=8)
    names = [f"{number:2} {shape}" for shape, number in numbers.items()]
    figure.text(1.0, 0.97, "\n".join(names), va="top", fontsize=7, family="monospace")
    figure.savefig(path, dpi=110, bbox_inches="tight")


def _dots(axes: Axes, rows: list[Row], numbers: dict[str, int]) -> None:
    for row in rows:
        where = (row["flop_per_byte"], row["gflops"])
        colour = COLOURS[row["format"]]
        axes.plot(*where, MARKERS[row["partial"]], color=colour, markersize=5, alpha=0.8)
        number = str(numbers[row["shape"]])
        axes.annotate(number, where, (4, -2), textcoords="offset points", fontsize=5.5)


def _roof(axes: Axes, limits: Row, intensities: list[float]) -> None:
    roof, slope = limits["sgemm_gflops"], limits["memory_gbytes"]
    reach = [*intensities, roof / slope]
    x = np.geomspace(min(reach) / 1.5, max(reach) * 1.5, 200)
    axes.plot(x, np.minimum(roof, slope * x), color="black", linewidth=1.2)
    offset = {"textcoords": "offset points"}
    axes.annotate(f"sgemm {roof:.0f} GFLOP/s", (x[-1], roof), (0, 4), ha="right", **offset)
    axes.annotate(f"memory {slope:.1f} GB/s", (x[0], slope * x[0]), (14, 0), **offset)


def _dot(marker: str, colour: str, label: str) -> Line2D:
    return Line2D([], [], marker=marker, color=colour, linestyle="", label=label)
