"""Figure 11: every method's plan, trained for real on pools that processor limits make unequal, or on cores and a card.

A cell measures the layers of a model, plans with every method, and trains each distinct plan once: coordinator,
parameter servers and workers are real processes, without a card servers and workers with a control group's quota each.
A cell takes minutes, so its profile and each of its runs are kept as soon as they are there.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from benchmarks._jobs import Job, Rate, Run
from benchmarks._processes import Processes
from examples.paper.prepare import ClickLogSpec, write_click_log

from experiments.control_groups import ControlGroups, unavailable
from experiments.devices import load_profile
from experiments.framework import ROOT, Cell, Experiment, Row, Settings, code_version
from experiments.unequal import CARD, CLUSTER, Answer, Offer, answers, dollars, limited, plan_text
from heterps_operator.api.manifest import load_manifest
from heterps_planner import Plan, Problem

__all__ = [
    "CARD_TRAINING",
    "EXPERIMENT",
    "ON_CARD",
    "SOURCES",
    "execute",
    "lacks_card",
    "measured_problem",
    "paper_job",
    "stored_problem",
]

#: What the result of a real run depends on.
SOURCES = (
    "experiments/executions.py",
    "experiments/unequal.py",
    "experiments/control_groups.py",
    "benchmarks/_jobs.py",
    "examples/paper/clicks",
    "runtime/heterps_runtime",
)
_EXAMPLES = ROOT / "examples" / "paper"
_MODELS = ("ctrdnn", "nce")
_REPEATS = 3
_ROWS = 200_000
_CARD_REPEATS = 2
#: Fields of `spec.training`; with the manifest's batch of 2,048 a card waits for its host at each step.
CARD_TRAINING: Mapping[str, int] = {"globalBatchSize": 8192}
_RUN = {"warm_up": 8, "steps": 40, "seconds": 6.0}
_QUICK_RUN = {"warm_up": 2, "steps": 2, "seconds": 1.0}


def _cells(settings: Settings) -> list[Cell]:
    reason = unavailable()
    return [{"unavailable": reason}] if reason else _cells_of(settings, _REPEATS)


def _card_cells(settings: Settings) -> list[Cell]:
    return _cells_of(settings, _CARD_REPEATS)


def _cells_of(settings: Settings, repeats: int) -> list[Cell]:
    if settings.quick:
        return [
            {"model": "nce", "repeat": 0, "profile": "stored", "methods": ["optimal", "rl-lstm"], "run": _QUICK_RUN}
        ]
    return [
        {"model": model, "repeat": repeat, "profile": "measured", "methods": None, "run": _RUN}
        for repeat in range(min(repeats, settings.seeds))
        for model in _MODELS
    ]


def lacks_card(settings: Settings) -> str:
    """Return what this machine lacks for runs on a card; a quick run computes on cores instead."""
    return "" if settings.quick or torch.cuda.is_available() else "a CUDA card"


def _run(cell: Cell) -> list[Row]:
    if "unavailable" in cell:
        return [{"status": "not run", "reason": cell["unavailable"]}]
    return _trained(cell, CLUSTER, ControlGroups(), None)


def _run_on_card(cell: Cell) -> list[Row]:
    return _trained(cell, CARD, None, CARD_TRAINING)


def _trained(
    cell: Cell, cluster: Mapping[str, Offer], groups: ControlGroups | None, training: Mapping[str, Any] | None
) -> list[Row]:
    """Plan a cell's model for a cluster and train by each distinct plan, limited by control groups if there are any."""
    with tempfile.TemporaryDirectory(prefix="heterps-figure-11-") as folder, groups or nullcontext() as limits:
        job = paper_job(cell["model"], Path(folder), training)
        measured = cell["profile"] == "measured"
        keep = _kept if measured else _computed
        about = {"cell": cell, "cluster": {name: asdict(offer) for name, offer in cluster.items()}}
        whole = job.problem(keep(about, _profile(job))) if measured else stored_problem(cell["model"])
        problem = limited(whole, cluster)
        found = answers(problem, cell["repeat"], cell["methods"])
        plans = {plan_text(answer.plan): answer.plan for answer in found if answer.plan is not None}
        rates: dict[str, Rate] = {}
        for text, plan in plans.items():

            def train(plan: Plan = plan) -> dict[str, Any]:
                return asdict(execute(job, plan, Run(**cell["run"]), limits, cluster))

            rates[text] = Rate(**keep({**about, "plan": text}, train))
    facts: Row = {"model": cell["model"], "seed": cell["repeat"], "floor": problem.min_samples_per_second}
    return [facts | _row(answer, rates) for answer in found]


def _profile(job: Job) -> Callable[[], dict[str, Any]]:
    """Return what measures a job's layers with a whole core.

    One worker is measured: two would share this machine's cores, which limited units do not.
    """
    return functools.partial(job.profiles, units=1)


def _computed(key: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Compute, and keep nothing: a quick run takes seconds."""
    return compute()


def _kept(key: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what was computed for a key by this code before, or compute and keep it."""
    digest = hashlib.sha256(json.dumps([key, code_version(SOURCES)], sort_keys=True).encode()).hexdigest()[:32]
    path = ROOT / ".cache" / "experiments" / "executions" / f"{digest}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(compute()))
        partial.replace(path)
    kept: dict[str, Any] = json.loads(path.read_text())
    return kept


def _row(answer: Answer, rates: Mapping[str, Rate]) -> Row:
    row: Row = {"method": answer.method, "status": answer.status, "planning_seconds": answer.seconds}
    if answer.plan is None:
        return row
    rate = rates[plan_text(answer.plan)]
    return row | {
        "plan": plan_text(answer.plan),
        "stages": len(answer.plan.stages),
        "price_per_hour": answer.plan.cost_per_hour,
        "predicted": answer.plan.throughput,
        "measured": rate.samples_per_second,
        "predicted_cost": dollars(answer.plan, answer.plan.throughput),
        "measured_cost": dollars(answer.plan, rate.samples_per_second),
        "steps": rate.steps,
        "seconds": rate.seconds,
        "whole_seconds": rate.whole_seconds,
    }


def paper_job(model: str, folder: Path, training: Mapping[str, Any] | None = None) -> Job:
    """Return the job of examples/paper that trains a model, on a click log of its own.

    Args:
        model: name of a manifest there.
        folder: an empty folder.
        training: fields of `spec.training` that replace the manifest's.
    """
    data = write_click_log(ROOT / ".cache" / "experiments" / "executions-log", ClickLogSpec(seed=3), _ROWS)
    return Job(load_manifest(_EXAMPLES / f"{model}.yaml"), folder, _EXAMPLES, training, data / "train")


def measured_problem(job: Job) -> Problem:
    """Measure a job's layers with a whole core."""
    return job.problem(_profile(job)())


def stored_problem(model: str) -> Problem:
    """Return the stored profile of a core, as if it were that of both pools."""
    problem = load_profile(model)
    core = problem.pools[0]
    return replace(
        problem,
        global_batch_size=2 * problem.batch_size,
        layers=tuple(replace(layer, pools=dict.fromkeys(CLUSTER, layer.pools[core.name])) for layer in problem.layers),
        pools=(core, replace(core, name="accelerator", device_type="GPU")),
    )


def execute(
    job: Job, plan: Plan, run: Run, limits: ControlGroups | None, cluster: Mapping[str, Offer] = CLUSTER
) -> Rate:
    """Train by a plan, with limited processes if there are control groups.

    The limits begin with the warm-up's second half, since loading PyTorch takes 3 s of a whole core.
    """

    def limit(processes: Processes) -> None:
        if limits is None:
            return
        for pid, pool in processes.pools.items():
            limits.limit(pid, cluster[pool].cores)

    return job.run(plan, run, when_warm=limit)


EXPERIMENT = Experiment(
    name="figure-11",
    subject="real executions of every method's plan on pools that processor limits make unequal",
    cells=_cells,
    run=_run,
    seconds=lambda cell: 105.0,
    sources=SOURCES,
    alone=True,
)

ON_CARD = Experiment(
    name="figure-11-card",
    subject="real executions of every method's plan on cores and a CUDA card",
    cells=_card_cells,
    run=_run_on_card,
    seconds=lambda cell: 105.0,
    sources=SOURCES,
    alone=True,
    lacking=lacks_card,
)
