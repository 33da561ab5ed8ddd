"""NCE: a model that tells items that were chosen from noise (noise-contrastive estimation), in 5 layers.

Gutmann and Hyvarinen (2010): instead of a softmax over all items, a logistic regression decides whether an item comes
from the data or from a noise distribution. The noise items are rows of the log with label 0, so the loss is the binary
cross-entropy like for the other models, and no step needs more than the rows of its own items.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .parts import CONTEXT, ITEM, NUM_DENSE, NUM_IDS, USER, ClickModel, FullyConnected, PooledSlot

__all__ = ["NCE", "build"]


class Affinity(nn.Module):
    """The logit of "data, not noise": inner product of the user's and the item's vector, scaled, and a bias.

    The bias learns the logarithm of the noise's share, which the textbook form subtracts.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((), dim**-0.5))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """(B, dim) each -> (B,)."""
        return (user * item).sum(dim=1) * self.scale + self.bias


class NCE(ClickModel):
    """A user's vector against an item's output embedding."""

    def __init__(self, hidden: int, embedding_dim: int, num_ids: int) -> None:
        super().__init__()
        self.user = PooledSlot(num_ids, embedding_dim)
        self.fc1 = FullyConnected(embedding_dim + NUM_DENSE, hidden)
        self.fc2 = FullyConnected(hidden, embedding_dim)
        self.item = PooledSlot(num_ids, embedding_dim)
        self.affinity = Affinity(embedding_dim)

    def score(self, fields: Sequence[Tensor], dense: Tensor) -> Tensor:
        """Ids (B,) of the 26 fields and numbers (B, 13) -> logits (B,)."""
        user = torch.cat([self.user([*fields[USER], *fields[CONTEXT]]), dense], dim=1)
        logits: Tensor = self.affinity(self.fc2(self.fc1(user)), self.item(fields[ITEM]))
        return logits


def build(hidden: int = 128, embedding_dim: int = 64, num_ids: int = NUM_IDS) -> NCE:
    """The entry point.

    Args:
        hidden: width of the fully connected layer.
        embedding_dim: width of an id's row, and of the vectors that are compared.
        num_ids: rows of each table; ids are taken modulo this number.
    """
    return NCE(hidden, embedding_dim, num_ids)
