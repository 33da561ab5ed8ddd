"""A server copies the state that it lacks from the memory of others, at the beginning of a generation.

Either it has lost its shards, which others hold, too; or the number of servers changes, and it gets parts of their
shards. No step is committed meanwhile: the generation goes on when all members are ready. So the rows of a shard can be
sent one piece after another, without a note of what was sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import zmq

from heterps_runtime.checkpoint import Storage
from heterps_runtime.errors import ProtocolError
from heterps_runtime.partition.copies import holders_of
from heterps_runtime.ps.division import WholeState
from heterps_runtime.ps.holding import Holding
from heterps_runtime.ps.shard import Shard
from heterps_runtime.slots import overlapping_servers, share_of_slots
from heterps_runtime.wire.messages import CopyRows, CopyShard, Generation, Message, ShardRows, ShardState
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.transport import Connections

__all__ = ["Recovery", "answer"]

_MARGIN = 1.02  # the rows of some slots are not exactly their share


def answer(shard: Shard, request: CopyShard | CopyRows) -> ShardState | ShardRows:
    """What a server that holds a shard sends to one that copies it.

    Raises:
        ProtocolError: the request does not fit the shard.
    """
    if isinstance(request, CopyShard):
        return shard.describe()
    try:
        chunk, following = shard.copy_from(request.part, request.start, request.target, request.num_servers)
    except ValueError as error:
        raise ProtocolError(f"a server sent a wrong {request.op} request: {error}") from error
    return ShardRows(request.shard, request.target, request.part, following, chunk.keys, chunk.columns)


class _Flow(NamedTuple):
    """Rows of one shard of the present division that another one gets; with the same number, all of them."""

    shard: int
    target: int


class Recovery:
    """What a server copies at the beginning of a generation.

    Args:
        context, security: of the connections.
        name: of this server.
        announced: the generation.
        holding: the shards that this server has, and those to fill.
        replication: number of servers that hold each shard.
        storage: of the job's checkpoints.

    Attributes:
        lineage: of the state.
        checkpoint: folder of the checkpoint that is read; empty: none.
        pollables: sockets to poll for answers and for the end of a connection.
        num_rows: rows copied so far.
        total_rows: rows to copy, as far as their number is known, about.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        security: LinkSecurity,
        name: str,
        announced: Generation,
        holding: Holding,
        replication: int,
        storage: Storage,
    ) -> None:
        generation, addresses = announced.generation, announced.held_by or announced.servers
        self.lineage = announced.lineage
        self.checkpoint = ""
        self.num_rows = self.total_rows = 0
        self._connections = Connections(context, addresses, f"{name}/{generation}", security, generation)
        self.pollables: Sequence[Any] = self._connections.pollables
        self._generation, self._committed, self._storage = generation, announced.committed, storage
        self._num_before, self._num_servers = len(addresses), len(announced.servers)
        self._targets = holding.in_use.shards
        # If the division stays, `in_use` are the shards that this server has lost.
        self._held = holding.present.shards if announced.held_by else {}
        self._sources: dict[int, int] = {}  # shard -> the server that it is copied from, unless this one holds it
        self._states: dict[int, ShardState] = {}  # by shard
        self._asked: set[int] = set()  # shards whose states have not come
        self._parts: dict[_Flow, deque[str]] = {}  # parts that are not copied yet; the first one is being copied
        self._places: dict[_Flow, int] = {}  # the next row of flows within this server
        for shard in (range(self._num_before) if announced.held_by else self._targets) if self._targets else ():
            if shard in self._held:
                self._states[shard] = self._held[shard].describe()
                continue
            holders = holders_of(shard, self._num_before, replication)
            # The coordinator lets servers copy only what another one has.
            self._sources[shard] = next(server for server in holders if server not in announced.missing)
            self._asked.add(shard)
            self._connections.send_to(self._sources[shard], CopyShard(generation, shard))
        if not self._asked:
            self._begin()

    @property
    def is_busy(self) -> bool:
        """Whether `advance` can go on without a message."""
        return bool(self._places)

    def advance(self) -> bool:
        """Handle the next answer, if one has arrived, or copy some rows within this server.

        Returns:
            Whether all is copied.

        Raises:
            ProtocolError: an answer is wrong, or a connection broke.
            StorageError, DamagedError: the checkpoint of a generation that had not begun cannot be read.
        """
        received = self._connections.receive_from()
        if received is not None:
            self._take(*received)
        elif self._connections.broke():
            raise ProtocolError("the connection to another parameter server broke while its rows were copied")
        elif self._places:
            self._copy_within(next(iter(self._places)))
        self._connections.probe()
        return not self._asked and not self._parts

    def close(self) -> None:
        """Drop the connections."""
        self._connections.close()

    def _take(self, server: int, message: Message) -> None:
        match message:
            case ShardState(shard=shard) if shard in self._asked and self._sources[shard] == server:
                self._states[shard] = message
                self._asked.remove(shard)
                if not self._asked:
                    self._begin()
            case ShardRows(shard=shard, target=target, part=part) if self._expects(server, _Flow(shard, target), part):
                # The other server copies the next rows while this one stores these.
                self._go_on(_Flow(shard, target), message.next)
                self._store(message)
            case _:
                raise ProtocolError(f"server {server} sent an unexpected {message.op!r} message")

    def _expects(self, server: int, flow: _Flow, part: str) -> bool:
        parts = self._parts.get(flow)
        return parts is not None and parts[0] == part and self._sources.get(flow.shard) == server

    def _begin(self) -> None:
        """Begin with the shards, whose rows are all that is left to copy."""
        try:
            if self._num_before == self._num_servers:
                for shard, target in self._targets.items():
                    self.checkpoint = self._states[shard].checkpoint
                    target.begin_copy(self._states[shard], self._committed, self._storage)
            elif self._targets:
                whole = WholeState(self._states.values())
                tables = {table.index: table for state in self._states.values() for table in state.tables}
                for index, target in self._targets.items():
                    before = self._held.get(index)
                    target.begin_division(whole, tables.values(), before, self._committed, self._storage)
            for index, target in self._targets.items():
                expected: dict[str, int] = {}
                for shard in sorted(overlapping_servers(index, self._num_servers, self._num_before)):
                    if shard != index or index not in self._held:  # otherwise the rows are there
                        self._plan(_Flow(shard, index), expected)
                target.reserve(expected)
                self.total_rows += sum(expected.values())
        except ValueError as error:
            raise ProtocolError(f"the state of other servers cannot be copied: {error}") from error
        self._states.clear()

    def _plan(self, flow: _Flow, expected: dict[str, int]) -> None:
        """Ask for the rows of a shard, and add to how many are expected of each part."""
        share = share_of_slots(flow.shard, self._num_before, flow.target, self._num_servers)
        margin = 1.0 if share == 1.0 else _MARGIN
        parts = deque(name for name, count in self._states[flow.shard].parts.items() if count)
        for name in parts:
            expected[name] = expected.get(name, 0) + int(margin * share * self._states[flow.shard].parts[name])
        if parts:
            self._parts[flow] = parts
            self._ask_for_rows(flow, 0)

    def _go_on(self, flow: _Flow, following: int) -> None:
        """Ask for the next rows; if there are none left, all of this flow is copied."""
        self._places.pop(flow, None)
        if following < 0:
            self._parts[flow].popleft()
        if self._parts[flow]:
            self._ask_for_rows(flow, max(following, 0))
        else:
            del self._parts[flow]

    def _ask_for_rows(self, flow: _Flow, start: int) -> None:
        if flow.shard in self._held:
            self._places[flow] = start
        else:
            self._connections.send_to(self._sources[flow.shard], self._request(flow, start))

    def _request(self, flow: _Flow, start: int) -> CopyRows:
        return CopyRows(self._generation, flow.shard, flow.target, self._num_servers, self._parts[flow][0], start)

    def _copy_within(self, flow: _Flow) -> None:
        rows = answer(self._held[flow.shard], self._request(flow, self._places[flow]))
        assert isinstance(rows, ShardRows)
        self._go_on(flow, rows.next)
        self._store(rows)

    def _store(self, rows: ShardRows) -> None:
        try:
            self._targets[rows.target].take_rows(rows.part, rows.keys, rows.columns)
        except ValueError as error:
            raise ProtocolError(f"rows of shard {rows.shard} cannot be copied: {error}") from error
        self.num_rows += len(rows.keys)
