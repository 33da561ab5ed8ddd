"""Networks of the benchmarks (CTRDNN in two shapes), and the in-memory click log for plain PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from examples.paper.prepare import FIELDS, LABEL, NUMBERS
from numpy.typing import NDArray

__all__ = ["NETWORKS", "build_arguments", "read_log"]

#: Hidden layers and their width: matrix products bound `deep`, rows bound `wide`.
NETWORKS = {"deep": (3, 400), "wide": (1, 16)}
EMBEDDING_DIM = 16
_OTHER_LAYERS = 5  # of CTRDNN: three lookups, the concatenation, the output


def build_arguments(variant: str) -> dict[str, Any]:
    """Return the arguments of `examples.paper.clicks.ctrdnn:build` for one of NETWORKS."""
    hidden_layers, hidden = NETWORKS[variant]
    return {"layers": hidden_layers + _OTHER_LAYERS, "hidden": hidden, "embedding_dim": EMBEDDING_DIM}


def read_log(folder: Path) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    """Return ids (N, 26), numbers (N, 13) and labels (N,) of a split of a click log."""
    table = pq.read_table(folder)
    ids = np.stack([table[n].to_numpy() for n in FIELDS], axis=1)
    numbers = np.stack([table[n].to_numpy() for n in NUMBERS], axis=1)
    return ids, numbers, table[LABEL].to_numpy().astype(np.float32)
