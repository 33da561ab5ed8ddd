"""Buffers that training changes, such as the running statistics of BatchNorm, on parameter servers.

Each micro-batch of a step starts from the values of the last commit and changes them by its own samples. After the
step, a value has changed by the mean of these changes, weighted by the samples of their micro-batches. So the values
of a commit depend on nothing but the samples and their division into micro-batches: not on the order of computation,
on retries, or on which worker was asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["StatisticsStore"]

Array = np.ndarray[Any, Any]


class StatisticsStore:
    """Named arrays of any shape, of floats or whole numbers. Not thread-safe."""

    def __init__(self) -> None:
        self._values: dict[str, Array] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order of their addition."""
        return tuple(self._values)

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return sum(array.nbytes for array in list(self._values.values()))  # another thread may ask, while one is added

    def add(self, name: str, value: Array) -> None:
        """Add an array with a copy of its initial values, unless the name is known."""
        if name not in self._values:
            self._values[name] = value.copy()

    def pull(self, names: Iterable[str]) -> list[Array]:
        """The named arrays, which later commits do not change.

        Raises:
            ValueError: a name is unknown.
        """
        return [self._value(name) for name in names]

    def check_push(self, push: Mapping[str, Array]) -> None:
        """Check that changes fit their arrays.

        Raises:
            ValueError: a name is unknown, or a change has the wrong shape.
        """
        for name, change in push.items():
            value = self._value(name)
            if change.shape != value.shape:
                raise ValueError(f"change of {name!r}: must have the shape {value.shape}, has {change.shape}")

    def apply(self, pushes: Sequence[Mapping[str, Array]], scale: float) -> None:
        """Apply one step: add the pushes in order, multiply by `scale`, add to the values.

        Args:
            pushes: of each worker, changes summed over its samples.
            scale: 1 / (samples of the step).

        Raises:
            ValueError: as of `check_push`; nothing has changed.
        """
        for push in pushes:
            self.check_push(push)
        for name in dict.fromkeys(name for push in pushes for name in push):
            value = self._value(name)
            changes = [push[name] for push in pushes if name in push]
            mean = np.sum(changes, axis=0, dtype=np.float64) * scale
            if not np.issubdtype(value.dtype, np.floating):
                mean = np.rint(mean)
            self._values[name] = (value + mean).astype(value.dtype)

    def snapshot(self) -> dict[str, Array]:
        """The arrays by name, which later commits do not change."""
        return dict(self._values)

    def _value(self, name: str) -> Array:
        if name not in self._values:
            raise ValueError(f"buffer {name!r}: is unknown, there are {', '.join(self._values) or 'none'}")
        return self._values[name]
