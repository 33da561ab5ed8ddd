"""BalanceNet's experiment: its four image models on four workers, under each policy.

A cell is a model in a scenario. It runs in a network namespace of its own, as a program (`python -m
experiments.image_nodes CELL`), so that its links and processes end with it.
"""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from experiments import confinement
from experiments.framework import ROOT, Cell, Experiment, Row, Settings
from experiments.image_data import EXAMPLE, MODELS, folder_of_images
from experiments.image_phases import CORES, POLICIES, SCENARIOS, SHARES, run_scenario

__all__ = ["EXPERIMENT"]

_SEED = 1  # of the policy `random`


def _cells(settings: Settings) -> list[Cell]:
    if settings.quick:
        return [{"model": "cnn", "scenario": "unequal cores", "simulated": True}]
    return [{"model": model, "scenario": scenario} for model in MODELS for scenario in SCENARIOS]


def _run(cell: Cell) -> list[Row]:
    """Run a cell; without `simulated`, on confined nodes."""
    if cell.get("simulated"):
        return [{"model": cell["model"]} | row for row in _simulated(cell)]
    command = ("unshare", "--net", sys.executable, "-m", "experiments.image_nodes", json.dumps(cell))
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the program of cell {cell} ended with exit code {done.returncode}")
    rows: list[Row] = json.loads(done.stdout)
    return rows


def _simulated(cell: Cell) -> list[Row]:
    from experiments.image_simulation import SimulatedJob, job_spec

    cores = [CORES * share for share in SHARES[cell["scenario"]]]
    simulated = SimulatedJob(job_spec(cell["model"]), cores, [0.0] * len(cores), _SEED)
    return run_scenario(simulated, lambda: None, cell["scenario"], POLICIES, _SEED)


def main(cell: Cell) -> list[Row]:
    """Run a cell in this network namespace."""
    from experiments.image_job import ImageJob

    data = folder_of_images()
    count = len(SHARES[cell["scenario"]])
    with (
        tempfile.TemporaryDirectory() as folder,
        confinement.Confinement(count) as nodes,
        ImageJob(cell["model"], data, Path(folder), nodes, count) as job,
    ):
        limit = functools.partial(SCENARIOS[cell["scenario"]], nodes, job)
        rows = run_scenario(job, limit, cell["scenario"], cell.get("policies", POLICIES), _SEED)
    return [{"model": cell["model"]} | row for row in rows]


EXPERIMENT = Experiment(
    name="image-nodes",
    subject="BalanceNet's image models on four real workers with unequal cores, link and memory",
    cells=_cells,
    run=_run,
    seconds=lambda cell: 60.0,
    sources=(
        "experiments/balanced_job.py",
        "experiments/confinement.py",
        "experiments/image_data.py",
        "experiments/image_job.py",
        "experiments/image_nodes.py",
        "experiments/image_phases.py",
        "experiments/image_simulation.py",
        str(EXAMPLE.relative_to(ROOT)),
    ),
    alone=True,
    lacking=lambda settings: "" if settings.quick else confinement.missing(),
)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing is left behind
    json.dump(main(json.loads(sys.argv[1])), sys.stdout)
