"""Stage times from tables: one line in 1/k per range of pods.

Layers that were measured on several numbers of units cost `seq + par / k` between two neighbouring numbers (linear
interpolation in 1/k, so Amdahl's law is the case of a single range; erratum 10). A stage adds up its layers, so it has
one line per range too, the ranges being those of all layers of the pool. `par` is negative where more units are slower.

Arrays of a piece broadcast against each other and against arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Piece", "fastest", "least_pods", "least_product", "lines", "time_on"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Piece:
    """Times valid on `low` to `high` pods; for no number of pods if `low` exceeds `high`."""

    low: FloatArray
    high: FloatArray
    seq: FloatArray  # seconds per sample, infinite for impossible segments
    par: FloatArray  # seconds per sample and pod

    def at(self, pods: FloatArray) -> FloatArray:
        """Return seconds per sample on a number of pods, infinite outside the piece."""
        inside = (self.low <= pods) & (pods <= self.high)
        return np.where(inside, self.seq + self.par / np.maximum(pods, 1.0), np.inf)


def lines(units: Sequence[int], seconds: Sequence[float]) -> list[tuple[float, float, float]]:
    """Convert a table to lines (from units, seq, par), with seconds = seq + par / k.

    The first line extends below the first number, but a single unit is never assumed faster than that number; the last
    line extends beyond the last number, with a sequential part of at least 0.

    Args:
        units: at least two numbers, ascending.
        seconds: >= 0, one per number, without the part that depends neither on the units nor on the batch.
    """
    found: list[tuple[float, float, float]] = []
    for i in range(len(units) - 1):
        par = (seconds[i] - seconds[i + 1]) / (1 / units[i] - 1 / units[i + 1])
        found.append((float(units[i]), seconds[i] - par / units[i], par))
    first, last = found[0], found[-1]
    head = (0.0, first[1], first[2]) if first[2] >= 0 else (0.0, seconds[0], 0.0)
    tail = last[1:] if last[1] >= 0 else (0.0, seconds[-1] * units[-1])
    return [head, *found, (float(units[-1]), *tail)]


def least_pods(seconds: FloatArray, base: FloatArray, pieces: Sequence[Piece]) -> FloatArray:
    """Return the least pods, at least `base`, with which a stage takes no longer than `seconds` per sample.

    Infinite where none exists. Times need not fall with the number, so ranges are checked one by one.
    """
    best: FloatArray = np.full(np.broadcast_shapes(base.shape, *(p.seq.shape for p in pieces)), np.inf)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for piece in pieces:
            pods = np.maximum(base, piece.low)
            spare = seconds - piece.seq
            falling = np.where(spare > 0, np.maximum(pods, np.ceil(piece.par / spare)), np.inf)
            rising = np.where(piece.seq + piece.par / np.maximum(pods, 1.0) <= seconds, pods, np.inf)
            pods = np.where(piece.par > 0, falling, rising)
            best = np.minimum(best, np.where(pods <= piece.high, pods, np.inf))
    return best


def time_on(pods: FloatArray, pieces: Sequence[Piece]) -> FloatArray:
    """Return seconds per sample on a number of pods."""
    result = pieces[0].at(pods)
    for piece in pieces[1:]:
        result = np.minimum(result, piece.at(pods))
    return result


def _ends(piece: Piece, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    begin, end = np.maximum(piece.low, low), np.minimum(piece.high, high)
    return begin, end, begin <= end


def fastest(low: FloatArray, high: FloatArray, pieces: Sequence[Piece]) -> FloatArray:
    """Return the least seconds per sample on `low` to `high` pods; infinite if there is no such number."""
    result: FloatArray = np.array(np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        for piece in pieces:
            begin, end, valid = _ends(piece, low, high)
            time = piece.seq + np.minimum(piece.par / np.maximum(begin, 1.0), piece.par / np.maximum(end, 1.0))
            result = np.minimum(result, np.where(valid, time, np.inf))
    return result


def least_product(pods: FloatArray, pieces: Sequence[Piece]) -> FloatArray:
    """Return the least `k * time(k)` over all k from `pods` on: a lower bound on a stage's pods per throughput.

    `k * time(k) = seq * k + par` is linear in k on each piece, so checking its ends is enough.
    """
    result: FloatArray = np.array(np.inf)
    with np.errstate(invalid="ignore", over="ignore"):
        for piece in pieces:
            begin, end, valid = _ends(piece, pods, np.array(np.inf))
            at_end = np.where(np.isfinite(end), end * piece.seq + piece.par, np.inf)
            product = np.minimum(begin * piece.seq + piece.par, at_end)
            result = np.minimum(result, np.where(valid, product, np.inf))
    return result
