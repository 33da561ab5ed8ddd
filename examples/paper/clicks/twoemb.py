"""2EMB: two large embeddings, one of the user and one of what is shown, then fully connected layers (10 layers).

Rows are wide and summed, so lookups move much data and leave little to send on: the model's weight lies in its tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from .parts import (
    CONTEXT,
    ITEM,
    NUM_DENSE,
    NUM_IDS,
    USER,
    ClickModel,
    Concat,
    FullyConnected,
    PooledSlot,
)

__all__ = ["TwoEmbeddings", "build"]

_FULLY_CONNECTED = 6


class TwoEmbeddings(ClickModel):
    """Two sums of rows, joined."""

    def __init__(self, hidden: int, embedding_dim: int, num_ids: int) -> None:
        super().__init__()
        self.user = PooledSlot(num_ids, embedding_dim)
        self.shown = PooledSlot(num_ids, embedding_dim)
        self.concat = Concat()
        widths = [2 * embedding_dim + NUM_DENSE, *[hidden] * _FULLY_CONNECTED]
        self.fc = nn.Sequential(*(FullyConnected(a, b) for a, b in itertools.pairwise(widths)))
        self.output = nn.Linear(hidden, 1)

    def score(self, fields: Sequence[Tensor], dense: Tensor) -> Tensor:
        """Ids (B,) of the 26 fields and numbers (B, 13) -> logits (B,)."""
        user, shown = self.user(fields[USER]), self.shown([*fields[ITEM], *fields[CONTEXT]])
        x = self.fc(self.concat(user, shown, dense))
        logits: Tensor = self.output(x)  # (B, 1)
        return logits.squeeze(-1)


def build(hidden: int = 256, embedding_dim: int = 64, num_ids: int = NUM_IDS) -> TwoEmbeddings:
    """The entry point.

    Args:
        hidden: width of the fully connected layers.
        embedding_dim: width of an id's row, and of a slot's sum.
        num_ids: rows of each table; ids are taken modulo this number.
    """
    return TwoEmbeddings(hidden, embedding_dim, num_ids)
