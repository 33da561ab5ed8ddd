"""A server copies the state that it lacks from the memory of others, at the beginning of a generation.

Either it has lost its shards, which others hold, too; or the number of servers changes, and it gets parts of their
shards. No step is committed meanwhile: the generation goes on when all members are ready. So the rows of a shard can be
sent one piece after another, without a note of what was sent.

Shards that a server is to have in addition can be copied ahead, while the generation before trains. The others note
what changes and what they remove. That is copied in further rounds, and at the beginning of the generation.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import zmq

from heterps_runtime.checkpoint import Storage
from heterps_runtime.errors import ProtocolError
from heterps_runtime.partition.copies import holders_of
from heterps_runtime.ps.division import WholeState
from heterps_runtime.ps.holding import Ahead, Holding, Origin
from heterps_runtime.ps.shard import Shard
from heterps_runtime.slots import overlapping_servers, share_of_slots, slot_map
from heterps_runtime.store.index import MAX_ROWS
from heterps_runtime.store.keys import shard_of
from heterps_runtime.store.notes import ALL
from heterps_runtime.wire.messages import CopyAhead, CopyRows, CopyShard, Generation, Message, ShardRows, ShardState
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.transport import Connections

__all__ = ["Recovery", "answer", "reserve"]

_MARGIN = 1.02  # the rows of some slots are not exactly their share
_AHEAD = 8  # room is made for so many times the rows that have come: a wrong number of rows must not take all memory


def answer(shard: Shard, request: CopyShard | CopyRows) -> ShardState | ShardRows:
    """What a server that holds a shard sends to one that copies it.

    Raises:
        ProtocolError: the request does not fit the shard.
    """
    if isinstance(request, CopyShard):
        return shard.note() if request.note else shard.describe()
    try:
        rows, wanted = shard.part(request.part), shard.filter_of(request.target, request.num_servers)
        removed, kept = np.empty(0, np.int64), request.since == ALL or rows.notes.keeps(request.since)
        if kept and request.since != ALL and request.start == 0:
            removed = rows.notes.removed_after(request.since)
            removed = removed if wanted is None else removed[wanted(removed)]
        chunk, following = rows.copy_from(request.start, wanted, request.since) if kept else (rows.new_chunk(0), -1)
    except ValueError as error:
        raise ProtocolError(f"a server sent a wrong {request.op} request: {error}") from error
    return ShardRows(request.shard, request.target, request.part, following, chunk.keys, chunk.columns, removed, kept)


def _check_rows(states: Collection[ShardState]) -> None:
    """Check that shards of one job can have these tables and numbers of rows.

    Raises:
        ValueError: they cannot.
    """
    tables = {table for state in states for table in state.tables}
    for what, values in (("index", [table.index for table in tables]), ("name", [table.name for table in tables])):
        if len(set(values)) < len(values):
            raise ValueError(f"tables: two have the same {what}")
    for state in states:
        for part, count in state.parts.items():
            if not 0 <= count <= MAX_ROWS:
                raise ValueError(f"parts: {part} has {count} rows, a server has at most {MAX_ROWS}")


def _check_dense(states: Collection[ShardState], target: Shard) -> None:
    """Check that shards of one job can have these dense parameters.

    Raises:
        ValueError: they cannot.
    """
    for state in states:
        # A parameter with the name of state would be taken for that state there.
        if unknown := [name for name in state.dense if "::" in name]:
            raise ValueError(f"dense: {unknown[0]!r} is no name of a parameter")
        target.dense.check_snapshot({name: piece.values for name, piece in state.dense.items()} | state.optimizer)


def reserve(target: Shard, part: str, count: int) -> None:
    """Make room for more rows of a part.

    Raises:
        ValueError: there is no such part, or it cannot have so many rows.
    """
    rows = target.part(part)
    if not 0 <= count <= MAX_ROWS - len(rows):
        raise ValueError(f"{part}: {count} rows beside {len(rows)}, a server has at most {MAX_ROWS}")
    rows.reserve(count)


class _Flow(NamedTuple):
    """Rows of one shard of the present division that another one gets; with the same number, all of them."""

    shard: int
    target: int


@dataclass
class _Progress:
    """How far the rows of a flow are copied."""

    parts: deque[tuple[str, int]]  # that are not copied yet, with their rows; the first one is being copied
    notes: Mapping[str, int]  # by part: only what has changed since then is copied; others: all
    start: int = 0  # place of the first row that is asked for
    copied: int = 0  # rows of the first part


@dataclass
class _Room:
    """How many rows of a part fit into a shard."""

    expected: int = 0
    arrived: int = 0
    reserved: int = 0


class Recovery:
    """What a server copies at the beginning of a generation, or ahead of it.

    Args:
        context, security: of the connections.
        name: of this server.
        announced: the generation, or the order to copy ahead.
        holding: the shards that this server has, and those to fill.
        replication: number of servers that hold each shard.
        storage: of the job's checkpoints.

    Attributes:
        generation: in which it copies.
        lineage: of the state; 0: rows are copied ahead.
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
        announced: Generation | CopyAhead,
        holding: Holding,
        replication: int,
        storage: Storage,
    ) -> None:
        generation, addresses = announced.generation, announced.held_by or announced.servers
        self.checkpoint = ""
        self.lineage = self.num_rows = self.total_rows = self._committed = 0
        self.generation, self._holding, self._storage = generation, holding, storage
        self._num_before, self._num_servers = len(addresses), len(announced.servers)
        # If the division stays, `in_use` are the shards that this server has lost.
        self._held = holding.present.shards if announced.held_by else {}
        self._ahead: Ahead | None = None  # is being copied
        self._copied: Ahead | None = None  # was copied, so that only what has changed since then is
        self._origins: dict[int, Origin] = {}  # of what is copied ahead now
        missing: Collection[int] = ()
        if isinstance(announced, CopyAhead):
            self._ahead = holding.begin_ahead(generation, self._num_before, self._num_servers)
            self._targets = self._ahead.shards
            wanted = {shard for target in self._targets for shard in self._sources_of(target)}
            identity = f"{name}/{generation}/{secrets.token_hex(8)}"  # it may have copied before in this generation
        else:
            self.lineage, self._committed, missing = announced.lineage, announced.committed, announced.missing
            self._copied = holding.copied_ahead(generation, self._num_before, self._num_servers)
            self._targets = holding.in_use.shards
            wanted = set(range(self._num_before)) if announced.held_by else set(self._targets)
            identity = f"{name}/{generation}"
        self._connections = Connections(context, addresses, identity, security, generation)
        self.pollables: Sequence[Any] = self._connections.pollables
        self._sources: dict[int, int] = {}  # shard -> the server that it is copied from
        self._states: dict[int, ShardState] = {}  # by shard
        self._asked: set[int] = set()  # shards whose states have not come
        self._flows: dict[_Flow, _Progress] = {}  # that are not copied yet
        self._within: deque[_Flow] = deque()  # those within this server
        self._rooms: dict[tuple[int, str], _Room] = {}  # by shard that gets rows, and part
        for shard in sorted(wanted) if self._targets else ():
            request = CopyShard(generation, shard, note=self._ahead is not None)
            if shard in self._held:
                self._sources[shard] = holding.index
                state = answer(self._held[shard], request)
                assert isinstance(state, ShardState)
                self._states[shard] = state
                continue
            holders = holders_of(shard, self._num_before, replication)
            # The coordinator lets servers copy only what another one has.
            self._sources[shard] = next(server for server in holders if server not in missing)
            self._asked.add(shard)
            self._connections.send_to(self._sources[shard], request)
        self._begun = False

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
        if not (self._begun or self._asked):
            self._begin()
        received = self._connections.receive_from()
        if received is not None:
            self._take(*received)
        elif self._connections.broke():
            raise ProtocolError("the connection to another parameter server broke while its rows were copied")
        elif self._within:
            self._copy_within(self._within.popleft())
        self._connections.probe()
        done = not self._asked and not self._flows
        if done and self._ahead is not None:  # not before: what was copied in a round that fails is copied again
            self._ahead.origins |= self._origins
            self._ahead.complete = True
        return done

    @property
    def progress(self) -> str:
        """How many rows are copied, for people."""
        return f"{self.num_rows:,} of {self.total_rows:,}" if self.total_rows else f"{self.num_rows:,}"

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
        if not rows.kept:
            raise ProtocolError(f"{where}: it is no longer known which ones have changed")
        if rows.keys.ndim != 1 or rows.keys.dtype != np.int64:
            raise ProtocolError(f"{where} have {rows.keys.dtype} {list(rows.keys.shape)} as keys")
        if rows.next != -1 and not progress.start < rows.next <= MAX_ROWS:
            raise ProtocolError(f"{where} from {progress.start} on are followed by those from {rows.next} on")
        copied = progress.copied + len(rows.keys)
        # While the division changes, a server adds rows to those that it is asked for, and may send some of them, too.
        settled = self._num_before == self._num_servers
        if settled and (copied > expected or (rows.next == -1 and copied < expected)):
            raise ProtocolError(f"{where} in {rows.part!r} are {copied}, not {expected} as it said before")
        if rows.removed.ndim != 1 or rows.removed.dtype != np.int64:
            raise ProtocolError(
                f"{where} have {rows.removed.dtype} {list(rows.removed.shape)} as keys that were removed"
            )
        if len(rows.removed) and rows.part not in progress.notes:
            raise ProtocolError(f"{where} have keys that were removed, and all rows of {rows.part!r} were asked for")
        for keys in (rows.keys, rows.removed):
            # Those of this server train on meanwhile.
            if self._ahead is not None and (shard_of(keys, slot_map(self._num_before)) != rows.shard).any():
                raise ProtocolError(f"{where} are not all of that shard")
            if (shard_of(keys, slot_map(self._num_servers)) != rows.target).any():
                raise ProtocolError(f"{where} are not all of shard {rows.target}")

    def _begin(self) -> None:
        """Begin with the shards, whose rows are all that is left to copy."""
        self._begun = True
        try:
            _check_rows(self._states.values())
            for target in self._targets.values() if self._ahead is None else ():
                _check_dense(self._states.values(), target)
            tables = {table.index: table for state in self._states.values() for table in state.tables}
            notes = self._notes()
            if self._ahead is not None:
                for index, target in self._targets.items():
                    if index in self._held:  # this shard adds its rows to those of the present one, which trains on
                        target.stores.update(self._held[index].stores)
                    if self._states:
                        target.define(tables.values(), {}, {})
            elif self._num_before == self._num_servers:
                for shard, target in self._targets.items():
                    self.checkpoint = self._states[shard].checkpoint
                    target.begin_copy(self._states[shard], self._committed, self._storage)
            elif self._targets:
                whole = WholeState(self._states.values())
                for index, target in self._targets.items():
                    before = (self._copied.shards if self._copied else self._held).get(index)
                    target.begin_division(whole, tables.values(), before, self._committed, self._storage)
            for index, target in self._targets.items():
                for shard in self._sources_of(index):
                    self._plan(_Flow(shard, index), notes.get(shard, {}))
                for part in (part for shard, part in self._rooms if shard == index):
                    reserve(target, part, 0)
        except (ValueError, MemoryError) as error:  # there is no memory for rows of an impossible length
            raise ProtocolError(f"the state of other servers cannot be copied: {error}") from error
        self.total_rows = sum(room.expected for room in self._rooms.values())
        if self._ahead is not None:
            for shard, state in self._states.items():
                # A part without a new note, because no number was left for it, still has the one before.
                self._origins[shard] = Origin(self._sources[shard], {**notes.get(shard, {}), **state.notes})
        self._states.clear()

    def _sources_of(self, target: int) -> list[int]:
        """The shards of the division before that have rows which this server lacks of another one."""
        shards = overlapping_servers(target, self._num_servers, self._num_before)
        return sorted(shards - {target} if target in self._held else shards)

    def _notes(self) -> dict[int, Mapping[str, int]]:
        """The notes of the shards that were copied ahead.

        If some are not kept, a generation uses nothing of the copy. A further round fails if they are needed.
        """
        if self._ahead is not None:
            return {shard: origin.notes for shard, origin in self._ahead.origins.items()}
        origins = self._copied.origins if self._copied else {}
        for shard, origin in origins.items():
            state = self._states[shard]
            kept = all(n in state.notes and origin.notes.get(n, ALL) >= state.notes[n] for n in state.parts)
            if origin.server != self._sources[shard] or not kept:
                self._copied = None
                self._holding.drop_ahead()
                return {}
        return {shard: origin.notes for shard, origin in origins.items()}

    def _plan(self, flow: _Flow, notes: Mapping[str, int]) -> None:
        """Ask for the rows of a shard, and note how many are expected of each part.

        Args:
            flow: from which shard to which.
            notes: by part: what was copied ahead has not changed unless it has since then.
        """
        share = share_of_slots(flow.shard, self._num_before, flow.target, self._num_servers)
        margin = 1.0 if share == 1.0 else _MARGIN
        parts = deque((name, count) for name, count in self._states[flow.shard].parts.items() if count or name in notes)
        for name, count in parts:
            expected = 0 if name in notes else int(margin * share * count)  # how many have changed is not known
            self._rooms.setdefault((flow.target, name), _Room()).expected += expected
        if parts:
            self._flows[flow] = _Progress(parts, notes)
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
        since = progress.notes.get(part, ALL)
        return CopyRows(self.generation, flow.shard, flow.target, self._num_servers, part, progress.start, since)

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
                reserve(target, rows.part, room.reserved - before)
            if len(rows.removed):
                target.part(rows.part).discard(rows.removed)
            target.take_rows(rows.part, rows.keys, rows.columns, ahead=self._ahead is not None)
        except ValueError as error:
            raise ProtocolError(f"rows of shard {rows.shard} cannot be copied: {error}") from error
        self.num_rows += len(rows.keys)
