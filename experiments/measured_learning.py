"""Algorithm 1 of [HeterPS] against the running system: the reward of a plan is the throughput of a short real run.

The paper pre-trains its policy with the cost model and goes on with "the real throughput". A cell runs the corrected
algorithm twice from the same weights, with either reward, and then trains both answers, and the exact method's plan, in
fresh runs: the cheapest of many measurements is cheap partly by luck. Pools are those of `unequal`, with a lower floor,
which more than one of the few schedules can keep.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks._jobs import Rate, Run

from experiments.control_groups import ControlGroups, unavailable
from experiments.executions import SOURCES, execute, measured_problem, paper_job
from experiments.framework import Cell, Experiment, Row, Settings
from experiments.literal_rl import VARIANTS, Literal, ModelCosts, run
from experiments.measured_costs import MeasuredCosts
from experiments.unequal import CLUSTER, dollars, limited, plan_text
from heterps_planner import Plan, Problem, plan
from heterps_planner.model.segments import build_segments

__all__ = ["EXPERIMENT", "learned_twice", "lower_floor"]

_SEEDS = 2
_FLOOR = 0.4  # of that of `unequal`
_MODEL = "nce"
#: The corrected algorithm with small rounds, as each plan costs a run.
_VARIANT = replace(VARIANTS["best plan"], rounds=60, plans=4, rate=2e-2)
_SHORT = Run(warm_up=8, steps=60, seconds=3.0)
_LONG = Run(warm_up=8, steps=200, seconds=6.0)


def _cells(settings: Settings) -> list[Cell]:
    reason = unavailable()
    if settings.quick:
        reason = "a quick run has no time for it"
    if reason:
        return [{"unavailable": reason}]
    return [{"model": _MODEL, "seed": seed, "most": 10} for seed in range(min(_SEEDS, settings.seeds))]


def _run(cell: Cell) -> list[Row]:
    if "unavailable" in cell:
        return [{"status": "not run", "reason": cell["unavailable"]}]
    with tempfile.TemporaryDirectory(prefix="heterps-learning-") as folder, ControlGroups() as limits:
        job = paper_job(cell["model"], Path(folder))
        problem = lower_floor(limited(measured_problem(job), CLUSTER))

        def measure(plan: Plan) -> float:
            return execute(job, plan, _SHORT, limits).samples_per_second

        found = learned_twice(problem, measure, cell["seed"], cell["most"])
        exact = plan(problem)
        assert isinstance(exact, Plan)
        rows: list[Row] = [row for row, _ in found]
        plans = [*(answer for _, answer in found), exact]
        rows.append({"reward": "none (exact method)", "seconds": exact.seconds, "runs": 0, "rounds": 0})
        rates: dict[str, Rate] = {}
        for answer in plans:
            if plan_text(answer) not in rates:
                rates[plan_text(answer)] = execute(job, answer, _LONG, limits)
    facts: Row = {"model": cell["model"], "seed": cell["seed"], "status": "ok"}
    facts["floor"] = problem.min_samples_per_second
    return [facts | row | _measured(p, rates[plan_text(p)]) for row, p in zip(rows, plans, strict=True)]


def _measured(plan: Plan, rate: Rate) -> Row:
    return {
        "plan": plan_text(plan),
        "predicted": plan.throughput,
        "measured": rate.samples_per_second,
        "predicted_cost": dollars(plan, plan.throughput),
        "measured_cost": dollars(plan, rate.samples_per_second),
    }


def lower_floor(problem: Problem) -> Problem:
    """Return the problem with a part of its floor."""
    return replace(problem, min_samples_per_second=_FLOOR * problem.min_samples_per_second)


def learned_twice(
    problem: Problem,
    measure: Callable[[Plan], float],
    seed: int,
    most: int,
    clock: Callable[[], float] = time.monotonic,
) -> list[tuple[Row, Plan]]:
    """Run algorithm 1 with the measured reward and with the cost model's, from the same weights.

    Args:
        problem: the problem.
        measure: returns the samples per second that a plan reaches.
        seed: of weights and plans.
        most: see `MeasuredCosts`.
        clock: returns seconds.

    Returns:
        What each loop took, and its answer.
    """
    measured = MeasuredCosts(problem, measure, most)
    began = clock()
    first = run(problem, _VARIANT, seed, measured.exhausted, measured)
    middle = clock()
    second = run(problem, _VARIANT, seed, costs=ModelCosts(build_segments(problem)))
    end = clock()

    def answer(reward: str, literal: Literal, seconds: float, runs: int) -> tuple[Row, Plan]:
        plan = measured.plan(literal.assignment)
        assert plan is not None, "algorithm 1 has seen no feasible plan"
        return {"reward": reward, "seconds": seconds, "runs": runs, "rounds": len(literal.mean_cost)}, plan

    return [
        answer("measured", first, middle - began, measured.num_measured),
        answer("cost model", second, end - middle, 0),
    ]


EXPERIMENT = Experiment(
    name="measured-learning",
    subject="algorithm 1 with the throughput of real runs as its reward, beside the cost model's",
    cells=_cells,
    run=_run,
    seconds=lambda cell: 150.0,
    sources=(
        "experiments/measured_learning.py",
        "experiments/measured_costs.py",
        "experiments/literal_rl.py",
        *SOURCES,
    ),
    alone=True,
)
