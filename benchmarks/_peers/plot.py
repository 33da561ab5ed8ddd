"""The picture of the bench: samples per second of each entrant, with their spread over the rounds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # files only, no window system

from benchmarks._peers.entrants import Entrant
from benchmarks._peers.rounds import Cell
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

__all__ = ["draw"]

# Okabe and Ito's colours can be told apart with colour blindness; the marks differ, too.
_LOOKS = {"fp32": ("#0072B2", "o"), "bf16": ("#D55E00", "s")}
_OFFSETS = {"fp32": -0.14, "bf16": 0.14}


def draw(
    path: Path,
    entrants: Mapping[str, Sequence[Entrant]],
    rounds: Mapping[Cell, Sequence[Mapping[str, Mapping[str, Any]]]],
) -> None:
    """Write the picture.

    Args:
        path: of the file; its suffix gives the format.
        entrants: by model, from the top.
        rounds: outcomes by entrant, of each cell.
    """
    models = list(dict.fromkeys(cell.model for cell in rounds))
    figure = Figure(figsize=(4.2 * len(models), 3.8), layout="constrained")
    axes = figure.subplots(1, len(models), squeeze=False)[0]
    for model, axis in zip(models, axes, strict=True):
        names = [entrant.name for entrant in entrants[model]]
        for precision, (colour, mark) in _LOOKS.items():
            of_cell = rounds.get(Cell(model, precision), [])
            for row, name in enumerate(names):
                rates = [o[name]["samplesPerSecond"] / 1000 for o in of_cell if "samplesPerSecond" in o.get(name, {})]
                if rates:
                    middle = statistics.median(rates)
                    axis.errorbar(
                        middle,
                        row + _OFFSETS[precision],
                        xerr=[[middle - min(rates)], [max(rates) - middle]],
                        color=colour,
                        marker=mark,
                        capsize=3,
                    )
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.set_xlim(left=0)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.set_xlabel("thousand samples/s, median and range")
        axis.set_title(model)
        axis.grid(axis="x", color="#dddddd")
        axis.set_axisbelow(True)
    shown = [precision for precision in _LOOKS if any(cell.precision == precision for cell in rounds)]
    handles = [mpl.lines.Line2D([], [], color=_LOOKS[p][0], marker=_LOOKS[p][1], label=p) for p in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(shown), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
