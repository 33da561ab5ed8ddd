"""Adam (Kingma and Ba, 2015) with gradient-norm clipping."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from heterps_planner.policy.cells import Array

__all__ = ["Adam"]

_BETA = (0.9, 0.999)
_EPSILON = 1e-8


class Adam:
    """Updates parameters in place."""

    def __init__(self, parameters: Mapping[str, Array], rate: float, most_norm: float = 5.0) -> None:
        self.parameters = parameters
        self.rate = rate
        self.most_norm = most_norm
        self.steps = 0
        self._mean = {name: np.zeros_like(value) for name, value in parameters.items()}
        self._square = {name: np.zeros_like(value) for name, value in parameters.items()}

    def step(self, gradient: Mapping[str, Array]) -> None:
        """Make one descent step; a gradient longer than `most_norm` is clipped to it."""
        self.steps += 1
        norm = float(np.sqrt(sum(float((value * value).sum()) for value in gradient.values())))
        shrink = min(1.0, self.most_norm / max(norm, 1e-12))
        fast, slow = _BETA
        rate = self.rate * np.sqrt(1 - slow**self.steps) / (1 - fast**self.steps)
        for name, value in gradient.items():
            mean, square = self._mean[name], self._square[name]
            mean *= fast
            mean += (1 - fast) * shrink * value
            square *= slow
            square += (1 - slow) * shrink**2 * value * value
            self.parameters[name][...] -= (rate * mean / (np.sqrt(square) + _EPSILON)).astype(value.dtype)
