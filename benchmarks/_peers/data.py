"""The files that all entrants read: shares of batches in the order of a HeterPS job, and a job's initial values."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks._clicks import (
    CACHE,
    DENSE_RATE,
    EMBEDDING_STD,
    NETWORKS,
    SEED,
    SPARSE_RATE,
    Network,
    click_log,
    read_log,
)
from benchmarks._heterps import SKIP
from numpy.typing import NDArray

from heterps_runtime.data import BatchOrder
from heterps_runtime.intake import build_model, trace_model
from heterps_runtime.store.initial import EmbeddingInit, initial_rows

__all__ = ["write_task"]

_VERSION = 1  # of the files' format


def write_task(model: str, steps: int, batch: int, workers: int) -> dict[str, Any]:
    """Write the files of a task unless these very ones are there; return the settings that all its programs share.

    Args:
        model: of NETWORKS.
        steps: to train.
        batch: samples of a step, of all workers together.
        workers: that divide a batch into equal shares, a file each.

    Raises:
        ValueError: workers would have unequal shares, because an epoch ends.
    """
    log, network, folder = click_log(model), NETWORKS[model], CACHE / "peers-data" / f"{model}-{batch}-{workers}"
    log_recipe = json.loads((log / "prepared.json").read_text())
    whole = log_recipe["rows"] // batch
    if steps > whole and workers > 1:
        raise ValueError(
            f"steps must be at most {whole}, the whole batches of {batch} in {log_recipe['rows']} rows, is {steps}"
        )
    recipe = {"version": _VERSION, "log": log_recipe, "network": repr(network), "steps": steps}
    written = folder / "written.json"
    if not written.exists() or json.loads(written.read_text())["recipe"] != recipe:
        facts = _write_files(folder, log, network, steps, batch, workers)
        written.write_text(json.dumps({"recipe": recipe, "facts": facts}))
    return {
        **json.loads(written.read_text())["facts"],
        "variant": model,
        "log": str(log),
        "data": str(folder),
        "slots": network.slots,
        "dim": network.dim,
        "hidden": network.hidden,
        "steps": steps,
        "skip": SKIP,
        "batchSize": batch,
        "parts": workers,
        "workers": workers,
        "threads": 1,
        "precision": "fp32",
        "seed": SEED,
        "denseRate": DENSE_RATE,
        "sparseRate": SPARSE_RATE,
    }


def _write_files(folder: Path, log: Path, network: Network, steps: int, batch: int, workers: int) -> dict[str, Any]:
    """Write all files; return what is to be known of the log's columns."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "steps").mkdir(parents=True)
    ids, numbers, labels = read_log(log / "train")
    order = BatchOrder(len(labels), batch, SEED)
    for step in range(steps):
        rows_of_step = order.rows(step, 0, order.batches.size(step))
        for part, rows in enumerate(np.array_split(rows_of_step, workers)):
            _write(folder / "steps" / f"{step:05}-{part}", ids[rows], numbers[rows], labels[rows])
    held_out = read_log(log / "held-out")
    _write(folder / "held-out", *held_out)
    _write_initial_values(folder, network)
    return {"numbers": numbers.shape[1], "vocabularies": _vocabularies(ids, held_out[0])}


def _vocabularies(ids: NDArray[np.int64], held_out: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the first id and the number of ids of each field, as far as ids occur."""
    begins = np.minimum(ids.min(axis=0), held_out.min(axis=0))
    ends = np.maximum(ids.max(axis=0), held_out.max(axis=0)) + 1
    return [(int(begin), int(end - begin)) for begin, end in zip(begins, ends, strict=True)]


def _write(file: Path, ids: NDArray[np.int64], numbers: NDArray[np.float32], labels: NDArray[np.float32]) -> None:
    with file.open("wb") as stream:
        for array, kind in ((ids, "<i4"), (numbers, "<f4"), (labels, "<f4")):
            np.ascontiguousarray(array, kind).tofile(stream)


def _write_initial_values(folder: Path, network: Network) -> None:
    """Write the values that a job with the seed starts from."""
    module = build_model(network.entrypoint, dict(network.arguments), SEED, torch.float32)
    tables = trace_model(module, None).tables
    init = EmbeddingInit("normal", std=EMBEDDING_STD)
    for number, table in enumerate(tables):
        rows = initial_rows(SEED, table.name, np.arange(table.num_embeddings), table.dim, np.float32, init)
        np.save(folder / f"table-{number}.npy", rows)
    names = {table.name for table in tables}
    dense = [parameter for name, parameter in module.named_parameters() if name not in names]
    for number, parameter in enumerate(dense):
        np.save(folder / f"dense-{number}.npy", parameter.detach().numpy())
