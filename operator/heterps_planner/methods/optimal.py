"""Method `optimal`: the exact optimum with its certificate (`sweep`)."""

from __future__ import annotations

from heterps_planner.methods.base import Found, Task, check_deadline
from heterps_planner.search.servers import minimise
from heterps_planner.search.sweep import SearchOptions

__all__ = ["find"]


def find(task: Task) -> Found:
    """Find the cheapest plan."""
    result = minimise(task.segments, SearchOptions(should_stop=task.should_stop))
    check_deadline(task, result)
    task.progress(1.0)
    return Found(result.choice, result.bound)
