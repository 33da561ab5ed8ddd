"""Common style of the plots: one colour and marker per method, axes with units, spreads, explicit gaps.

Colours are Okabe and Ito's, which are distinguishable with colour blindness; markers and hatches differ as well. A
method without a plan has a cross instead of a bar, so that "nothing" does not look like "cheap".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # files only, no window system

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter

__all__ = ["LOOKS", "Bar", "Look", "bars", "finish", "legend", "lines", "look", "new_figure", "reference_line"]


@dataclass(frozen=True)
class Look:
    """Style of a method."""

    label: str
    colour: str
    mark: str
    hatch: str = ""


LOOKS: Mapping[str, Look] = {
    "optimal": Look("certified optimum", "#000000", "*"),
    "rl-lstm": Look("RL-LSTM", "#0072B2", "o"),
    "rl-rnn": Look("RL-RNN", "#56B4E9", "s"),
    "pretrained": Look("pre-trained policy", "#004466", "P", "xx"),
    "bayesian": Look("Bayesian", "#CC79A7", "D"),
    "genetic": Look("genetic", "#E69F00", "^"),
    "greedy": Look("greedy", "#009E73", "v"),
    "heuristic": Look("heuristic, CPU first", "#D55E00", "<"),
    "heuristic-gpu-first": Look("heuristic, GPU first", "#D55E00", ">", "//"),
    "gpu": Look("GPU only", "#F0E442", "X"),
    "cpu": Look("CPU only", "#999999", "p"),
}
_SPARE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999999")
_GREY = "#444444"


@dataclass(frozen=True)
class Bar:
    """A value with its spread; NaN: nothing to show, and `missing` gives the reason."""

    value: float
    low: float = math.nan
    high: float = math.nan
    missing: str = ""


def look(name: str, index: int = 0) -> Look:
    """Return the style of a method, or of another series by its number."""
    return LOOKS.get(name, Look(name, _SPARE[index % len(_SPARE)], "osD^v<>"[index % 7]))


def new_figure(
    rows: int = 1, columns: int = 1, *, width: float = 9.0, height: float = 4.2
) -> tuple[Figure, list[Axes]]:
    """A figure with its axes, row by row."""
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    axes = [ax for row in grid for ax in row]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", color="#dddddd", linewidth=0.6)
        ax.set_axisbelow(True)
    return figure, axes


def bars(
    ax: Axes,
    groups: Sequence[str],
    series: Mapping[str, Sequence[Bar]],
    *,
    foot: float,
    text: Callable[[float], str] | None = None,
) -> None:
    """Draw grouped bars.

    Args:
        ax: target axes.
        groups: labels on the x axis.
        series: method -> one bar per group.
        foot: start of the bars, in data units: the reference itself on a log axis.
        text: label above a bar of this value; vertical for narrow bars.
    """
    width = 0.86 / max(1, len(series))
    for n, (name, values) in enumerate(series.items()):
        style = look(name, n)
        at = [i - 0.43 + (n + 0.5) * width for i in range(len(groups))]
        solid = [i for i, bar in enumerate(values) if math.isfinite(bar.value)]
        ax.bar(
            [at[i] for i in solid],
            [values[i].value - foot for i in solid],
            width * 0.92,
            bottom=foot,
            color=style.colour,
            hatch=style.hatch,
            edgecolor="#222222" if style.hatch or style.colour == "#F0E442" else style.colour,
            linewidth=0.4,
            label=style.label,
        )
        # A bar of the optimum's height would be invisible: a short line marks it.
        ax.plot(
            [x for i in solid for x in (at[i] - width * 0.46, at[i] + width * 0.46, math.nan)],
            [y for i in solid for y in (values[i].value, values[i].value, math.nan)],
            color=style.colour,
            linewidth=1.8,
        )
        spread = [i for i in solid if math.isfinite(values[i].low) and values[i].high > values[i].low]
        ax.errorbar(
            [at[i] for i in spread],
            [values[i].value for i in spread],
            yerr=[
                [values[i].value - values[i].low for i in spread],
                [values[i].high - values[i].value for i in spread],
            ],
            fmt="none",
            ecolor=_GREY,
            elinewidth=0.9,
            capsize=2,
        )
        for i in solid if text else ():
            top = max(values[i].value, values[i].high) if math.isfinite(values[i].high) else values[i].value
            ax.annotate(
                text(values[i].value) if text else "",
                (at[i], top),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=7,
                rotation=90 if len(series) > 6 else 0,
                annotation_clip=True,
            )
        for i, bar in enumerate(values):
            if bar.missing:
                ax.annotate(
                    "×",
                    (at[i], foot),
                    xytext=(0, 1),
                    textcoords="offset points",
                    ha="center",
                    va="bottom",
                    color=style.colour if style.colour != "#F0E442" else "#8a8000",
                    fontsize=10,
                    fontweight="bold",
                )
    ax.set_xticks(range(len(groups)), groups)
    ax.set_xlim(-0.5, len(groups) - 0.5)
    ax.tick_params(axis="x", length=0)


def lines(ax: Axes, x: Sequence[float], series: Mapping[str, Sequence[Bar]]) -> None:
    """Draw lines with marks and the spread as a band."""
    for n, (name, values) in enumerate(series.items()):
        style = look(name, n)
        shown = [(a, bar) for a, bar in zip(x, values, strict=True) if math.isfinite(bar.value)]
        if not shown:
            continue
        at = [a for a, _ in shown]
        ax.plot(
            at, [b.value for _, b in shown], color=style.colour, marker=style.mark, markersize=5, linewidth=1.4,
            label=style.label, markeredgecolor="#222222", markeredgewidth=0.4,
        )  # fmt: skip
        low = [b.low if math.isfinite(b.low) else b.value for _, b in shown]
        high = [b.high if math.isfinite(b.high) else b.value for _, b in shown]
        if any(h > v for h, v in zip(high, low, strict=True)):
            ax.fill_between(at, low, high, color=style.colour, alpha=0.15, linewidth=0)


def heat_table(
    ax: Axes, rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[Bar]], text: Callable[[float], str]
) -> None:
    """Draw a table with darker cells for greater values; a cell without a value shows the reason, or stays white."""
    shades = [
        [math.log10(max(bar.value, 0.1)) if math.isfinite(bar.value) else math.nan for bar in row] for row in values
    ]
    ax.imshow(shades, cmap="YlOrBr", vmin=-1, vmax=3, aspect="auto")
    for i, row in enumerate(values):
        for j, bar in enumerate(row):
            if math.isfinite(bar.value):
                colour = "#ffffff" if bar.value > 60 else "#000000"
                ax.text(j, i, text(bar.value), ha="center", va="center", fontsize=8, color=colour)
            elif bar.missing:
                ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor="#e4e4e4", edgecolor="#ffffff", hatch="///"))
                ax.text(j, i, "none", ha="center", va="center", fontsize=8, color="#000000")
    ax.set_yticks(range(len(rows)), rows)
    ax.set_xticks(range(len(columns)), columns)
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)


def name_ends(ax: Axes, x: float, series: Mapping[str, float]) -> None:
    """Label each series after its last point, with a line to it, moved apart where points are close (log y axis)."""
    bottom, top = (math.log10(limit) for limit in ax.get_ylim())
    least = 0.056 * (top - bottom)
    blocks: list[list[tuple[str, float]]] = []  # labels that touch share one block, centred on their points

    def low(block: list[tuple[str, float]]) -> float:
        centre = sum(y for _, y in block) / len(block)
        return centre - least * (len(block) - 1) / 2

    for name, value in sorted(series.items(), key=lambda item: item[1]):
        blocks.append([(name, math.log10(value))])
        while len(blocks) > 1 and low(blocks[-1]) < low(blocks[-2]) + least * len(blocks[-2]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    for block in blocks:
        for n, (name, y) in enumerate(block):
            style = look(name, n)
            ax.annotate(
                style.label, (x, 10**y), xytext=(1.1, 10 ** (low(block) + n * least)),
                textcoords=("axes fraction", "data"), va="center", fontsize=8, color="#000000", annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": style.colour, "linewidth": 1.2, "shrinkA": 1, "shrinkB": 3},
            )  # fmt: skip


def name_point(ax: Axes, x: float, y: float, name: str) -> None:
    """Label a series that consists of a single point."""
    ax.annotate(look(name).label, (x, y), xytext=(7, 0), textcoords="offset points", va="center", fontsize=8)


def reference_line(ax: Axes, y: float, text: str) -> None:
    """Draw the reference line, labelled on the right."""
    ax.axhline(y, color="#000000", linewidth=1.0, linestyle=(0, (4, 2)), zorder=0.5)
    ax.annotate(
        text, (1, y), xycoords=("axes fraction", "data"), xytext=(3, 0), textcoords="offset points",
        ha="left", va="center", fontsize=8, color="#000000", annotation_clip=False,
    )  # fmt: skip


def times_axis(ax: Axes, ticks: Sequence[float]) -> None:
    """Set up a logarithmic y axis with ticks such as 1x, 2x."""
    ax.set_yscale("log")
    ax.set_yticks(list(ticks))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def legend(figure: Figure, axes: Sequence[Axes], *, columns: int = 5, note: str = "") -> None:
    """Draw one legend for all axes, below them."""
    handles, labels = [], []
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            if label not in labels:
                handles.append(handle)
                labels.append(label)
    title = note or None
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5, title=title,
        title_fontsize=8,
    )  # fmt: skip


def finish(figure: Figure, path: Path) -> None:
    """Write the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140, metadata={"Software": None})


def percent_axis(ax: Axes, threshold: float = 1.0) -> None:
    """Set up a y axis of percentages from 0, linear below the threshold and logarithmic above."""
    ax.set_yscale("symlog", linthresh=threshold)
    ax.set_ylim(bottom=-0.08 * threshold)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
