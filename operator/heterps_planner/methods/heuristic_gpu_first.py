"""Method `heuristic-gpu-first`: first layer on a GPU pool, the others on one CPU pool, as in [HeterPS], section 6.2.

Section 1 describes it the other way round: `heuristic` (erratum 18).
"""

from __future__ import annotations

from heterps_planner.methods.base import Found, Task, best_first_and_rest

__all__ = ["find"]


def find(task: Task) -> Found:
    """Find the cheapest plan whose first layer is on a GPU pool and whose other layers are on one CPU pool."""
    return best_first_and_rest(task, "GPU", "CPU")
