"""Why a job has its plan: the plan's figures and reasons, computed again from the job's planning problem."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from heterps_operator.control.problem import with_running_servers
from heterps_operator.documents import Json
from heterps_operator.state.plan import JobPlan
from heterps_planner.model.problem import Problem
from heterps_planner.plans.explain import Explanation, explain
from heterps_planner.plans.machine import is_measured, share_cores
from heterps_planner.plans.plan import Infeasible, Plan
from heterps_planner.scenarios.evaluate import evaluate

__all__ = ["Reasons", "find_reasons"]


@dataclass(frozen=True)
class Reasons:
    """The reasons for a plan.

    Attributes:
        free_problem: the planning problem, with any number of servers.
        problem: the planning problem with the servers of the plan.
        plan: the plan with the figures that the problem gives.
        explanation: its stages, limits and alternatives.
    """

    free_problem: Problem
    problem: Problem
    plan: Plan
    explanation: Explanation


def find_reasons(document: Json, plan: Json, deadline: float) -> Reasons:
    """Compute the reasons for a plan that is carried out.

    Args:
        document: the current planning problem.
        plan: the plan file.
        deadline: time on `time.monotonic` from which on alternatives are left out.

    Raises:
        ValueError: the plan does not fit the problem, which may have changed since.
    """
    keys = ("pool", "lastLayer", "units")
    try:
        running = JobPlan.from_json(plan)
        free = Problem.from_json(document)
        problem = Problem.from_json(with_running_servers(document, running.servers))
        stages = [{key: stage[key] for key in keys} for stage in plan["stages"]]
        found = evaluate(problem, stages, deadline=deadline)
    except (ValueError, KeyError) as error:
        raise ValueError(f"the plan does not fit the current job ({error})") from error
    if isinstance(found, Infeasible):
        raise ValueError(f"the plan does not fit the current job: {found.message}")
    found = replace(found, method=running.method, seconds=running.seconds)
    if running.machine is not None and is_measured(problem):
        found = share_cores(problem, found, running.machine.cores)
    return Reasons(free, problem, found, explain(problem, found, lambda: time.monotonic() >= deadline))
