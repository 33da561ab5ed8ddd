"""Compile kernels ahead of their use, by a miniature run.

A kernel is compiled at its first call, or loaded from the cache of an earlier run. Without this module, the first steps
of a job would be slow, and their measured times useless.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from heterps_runtime.partition.access import TableRules
from heterps_runtime.store.dense import DenseStore
from heterps_runtime.store.half import Precision, decode, encode
from heterps_runtime.store.initial import TableSpec
from heterps_runtime.store.keys import NUM_SLOTS, UniqueKeys, fill_keys, group_by_shard, shard_of
from heterps_runtime.store.lookup import Bags, bag_backward, bag_forward, gather, scatter_add
from heterps_runtime.store.optimizers import DenseOptimizer, SparseOptimizer
from heterps_runtime.store.rows import RowStore
from heterps_runtime.store.spill import SpillSpace
from heterps_runtime.store.values import SpilledValues

__all__ = ["warm_up_server", "warm_up_worker"]


def warm_up_server(
    sparse: SparseOptimizer,
    dense: DenseOptimizer,
    dtype: DTypeLike,
    wire: Precision,
    *,
    rules: bool,
    disk: Path | None = None,
) -> None:
    """Compile, or load from the cache, all kernels of a parameter server.

    Args:
        sparse: optimizer of rows.
        dense: optimizer of dense parameters.
        dtype: of both.
        wire: precision of messages.
        rules: whether ids of some table get rows after some steps, or lose them.
        disk: folder for rows that do not fit into memory; None: all do.
    """
    _warm_up_wire(dtype, wire)
    keys = np.arange(1_000, dtype=np.int64)  # more than a new index holds: growth is a kernel too
    store = RowStore(1, dtype, sparse, 0, {0: TableSpec("warm", len(keys))})
    grads = np.zeros((len(keys), 1), dtype)
    store.check_keys(keys)
    store.apply([(keys, grads), (keys, grads)], 1.0, 1)
    store.pull(keys)
    _, copy = store.begin_snapshot()
    store.apply([(keys, grads)], 1.0, 2)
    while not copy.done:
        copy.advance()
    store.end_snapshot()
    _warm_up_copies(store, RowStore(1, dtype, sparse, 0, store.tables))
    if rules:
        _warm_up_rules(sparse, dtype)
    if disk is not None:
        _warm_up_disk(dtype, disk)
    _warm_up_dense(dense, dtype)


def warm_up_worker(dtype: DTypeLike, wire: Precision, *, bags: bool, replica: DenseOptimizer | None = None) -> None:
    """Compile, or load from the cache, all kernels of a worker.

    Args:
        dtype: of rows.
        wire: precision of messages.
        bags: whether the model has nn.EmbeddingBag.
        replica: optimizer of dense parameters that the worker holds; None: servers hold them, or an accelerator.
    """
    _warm_up_wire(dtype, wire)
    keys = np.zeros(2, np.int64)
    fill_keys(0, 1, keys, keys)
    unique, inverse = UniqueKeys()(keys)
    group_by_shard(unique, inverse, np.zeros(NUM_SLOTS, np.int32), 2)
    rows = np.zeros((1, 1), dtype)
    scatter_add(gather(rows, inverse), inverse, rows)
    if bags:
        one = Bags(inverse, np.zeros(1, np.int64))
        pooled, winners = bag_forward(rows, one)
        bag_backward(pooled, one, winners, rows)
    if replica is not None:
        _warm_up_dense(replica, dtype)


def _warm_up_dense(optimizer: DenseOptimizer, dtype: DTypeLike) -> None:
    parameters = DenseStore(optimizer)
    parameters.add("warm", np.zeros(1, dtype))
    parameters.apply([{"warm": np.zeros(1, dtype)}], 1.0, 1)


def _warm_up_copies(store: RowStore, copy: RowStore) -> None:
    """Copy rows to another server, and remove them: training stands still while some of that is done."""
    slots = np.zeros(NUM_SLOTS, np.int32)
    chunk, _ = store.copy_from(0, lambda keys: shard_of(keys, slots) == 0)
    for _ in range(2):
        copy.load(chunk.keys, chunk.rows, chunk.state, ahead=True)
    copy.accept()
    copy.discard(chunk.keys)
    store.remove_keys(lambda keys: shard_of(keys, slots) == 0)


def _warm_up_disk(dtype: DTypeLike, folder: Path) -> None:
    """Move rows to disk and back, until blocks with unused slots are cleaned."""
    rows = np.arange(20_000, dtype=np.int32)
    values = SpilledValues({"rows": (np.dtype(dtype), 8)}, SpillSpace(folder, 1))
    values.reserve(len(rows))
    for changed in (rows, rows[::2], rows[1:]):
        for _ in values.parts(changed, change=True):
            pass


def _warm_up_rules(sparse: SparseOptimizer, dtype: DTypeLike) -> None:
    rules = TableRules(min_steps=2, unused_steps=1, candidate_unused_steps=1)
    store = RowStore(1, dtype, sparse, 0, {0: TableSpec("warm", 2, rules=rules)})
    keys, grads = np.arange(2, dtype=np.int64), np.zeros((2, 1), dtype)
    assert store.candidates is not None
    for step in (1, 2):
        store.apply([(keys, grads)], 1.0, step)
        for part in (store, store.candidates):
            if len(part):
                part.begin_snapshot()[1].advance()
                part.end_snapshot()
    store.evict(3)


def _warm_up_wire(dtype: DTypeLike, wire: Precision) -> None:
    decode(encode(np.zeros((2, 2), dtype), wire).data, wire, dtype)
