"""The model that training speed is measured on, over one table of a million ids, and a synthetic click log for it.

Each of the 26 fields has a vocabulary of its own size, between 4 and 280,000 values (log-uniform, scaled so that all of
them make a million), and draws ids by a bounded Zipf law (exponent 1.05). Ids of all fields are numbered through, so
one table holds them. The label's probability comes from a weight per id, interactions of low rank between fields, the
numbers, and noise: held-out quality falls when training is done wrongly or half.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from _ctr import FIELDS, NUMBERS
from numpy.typing import NDArray
from torch import Tensor, nn

TOTAL_IDS = 1_000_000
SMALLEST_FIELD, LARGEST_FIELD = 4, 280_000
ZIPF = 1.05
RANK = 4  # of the interactions

#: Hidden layers by the name of a variant: `deep` is bound by its matrix products, `wide` by its rows.
HIDDEN = {"deep": (400, 400, 400), "wide": (16,)}


class ClickNetwork(nn.Module):
    """One table for all fields, then an MLP over rows and numbers."""

    def __init__(self, hidden: Sequence[int], dim: int, *, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(TOTAL_IDS, dim, sparse=sparse)
        sizes = [len(FIELDS) * dim + len(NUMBERS), *hidden]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def score(self, ids: Tensor, dense: Tensor) -> Tensor:
        """Ids (B, 26) and numbers (B, 13) -> logits (B,)."""
        rows = self.table(ids).flatten(1)
        logits: Tensor = self.mlp(torch.cat([rows, dense], dim=1))
        return logits.squeeze(-1)


class MatrixClickNetwork(ClickNetwork):
    """The network as plain PyTorch programs feed it: all ids as one matrix."""

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        """Ids (B, 26) and numbers (B, 13) -> logits (B,)."""
        return self.score(ids, dense)


class ColumnClickNetwork(ClickNetwork):
    """The network as HeterPS feeds it: one column per field, by name."""

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
        """Ids (B,) each and numbers (B, 13) -> logits (B,)."""
        first = [c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12]
        second = [c13, c14, c15, c16, c17, c18, c19, c20, c21, c22, c23, c24, c25]
        return self.score(torch.stack([*first, *second], dim=1), dense)


def build(variant: str = "deep", dim: int = 16) -> ColumnClickNetwork:
    """The entry point of the HeterPS job."""
    return ColumnClickNetwork(HIDDEN[variant], dim, sparse=False)


def build_sparse(variant: str, dim: int = 16) -> MatrixClickNetwork:
    """The same for plain PyTorch, with sparse gradients of the table."""
    return MatrixClickNetwork(HIDDEN[variant], dim, sparse=True)


def write_log(folder: Path, train_rows: int, held_out_rows: int, seed: int = 11) -> Path:
    """Write `train/` and `held-out/` as parquet, unless they are there; returns the folder that holds both."""
    home = folder / f"click-log-{train_rows}-{held_out_rows}-{seed}"
    if not (home / "complete").exists():
        columns = _draw(train_rows + held_out_rows, np.random.default_rng(seed))
        for name, start, stop in (("train", 0, train_rows), ("held-out", train_rows, train_rows + held_out_rows)):
            (home / name).mkdir(parents=True, exist_ok=True)
            part = pa.table({n: values[start:stop] for n, values in columns.items()})
            pq.write_table(part, home / name / "part-0.parquet", row_group_size=65_536)
        (home / "complete").touch()
    return home


def read_log(folder: Path) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    """Ids (N, 26), numbers (N, 13) and labels (N,) of a folder that `write_log` wrote."""
    table = pq.read_table(folder)
    ids = np.stack([table[n].to_numpy() for n in FIELDS], axis=1)
    numbers = np.stack([table[n].to_numpy() for n in NUMBERS], axis=1)
    return ids, numbers, table["click"].to_numpy().astype(np.float32)


def vocabularies(random: np.random.Generator) -> NDArray[np.int64]:
    """Sizes of the fields' vocabularies (26,), `TOTAL_IDS` in all."""
    raw = np.exp(random.uniform(np.log(SMALLEST_FIELD), np.log(LARGEST_FIELD), len(FIELDS)))
    sizes = np.maximum(SMALLEST_FIELD, (raw * TOTAL_IDS / raw.sum()).astype(np.int64))
    sizes[np.argmax(sizes)] += TOTAL_IDS - sizes.sum()
    return np.asarray(sizes)


def _draw(rows: int, random: np.random.Generator) -> dict[str, NDArray[Any]]:
    sizes = vocabularies(random)
    begins = np.cumsum(sizes) - sizes
    weights = random.normal(0, 0.35, TOTAL_IDS).astype(np.float32)
    factors = random.normal(0, 0.35, (TOTAL_IDS, RANK)).astype(np.float32)
    columns: dict[str, NDArray[Any]] = {}
    score = np.zeros(rows, np.float32)
    total = np.zeros((rows, RANK), np.float32)
    squares = np.zeros(rows, np.float32)
    for name, size, begin in zip(FIELDS, sizes, begins, strict=True):
        # Inverse of the continuous Zipf distribution on [1, size + 1); ranks are scattered over the vocabulary.
        top = (size + 1.0) ** (1 - ZIPF)
        ranks = np.floor((1 + random.random(rows) * (top - 1)) ** (1 / (1 - ZIPF))).astype(np.int64) - 1
        ids = begin + random.permutation(size)[np.minimum(ranks, size - 1)]
        columns[name] = ids
        score += weights[ids]
        total += factors[ids]
        squares += (factors[ids] ** 2).sum(axis=1)
    score += ((total**2).sum(axis=1) - squares) * 0.5  # all pairs of fields, as in a factorisation machine
    numbers = random.normal(size=(rows, len(NUMBERS))).astype(np.float32)
    score += numbers @ random.normal(0, 0.3, len(NUMBERS)).astype(np.float32)
    columns |= {name: numbers[:, j] for j, name in enumerate(NUMBERS)}
    columns["click"] = (random.random(rows) < 1 / (1 + np.exp(1.2 - score))).astype(np.int64)
    return columns
