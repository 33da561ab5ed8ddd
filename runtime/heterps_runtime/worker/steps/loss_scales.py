"""The loss scale of each step, as a worker of the last stage learns it from commits."""

from __future__ import annotations

from heterps_runtime.wire.messages import Commit

__all__ = ["LossScales"]


class LossScales:
    """Loss scales by step.

    All workers of the last stage must use the same one for a step. None of them may begin a step before it knows the
    commit that is so many steps back as they may be ahead, and some know later commits: so it is the scale of that one.

    Args:
        committed: steps at the start of the generation.
        scale: then, of all steps that may begin before the first commit.
        ahead: steps that the stage may begin after the first uncommitted one.
    """

    def __init__(self, committed: int, scale: float | None, ahead: int) -> None:
        self._ahead = ahead
        self._scales = {committed + number: scale for number in range(ahead + 1)}

    def commit(self, order: Commit) -> None:
        """Note the scale after a commit."""
        self._scales.pop(order.step, None)
        self._scales[order.step + 1 + self._ahead] = order.loss_scale

    def of(self, step: int) -> float | None:
        """The scale of a step that may begin; None: losses are not scaled."""
        return self._scales[step]
