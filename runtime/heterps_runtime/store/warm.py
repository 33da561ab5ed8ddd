"""Compile ahead of use, by a miniature run of what a process will do.

A kernel is compiled when it is first called, or loaded from the cache of an earlier run. Without this, the first steps
of a job would pay for it, one kernel at a time, and their measured times would be worthless. Processes that start
together on an empty cache each compile everything: warm up once before, in the process that starts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from heterps_runtime.store.dense import DenseStore
from heterps_runtime.store.half import Precision, decode, encode
from heterps_runtime.store.initial import TableSpec
from heterps_runtime.store.keys import UniqueKeys, partition
from heterps_runtime.store.lookup import Bags, bag_backward, bag_forward, gather, scatter_add
from heterps_runtime.store.optimizers import DenseOptimizer, SparseOptimizer
from heterps_runtime.store.rows import RowStore

__all__ = ["ServerKernels", "WorkerKernels", "warm_up"]


@dataclass(frozen=True)
class ServerKernels:
    """What a parameter server will use."""

    sparse: SparseOptimizer | None  # None: no tables
    dense: DenseOptimizer | None  # None: no dense parameters on servers
    dtype: DTypeLike = np.float32
    precision: Precision = "full"  # of the wire


@dataclass(frozen=True)
class WorkerKernels:
    """What a worker will use."""

    dtype: DTypeLike = np.float32
    precision: Precision = "full"  # of the wire
    num_servers: int = 1
    bags: bool = False  # the model has nn.EmbeddingBag


def warm_up(processes: Sequence[ServerKernels | WorkerKernels]) -> None:
    """Compile, or load from the cache, every kernel that such processes use."""
    for process in processes:
        _over_the_wire(np.zeros((2, 2), process.dtype), process.precision)
        if isinstance(process, ServerKernels):
            _as_server(process)
        else:
            _as_worker(process)


def _as_server(server: ServerKernels) -> None:
    keys = np.arange(700, dtype=np.int64)  # more than a new index holds: growth is a kernel too
    if server.sparse is not None:
        store = RowStore(1, server.dtype, server.sparse, 0, {0: TableSpec("warm", len(keys))})
        grads = np.zeros((len(keys), 1), server.dtype)
        store.apply([(keys, grads), (keys, grads)], 1.0, 1)
        store.pull(keys)
    if server.dense is not None:
        dense = DenseStore(server.dense)
        dense.add("warm", np.zeros(1, server.dtype))
        dense.apply([{"warm": np.zeros(1, server.dtype)}], 1.0, 1)


def _as_worker(worker: WorkerKernels) -> None:
    keys = np.zeros(2, np.int64)
    _, inverse = UniqueKeys()(keys)
    partition(keys, np.zeros(1024, np.int32), worker.num_servers)
    rows = np.zeros((1, 1), worker.dtype)
    scatter_add(gather(rows, inverse), inverse, rows)
    if worker.bags:
        bags = Bags(inverse, np.zeros(1, np.int64))
        pooled, winners = bag_forward(rows, bags)
        bag_backward(pooled, bags, winners, rows)


def _over_the_wire(values: np.ndarray[tuple[int, int], np.dtype[np.float32]], precision: Precision) -> None:
    decode(encode(values, precision).data, precision, values.dtype)
