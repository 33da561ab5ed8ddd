"""Places in the user's files, for messages."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BatchLocation"]


@dataclass(frozen=True)
class BatchLocation:
    """The origin of a record batch."""

    file: str
    first_row: int  # of the batch in its file, from 0

    def row(self, index: int) -> str:
        """`row 12 of train.parquet`, counted from 1."""
        return f"row {self.first_row + index + 1} of {self.file}"
