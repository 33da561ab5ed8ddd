"""The layout of a file of rows: their arrays, in pieces that are copied while the file is being written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from heterps_runtime.checkpoint.format import TensorSpec, wide_first

__all__ = ["Piece", "RowPart", "row_arrays", "row_stream"]

Array = npt.NDArray[Any]


class Piece(Protocol):
    """Some rows of a part: row i of each array belongs to keys[i]."""

    @property
    def keys(self) -> Array:
        """(n,) int64."""

    @property
    def columns(self) -> Mapping[str, Array]:
        """The other arrays by name, (n, ...): `rows`, and `state/NAME` for the state."""


@dataclass(frozen=True)
class RowPart:
    """The rows, or the candidates, of one dimension in a file.

    Attributes:
        name: `group-DIM` or `candidates-DIM`.
        total: number of rows.
        piece_rows: rows of a piece, a multiple of 8; the last piece may have fewer.
        columns: name -> (type, elements per row), in the order of a piece's.
        pieces: all pieces, in order.
    """

    name: str
    total: int
    piece_rows: int
    columns: Mapping[str, tuple[np.dtype[Any], int]]
    pieces: Iterable[Piece]

    @property
    def num_pieces(self) -> int:
        """Number of pieces."""
        return -(-self.total // self.piece_rows)

    def specs(self, number: int) -> dict[str, TensorSpec]:
        """The arrays of a piece, by name."""
        count = min(self.piece_rows, self.total - number * self.piece_rows)
        prefix = f"{self.name}/{number}/" if self.num_pieces > 1 else f"{self.name}/"
        columns = {name: TensorSpec(dtype, (count, n)) for name, (dtype, n) in self.columns.items()}
        arrays = {"keys": TensorSpec(np.dtype(np.int64), (count,)), **columns}
        return {prefix + name: spec for name, spec in arrays.items()}


def row_stream(parts: Sequence[RowPart]) -> tuple[dict[str, TensorSpec], Iterator[Array]]:
    """The arrays of a file in their order: piece by piece, and then the last pieces of all parts, by their alignment.

    Returns:
        Name -> type and shape, and the arrays, which are asked for as the file is written.
    """
    parts = [part for part in parts if part.total]
    specs: dict[str, TensorSpec] = {}
    last: dict[str, TensorSpec] = {}
    for part in parts:
        for number in range(part.num_pieces - 1):
            specs |= part.specs(number)
        last |= part.specs(part.num_pieces - 1)
    order = wide_first(last)
    return specs | {name: last[name] for name in order}, _arrays(parts, order)


def _arrays(parts: Sequence[RowPart], order: Sequence[str]) -> Iterator[Array]:
    held: dict[str, Array] = {}
    for part in parts:
        for number, piece in enumerate(part.pieces):
            arrays = dict(zip(part.specs(number), (piece.keys, *piece.columns.values()), strict=True))
            if number < part.num_pieces - 1:
                yield from arrays.values()
            else:
                held |= arrays
    for name in order:
        yield held.pop(name)


def row_arrays(groups: Mapping[int, tuple[Array, Array, Mapping[str, Array]]], kind: str = "group") -> dict[str, Array]:
    """Arrays of rows, or of candidates, by their names in a file, of one piece per dimension.

    Args:
        groups: dim -> (keys (n,) int64, rows (n, dim), state name -> (n, ...)); candidates have rows (n, 0).
        kind: "group" or "candidates".
    """
    arrays: dict[str, Array] = {}
    for dim, (keys, rows, state) in groups.items():
        assert keys.shape == (len(rows),), "one key per row"
        assert keys.dtype == np.int64, "keys are int64"
        assert rows.shape[1:] == ((dim,) if kind == "group" else (0,)), "rows of one dim"
        assert all(len(values) == len(keys) for values in state.values()), "one state entry per key"
        arrays[f"{kind}-{dim}/keys"] = keys
        if kind == "group":
            arrays[f"{kind}-{dim}/rows"] = rows
        arrays |= {f"{kind}-{dim}/state/{name}": values for name, values in state.items()}
    return arrays
