"""Planning a changed spec while the job continues with the previous one."""

from __future__ import annotations

from collections.abc import Mapping

from heterps_operator.api.job import JobSpec
from heterps_operator.control.problem import build_problem
from heterps_operator.documents import Json
from heterps_operator.loop.substrate import Planner
from heterps_operator.state.plan import PlanOutcome

__all__ = ["PlanTrial"]


class PlanTrial:
    """A plan for a changed spec. It ignores the units of other jobs; the final plan considers them.

    Args:
        job: the changed spec.
        planner: planner for that spec.
        profiles: profiles of all its pools.

    Raises:
        ValueError: the profiles have different layers.
    """

    def __init__(self, job: JobSpec, planner: Planner, profiles: Mapping[str, Json]) -> None:
        self.job = job
        self._planner = planner
        planner.start(build_problem(job, profiles))

    def poll(self) -> PlanOutcome | None:
        """Return the answer once; None while there is none."""
        return self._planner.poll()

    def close(self) -> None:
        """End the planner."""
        self._planner.close()
