"""Method `heuristic`: first layer on a CPU pool, the others on one GPU pool, as in [HeterPS], section 1.

Section 6.2 describes it the other way round: `heuristic_gpu_first` (erratum 18).
"""

from __future__ import annotations

from heterps_planner.methods.base import Found, Task, best_first_and_rest

__all__ = ["find"]


def find(task: Task) -> Found:
    """Find the cheapest plan whose first layer is on a CPU pool and whose other layers are on one GPU pool."""
    return best_first_and_rest(task, "CPU", "GPU")
