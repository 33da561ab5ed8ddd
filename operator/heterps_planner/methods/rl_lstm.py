"""Method `rl-lstm`: a recurrent policy learns the pool of each layer by policy gradient ([HeterPS], section 5.2).

The paper's method, with the changes that it needs: see `policy.learning`, `policy.network` and docs/learned-methods.md.
"""

from __future__ import annotations

from dataclasses import replace

from heterps_planner.methods.base import Found, Task, answer
from heterps_planner.plans.assignments import Evaluator
from heterps_planner.policy.learning import learn

__all__ = ["find", "find_with"]


def find(task: Task) -> Found:
    """Find a plan with an LSTM policy.

    Raises:
        DeadlineError: the deadline passed before any plan was found.
    """
    return find_with(task, "lstm")


def find_with(task: Task, cell: str) -> Found:
    """Find a plan with a policy of this cell, `lstm` or `elman`.

    Raises:
        DeadlineError: the deadline passed before any plan was found.
    """
    evaluator = Evaluator(task.segments)
    learning = learn(evaluator, cell, task.seed, should_stop=task.should_stop, progress=task.progress)
    if not learning.stopped:
        task.progress(1.0)
    return replace(answer(evaluator, stopped=learning.stopped), learned=learning.learned)
