"""A job with three pools, two stages and three plans, as pages show it.

`python -m tests.heterps_operator.page.samples FOLDER` writes its pages.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from heterps_operator.api.job import PoolSpec
from heterps_operator.page.plan_page import plan_page
from heterps_operator.page.report_page import report_page
from heterps_operator.page.sections.reasons import Planned
from heterps_operator.state.bill import Bill, BillLine
from heterps_operator.state.history import PlanRecord
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Failure, Phase, Status
from heterps_operator.terminal.report import build_report
from heterps_planner.model.problem import Problem
from heterps_planner.planning import plan as solve
from heterps_planner.plans.explain import explain
from heterps_planner.plans.frontier import frontier
from heterps_planner.plans.plan import Plan
from tests.heterps_operator.helpers.world import make_job

NOW = 1_700_000_000.0
LAYERS = ("user_embedding", "item_embedding", "concat", "hidden_1", "hidden_2", "hidden_3", "head")
POOLS = ("cpu", "v100", "t4")
_PRICES = {"cpu": 0.04, "v100": 2.42, "t4": 0.35}


def problem(layers: Sequence[str] = LAYERS, pools: Sequence[str] = POOLS, floor: float = 40_000.0) -> Problem:
    """Return a problem whose embeddings are cheap on the first pool, and whose other layers are not."""

    def times(number: int, pool: int) -> dict[str, Any]:
        embedding = number < 2
        seconds = (0.011, 0.08, 0.09)[pool] if embedding else (0.16, 0.004, 0.011)[pool]
        return {
            "computeSeconds": seconds * (1 + 0.15 * number),
            "parallelFraction": 0.97 if pool == 0 else 0.9,
            "transferSeconds": 0.006 + 0.001 * number,
            "transferParallelFraction": 0.6,
        }

    prices = tuple(_PRICES.values())
    return Problem.from_json(
        {
            "version": 1,
            "batchSize": 1024,
            "samples": 48_000_000,
            "minSamplesPerSecond": floor,
            "pools": [
                {
                    "name": name,
                    "deviceType": "CPU" if pool == 0 else "GPU",
                    "pricePerUnitHour": prices[pool],
                    "maxUnits": (32, 4, 6)[pool],
                }
                for pool, name in enumerate(pools)
            ],
            "layers": [
                {"name": name, "pools": {pool_name: times(number, pool) for pool, pool_name in enumerate(pools)}}
                for number, name in enumerate(layers)
            ],
        }
    )


def planned(given: Problem) -> Planned:
    """Return the cheapest plan of a problem, with all that pages show of it."""
    found = solve(given, clock=lambda: 0.0)
    assert isinstance(found, Plan)
    return Planned(given, found, explain(given, found), frontier(replace(given, min_samples_per_second=0.0)))


def status(known: Planned, message: str = "measured 36,210 samples/s, the floor is 40,000") -> Status:
    """Return the status of a job that has had three plans and trains with the plan of `known`."""
    plan = JobPlan.from_json(known.plan.to_json())
    rate = known.plan.throughput
    members = [
        {
            "name": f"worker-{number}-0",
            "role": "worker",
            "state": "ready",
            "stage": number,
            "pool": stage.pool,
            "stepSeconds": 1024 / rate * 1.04,
            "computeSeconds": 1024 / rate * (1.0 - 0.3 * number),
            "waitSeconds": 1024 / rate * (0.04 + 0.3 * number),
        }
        for number, stage in enumerate(plan.stages)
    ]
    stages = [
        {"name": stage.name, "pool": stage.pool, "samplesPerSecond": stage.throughput * (0.96 + 0.1 * number)}
        for number, stage in enumerate(known.plan.stages)
    ]
    result = {
        "phase": "Training",
        "committedSteps": 30_468,
        "totalSteps": 46_875,
        "samples": 31_199_232,
        "secondsTraining": 712.5,
        "loss": 0.4312,
        "samplesPerSecond": rate * 0.957,
        "members": members,
        "stages": stages,
        "evaluation": {"auc": 0.7913, "logLoss": 0.4761, "samples": 400_000},
    }
    before = plan.summary.replace(f" x{plan.stages[-1].units} ", f" x{plan.stages[-1].units - 1} ")
    history = (
        PlanRecord(1, NOW, "PlanComputed", "", before, 44_100.0, 0.98, 36_210.0),
        PlanRecord(2, NOW + 340, "UnitsChanged", message, plan.summary, 47_500.0, 1.10, 45_020.0),
        PlanRecord(3, NOW + 900, "Replanned", "the spec has changed", plan.summary, rate, known.plan.cost_per_hour),
    )
    found = Status(
        phase=Phase.RUNNING, started=NOW, plan=plan, plan_revision=3, plan_reason="Replanned", history=history,
        result=result, restarts={"worker-0-1": 1},
    )  # fmt: skip
    found = found.with_condition("Planned", True, "Replanned", f"plan 3 by optimal: {plan.summary}", NOW + 900)
    return found.with_condition("ThroughputMet", True, "AboveFloor", "45,470 samples/s, the floor is 40,000", NOW + 950)


def bill(pools: Sequence[str]) -> Bill:
    """Return a bill with a line for each of these pools."""
    return Bill(
        tuple(
            BillLine(name, Decimal(str(price)), [1_060_000_000, 45_000_000, 5_200_000_000][number])
            for number, (name, price) in enumerate(zip(pools, _PRICES.values(), strict=True))
        ),
        NOW + 1_000,
    )


def report(known: Planned, **changes: Any) -> tuple[dict[str, Any], Status]:
    """Return the report and the status of the sample job; `changes` are fields of its status."""
    pools = [pool.name for pool in known.problem.pools]
    job = make_job(
        name=changes.pop("name", "ctr"),
        min_samples_per_second=known.problem.min_samples_per_second,
        pools=tuple(
            PoolSpec(pool.name, pool.device_type, Decimal(str(pool.price_per_unit_hour)), pool.max_units, 1)
            for pool in known.problem.pools
        ),
    )
    now = replace(status(known), **changes)
    return build_report(job, now, bill(pools), interrupted=False, logs="logs"), now


HOSTILE = "<script>alert('x')</script>"


def hostile_pages() -> list[str]:
    """Return both pages of a job in which every name and message is HTML."""
    names = [f"{HOSTILE}{number}" for number in range(len(LAYERS))]
    known = planned(problem(names, [f"</svg>{HOSTILE}{i}&\"'" for i in range(3)]))
    failure = Failure(HOSTILE, HOSTILE, HOSTILE, 1, (HOSTILE, "</pre>"), HOSTILE)
    document, now = report(known, name=HOSTILE, failure=failure)
    records = tuple(replace(record, reason=HOSTILE, message=HOSTILE, summary=HOSTILE) for record in now.history)
    now = replace(now, history=records).with_condition("Planned", True, HOSTILE, HOSTILE, NOW)
    return [plan_page(HOSTILE, known, NOW), report_page(document, now, known, HOSTILE, NOW)]


def pages() -> dict[str, str]:
    """Return the pages of the sample job, by file name."""
    known = planned(problem())
    document, now = report(known)
    return {
        "plan.html": plan_page("ctr", known, NOW),
        "report.html": report_page(document, now, known, "namespace ads", NOW),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (Path(sys.argv[1]) / name).write_text(text, encoding="utf-8")
