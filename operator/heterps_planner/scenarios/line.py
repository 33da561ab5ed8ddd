"""Which jobs of a line can run at the same time on what is free.

The line has an order, and an earlier job goes before a later one: each job is admitted if the joint plan (`joint`) of
the admitted ones and itself exists. So a job may be planned on another pool than it would choose alone if that lets a
later one run as well, but it is never left out for the sake of later ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heterps_planner.errors import DeadlineError, PlannerError, ProblemError
from heterps_planner.model.fields import Fields
from heterps_planner.model.limits import MAX_UNITS
from heterps_planner.model.problem import Problem
from heterps_planner.plans.plan import Plan
from heterps_planner.scenarios.joint import MAX_JOBS, JointInfeasible, JointPlan, plan_together

__all__ = ["METHOD", "VERSION", "Line", "LineJob", "LinePlan", "plan_line"]

METHOD = "line"
VERSION = 1


@dataclass(frozen=True)
class LineJob:
    """A job that waits for units.

    Attributes:
        name: unique in the line.
        problem: what it trains; its pools' `max_units` limit this job alone.
        first: no later job is admitted if this one is not.
    """

    name: str
    problem: Problem
    first: bool = False


@dataclass(frozen=True)
class Line:
    """Jobs that wait, and what is free."""

    jobs: tuple[LineJob, ...]  # in their order
    limits: Mapping[str, int]  # units of each pool for all of them together
    unreadable: Mapping[str, str]  # by job: why its problem cannot be used

    @classmethod
    def from_json(cls, value: Any) -> Line:
        """Parse and validate the content of a line file.

        An invalid problem leaves out its own job only.

        Args:
            value: result of `json.load`.

        Raises:
            ProblemError: another field is missing, unknown, of the wrong type or out of range; the message names it.
        """
        top = Fields(value, "line")
        top.take_integer("version", least=VERSION, most=VERSION)
        limits = Fields(top.take("limits"), "line.limits")
        units = {pool: limits.take_integer(pool, least=0, most=MAX_UNITS) for pool in limits.value}
        jobs: list[LineJob] = []
        unreadable: dict[str, str] = {}
        for path, item in top.take_list("jobs", most=MAX_JOBS):
            entry = Fields(item, path)
            name, first = entry.take_name("name"), entry.take("first", False)
            if not isinstance(first, bool):
                raise ProblemError(entry.at("first"), f"must be true or false, is {str(first)[:60]}")
            problem = entry.take("problem")
            entry.finish()
            if name in unreadable or any(job.name == name for job in jobs):
                raise ProblemError(entry.at("name"), f"{name!r} is the name of an earlier job; use another one")
            try:
                jobs.append(LineJob(name, Problem.from_json(problem), first))
            except ProblemError as error:
                unreadable[name] = str(error)
        top.finish()
        return cls(tuple(jobs), units, unreadable)


@dataclass(frozen=True)
class LinePlan:
    """The plans of the admitted jobs; all of them may run at the same time."""

    plans: Mapping[str, Plan]  # by job
    refused: Mapping[str, str]  # by job: why it is not admitted
    cost: float  # dollars of the admitted jobs
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the plans as a JSON object."""
        return {
            "feasible": bool(self.plans),
            "method": METHOD,
            "seconds": self.seconds,
            "cost": self.cost,
            "plans": {name: plan.to_json() for name, plan in self.plans.items()},
            "refused": dict(self.refused),
        }


def plan_line(
    line: Line,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> LinePlan:
    """Plan as many jobs of a line as run at the same time.

    Args:
        line: the jobs, and what is free.
        should_stop: called regularly; when it returns True, jobs for which no plan is known yet are left out.
        clock: returns seconds; only differences matter.
    """
    began = clock()

    def together(some: Sequence[LineJob]) -> JointPlan | str:
        """Return the joint plan, or why there is none."""
        try:
            found = plan_together(
                [job.problem for job in some],
                names=[job.name for job in some],
                limits=line.limits,
                should_stop=should_stop,
                clock=clock,
            )
        except DeadlineError as error:
            return str(error)
        except PlannerError as error:  # a job that cannot be planned at all leaves the others alone
            return f"{some[-1].name}: {error}"
        return found.message if isinstance(found, JointInfeasible) else found

    admitted, refused = list(line.jobs), dict(line.unreadable)
    best = together(admitted) if admitted else ""
    if not isinstance(best, JointPlan):
        admitted = []
        for index, job in enumerate(line.jobs):
            found = together([*admitted, job])
            if isinstance(found, JointPlan):
                admitted, best = [*admitted, job], found
                continue
            refused[job.name] = found
            if job.first:
                refused |= {later.name: f"waits until {job.name} is admitted" for later in line.jobs[index + 1 :]}
                break
    plans = best.plans if isinstance(best, JointPlan) else ()
    by_job = {job.name: plan for job, plan in zip(admitted, plans, strict=True)}
    cost = best.cost if isinstance(best, JointPlan) else 0.0
    return LinePlan(by_job, refused, cost, clock() - began)
