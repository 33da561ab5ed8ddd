"""BalanceNet's experiment: its four image models on four workers, under each policy.

A cell is a model in a scenario. It runs in a network namespace of its own, as a program (`python -m
experiments.image_nodes CELL`), so that its links and processes end with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments import confinement
from experiments.framework import ROOT, Cell, Experiment, Row, Settings
from experiments.image_job import EXAMPLE, ImageJob
from experiments.image_phases import POLICIES, SCENARIOS, run_scenario
from experiments.image_phases import Settings as Phases

__all__ = ["BATCHES", "EXPERIMENT", "MODELS"]

MODELS = {"cnn": "baseline CNN", "alexnet": "AlexNet", "resnet50": "ResNet50", "vgg16": "VGG16"}  # as in the paper
# Samples of a step. More than in the example, so that a step is long beside the period of a limit on cores (CNN,
# AlexNet) and beside what a step costs without any sample (ResNet50, VGG16).
BATCHES = {"cnn": 704, "alexnet": 352, "resnet50": 352, "vgg16": 128}
_IMAGES = 1408  # for training, of 1,437: a multiple of all these, so that all steps are alike
_WORKERS = 4
_CACHE = ROOT / ".cache" / "experiments" / "images"


def _cells(settings: Settings) -> list[Cell]:
    return [{"model": model, "scenario": scenario} for model in MODELS for scenario in SCENARIOS]


def _run(cell: Cell) -> list[Row]:
    lacking = confinement.missing()
    if lacking:
        raise SystemExit(f"image-nodes: confined nodes need {lacking}; run it as root on Linux")
    command = ("unshare", "--net", sys.executable, "-m", "experiments.image_nodes", json.dumps(cell))
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the program of cell {cell} ended with exit code {done.returncode}")
    rows: list[Row] = json.loads(done.stdout)
    return rows


EXPERIMENT = Experiment(
    name="image-nodes",
    subject="BalanceNet's image models on four real workers with unequal cores, link and memory",
    cells=_cells,
    run=_run,
    seconds=lambda cell: 60.0,
    sources=("experiments/image_nodes.py", "experiments/image_job.py", "experiments/image_phases.py",
             "experiments/confinement.py", "examples/balancenet", "runtime/heterps_runtime",
             "operator/heterps_operator/control/tuning"),
    alone=True,
)  # fmt: skip


def main(cell: dict[str, Any]) -> list[Row]:
    """Run a cell in this network namespace."""
    sys.path.insert(0, str(EXAMPLE))  # the models are counted here, too
    data = _data()
    with tempfile.TemporaryDirectory() as folder, confinement.Confinement(_WORKERS) as nodes:
        with ImageJob(cell["model"], BATCHES[cell["model"]], data, Path(folder), nodes, _WORKERS) as job:
            policies = cell.get("policies", POLICIES)
            rows = run_scenario(job, nodes, cell["scenario"], policies, cell.get("seed", 0), Phases())
    return [{"model": cell["model"]} | row for row in rows]


def _data() -> Path:
    """The example's digits, cut to `_IMAGES` for training, as files of this experiment."""
    import prepare

    data, recipe = _CACHE / "data", f"{prepare.__name__} {_IMAGES}"
    if prepare.read_marker(data).get("recipe") != recipe:
        splits = prepare.digits()
        images, labels = splits["train"]
        prepare.write(data, recipe, splits | {"train": (images[:_IMAGES], labels[:_IMAGES])})
    return data


if __name__ == "__main__":
    json.dump(main(json.loads(sys.argv[1])), sys.stdout)
