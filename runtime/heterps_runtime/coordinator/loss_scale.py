"""The loss scale of a job that computes in float16: which factor a step uses, and what follows from its gradients.

The values are those of `torch.amp.GradScaler`. The scale is a pure function of the committed steps, so it does not
depend on the plan, and the coordinator is the only one that changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["LossScale"]

_INITIAL = 65536.0
_FACTOR = 2.0
_GROWTH_STEPS = 2000  # with finite gradients, one after the other
# At the least scale, float16 is no reason for a gradient that is not finite. The largest keeps a job whose gradients
# are all zero from reaching infinity.
_LEAST, _MOST = 1.0, 2.0**32


@dataclass(frozen=True)
class LossScale:
    """The scale after a commit.

    Attributes:
        scale: by which the mean loss of a later step is multiplied; a power of two.
        finite_steps: committed since the scale changed, without a skipped one.
        skipped_steps: of the job so far, whose gradients were not finite.
    """

    scale: float = _INITIAL
    finite_steps: int = 0
    skipped_steps: int = 0

    @property
    def can_shrink(self) -> bool:
        """Whether a smaller scale may make gradients finite."""
        return self.scale > _LEAST

    def after(self, used: float, *, finite: bool) -> LossScale:
        """The scale after the commit of one more step.

        Args:
            used: scale of the step. A step that began before the scale was lowered says nothing about the lower one.
            finite: whether its loss and gradients are.
        """
        if not finite:
            scale = max(_LEAST, self.scale / _FACTOR) if used <= self.scale else self.scale
            return LossScale(scale, 0, self.skipped_steps + 1)
        if self.finite_steps + 1 < _GROWTH_STEPS:
            return replace(self, finite_steps=self.finite_steps + 1)
        return replace(self, scale=min(_MOST, self.scale * _FACTOR), finite_steps=0)

    def to_json(self) -> dict[str, Any]:
        """The scale for a checkpoint's manifest."""
        return {"scale": self.scale, "finiteSteps": self.finite_steps, "skippedSteps": self.skipped_steps}

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> LossScale:
        """Read what `to_json` wrote; None: the initial scale."""
        if value is None:
            return cls()
        return cls(float(value["scale"]), int(value["finiteSteps"]), int(value["skippedSteps"]))
