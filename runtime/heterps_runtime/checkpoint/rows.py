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
    """Some rows of a dimension: row i of each array belongs to keys[i]."""

    @property
    def keys(self) -> Array:
        """(n,) int64."""

    @property
    def rows(self) -> Array:
        """(n, dim)."""

    @property
    def state(self) -> Mapping[str, Array]:
        """Optimizer state by name, (n, ...)."""


@dataclass(frozen=True)
class RowPart:
    """The rows of one dimension in a file.

    Attributes:
        dim: the dimension.
        total: number of rows.
        piece_rows: rows of a piece, a multiple of 8; the last piece may have fewer.
        dtype: of rows and state.
        state_columns: state name -> elements per row.
        pieces: all pieces, in order.
    """

    dim: int
    total: int
    piece_rows: int
    dtype: np.dtype[Any]
    state_columns: Mapping[str, int]
    pieces: Iterable[Piece]

    @property
    def num_pieces(self) -> int:
        """Number of pieces."""
        return -(-self.total // self.piece_rows)

    def specs(self, number: int) -> dict[str, TensorSpec]:
        """The arrays of a piece, by name."""
        count = min(self.piece_rows, self.total - number * self.piece_rows)
        prefix = f"group-{self.dim}/{number}/" if self.num_pieces > 1 else f"group-{self.dim}/"
        state = {f"state/{name}": TensorSpec(self.dtype, (count, n)) for name, n in self.state_columns.items()}
        arrays = {
            "keys": TensorSpec(np.dtype(np.int64), (count,)),
            "rows": TensorSpec(self.dtype, (count, self.dim)),
            **state,
        }
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
            arrays = dict(zip(part.specs(number), (piece.keys, piece.rows, *piece.state.values()), strict=True))
            if number < part.num_pieces - 1:
                yield from arrays.values()
            else:
                held |= arrays
    for name in order:
        yield held.pop(name)


def row_arrays(groups: Mapping[int, tuple[Array, Array, Mapping[str, Array]]]) -> dict[str, Array]:
    """Row arrays by their names in a file, of one piece per dimension.

    Args:
        groups: dim -> (keys (n,) int64, rows (n, dim), optimizer state name -> (n, ...)).
    """
    arrays: dict[str, Array] = {}
    for dim, (keys, rows, state) in groups.items():
        assert keys.shape == (len(rows),), "one key per row"
        assert keys.dtype == np.int64, "keys are int64"
        assert rows.shape[1:] == (dim,), "rows of one dim"
        assert all(len(values) == len(keys) for values in state.values()), "one state entry per key"
        arrays[f"group-{dim}/keys"] = keys
        arrays[f"group-{dim}/rows"] = rows
        arrays |= {f"group-{dim}/state/{name}": values for name, values in state.items()}
    return arrays
