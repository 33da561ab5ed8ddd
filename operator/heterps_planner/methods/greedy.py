"""Method `greedy`: one layer after the other, each on the pool with which the layers so far cost least.

[HeterPS], section 6, compares with the greedy method of Shi et al. (ICC 2020), which adds one device after the other,
always the one that costs least at that moment. Applied to layers: layers 1..l-1 have their pools, and layer l gets the
pool with which layers 1..l, provisioned exactly as if the model ended there, cost least (floor, limits and ceiling
included). The method never backtracks and ignores later layers.

Such a choice may use up a pool that a later layer cannot do without. If the plan of this pass is infeasible, a second
pass considers, for each layer, only the pools with which a feasible plan still exists, according to the exact method
(`sweep.cheapest_at`). So the method finds a plan whenever one exists.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps_planner.methods.base import Found, Task, answer
from heterps_planner.plans.assignments import Evaluator, stages_of
from heterps_planner.search.servers import cheapest_at

__all__ = ["find"]

_PASSES = 2


def find(task: Task) -> Found:
    """Find a plan layer by layer.

    Raises:
        DeadlineError: the deadline passed before any plan was found.
    """
    evaluator = Evaluator(task.segments)
    stopped = False
    for number in range(_PASSES):
        stopped = not _add_layers(task, evaluator, with_rest=number > 0, done=number / _PASSES)
        if stopped or evaluator.best is not None:
            break
    if not stopped:
        task.progress(1.0)
    return answer(evaluator, stopped=stopped)


def _add_layers(task: Task, evaluator: Evaluator, *, with_rest: bool, done: float) -> bool:
    """Assign all layers and evaluate the plan; return whether it finished in time."""
    num_layers, num_pools = task.segments.num_layers, task.segments.num_pools
    chosen: NDArray[np.intp] = np.zeros((1, 0), dtype=np.intp)
    for layer in range(num_layers):
        if task.should_stop():
            return False
        options = np.hstack([np.repeat(chosen, num_pools, axis=0), np.arange(num_pools)[:, None]])
        order = np.argsort(evaluator.scores(options), kind="stable")
        best = int(order[0])
        if with_rest and layer < num_layers - 1:
            for option in order:
                if task.should_stop():
                    return False
                if _can_continue(task, options[option]):
                    best = int(option)
                    break
        chosen = options[[best]]
        task.progress(done + (layer + 1) / num_layers / _PASSES)
    return True


def _can_continue(task: Task, prefix_L: NDArray[np.intp]) -> bool:  # noqa: N803
    """Return whether any feasible plan starts with these layers."""
    allowed = np.zeros(task.segments.seq_LLT.shape, dtype=bool)
    *before, (first, last, pool) = stages_of(prefix_L)
    for stage in before:
        allowed[stage] = True
    allowed[first, last:, pool] = True
    allowed[len(prefix_L) :] = True
    segments = task.segments.restricted(allowed)
    return cheapest_at(segments, segments.floor, task.should_stop).choice is not None
