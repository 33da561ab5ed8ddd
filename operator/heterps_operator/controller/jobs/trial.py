"""Whether a changed spec has a plan: asked while the job goes on with the one that it has."""

from __future__ import annotations

from collections.abc import Mapping

from heterps_operator.api.job import JobSpec
from heterps_operator.control.problem import build_problem
from heterps_operator.documents import Json
from heterps_operator.loop.substrate import Planner
from heterps_operator.state.plan import PlanOutcome

__all__ = ["PlanTrial"]


class PlanTrial:
    """One question to a planner, about the job by itself: what others hold is looked at when it is planned for good.

    Args:
        job: as it is wanted now.
        planner: of that job.
        profiles: of all its pools.

    Raises:
        ValueError: the profiles do not belong together.
    """

    def __init__(self, job: JobSpec, planner: Planner, profiles: Mapping[str, Json]) -> None:
        self.job = job
        self._planner = planner
        planner.start(build_problem(job, profiles))

    def poll(self) -> PlanOutcome | None:
        """The answer, once; None while there is none."""
        return self._planner.poll()

    def close(self) -> None:
        """End a planner that is still at work, or waits."""
        self._planner.close()
