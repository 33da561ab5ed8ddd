"""The initial values of rows that were never trained, as exported models have them."""

from __future__ import annotations

from typing import Any

from heterps_runtime.checkpoint.manifest import InitialRows, TableRecord
from heterps_runtime.store.initial import EmbeddingInit, initial_rows

__all__ = ["initial_values"]


def initial_values(seed: int) -> InitialRows:
    """Return a function of a table and ids (n,) that draws the rows (n, dim) as training does.

    Args:
        seed: of the job.
    """

    def draw(table: TableRecord, ids: Any) -> Any:
        init = EmbeddingInit.from_manifest(table.init)
        return initial_rows(seed, table.name, ids, table.dim, table.dtype, init, table.padding_idx)

    return draw
