"""Dense parameters and statistics in another division among servers.

Which pieces a server gets is known to workers only, when they define them. So a server first puts together what the
servers of the division before hold, and takes its pieces from that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from heterps_runtime.partition.pieces import Place
from heterps_runtime.store.dense import LAST_STEP
from heterps_runtime.wire.messages import ShardState

__all__ = ["WholeState"]

Array = np.ndarray[Any, Any]


class WholeState:
    """Dense parameters with their optimizer state, and statistics, of all servers.

    Args:
        states: of the shards of one division.

    Attributes:
        statistics: by name.

    Raises:
        ValueError: pieces of a parameter do not fit together, or some are not there.
    """

    def __init__(self, states: Iterable[ShardState]) -> None:
        self.statistics: dict[str, Array] = {}
        self._step = 0
        self._values: dict[str, Array] = {}  # flat: of parameters, and of their state as `<parameter>::<state>`
        known: dict[str, int] = {}  # elements of each parameter that are there
        for state in states:
            self.statistics |= state.statistics
            step = state.optimizer.get(LAST_STEP)
            if step is None or step.size != 1:
                raise ValueError(f"shard {state.shard}: the number of the last step is not there")
            self._step = max(self._step, int(step.reshape(())))
            for name, piece in state.dense.items():
                known[name] = known.get(name, 0) + piece.values.size
                self._add(name, piece.place, piece.values)
            for name, values in state.optimizer.items():
                parameter = name.partition("::")[0]
                if parameter in state.dense:
                    self._add(name, state.dense[parameter].place, values)
        for name, size in known.items():
            if size != self._values[name].size:
                raise ValueError(f"parameter {name!r}: {size} of {self._values[name].size} elements are there")

    def _add(self, name: str, place: Place, values: Array) -> None:
        size = Place.whole(place.shape).stop
        whole = self._values.setdefault(name, np.empty(size, values.dtype))
        if whole.size != size or whole.dtype != values.dtype or values.shape != (place.stop - place.start,):
            found = f"{values.dtype} {list(values.shape)}"
            raise ValueError(f"{name!r}: {found} is no piece of {whole.dtype} [{whole.size}]")
        whole[place.start : place.stop] = values

    def pieces(self, places: Mapping[str, Place]) -> dict[str, Array]:
        """The pieces of parameters at some places, their state, and the number of the last step.

        Parameters that no server has are left out.

        Raises:
            ValueError: a parameter has another shape.
        """
        found: dict[str, Array] = {LAST_STEP: np.array(self._step, np.int64)}
        for name, whole in self._values.items():
            place = places.get(name.partition("::")[0])
            if place is None:
                continue
            if whole.size != Place.whole(place.shape).stop:
                raise ValueError(f"{name!r}: has {whole.size} elements, not the shape {list(place.shape)}")
            found[name] = whole[place.start : place.stop]
        return found
