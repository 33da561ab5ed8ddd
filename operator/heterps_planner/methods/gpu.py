"""Method `gpu`: all layers on the cheapest GPU pool, the homogeneous baseline of [HeterPS], section 6."""

from __future__ import annotations

from heterps_planner.methods.base import Found, Task, best_homogeneous

__all__ = ["find"]


def find(task: Task) -> Found:
    """Find the cheapest plan with a single stage on a GPU pool."""
    return best_homogeneous(task, "GPU")
