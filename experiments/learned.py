"""The learned schedulers: the paper's algorithm with its errata corrected one by one, and the policy that transfers."""

from __future__ import annotations

import math
import time

from experiments.clusters import PAPER_MODELS, POOL_COUNTS, cluster
from experiments.framework import Cell, Experiment, Row, Settings
from experiments.literal_rl import VARIANTS, run
from experiments.trials import solved, trial
from heterps_planner.errors import ProblemError
from heterps_planner.methods.pretrained import first_answer
from heterps_planner.model.segments import build_segments
from heterps_planner.plans.assignments import Evaluator
from heterps_planner.policy.features import features_of
from heterps_planner.policy.pretrained import check_range, shipped
from heterps_planner.search.sweep import minimise

__all__ = ["ERRATA", "TRANSFER"]

_SECONDS = 60.0


def _errata_cells(settings: Settings) -> list[Cell]:
    models, counts = (("nce",), (2,)) if settings.quick else (("ctrdnn", "matchnet"), (2, 4))
    variants = list(VARIANTS)[-1:] if settings.quick else list(VARIANTS)
    seeds = 1 if settings.quick else settings.seeds
    return [
        {"model": model, "pools": t, "variant": variant, "seed": seed}
        for model in models
        for t in counts
        for variant in variants
        for seed in range(seeds)
    ]


def _run_errata(cell: Cell) -> list[Row]:
    problem = cluster(cell["model"], cell["pools"])
    optimum = minimise(build_segments(problem)).rate
    began = time.perf_counter()
    end = time.monotonic() + _SECONDS
    found = run(problem, VARIANTS[cell["variant"]], cell["seed"], lambda: time.monotonic() > end)
    row: Row = dict(cell) | {"seconds": time.perf_counter() - began, "rounds": len(found.mean_cost)}
    if not math.isfinite(found.rate):
        return [row | {"status": "infeasible"}]
    return [row | {"status": "ok", "gap_percent": 100 * (found.rate / optimum - 1)}]


def _transfer_cells(settings: Settings) -> list[Cell]:
    models = ("nce",) if settings.quick else PAPER_MODELS
    counts = (2,) if settings.quick else POOL_COUNTS
    clusters = 1 if settings.quick else settings.seeds
    return [
        {"model": model, "pools": t, "limits": limits, "cluster": number, "seed": 0}
        for model in models
        for t in counts
        for limits in ("loose", "tight")
        for number in range(clusters)
    ]


def _run_transfer(cell: Cell) -> list[Row]:
    """Run the policy's first answer, and the method with repair."""
    _, segments, optimum, _ = solved(cell)
    problem = cluster(cell["model"], cell["pools"], limits=cell["limits"], seed=cell["cluster"])
    row: Row = dict(cell) | {"stage": "first answer", "status": "refused"}
    try:
        features = features_of(segments)
        check_range(shipped(), problem, features)
    except ProblemError:
        return [row]
    began = time.process_time()
    answer, _ = first_answer(shipped(), segments, features_of(segments))
    row["seconds"] = time.process_time() - began
    rate = float(Evaluator(segments).rates(answer[None])[0])
    row["status"] = "ok" if math.isfinite(rate) else "infeasible"
    if math.isfinite(rate):
        row["gap_percent"] = 100 * (rate / optimum.rate - 1)
    [repaired] = trial(cell | {"method": "pretrained", "budget": 10.0})
    kept: Row = {name: repaired[name] for name in ("status", "seconds", "gap_percent") if name in repaired}
    return [row, {**cell, "stage": "after repair", **kept}]


ERRATA = Experiment(
    name="errata",
    subject="the paper's algorithm 1 as printed, and with its errata corrected one after the other",
    cells=_errata_cells,
    run=_run_errata,
    seconds=lambda cell: 4.0,
    sources=("experiments/learned.py", "experiments/literal_rl.py"),
)
TRANSFER = Experiment(
    name="transfer",
    subject="a policy that has never seen the model nor the cluster: its first answer, and after repair",
    cells=_transfer_cells,
    run=_run_transfer,
    seconds=lambda cell: 0.5,
    sources=("experiments/learned.py", "experiments/trials.py"),
)
