"""Input and output of a method: the interface between `planning.plan` and `methods`.

A method is a function `(Task) -> Found`. `planning.plan` wraps it: it measures the time, adds the exact method's lower
bound and shadow prices, and explains a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import Segments
from heterps_planner.search.points import Choice

__all__ = ["Found", "Learned", "Method", "Task"]


@dataclass(frozen=True)
class Task:
    """Input of a method."""

    problem: Problem
    segments: Segments
    seed: int = 0  # seed of methods that draw random numbers
    should_stop: Callable[[], bool] = field(default=lambda: False)  # true once the deadline has passed
    progress: Callable[[float], None] = field(default=lambda fraction: None)  # told the fraction of work done


@dataclass(frozen=True)
class Learned:
    """What a learned policy and the search beside it contributed to a plan.

    Rates are dollars per hour and (sample per second), infinite if nothing feasible was found.
    """

    found_by: str  # "learning": drawn from the policy; "search": segment moves; "start": all layers on one pool
    found_in_round: int  # from 1; 0 for the start
    num_rounds: int
    num_drawn: int  # distinct schedules drawn from the policy
    num_searched: int  # further schedules that the segment moves evaluated
    drawn_rate: float  # of the cheapest schedule drawn from the policy
    searched_rate: float  # of the cheapest schedule at the end of segment moves


@dataclass(frozen=True)
class Found:
    """Result of a method."""

    choice: Choice | None  # None: nothing
    lower_rate: float | None = None  # a lower bound on the cost rate of all plans, if the method proves one
    segments: Segments | None = None  # the restricted problem, if the method covers only some schedules
    num_tried: int | None = None  # schedules tried, if the method searches without full coverage
    learned: Learned | None = None  # if the method learns a policy


Method = Callable[[Task], Found]
