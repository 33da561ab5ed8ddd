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
from experiments.image_phases import CLAIRVOYANT, CORES, POLICIES, SCENARIOS, SHARES, Speeds, run_scenario

__all__ = ["EXPERIMENT"]

_SEED = 17  # of the policy `random`: that of the examples' training
_SECONDS = {"unequal cores": 80.0, "homogeneous": 70.0}  # these come first


def _cells(settings: Settings) -> list[Cell]:
    if settings.quick:
        return [{"model": "cnn", "scenario": "unequal cores", "simulated": True}]
    return [{"model": model, "scenario": scenario} for model in MODELS for scenario in SCENARIOS]


def _run(cell: Cell) -> list[Row]:
    """Run a cell; without `simulated`, on confined nodes."""
    if cell.get("simulated"):
        return _simulated(cell)
    command = ("unshare", "--net", sys.executable, "-m", "experiments.image_nodes", json.dumps(cell))
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the program of cell {cell} ended with exit code {done.returncode}")
    rows: list[Row] = json.loads(done.stdout)
    return rows


def _told(cell: Cell) -> Row:
    return {"model": cell["model"], "scenario": cell["scenario"], "seed": _SEED}


def _simulated(cell: Cell) -> list[Row]:
    from experiments.image_simulation import SimulatedJob, job_spec

    cores = [CORES * share for share in SHARES[cell["scenario"]]]
    job = SimulatedJob(job_spec(cell["model"]), cores, [0.0] * len(cores), _SEED)
    rows = run_scenario(job, lambda: None, (*POLICIES, CLAIRVOYANT), _SEED, Speeds())
    return [_told(cell) | row for row in rows]


def main(cell: Cell) -> list[Row]:
    """Run a cell in this network namespace. After a policy that ends the job, another job follows the next."""
    count = len(SHARES[cell["scenario"]])
    left, rows, speeds = list(cell.get("policies", (*POLICIES, CLAIRVOYANT))), [], Speeds()
    while left:
        with tempfile.TemporaryDirectory() as folder, confinement.Confinement(count) as nodes:
            from experiments.image_job import ImageJob, JobEndedError  # it loads torch

            with ImageJob(cell["model"], folder_of_images(), Path(folder), nodes, count) as job:
                limit = functools.partial(SCENARIOS[cell["scenario"]], nodes, job)
                try:
                    for row in run_scenario(job, limit, left.copy(), _SEED, speeds):
                        rows.append(_told(cell) | row)
                        _tell(rows[-1])
                        left.remove(str(row["policy"]))
                except JobEndedError as error:
                    sys.stderr.write(f"{error}\n")
                    rows.append(_told(cell) | {"policy": left.pop(0), "status": "ended"})
                    _tell(rows[-1])
    return rows


def _tell(row: Row) -> None:
    sys.stderr.write(
        f"{row['model']}, {row['scenario']}, {row['policy']}: {row.get('step_seconds', row['status'])} s\n"
    )


EXPERIMENT = Experiment(
    name="image-nodes",
    subject="BalanceNet's image models on four real workers with unequal cores, link and memory",
    cells=_cells,
    run=_run,
    seconds=lambda cell: _SECONDS.get(cell["scenario"], 60.0),
    sources=(
        "experiments/balanced_job.py",
        "experiments/confinement.py",
        "experiments/control_groups.py",
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
