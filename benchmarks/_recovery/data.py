"""The flights example's training data as plain arrays, for systems that cannot read it as HeterPS does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from heterps_runtime.data import DataSpec, open_dataset

__all__ = ["RECORD", "write_records"]

#: One flight: row numbers of its ten tables, 19 numbers and the label.
RECORD = np.dtype([("ids", "<i4", 10), ("dense", "<f4", 19), ("label", "<f4")])


def write_records(spec: DataSpec, network: nn.Module, path: Path) -> int:
    """Write the training split as a file of RECORDs and return their number.

    Args:
        spec: the example's data.
        network: its model, whose embeddings have the names of the sparse columns.
        path: of the file.
    """
    data = open_dataset(spec, "train")
    batch = data.batch(np.arange(data.num_rows), data.schema.features)
    sizes = {name.rpartition(".")[2]: m.num_embeddings for name, m in network.named_modules() if _is_table(m)}
    records: npt.NDArray[np.void] = np.empty(data.num_rows, RECORD)
    for column, name in enumerate(spec.sparse):
        records["ids"][:, column] = batch[name] % sizes[name]
    records["dense"], records["label"] = batch["dense"], batch["label"]
    records.tofile(path)
    return data.num_rows


def _is_table(module: nn.Module) -> bool:
    return isinstance(module, torch.nn.Embedding)
