"""Networks of the benchmarks (CTRDNN in two shapes), and the in-memory click log for plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from examples.paper.prepare import FIELDS, LABEL, NUMBERS
from numpy.typing import NDArray

__all__ = ["DENSE_RATE", "EMBEDDING_STD", "LOSS", "NETWORKS", "SPARSE_RATE", "build_arguments", "click_job", "read_log"]

#: Hidden layers and their width: matrix products bound `deep`, rows bound `wide`.
NETWORKS = {"deep": (3, 400), "wide": (1, 16)}
EMBEDDING_DIM = 16
DENSE_RATE, SPARSE_RATE, EMBEDDING_STD = 0.003, 0.05, 0.05
LOSS = "torch.nn.functional:binary_cross_entropy_with_logits"
_OTHER_LAYERS = 5  # of CTRDNN: three lookups, the concatenation, the output


def build_arguments(variant: str) -> dict[str, Any]:
    """Return the arguments of `examples.paper.clicks.ctrdnn:build` for one of NETWORKS."""
    hidden_layers, hidden = NETWORKS[variant]
    return {"layers": hidden_layers + _OTHER_LAYERS, "hidden": hidden, "embedding_dim": EMBEDDING_DIM}


def click_job(name: str, variant: str, data: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
    """Return a HeterPSJob that trains one of NETWORKS on a click log, and writes a checkpoint at its end only.

    Args:
        name: of the job.
        variant: of NETWORKS.
        data: fields of `spec.data` beside format and columns.
        training: fields of `spec.training` beside consistency and optimizers.
    """
    return {
        "apiVersion": "heterps.io/v1alpha1",
        "kind": "HeterPSJob",
        "metadata": {"name": name},
        "spec": {
            "image": "ghcr.io/heterps/runtime:0.1.0",
            "model": {
                "entrypoint": "examples.paper.clicks.ctrdnn:build",
                "arguments": build_arguments(variant),
                "loss": LOSS,
                "embeddingInit": {"distribution": "normal", "mean": "0", "std": str(EMBEDDING_STD)},
            },
            "data": {"format": "parquet", "label": LABEL, "dense": list(NUMBERS), "sparse": list(FIELDS), **data},
            "training": {
                "consistency": "hybrid",
                "maxStaleness": 4,
                "optimizer": {
                    "dense": {"name": "adagrad", "learningRate": str(DENSE_RATE)},
                    "sparse": {"name": "adagrad", "learningRate": str(SPARSE_RATE)},
                },
                **training,
            },
            "checkpoint": {"everySteps": 1_000_000, "keep": 1},
            "pools": [{"name": "cpu"}],
        },
    }


def read_log(folder: Path) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    """Return ids (N, 26), numbers (N, 13) and labels (N,) of a split of a click log."""
    table = pq.read_table(folder)
    ids = np.stack([table[n].to_numpy() for n in FIELDS], axis=1)
    numbers = np.stack([table[n].to_numpy() for n in NUMBERS], axis=1)
    return ids, numbers, table[LABEL].to_numpy().astype(np.float32)
