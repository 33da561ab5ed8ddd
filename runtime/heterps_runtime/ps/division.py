"""Dense parameters and statistics in another division among servers.

Which pieces a server gets is known to workers only, when they define them. So a server first puts together what the
servers of the division before hold, and takes its pieces from that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from heterps_runtime.partition.pieces import DensePiece, Place
from heterps_runtime.store.dense import LAST_STEP, read_step
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
        pieces: dict[str, list[tuple[Place, Array]]] = {}
        for state in states:
            self.statistics |= state.statistics
            step = state.optimizer.get(LAST_STEP)
            if step is None or step.size != 1:
                raise ValueError(f"shard {state.shard}: the number of the last step is not there")
            self._step = max(self._step, read_step(step))
            for name, piece in state.dense.items():
                pieces.setdefault(name, []).append((piece.place, piece.values))
            for name, values in state.optimizer.items():
                parameter = name.partition("::")[0]
                if parameter in state.dense:
                    pieces.setdefault(name, []).append((state.dense[parameter].place, values))
        # Flat: of parameters, and of their state as `<parameter>::<state>`.
        self._values = {name: _joined(name, of_name) for name, of_name in pieces.items()}

    def check(self, dense: Mapping[str, DensePiece], statistics: Mapping[str, Array]) -> None:
        """Check that parameters and statistics are those of this state, or new.

        Raises:
            ValueError: one of them has another shape or type.
        """
        pieces = self.pieces({name: piece.place for name, piece in dense.items()})
        for name, piece in dense.items():
            if name in pieces and pieces[name].dtype != piece.values.dtype:
                raise ValueError(f"{name!r}: is {pieces[name].dtype}, not {piece.values.dtype}")
        for name, values in statistics.items():
            known = self.statistics.get(name, values)
            if (known.shape, known.dtype) != (values.shape, values.dtype):
                raise ValueError(f"{name!r}: is {known.dtype} {known.shape}, not {values.dtype} {values.shape}")

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


def _joined(name: str, pieces: list[tuple[Place, Array]]) -> Array:
    """Put an array together; it is as large as its pieces, whatever shape these say that it has.

    Raises:
        ValueError: they do not fit together, or some are not there.
    """
    size, dtype = Place.whole(pieces[0][0].shape).stop, pieces[0][1].dtype
    for place, values in pieces:
        if (
            Place.whole(place.shape).stop != size
            or values.dtype != dtype
            or values.shape != (place.stop - place.start,)
        ):
            raise ValueError(f"{name!r}: {values.dtype} {list(values.shape)} is no piece of {dtype} [{size}]")
    there = sum(values.size for _, values in pieces)
    if there != size:
        raise ValueError(f"parameter {name!r}: {there} of {size} elements are there")
    in_order = sorted(pieces, key=lambda piece: (piece[0].start, piece[0].stop))
    if any(one.stop != other.start for (one, _), (other, _) in pairwise(in_order)):
        raise ValueError(f"parameter {name!r}: some elements are there twice")
    return np.concatenate([values for _, values in in_order])
