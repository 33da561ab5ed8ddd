"""The storage engine of the parameter servers and the sparse half of a worker: numpy and numba, never torch.

Rule of this package: everything is a plain function of arrays or a store for one thread at a time; nothing here knows
of networks, steps in flight or files. Modules: `keys` (rows' names and their shards), `initial` (rows before their
first step), `rows` on `index` and `memory` (embedding rows), `dense` (whole tensors), `optimizers`, `lookup` (a
worker's embedding and bag layers), `half` (two bytes per number on the wire), `warm` (compile ahead), `kernel` (how).
"""

from heterps_runtime.store.dense import DenseStore
from heterps_runtime.store.half import Encoded, decode, encode, wire_dtype
from heterps_runtime.store.initial import EmbeddingInit, TableSpec, initial_rows
from heterps_runtime.store.keys import (
    NUM_SLOTS,
    Partition,
    UniqueKeys,
    make_key,
    partition,
    shard_of,
    slot_of,
    unique_keys,
)
from heterps_runtime.store.lookup import Bags, bag_backward, bag_forward, gather, scatter_add
from heterps_runtime.store.optimizers import DenseOptimizer, SparseOptimizer
from heterps_runtime.store.rows import RowChunk, RowStore
from heterps_runtime.store.warm import ServerKernels, WorkerKernels, warm_up

__all__ = [
    "NUM_SLOTS",
    "Bags",
    "DenseOptimizer",
    "DenseStore",
    "EmbeddingInit",
    "Encoded",
    "Partition",
    "RowChunk",
    "RowStore",
    "ServerKernels",
    "SparseOptimizer",
    "TableSpec",
    "UniqueKeys",
    "WorkerKernels",
    "bag_backward",
    "bag_forward",
    "decode",
    "encode",
    "gather",
    "initial_rows",
    "make_key",
    "partition",
    "scatter_add",
    "shard_of",
    "slot_of",
    "unique_keys",
    "warm_up",
    "wire_dtype",
]
