"""Requests of workers, checked before a server answers or keeps them.

A request may come from a worker of another version, or be damaged in a way that its checksum does not show. What fits
neither tables nor parameters would end the server with an error of numpy's, at worst when its step is committed. Here
it is refused with the sender's name, and the server only leaves the generation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from heterps_runtime.config import RunConfig
from heterps_runtime.errors import ProtocolError
from heterps_runtime.partition.tables import MAX_DIM
from heterps_runtime.ps.gradients import Gradients
from heterps_runtime.ps.shard import Shard
from heterps_runtime.store.half import decode
from heterps_runtime.store.initial import MAX_TABLES, TableSpec
from heterps_runtime.wire.link import read_identity
from heterps_runtime.wire.messages import Array, Define, Pull, PullDense, Push, ToServer

__all__ = ["Waiting", "check", "read_push"]

RequestT = TypeVar("RequestT", bound=ToServer)

MOST_WAITING = 256  # requests of one sender; a worker needs a few for each step that it is ahead
MOST_WAITING_OF_ALL = 65_536
# Steps of pushes beyond the staleness. A commit reaches servers at different times, and those that have it let workers
# go on.
MOST_STEPS_AHEAD = 256


def check(sender: bytes, request: Define | Pull | PullDense, shard: Shard) -> None:
    """Check a request that changes no gradients.

    Args:
        sender: its identity at the server's socket.
        request: of a worker.
        shard: that it is for.

    Raises:
        ProtocolError: it does not fit the shard.
    """
    try:
        match request:
            case Define():
                _check_definition(request, shard)
            case Pull():
                for dim, keys in request.keys.items():
                    _check_keys(shard, dim, keys)
            case PullDense():
                unknown = set(request.names) - {*shard.dense.names, *shard.statistics.names}
                if unknown:
                    raise ValueError(f"parameters: {sorted(unknown)} are unknown")
    except ValueError as error:
        raise _refused(sender, request, error) from error


def read_push(sender: bytes, push: Push, shard: Shard, config: RunConfig) -> Gradients:
    """The gradients of a push.

    Raises:
        ProtocolError: it does not fit the shard, or is not the sender's own.
    """
    try:
        if push.worker != _name(sender):
            raise ValueError(f"it has the name of {push.worker!r}")
        last = shard.committed + config.max_staleness + MOST_STEPS_AHEAD
        if not 0 <= push.step <= last:
            raise ValueError(f"step {push.step}, this server is at step {shard.committed}")
        expected = np.dtype(config.dtype_name if config.wire_precision == "full" else np.uint16)
        chunks = []
        for chunk in push.chunks:
            _check_keys(shard, chunk.dim, chunk.keys)
            if (chunk.gradients.dtype, chunk.gradients.shape) != (expected, (len(chunk.keys), chunk.dim)):
                found = f"{chunk.gradients.dtype} {chunk.gradients.shape}"
                raise ValueError(f"gradients of {len(chunk.keys)} rows of {chunk.dim}: must be {expected}, are {found}")
            if len(chunk.keys):
                decoded = decode(chunk.gradients, config.wire_precision, config.dtype_name)
                chunks.append((chunk.dim, chunk.keys, decoded))
        shard.dense.check_push(push.dense)
        shard.statistics.check_push(push.statistics)
    except ValueError as error:
        raise _refused(sender, push, error) from error
    return Gradients(tuple(chunks), push.dense, push.statistics)


def _check_keys(shard: Shard, dim: int, keys: Array) -> None:
    store = shard.stores.get(dim)
    if store is None:
        raise ValueError(f"rows of {dim}: this server has tables of {sorted(shard.stores)}")
    if keys.dtype != np.int64 or keys.ndim != 1:
        raise ValueError(f"keys: must be int64 (n,), are {keys.dtype} {keys.shape}")
    store.check_keys(keys)


def _check_definition(define: Define, shard: Shard) -> None:
    for name in (*(table.name for table in define.tables), *define.dense, *define.statistics):
        name.encode()  # which raises a ValueError for what is no text: files have these names
    for index, count in Counter(table.index for table in define.tables).items():
        if count > 1 or not 0 <= index < MAX_TABLES:
            raise ValueError(f"tables: numbers must be distinct and in 0 .. {MAX_TABLES - 1}, {index} is not")
    names = {table.name: table.index for table in shard.tables.values()}
    for table in define.tables:
        TableSpec(table.name, table.num_embeddings, padding_idx=table.padding_idx)
        if not 1 <= table.dim <= MAX_DIM:
            raise ValueError(f"table {table.name!r}: dim must be in 1 .. {MAX_DIM}, is {table.dim}")
        if names.setdefault(table.name, table.index) != table.index:
            raise ValueError(f"tables {names[table.name]} and {table.index}: both have the name {table.name!r}")
        known = shard.tables.get(table.index, table)
        if known != table:
            raise ValueError(f"table {table.index}: is {known}, not {table}")
    for name, piece in define.dense.items():
        if "::" in name or piece.values.dtype not in (np.float32, np.float64):
            raise ValueError(f"parameter {name!r}: is {piece.values.dtype}, or has the name of an optimizer's state")
    shard.dense.check_push({name: piece.values for name, piece in define.dense.items() if name in shard.dense.names})
    known_statistics = shard.statistics.names
    shard.statistics.check_push({name: v for name, v in define.statistics.items() if name in known_statistics})
    if shard.inherited is not None:
        shard.inherited.check(define.dense, define.statistics)


def _name(sender: bytes) -> str:
    return read_identity(sender.decode(errors="replace"))[0]


def _refused(sender: bytes, request: ToServer, error: ValueError) -> ProtocolError:
    return ProtocolError(f"{_name(sender)!r} sent a {request.op} that does not fit: {error}")


class Waiting(Generic[RequestT]):
    """Requests that have come too early, in the order of their arrival."""

    def __init__(self) -> None:
        self._requests: list[tuple[bytes, RequestT]] = []
        self._of_sender: Counter[bytes] = Counter()

    def add(self, sender: bytes, request: RequestT) -> None:
        """Keep a request until it can be answered.

        Raises:
            ProtocolError: too many of this sender wait, or too many of all. All of them are dropped.
        """
        self._of_sender[sender] += 1
        self._requests.append((sender, request))
        if self._of_sender[sender] > MOST_WAITING or len(self._requests) > MOST_WAITING_OF_ALL:
            number, of_all = self._of_sender[sender], len(self._requests)
            self.take(lambda _: True)
            raise ProtocolError(f"{number} requests of {_name(sender)!r} wait, and {of_all} of all senders")

    def take(self, ready: Callable[[RequestT], bool]) -> list[tuple[bytes, RequestT]]:
        """Remove and return the requests that can be answered now."""
        taken = [(sender, request) for sender, request in self._requests if ready(request)]
        if taken:
            self._requests = [(sender, request) for sender, request in self._requests if not ready(request)]
            self._of_sender = Counter(sender for sender, _ in self._requests)
        return taken
