"""A worker's connections to the parameter servers: pull rows and dense parameters, push gradients.

A request is one message per server, for any number of tables. Requests never block: a pull is sent as soon as its keys
are known, and its response is an event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zmq

from heterps_runtime.errors import ProtocolError
from heterps_runtime.partition.copies import holders_of
from heterps_runtime.partition.pieces import DensePiece, Piece
from heterps_runtime.partition.tables import Table
from heterps_runtime.store.half import decode as decode_wire
from heterps_runtime.store.half import encode as encode_wire
from heterps_runtime.wire.messages import (
    Ack,
    Chunk,
    Define,
    Defined,
    Dense,
    FromServer,
    Pull,
    PullDense,
    Push,
    Rows,
    ToServer,
)
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.transport import Connections
from heterps_runtime.worker.rows.entries import RowFormat, RowGradients, ServerKeys
from heterps_runtime.worker.tensors import host_array

__all__ = ["DenseArrived", "Initialised", "Pushed", "RowsArrived", "ServerClient"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class RowsArrived:
    """All rows of a pull: per dimension, in the order of the requested keys."""

    request: int
    rows: dict[int, Array]


@dataclass(frozen=True)
class DenseArrived:
    """All dense parameters and statistics of a pull, each in the pieces that servers hold, in the order of elements."""

    request: int
    values: dict[str, list[Array]]


@dataclass(frozen=True)
class Pushed:
    """All servers have acknowledged this worker's gradients of a step."""

    step: int


@dataclass(frozen=True)
class Initialised:
    """All servers know the tables, and the dense parameters and statistics of this worker's stage."""


@dataclass
class _Pull:
    dense_only: bool
    waiting: set[int] = field(default_factory=set)
    names: dict[int, tuple[str, ...]] = field(default_factory=dict)  # by server
    keys: dict[int, ServerKeys] = field(default_factory=dict)
    rows: dict[int, Array] = field(default_factory=dict)
    dense: dict[str, dict[int, Array]] = field(default_factory=dict)  # name -> server -> piece


class ServerClient:
    """A worker's connections to all parameter servers, for one generation.

    Args:
        context, security: of the connections.
        name: of the worker.
        generation: that messages belong to.
        addresses: of the servers.
        rows: how this worker has rows, and how they travel.
        pieces: of the model's dense parameters and statistics (`partition.pieces`).
        replication: number of servers that hold each shard.

    Attributes:
        pollables: sockets to poll for answers and for the end of a connection.
        count: number of servers.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        security: LinkSecurity,
        name: str,
        generation: int,
        addresses: Sequence[str],
        rows: RowFormat,
        pieces: Mapping[str, Sequence[Piece]],
        replication: int = 1,
    ) -> None:
        self._connections = Connections(context, addresses, f"{name}/{generation}", security, generation)
        self.pollables = self._connections.pollables
        self.count = len(addresses)
        for server in range(self.count):  # all are needed in each step
            self._connections.connect(server)
        self._name = name
        self._generation = generation
        self._rows = rows
        self._pieces = pieces
        self._held: list[dict[str, Piece]] = [{} for _ in addresses]  # by server
        for parameter, parts in pieces.items():
            for piece in parts:
                self._held[piece.server][parameter] = piece
        self._pulls: dict[int, _Pull] = {}
        self._holders = [holders_of(shard, self.count, replication) for shard in range(self.count)]
        self._pushes: dict[int, set[tuple[int, int]]] = {}  # step -> (server, shard) without acknowledgement
        self._defining: set[tuple[int, int]] = set()  # likewise
        self._next = 0

    def broke(self) -> bool:
        """Whether a connection has ended since the last call, so that requests or responses may be lost."""
        return self._connections.broke()

    def probe(self) -> None:
        """Show to the servers whether requests were lost; call it at least once a second."""
        self._connections.probe()

    def close(self) -> None:
        """Drop the connections and all pending requests."""
        self._connections.close()

    # --- requests -----------------------------------------------------------------------------------------------------

    def define(self, tables: tuple[Table, ...], dense: Mapping[str, Array], statistics: Mapping[str, Array]) -> None:
        """Send tables and initial values to the servers, which keep values that they already have."""
        self._defining = self._all_copies()
        for i in range(self.count):
            held = {n: DensePiece(piece.start, dense[n].shape, values) for n, piece, values in self._cut(dense, i)}
            self._send_to_holders(i, Define(self._generation, i, tables, held, self._whole(statistics, i)))

    def pull_rows(self, keys: Mapping[int, ServerKeys], min_version: int) -> int:
        """Request rows: dim -> unique keys. The response is a `RowsArrived` with the returned number."""
        request, pull = self._begin(dense=False)
        pull.keys = dict(keys)
        for i in range(self.count):
            mine = {dim: known.keys[known.part(i)] for dim, known in sorted(keys.items())}
            if any(len(k) for k in mine.values()):
                pull.waiting.add(i)
                self._send(i, Pull(self._generation, request, min_version, mine))
        return request

    def pull_dense(self, names: Sequence[str], min_version: int) -> int:
        """Request dense parameters and statistics. The response is a `DenseArrived` with the returned number."""
        request, pull = self._begin(dense=True)
        for i in range(self.count):
            mine = tuple(n for n in names if n in self._held[i])
            if mine:
                pull.waiting.add(i)
                pull.names[i] = mine
                self._send(i, PullDense(self._generation, request, min_version, mine))
        return request

    def push(
        self,
        step: int,
        chunks: Sequence[RowGradients],
        dense: Mapping[str, Array],
        statistics: Mapping[str, Array],
    ) -> None:
        """Send a step's sums over samples to all servers.

        Args:
            step: that they belong to.
            chunks: gradients of rows.
            dense: gradients of dense parameters.
            statistics: changes of statistics.
        """
        parts: list[list[Chunk]] = [[] for _ in range(self.count)]
        for dim, keys, gradients, _ in chunks:
            encoded = encode_wire(gradients, self._rows.wire).data
            for i, part in enumerate(parts):
                mine = keys.part(i)
                part.append(Chunk(dim, keys.keys[mine], encoded[mine]))
        self._pushes[step] = self._all_copies()
        for i, part in enumerate(parts):
            gradients_of_pieces = {n: values for n, _, values in self._cut(dense, i)}
            changes = self._whole(statistics, i)
            push = Push(self._generation, i, step, self._name, tuple(part), gradients_of_pieces, changes)
            self._send_to_holders(i, push)

    # --- responses ----------------------------------------------------------------------------------------------------

    def poll(self) -> list[RowsArrived | DenseArrived | Pushed | Initialised]:
        """Requests completed since the last call."""
        events: list[RowsArrived | DenseArrived | Pushed | Initialised] = []
        for request, pull in list(self._pulls.items()):
            if not pull.waiting:  # nothing was requested
                events.append(self._finish(request, pull))
        while (received := self._connections.receive_from()) is not None:
            server, answer = received
            if not isinstance(answer, FromServer):
                raise ProtocolError(f"a parameter server sent an unexpected {answer.op!r} message")
            event = self._take(server, answer)
            if event is not None:
                events.append(event)
        return events

    def _take(self, server: int, answer: FromServer) -> RowsArrived | DenseArrived | Pushed | Initialised | None:
        match answer:
            case Ack():
                waiting = self._pushes.get(answer.step)
                if waiting is None:
                    return None
                waiting.discard((server, answer.shard))
                if waiting:
                    return None
                del self._pushes[answer.step]
                return Pushed(answer.step)
            case Defined():
                self._defining.discard((server, answer.shard))
                return None if self._defining else Initialised()
            case Rows() | Dense():
                pull = self._pulls.get(answer.request)
                if pull is None:
                    return None
                self._check(server, pull, answer)
                pull.waiting.remove(server)
                if isinstance(answer, Rows):
                    self._take_rows(server, pull, answer.rows)
                else:
                    for name, values in answer.values.items():
                        pull.dense.setdefault(name, {})[server] = values
                return None if pull.waiting else self._finish(answer.request, pull)

    def _check(self, server: int, pull: _Pull, answer: Rows | Dense) -> None:
        """Check that an answer has what a server was asked for.

        Raises:
            ProtocolError: it does not.
        """
        if server not in pull.waiting or pull.dense_only != isinstance(answer, Dense):
            raise ProtocolError(f"server {server} answered with {answer.op!r} what it was not asked for")
        found: dict[Any, Any]
        expected: dict[Any, Any]
        if isinstance(answer, Dense):
            found = {name: values.size for name, values in answer.values.items()}
            held = self._held[server]
            expected = {name: held[name].stop - held[name].start for name in pull.names[server]}
        else:
            dtype = self._rows.dtype if self._rows.wire == "full" else np.dtype(np.uint16)
            found = {dim: (values.shape, values.dtype) for dim, values in answer.rows.items()}
            counts = {dim: known.part(server) for dim, known in pull.keys.items()}
            expected = {dim: ((part.stop - part.start, dim), dtype) for dim, part in counts.items()}
        if found != expected:
            raise ProtocolError(f"server {server} answered a request for {expected} with {found}")

    def _take_rows(self, server: int, pull: _Pull, rows: Mapping[int, Array]) -> None:
        """Put a server's rows beside those of the others."""
        for dim, encoded in rows.items():
            decoded = decode_wire(encoded, self._rows.wire, self._rows.dtype)
            if self.count == 1 and self._rows.device.type == "cpu":
                pull.rows[dim] = decoded
                continue
            target = pull.rows.get(dim)
            if target is None:
                shape = (len(pull.keys[dim].keys), decoded.shape[1])
                target = pull.rows[dim] = host_array(shape, self._rows.dtype, self._rows.device)
            target[pull.keys[dim].part(server)] = decoded

    def _finish(self, request: int, pull: _Pull) -> RowsArrived | DenseArrived:
        del self._pulls[request]
        if pull.dense_only:
            values = {n: [found[p.server] for p in self._pieces[n]] for n, found in pull.dense.items()}
            return DenseArrived(request, values)
        return RowsArrived(request, pull.rows)

    def _begin(self, *, dense: bool) -> tuple[int, _Pull]:
        self._next += 1
        pull = self._pulls[self._next] = _Pull(dense)
        return self._next, pull

    def _cut(self, values: Mapping[str, Array], server: int) -> Iterator[tuple[str, Piece, Array]]:
        """Yield the name, place and values (n,) of each piece that a server holds, without copying them."""
        held = self._held[server]
        for name, value in values.items():
            if (piece := held.get(name)) is not None:
                yield name, piece, value.reshape(-1)[piece.start : piece.stop]

    def _whole(self, values: Mapping[str, Array], server: int) -> dict[str, Array]:
        """The values that a server holds of those that are not cut."""
        return {n: v for n, v in values.items() if n in self._held[server]}

    def _all_copies(self) -> set[tuple[int, int]]:
        """The (server, shard) of every copy of a shard."""
        return {(server, shard) for shard, holders in enumerate(self._holders) for server in holders}

    def _send_to_holders(self, shard: int, request: Define | Push) -> None:
        """Send what changes a shard to all servers that hold it."""
        for server in self._holders[shard]:
            self._send(server, request)

    def _send(self, server: int, request: ToServer) -> None:
        self._connections.send_to(server, request)
