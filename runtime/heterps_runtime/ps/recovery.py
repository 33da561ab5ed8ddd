"""A server copies the state that it lacks from the memory of others, at the beginning of a generation.

Either it has lost its shards, which others hold, too; or the number of servers changes, and it gets parts of their
shards. No step is committed meanwhile: the generation goes on when all members are ready. So the rows of a shard can be
sent one piece after another, without a note of what was sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import zmq

from heterps_runtime.checkpoint import Storage
from heterps_runtime.errors import ProtocolError
from heterps_runtime.partition.copies import holders_of
from heterps_runtime.ps.division import WholeState
from heterps_runtime.ps.holding import Holding
from heterps_runtime.ps.shard import Shard
from heterps_runtime.slots import overlapping_servers, share_of_slots, slot_map
from heterps_runtime.store.index import MAX_ROWS
from heterps_runtime.store.keys import shard_of
from heterps_runtime.wire.messages import CopyRows, CopyShard, Generation, Message, ShardRows, ShardState
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.transport import Connections

__all__ = ["Recovery", "answer"]

_MARGIN = 1.02  # the rows of some slots are not exactly their share
_AHEAD = 8  # room is made for so many times the rows that have come: a wrong number of rows must not take all memory


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


def _check_states(states: Collection[ShardState], target: Shard) -> None:
    """Check that shards of one job can have these states.

    Raises:
        ValueError: they cannot.
    """
    tables = {table for state in states for table in state.tables}
    for what, values in (("index", [table.index for table in tables]), ("name", [table.name for table in tables])):
        if len(set(values)) < len(values):
            raise ValueError(f"tables: two have the same {what}")
    for state in states:
        # A parameter with the name of state would be taken for that state there.
        if unknown := [name for name in state.dense if "::" in name]:
            raise ValueError(f"dense: {unknown[0]!r} is no name of a parameter")
        target.dense.check_snapshot({name: piece.values for name, piece in state.dense.items()} | state.optimizer)
        for part, count in state.parts.items():
            if not 0 <= count <= MAX_ROWS:
                raise ValueError(f"parts: {part} has {count} rows, a server has at most {MAX_ROWS}")


class _Flow(NamedTuple):
    """Rows of one shard of the present division that another one gets; with the same number, all of them."""

    shard: int
    target: int


@dataclass
class _Progress:
    """How far the rows of a flow are copied."""

    parts: deque[tuple[str, int]]  # that are not copied yet, with their rows; the first one is being copied
    start: int = 0  # place of the first row that is asked for
    copied: int = 0  # rows of the first part


@dataclass
class _Room:
    """How many rows of a part fit into a shard."""

    expected: int = 0
    arrived: int = 0
    reserved: int = 0


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
        self._flows: dict[_Flow, _Progress] = {}  # that are not copied yet
        self._within: deque[_Flow] = deque()  # those within this server
        self._rooms: dict[tuple[int, str], _Room] = {}  # by shard that gets rows, and part
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
        return bool(self._within)

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
        elif self._within:
            self._copy_within(self._within.popleft())
        self._connections.probe()
        return not self._asked and not self._flows

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
                self._check(message)
                # The other server copies the next rows while this one stores these.
                self._go_on(_Flow(shard, target), message)
                self._store(message)
            case _:
                raise ProtocolError(f"server {server} sent an unexpected {message.op!r} message")

    def _expects(self, server: int, flow: _Flow, part: str) -> bool:
        progress = self._flows.get(flow)
        return progress is not None and progress.parts[0][0] == part and self._sources.get(flow.shard) == server

    def _check(self, rows: ShardRows) -> None:
        """Check that rows are some of those that were asked for, and that what follows them brings the copy on.

        Raises:
            ProtocolError: they are not.
        """
        progress = self._flows[_Flow(rows.shard, rows.target)]
        where, expected = f"rows of shard {rows.shard}", progress.parts[0][1]
        if rows.keys.ndim != 1 or rows.keys.dtype != np.int64:
            raise ProtocolError(f"{where} have {rows.keys.dtype} {list(rows.keys.shape)} as keys")
        if rows.next != -1 and not progress.start < rows.next <= MAX_ROWS:
            raise ProtocolError(f"{where} from {progress.start} on are followed by those from {rows.next} on")
        copied = progress.copied + len(rows.keys)
        # While the division changes, a server adds rows to those that it is asked for, and may send some of them, too.
        settled = self._num_before == self._num_servers
        if settled and (copied > expected or (rows.next == -1 and copied < expected)):
            raise ProtocolError(f"{where} in {rows.part!r} are {copied}, not {expected} as it said before")
        if (shard_of(rows.keys, slot_map(self._num_servers)) != rows.target).any():
            raise ProtocolError(f"{where} are not all of shard {rows.target}")

    def _begin(self) -> None:
        """Begin with the shards, whose rows are all that is left to copy."""
        try:
            for target in self._targets.values():
                _check_states(self._states.values(), target)
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
                for shard in sorted(overlapping_servers(index, self._num_servers, self._num_before)):
                    if shard != index or index not in self._held:  # otherwise the rows are there
                        self._plan(_Flow(shard, index))
                target.reserve({part: 0 for shard, part in self._rooms if shard == index})
        except (ValueError, MemoryError) as error:  # there is no memory for rows of an impossible length
            raise ProtocolError(f"the state of other servers cannot be copied: {error}") from error
        self.total_rows = sum(room.expected for room in self._rooms.values())
        self._states.clear()

    def _plan(self, flow: _Flow) -> None:
        """Ask for the rows of a shard, and note how many are expected of each part."""
        share = share_of_slots(flow.shard, self._num_before, flow.target, self._num_servers)
        margin = 1.0 if share == 1.0 else _MARGIN
        parts = deque((name, count) for name, count in self._states[flow.shard].parts.items() if count)
        for name, count in parts:
            self._rooms.setdefault((flow.target, name), _Room()).expected += int(margin * share * count)
        if parts:
            self._flows[flow] = _Progress(parts)
            self._ask_for_rows(flow)

    def _go_on(self, flow: _Flow, rows: ShardRows) -> None:
        """Ask for the rows after some of a flow; if there are none left, all of it is copied."""
        progress = self._flows[flow]
        if rows.next < 0:
            progress.parts.popleft()
            progress.start = progress.copied = 0
        else:
            progress.start = rows.next
            progress.copied += len(rows.keys)
        if progress.parts:
            self._ask_for_rows(flow)
        else:
            del self._flows[flow]

    def _ask_for_rows(self, flow: _Flow) -> None:
        if flow.shard in self._held:
            self._within.append(flow)
        else:
            self._connections.send_to(self._sources[flow.shard], self._request(flow))

    def _request(self, flow: _Flow) -> CopyRows:
        progress = self._flows[flow]
        part, _ = progress.parts[0]
        return CopyRows(self._generation, flow.shard, flow.target, self._num_servers, part, progress.start)

    def _copy_within(self, flow: _Flow) -> None:
        rows = answer(self._held[flow.shard], self._request(flow))
        assert isinstance(rows, ShardRows)
        self._go_on(flow, rows)
        self._store(rows)

    def _store(self, rows: ShardRows) -> None:
        target, room = self._targets[rows.target], self._rooms[rows.target, rows.part]
        before, room.arrived = room.arrived, room.arrived + len(rows.keys)
        try:
            if room.arrived > room.reserved:
                room.reserved = max(room.arrived, min(room.expected, _AHEAD * room.arrived))
                target.reserve({rows.part: room.reserved - before})
            target.take_rows(rows.part, rows.keys, rows.columns)
        except ValueError as error:
            raise ProtocolError(f"rows of shard {rows.shard} cannot be copied: {error}") from error
        self.num_rows += len(rows.keys)
