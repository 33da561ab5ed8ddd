"""MATCHNET: a tower for the user and the page, one for the item, and a head that matches them (16 layers).

Layers run in the order of `score`: the whole first tower, then the second one. At a cut inside the second tower the
first one's result travels too, and the scheduler pays for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
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
    Slot,
    slot_width,
)

__all__ = ["MatchNet", "build"]


class Match(nn.Module):
    """How two towers' vectors agree: their element-wise product and their cosine."""

    def forward(self, query: Tensor, item: Tensor) -> Tensor:
        """(B, n) each -> (B, n + 1)."""
        cosine = torch.cosine_similarity(query, item, dim=1)
        return torch.cat([query * item, cosine.unsqueeze(1)], dim=1)


class MatchNet(ClickModel):
    """Two towers and a matching head."""

    def __init__(self, hidden: int, vector: int, embedding_dim: int, pooled_dim: int, num_ids: int) -> None:
        super().__init__()
        self.user = PooledSlot(num_ids, pooled_dim)
        self.context = Slot(num_ids, embedding_dim)
        self.query_concat = Concat()
        self.query_norm = nn.LayerNorm(pooled_dim + slot_width(CONTEXT, embedding_dim) + NUM_DENSE)
        self.query_fc1 = FullyConnected(self.query_norm.normalized_shape[0], hidden)
        self.query_fc2 = FullyConnected(hidden, hidden)
        self.query_fc3 = FullyConnected(hidden, vector)
        self.item = Slot(num_ids, embedding_dim)
        self.item_norm = nn.LayerNorm(slot_width(ITEM, embedding_dim))
        self.item_fc1 = FullyConnected(self.item_norm.normalized_shape[0], hidden)
        self.item_fc2 = FullyConnected(hidden, hidden)
        self.item_fc3 = FullyConnected(hidden, vector)
        self.match = Match()
        self.match_fc1 = FullyConnected(vector + 1, vector)
        self.match_fc2 = FullyConnected(vector, vector)
        self.output = nn.Linear(vector, 1)

    def score(self, fields: Sequence[Tensor], dense: Tensor) -> Tensor:
        """Ids (B,) of the 26 fields and numbers (B, 13) -> logits (B,)."""
        user, context = self.user(fields[USER]), self.context(fields[CONTEXT])
        query = self.query_norm(self.query_concat(user, context, dense))
        query = self.query_fc3(self.query_fc2(self.query_fc1(query)))
        item = self.item_norm(self.item(fields[ITEM]))
        item = self.item_fc3(self.item_fc2(self.item_fc1(item)))
        x = self.match_fc2(self.match_fc1(self.match(query, item)))
        logits: Tensor = self.output(x)  # (B, 1)
        return logits.squeeze(-1)


def build(
    hidden: int = 384, vector: int = 128, embedding_dim: int = 16, pooled_dim: int = 64, num_ids: int = NUM_IDS
) -> MatchNet:
    """The entry point.

    Args:
        hidden: width of the towers' inner layers.
        vector: width of the vectors that are matched.
        embedding_dim: width of an id's row where rows stand side by side.
        pooled_dim: width of an id's row where rows are summed.
        num_ids: rows of each table; ids are taken modulo this number.
    """
    return MatchNet(hidden, vector, embedding_dim, pooled_dim, num_ids)
