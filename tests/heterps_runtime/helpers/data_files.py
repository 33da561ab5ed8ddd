"""Small data sets for the tests of heterps_runtime.data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import settings

from heterps_runtime.data.spec import DataSpec

#: Of property tests: the same examples in every run, and no limit on their time, which depends on the machine.
properties = settings(deadline=None, derandomize=True)

BINARY = "torch.nn.functional:binary_cross_entropy_with_logits"
CLASSES = "torch.nn.functional:cross_entropy"
NUMBERS = "torch.nn.functional:mse_loss"


def columns(rows: int = 10) -> dict[str, Any]:
    """Valid columns: two numbers, an integer, a text, lists of text, and a 0/1 label."""
    return {
        "distance": [float(i) for i in range(rows)],
        "hour": list(range(rows)),
        "flight": [1000 + i for i in range(rows)],
        "carrier": [("AA", "DL", None)[i % 3] for i in range(rows)],
        "tags": [["x", "y"][: i % 3] for i in range(rows)],
        "late": [i % 2 for i in range(rows)],
    }


def write_parquet(path: Path, values: Mapping[str, Any], **options: Any) -> Path:
    """Write columns as a parquet file and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(values)), path, **options)
    return path


def make_spec(folder: Path, train: Path | str, loss: str = BINARY, **changes: Any) -> DataSpec:
    """A job's data over the columns of `columns()`; `changes` are fields of spec.data."""
    data = {
        "format": "parquet",
        "train": str(train),
        "label": "late",
        "dense": ["distance", "hour"],
        "sparse": ["flight", "carrier", "tags"],
        "cache": {"maxBytes": "10Gi"},
    }
    return DataSpec.from_manifest(data | changes, loss, folder / "cache")
