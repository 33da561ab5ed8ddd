"""Networks of the benchmarks, the jobs that train them, and the in-memory click log."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from examples.paper.prepare import FIELDS, LABEL, NUMBERS, ClickLogSpec, field_names, write_click_log
from numpy.typing import NDArray

__all__ = [
    "CACHE",
    "DENSE_RATE",
    "EMBEDDING_STD",
    "HELD_OUT_ROWS",
    "LOG_SEED",
    "LOSS",
    "NETWORKS",
    "SEED",
    "SPARSE_RATE",
    "TRAIN_ROWS",
    "Network",
    "click_job",
    "click_log",
    "read_log",
]

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "benchmarks"
TRAIN_ROWS, HELD_OUT_ROWS = 600_000, 50_000
SEED = 17
LOG_SEED = 11
DENSE_RATE, SPARSE_RATE, EMBEDDING_STD = 0.003, 0.05, 0.05
LOSS = "torch.nn.functional:binary_cross_entropy_with_logits"


@dataclass(frozen=True)
class Network:
    """Embeddings of ids side by side, then a stack of fully connected layers.

    Attributes:
        entrypoint: of the module.
        arguments: of the entry point.
        slots: of each table, the first and the end of the fields that it looks up.
        dim: of all embeddings.
        hidden: widths of the hidden layers.
    """

    entrypoint: str
    arguments: Mapping[str, Any]
    slots: tuple[tuple[int, int], ...]
    dim: int
    hidden: tuple[int, ...]

    @property
    def fields(self) -> int:
        """Number of fields."""
        return self.slots[-1][1]

    @property
    def layers(self) -> int:
        """Layers of the planner: lookups, concatenation, hidden layers, output."""
        return len(self.slots) + 1 + len(self.hidden) + 1


def _ctrdnn(hidden_layers: int, hidden: int) -> Network:
    arguments = {"layers": hidden_layers + 5, "hidden": hidden, "embedding_dim": 16}
    slots = ((0, 10), (10, 20), (20, 26))
    return Network("examples.paper.clicks.ctrdnn:build", arguments, slots, 16, (hidden,) * hidden_layers)


#: Matrix products bound `deep`, rows bound `wide`; `fields` has eight times as many numbers per sample to look up.
NETWORKS = {
    "deep": _ctrdnn(3, 400),
    "wide": _ctrdnn(1, 16),
    "fields": Network("benchmarks._fields:build", {}, ((0, 40), (40, 80), (80, 100)), 32, (64,)),
}


def click_log(variant: str) -> Path:
    """Write the click log of one of NETWORKS, unless it is there; return its folder."""
    fields = NETWORKS[variant].fields
    folder = CACHE / ("click-log" if fields == len(FIELDS) else f"click-log-{fields}-fields")
    spec = ClickLogSpec(seed=LOG_SEED, fields=fields)
    return write_click_log(folder, spec, TRAIN_ROWS, HELD_OUT_ROWS, progress=sys.stderr.isatty())


def click_job(name: str, variant: str, data: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
    """Return a HeterPSJob that trains one of NETWORKS on a click log, and writes a checkpoint at its end only.

    Args:
        name: of the job.
        variant: of NETWORKS.
        data: fields of `spec.data` beside format and columns.
        training: fields of `spec.training` beside consistency and optimizers, or instead of them.
    """
    network = NETWORKS[variant]
    return {
        "apiVersion": "heterps.io/v1alpha1",
        "kind": "HeterPSJob",
        "metadata": {"name": name},
        "spec": {
            "image": "ghcr.io/heterps/runtime:0.1.0",
            "model": {
                "entrypoint": network.entrypoint,
                "arguments": dict(network.arguments),
                "loss": LOSS,
                "embeddingInit": {"distribution": "normal", "mean": "0", "std": str(EMBEDDING_STD)},
            },
            "data": {
                "format": "parquet",
                "label": LABEL,
                "dense": list(NUMBERS),
                "sparse": list(field_names(network.fields)),
                **data,
            },
            "training": {
                "consistency": "hybrid",
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
    """Return ids (N, fields), numbers (N, 13) and labels (N,) of a split of a click log."""
    table = pq.read_table(folder)
    fields = field_names(table.num_columns - len(NUMBERS) - 1)
    ids = np.stack([table[n].to_numpy() for n in fields], axis=1)
    numbers = np.stack([table[n].to_numpy() for n in NUMBERS], axis=1)
    return ids, numbers, table[LABEL].to_numpy().astype(np.float32)
