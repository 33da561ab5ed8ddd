"""`python -m tests.chaos.replanning run JOB`: `heterps run` whose control loop changes to the plans of a campaign.

In the product, a job changes to other stages or servers while it trains if the measured throughput misses the floor for
minutes (`control/tuning/elasticity.py`, `redivision.py`): at a time, and to a plan, that no schedule can fix. Here the
reason is a file beside the manifest. Everything after it is the product's: the planner makes the plan, `redivision`
takes it, with a restart where `adoption` says so, and the loop starts, expects and ends processes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from heterps_operator.__main__ import main
from heterps_operator.api.job import JobSpec
from heterps_operator.control.problem import build_problem, with_running_servers
from heterps_operator.control.tuning import elasticity
from heterps_operator.control.tuning.redivision import take_stages
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Status
from heterps_operator.state.trials import Cause, Review
from heterps_operator.state.values import ComputePlan, Observed
from heterps_runtime.contract import ServersDocument

__all__ = ["PROGRAM", "review", "write_wish"]

PROGRAM = "tests.chaos.replanning"
_FILE = "wished-plan.json"
_FOLDER = "HETERPS_TEST_FOLDER"  # variable that `RealJob` sets

Json = dict[str, Any]


def write_wish(folder: Path, stages: Sequence[Json], servers: int) -> None:
    """Say which plan the job should change to.

    Args:
        folder: of the job.
        stages: as in `spec.scheduling.stages`; empty: it should stay as it is.
        servers: their number.
    """
    unfinished = folder / f"{_FILE}.unfinished"
    unfinished.write_text(json.dumps({"stages": list(stages), "servers": servers}))
    unfinished.replace(folder / _FILE)


def review(job: JobSpec, observed: Observed, status: Status, plan: JobPlan) -> tuple[Status, tuple[ComputePlan, ...]]:
    """Ask the planner for the wished plan, and change to its answer: in the place of `elasticity.review`."""
    asked, outcome = status.review, observed.outcome
    if asked is not None:
        done = replace(status, review=None, reviewed=observed.time)
        if outcome is not None and outcome.revision == asked.revision:
            return take_stages(job, observed, done, plan, asked), ()
        return (status if observed.planning else done), ()  # the question was lost with an earlier controller
    wish = _read_wish(Path(os.environ[_FOLDER]))
    if observed.planning or wish is None or _is_granted(plan, *wish):
        return status, ()
    stages, servers = wish
    number = ServersDocument(plan.servers.pool, servers, servers * job.pool(plan.servers.pool).units_per_pod)
    problem = with_running_servers(build_problem(job, observed.profiles, status.start_seconds), number)
    revision = status.plan_revision + 1
    question = Review(Cause.STAGES, "the campaign changes the plan", revision=revision)
    return replace(status, review=question), (ComputePlan(problem, revision, tuple(stages)),)


def _read_wish(folder: Path) -> tuple[list[Json], int] | None:
    file = folder / _FILE
    if not file.exists():
        return None
    wish = json.loads(file.read_text())
    return (wish["stages"], wish["servers"]) if wish["stages"] else None


def _is_granted(plan: JobPlan, stages: Sequence[Json], servers: int) -> bool:
    present = [(stage.pool, stage.layers[-1], stage.units) for stage in plan.stages]
    return plan.servers.replicas == servers and present == [(s["pool"], s["lastLayer"], s["units"]) for s in stages]


if __name__ == "__main__":
    elasticity.review = review
    sys.exit(main())
