"""The division of dense parameters into pieces, so that all servers hold, send and update equally much.

Each large parameter has a piece on every server, whichever stage it is in: so the stages of any plan load all servers
alike, and a worker waits for its parameters as long as for a share of them. Small parameters stay whole, because a
message costs the same for each array, however small it is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["SMALLEST_PIECE", "DensePiece", "Piece", "Place", "divide"]

SMALLEST_PIECE = 16_384  # elements, 64 KiB in float32: a worker copies them in the time of a few arrays' headers


@dataclass(frozen=True, slots=True)
class Place:
    """Where a piece lies in its parameter: elements `start` to `stop`, exclusive, of the flat parameter."""

    start: int
    stop: int
    shape: tuple[int, ...]  # of the parameter

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Place:
        """The place of a parameter that is not cut."""
        return cls(0, math.prod(shape), shape)

    @property
    def is_whole(self) -> bool:
        """Whether the piece is the parameter."""
        return self.stop - self.start == math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class DensePiece:
    """A server's piece of a dense parameter, with initial values."""

    start: int  # of its elements in the flat parameter
    shape: tuple[int, ...]  # of the parameter
    values: np.ndarray[Any, Any]  # (n,)

    def __post_init__(self) -> None:
        if self.values.ndim != 1 or min(self.start, *self.shape, 0) < 0 or self.place.stop > math.prod(self.shape):
            raise ValueError(f"{list(self.values.shape)} values from {self.start} on, of {list(self.shape)}")

    @property
    def place(self) -> Place:
        """Where it lies in its parameter."""
        return Place(self.start, self.start + self.values.size, self.shape)


@dataclass(frozen=True, slots=True)
class Piece:
    """The elements `start` to `stop`, exclusive, of a flat parameter, which one server holds."""

    server: int
    start: int
    stop: int


def divide(
    sizes: Mapping[str, int], num_servers: int, *, whole: Collection[str] = frozenset()
) -> dict[str, tuple[Piece, ...]]:
    """Divide dense parameters among servers.

    The elements of two servers differ by no more than `2 * SMALLEST_PIECE`, and one for each parameter. If nothing of
    `whole` is longer than that, this is less than 5 % once each server has 50 times as many as the smallest piece, 3 MB
    in float32.

    Args:
        sizes: elements of all dense parameters and statistics of the model, so that the result does not depend on the
            plan.
        num_servers: number of parameter servers.
        whole: names of those that are not cut.

    Returns:
        The pieces of each parameter, in the order of its elements. A server has at most one of them.
    """
    load = [0] * num_servers
    pieces = {}
    for name in sorted(sizes, key=lambda n: (-sizes[n], n)):
        size = sizes[name]
        count = 1 if name in whole else max(1, min(num_servers, size // SMALLEST_PIECE))
        least_loaded = sorted(range(num_servers), key=lambda server: (load[server], server))[:count]
        bounds = [size * i // count for i in range(count + 1)]
        pieces[name] = tuple(map(Piece, sorted(least_loaded), bounds[:-1], bounds[1:]))
        for piece in pieces[name]:
            load[piece.server] += piece.stop - piece.start
    return pieces
