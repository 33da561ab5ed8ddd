"""CTRDNN: embeddings side by side, then a stack of fully connected layers.

Three layers look up, one joins, the last one gives the logit, and all others are fully connected, so the number of
layers is that of the paper's variants (section 6.2: 8, 12, 16, 20; section 6.3: 7 in two widths).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from .parts import (
    CONTEXT,
    ITEM,
    NUM_DENSE,
    NUM_FIELDS,
    NUM_IDS,
    USER,
    ClickModel,
    Concat,
    FullyConnected,
    Slot,
)

__all__ = ["CTRDNN", "build"]

_FIXED_LAYERS = 5  # three lookups, the concatenation, the output


class CTRDNN(ClickModel):
    """Click-through rate by a deep neural network."""

    def __init__(self, layers: int, hidden: int, embedding_dim: int, num_ids: int, *, sparse: bool = False) -> None:
        super().__init__()
        self.user = Slot(num_ids, embedding_dim, sparse=sparse)
        self.item = Slot(num_ids, embedding_dim, sparse=sparse)
        self.context = Slot(num_ids, embedding_dim, sparse=sparse)
        self.concat = Concat()
        widths = [NUM_FIELDS * embedding_dim + NUM_DENSE, *[hidden] * (layers - _FIXED_LAYERS)]
        self.fc = nn.Sequential(*(FullyConnected(a, b) for a, b in itertools.pairwise(widths)))
        self.output = nn.Linear(widths[-1], 1)

    def score(self, fields: Sequence[Tensor], dense: Tensor) -> Tensor:
        """Ids (B,) of the 26 fields and numbers (B, 13) -> logits (B,)."""
        looked_up = (self.user(fields[USER]), self.item(fields[ITEM]), self.context(fields[CONTEXT]))
        x = self.fc(self.concat(*looked_up, dense))
        logits: Tensor = self.output(x)  # (B, 1)
        return logits.squeeze(-1)


def build(
    layers: int = 16, hidden: int = 256, embedding_dim: int = 16, num_ids: int = NUM_IDS, *, sparse: bool = False
) -> CTRDNN:
    """The entry point.

    Args:
        layers: of the scheduler, lookups and output included; 6 or more, so that one is fully connected.
        hidden: width of the fully connected layers.
        embedding_dim: width of an id's row.
        num_ids: rows of each table; ids are taken modulo this number.
        sparse: sparse gradients of the tables, for plain PyTorch; HeterPS ignores it.

    Raises:
        ValueError: too few layers.
    """
    if layers <= _FIXED_LAYERS:
        raise ValueError(f"layers must be at least {_FIXED_LAYERS + 1}, is {layers}")
    return CTRDNN(layers, hidden, embedding_dim, num_ids, sparse=sparse)
