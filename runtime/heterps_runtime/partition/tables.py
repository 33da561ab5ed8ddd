"""Embedding tables, as the intake finds them, and as messages and servers know them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MAX_DIM", "Table"]

MAX_DIM = 1 << 20  # elements of a row: a wrong number in a message or file must not take all memory


@dataclass(frozen=True, slots=True)
class Table:
    """An embedding table of the model. Modules that share a weight are one table."""

    index: int  # the upper 16 bits of its rows' keys
    name: str  # first qualified name of the parameter in the user's module
    num_embeddings: int
    dim: int
    padding_idx: int | None  # of the first lookup
