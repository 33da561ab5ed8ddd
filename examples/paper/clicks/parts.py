"""What the models share: the names of the features, lookups, fully connected layers.

A click log has 26 fields of one id each, `c0` to `c25`, and 13 numbers. The fields fall into three slots: what is known
of the user, of the item, and of the page that it is shown on. Ids of all fields are numbered through, so a slot's
fields share one table without colliding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = [
    "CONTEXT",
    "ITEM",
    "NUM_DENSE",
    "NUM_FIELDS",
    "NUM_IDS",
    "USER",
    "ClickModel",
    "Concat",
    "FullyConnected",
    "PooledSlot",
    "Slot",
    "slot_width",
]

NUM_FIELDS = 26
NUM_DENSE = 13
#: Rows of a slot's table: ids of all fields together, as the generator numbers them.
NUM_IDS = 1_000_000
USER, ITEM, CONTEXT = slice(0, 10), slice(10, 20), slice(20, 26)


class ClickModel(nn.Module):
    """A model of the click log. The one place where the fields' names stand: subclasses implement `score`."""

    def score(self, fields: Sequence[Tensor], dense: Tensor) -> Tensor:
        """Ids int64 (B,) of the 26 fields and numbers float32 (B, 13) -> logits (B,)."""
        raise TypeError(f"{type(self).__name__} has no score method; a subclass of ClickModel must define one")

    def forward(
        self,
        c0: Tensor,
        c1: Tensor,
        c2: Tensor,
        c3: Tensor,
        c4: Tensor,
        c5: Tensor,
        c6: Tensor,
        c7: Tensor,
        c8: Tensor,
        c9: Tensor,
        c10: Tensor,
        c11: Tensor,
        c12: Tensor,
        c13: Tensor,
        c14: Tensor,
        c15: Tensor,
        c16: Tensor,
        c17: Tensor,
        c18: Tensor,
        c19: Tensor,
        c20: Tensor,
        c21: Tensor,
        c22: Tensor,
        c23: Tensor,
        c24: Tensor,
        c25: Tensor,
        dense: Tensor,
    ) -> Tensor:
        """Ids int64 (B,) by field and numbers float32 (B, 13) -> logits (B,)."""
        user = [c0, c1, c2, c3, c4, c5, c6, c7, c8, c9]
        item = [c10, c11, c12, c13, c14, c15, c16, c17, c18, c19]
        context = [c20, c21, c22, c23, c24, c25]
        return self.score([*user, *item, *context], dense)


class Slot(nn.Module):
    """Rows of a slot's fields, side by side."""

    def __init__(self, num_ids: int, dim: int, *, sparse: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(num_ids, dim, sparse=sparse)

    def forward(self, fields: Sequence[Tensor]) -> Tensor:
        """Ids (B,) of f fields -> (B, f dim)."""
        return self.table(torch.stack(list(fields), dim=1)).flatten(1)  # type: ignore[no-any-return]


class PooledSlot(nn.Module):
    """The sum of the rows of a slot's fields."""

    def __init__(self, num_ids: int, dim: int) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(num_ids, dim, mode="sum")

    def forward(self, fields: Sequence[Tensor]) -> Tensor:
        """Ids (B,) of f fields -> (B, dim)."""
        return self.table(torch.stack(list(fields), dim=1))  # type: ignore[no-any-return]


class Concat(nn.Module):
    """Joins features into one vector."""

    def forward(self, *parts: Tensor) -> Tensor:
        """(B, n) each -> (B, sum of n)."""
        return torch.cat(parts, dim=1)


class FullyConnected(nn.Module):
    """A linear map and a ReLU, as one layer.

    Weights begin as He et al. (2015) say, so that the signal neither dies nor grows over a dozen such layers; torch's
    default loses a factor of about six in variance per layer.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        nn.init.kaiming_normal_(self.linear.weight, nonlinearity="relu")
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs) -> (B, outputs)."""
        return torch.relu(self.linear(x))


def slot_width(slot: slice, dim: int) -> int:
    """Width of the rows of a slot's fields, side by side."""
    return int(slot.stop - slot.start) * dim
