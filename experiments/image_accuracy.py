"""Updates until a model of BalanceNet's experiment has 95 % of the accuracy that it reaches.

The same batches give the same model, whatever part of them each worker has, so the number of updates is measured once,
in one process, and the time is this number times the step time under each policy. ResNet50 is an exception: BatchNorm
normalises each worker's part, so its number of updates would vary a little with the division.
"""

from __future__ import annotations

from experiments.framework import Cell, Experiment, Row, Settings
from experiments.image_data import MODELS

__all__ = ["EXPERIMENT", "LEVEL"]

LEVEL = 0.95  # of the accuracy that is reached
_UPDATES = {"cnn": 40, "alexnet": 80, "resnet50": 55, "vgg16": 200}  # until the accuracy hardly grows
_POINTS = 20  # measurements of the accuracy


def _cells(settings: Settings) -> list[Cell]:
    if settings.quick:
        return [{"model": "cnn", "updates": 2}]
    return [{"model": model, "updates": _UPDATES[model]} for model in MODELS]


def _run(cell: Cell) -> list[Row]:
    """Train, and find the first update at which the accuracy is high enough."""
    from experiments.image_training import accuracies  # it loads torch

    model, updates = cell["model"], int(cell["updates"])
    curve = accuracies(model, updates, max(1, updates // _POINTS))
    best = max(accuracy for _, accuracy in curve)
    reached = next(update for update, accuracy in curve if accuracy >= LEVEL * best)
    return [
        {"model": model, "update": update, "accuracy": accuracy, "reached": best, "updates_to_level": reached}
        for update, accuracy in curve
    ]


EXPERIMENT = Experiment(
    name="image-accuracy",
    subject="updates until BalanceNet's image models have 95 % of the accuracy that they reach",
    cells=_cells,
    run=_run,
    seconds=lambda cell: 30.0,
    sources=(
        "experiments/image_accuracy.py",
        "experiments/image_data.py",
        "experiments/image_training.py",
        "examples/balancenet",
    ),
    alone=True,
)
