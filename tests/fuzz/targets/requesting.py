"""Requests to a parameter server without sockets, and the commit of what they leave."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from heterps_runtime.config import RunConfig
from heterps_runtime.errors import ProtocolError
from heterps_runtime.partition.pieces import DensePiece
from heterps_runtime.partition.tables import Table
from heterps_runtime.processes.work import WorkCounter
from heterps_runtime.ps.holding import Holding
from heterps_runtime.ps.requests import Waiting
from heterps_runtime.ps.server import ParameterServer
from heterps_runtime.wire.codec import encode
from heterps_runtime.wire.messages import (
    Chunk,
    Commit,
    CopyRows,
    CopyShard,
    Define,
    Message,
    Pull,
    PullDense,
    Push,
    ToServer,
)
from heterps_runtime.wire.sequence import Stamp
from tests.heterps_runtime.helpers.coordinator_world import World

__all__ = ["ask", "requests"]

GENERATION, SENDER = 1, b"worker-0-0/1"
TABLES = (Table(0, "small", 40, 2, None), Table(3, "large", 1000, 4, 0))
DENSE = {"weight": DensePiece(2, (3, 4), np.ones(6, np.float32))}
STATISTICS = {"mean": np.zeros((2, 2), np.float32), "count": np.array(3)}
KEYS = np.array([1, 39, 1], np.int64)
_OPTIMIZERS: dict[str, Any] = {
    "sparse_optimizer": {"name": "adagrad", "learningRate": "0.1"},
    "dense_optimizer": {"name": "adam", "learningRate": "0.1"},
    "embedding_init": {"distribution": "normal", "std": "0.1"},
}


class _Sink:
    """A counter that does not count, and a listener that encodes what it is given as a real one does."""

    def inc(self, amount: float = 1.0) -> None:
        assert amount >= 0

    def send(self, sender: bytes, message: Message) -> None:
        encode(message, Stamp(GENERATION, 1))


def _configuration() -> RunConfig:
    return dataclasses.replace(World([("cpu", 1, 1)]).config, **_OPTIMIZERS)


CONFIG = _configuration()


def _server() -> ParameterServer:
    server = ParameterServer.__new__(ParameterServer)
    server._config, server._index, server._generation = CONFIG, 0, GENERATION
    server._holding, server._recovery = Holding(CONFIG, 0, None), None
    server._parked, server._early = Waiting(), Waiting()
    server._work = WorkCounter()
    sink: Any = _Sink()
    server._listener = server._pulled = server._pushed = server._refused = server._commits = server._saturated = sink
    link: Any = SimpleNamespace(status="")
    server._link = link
    server._moved = {"admitted": 0, "evicted": 0}
    server._holding.restart(1, 0)
    server._holding.own.define(TABLES, DENSE, STATISTICS)
    return server


def ask(message: Message) -> None:
    """Give a request to a server that is at step 0, twice, and commit two steps.

    Raises:
        ProtocolError: the server refuses it.
    """
    if not isinstance(message, ToServer):
        raise ProtocolError(f"a {message.op} is no request to a server")
    server = _server()
    for _ in range(2):
        server._request(SENDER, message)
    for step in range(2):
        server._carry_out(Commit(GENERATION, step, 4))


def requests() -> Iterator[Message]:
    """A request of each kind that is answered."""
    more = {"bias": DensePiece(0, (2,), np.ones(2, np.float32))}
    yield Define(GENERATION, 0, (*TABLES, Table(4, "third", 10, 4, None)), DENSE | more, STATISTICS)
    yield Pull(GENERATION, 1, 0, {2: KEYS, 4: KEYS + (3 << 48)})
    yield Pull(GENERATION, 1, 1, {2: KEYS})
    yield PullDense(GENERATION, 1, 0, ("weight", "mean"))
    yield PullDense(GENERATION, 1, 2, ("weight",))
    chunks = (Chunk(2, KEYS, np.ones((3, 2), np.float32)), Chunk(4, KEYS[:0], np.ones((0, 4), np.float32)))
    yield Push(GENERATION, 0, 0, "worker-0-0", chunks, {"weight": np.ones(6, np.float32)}, dict(STATISTICS))
    yield Push(GENERATION, 0, 1, "worker-0-0", chunks[:1], {}, {})
    yield CopyShard(GENERATION, 0)
    yield CopyShard(GENERATION, 0, note=True)
    yield CopyRows(GENERATION, 0, 0, 1, "group-2", 0)
    yield CopyRows(GENERATION, 0, 1, 3, "group-4", 0)
