"""The benchmark model as an ordinary module, and synthetic click data for it: 26 ids and 13 numbers per row.

Ids follow a bounded Zipf law (exponent 1.05) over a million values per field, so that a batch of 4,096 rows asks for
far fewer distinct rows than it has ids. Labels come from hashed weights of a few fields: the loss falls, slowly.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

FIELDS = tuple(f"c{i}" for i in range(26))
NUMBERS = tuple(f"x{i}" for i in range(13))
VOCABULARY = 1_000_000


class Tables(nn.Module):
    """One table per field."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fields = nn.ModuleList(nn.Embedding(VOCABULARY, dim) for _ in FIELDS)

    def forward(self, ids: list[Tensor]) -> Tensor:
        """Row numbers (B,) per field -> (B, 26 dim)."""
        return torch.cat([table(column) for table, column in zip(self.fields, ids, strict=True)], dim=1)


class ClickModel(nn.Module):
    """Embeddings and numbers through three hidden layers to one logit."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.tables = Tables(dim)
        self.linear1 = nn.Linear(len(FIELDS) * dim + len(NUMBERS), hidden)
        self.relu1 = nn.ReLU()
        self.linear2 = nn.Linear(hidden, hidden)
        self.relu2 = nn.ReLU()
        self.linear3 = nn.Linear(hidden, hidden)
        self.relu3 = nn.ReLU()
        self.output = nn.Linear(hidden, 1)

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
        """Row numbers (B,) each and numbers (B, 13) -> logits (B,)."""
        first = [c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12]
        second = [c13, c14, c15, c16, c17, c18, c19, c20, c21, c22, c23, c24, c25]
        x = torch.cat([self.tables([*first, *second]), dense], dim=1)
        x = self.relu1(self.linear1(x))
        x = self.relu2(self.linear2(x))
        x = self.relu3(self.linear3(x))
        logits: Tensor = self.output(x)
        return logits.squeeze(-1)


def build(dim: int = 16, hidden: int = 400) -> ClickModel:
    """The entry point."""
    return ClickModel(dim, hidden)


def write_clicks(folder: Path, rows: int, seed: int = 3) -> Path:
    """Write `rows` rows of synthetic clicks as parquet, unless they are there; returns the folder."""
    path = folder / f"clicks-{rows}-{seed}" / "part-0.parquet"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(seed)
        # Inverse of the continuous Zipf distribution on [1, VOCABULARY + 1).
        exponent = 1.05
        top = (VOCABULARY + 1.0) ** (1 - exponent)
        columns = {}
        score = np.zeros(rows)
        for i, name in enumerate(FIELDS):
            u = random.random(rows)
            ranks = np.floor((1 + u * (top - 1)) ** (1 / (1 - exponent))).astype(np.int64) - 1
            columns[name] = (ranks * 2_654_435_761 + i) % VOCABULARY
            score += np.sin(columns[name] * (i + 1.0)) * (i < 8)
        numbers = random.normal(size=(rows, len(NUMBERS))).astype(np.float32)
        score += numbers @ random.normal(size=len(NUMBERS)) * 0.3
        label = (random.random(rows) < 1 / (1 + np.exp(1 - score * 0.7))).astype(np.int64)
        table = pa.table({**columns, **{n: numbers[:, j] for j, n in enumerate(NUMBERS)}, "click": label})
        pq.write_table(table, path, row_group_size=50_000)
    return path.parent
