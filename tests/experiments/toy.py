"""An experiment that takes no time; processes import it by name."""

from __future__ import annotations

from experiments.framework import Cell, Experiment, Row, Settings

RUNS: list[int] = []  # of this process


def cells(settings: Settings) -> list[Cell]:
    return [{"seed": seed} for seed in range(settings.seeds)]


def run(cell: Cell) -> list[Row]:
    RUNS.append(cell["seed"])
    return [{"seed": cell["seed"], "square": cell["seed"] ** 2}]


def stop_at_two(cell: Cell) -> list[Row]:
    if cell["seed"] == 2:
        raise KeyboardInterrupt
    return run(cell)


def fail(cell: Cell) -> list[Row]:
    raise ArithmeticError("no result")


TOY = Experiment("toy", "squares", cells, run)
STOPPED = Experiment("toy", "squares", cells, stop_at_two)
FAILING = Experiment("toy", "squares", cells, fail)
