"""Method `rl-rnn`: `rl-lstm` with an Elman cell in place of the LSTM, the RL-RNN baseline of [HeterPS], section 6."""

from __future__ import annotations

from heterps_planner.methods.base import Found, Task
from heterps_planner.methods.rl_lstm import find_with

__all__ = ["find"]


def find(task: Task) -> Found:
    """Find a plan with an Elman policy.

    Raises:
        DeadlineError: the deadline passed before any plan was found.
    """
    return find_with(task, "elman")
