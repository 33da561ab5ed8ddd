"""Answers of other parameter servers to one that copies its state from them, and what must hold whatever they say."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from pyarrow import fs

from heterps_runtime.checkpoint import DamagedError
from heterps_runtime.errors import ProtocolError
from heterps_runtime.partition.copies import shards_of
from heterps_runtime.partition.pieces import DensePiece
from heterps_runtime.partition.tables import Table
from heterps_runtime.ps import recovery as recovery_module
from heterps_runtime.ps.gradients import Gradients
from heterps_runtime.ps.holding import Division, Holding, Origin
from heterps_runtime.ps.recovery import Recovery, answer
from heterps_runtime.ps.shard import Shard
from heterps_runtime.slots import slot_map
from heterps_runtime.storage import Storage, StorageError
from heterps_runtime.store import keyed
from heterps_runtime.store.keys import shard_of
from heterps_runtime.store.team import ALONE
from heterps_runtime.wire.codec import decode, encode
from heterps_runtime.wire.messages import MESSAGES, CopyAhead, CopyRows, CopyShard, Message, ShardRows, ShardState
from heterps_runtime.wire.sequence import Stamp
from tests.fuzz.targets.doubles import replaced
from tests.heterps_runtime.helpers.coordinator_world import World

__all__ = ["CHECKPOINT", "WORLDS", "Copying", "feed", "play", "regular"]

_MANIFEST = next((Path(__file__).parents[2] / "fixtures" / "v1" / "checkpoints").glob("step-*/manifest.json"))
CHECKPOINT = _MANIFEST.parent.name


@dataclass(frozen=True)
class Change:
    """What happens to the servers of a job, as one of them sees it."""

    index: int  # of this server
    before: int  # number of servers that have the state
    after: int
    replication: int
    missing: tuple[int, ...]  # servers that have lost their state
    ahead: str = ""  # that the server copies ahead of the change, or "again", or "copied": it has; empty: neither


WORLDS = (
    Change(0, 2, 2, 2, (0,)),  # it copies both of its shards from the other one
    Change(1, 1, 2, 1, (1,)),  # it is new
    Change(0, 3, 2, 2, (1,)),  # it gets parts of shards, also of those that it has
    Change(1, 1, 2, 1, (1,), "copies"),  # it will be new
    Change(1, 1, 2, 1, (1,), "copied"),  # it is new, and has the rows of before
    Change(0, 2, 1, 1, (), "copies"),  # it will have all, and trains
    Change(0, 2, 1, 1, (), "again"),  # the same, in another round
)
_TABLES = (Table(0, "small", 1 << 20, 3, None), Table(1, "large", 1 << 20, 4, 0))
_RULES = ({"name": "large", "admission": {"minSteps": 2}, "eviction": {"unusedSteps": 9}},)
_STEPS, _WIDTH = 2, 5
_ENTRIES = 300  # of a conversation
_ARRAY_BYTES = 1 << 16  # of a message
_PIECE_ROWS = 8
_AHEAD = 16  # times the rows that have come, for which there may be room: twice of `recovery`, as memory doubles
_LEAST_ROOM = 4096  # rows, of an empty store
_DTYPES = frozenset(
    {"bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)), "float32", "float64"}
)


class _Peers:
    """The connections to the other servers; what these say is put into them."""

    pollables = ()

    def __init__(self) -> None:
        self.asked: deque[tuple[int, CopyShard | CopyRows]] = deque()
        self.said: deque[tuple[int, Message]] = deque()

    def send_to(self, index: int, request: Any) -> None:
        self.asked.append((index, request))

    def receive_from(self) -> tuple[int, Message] | None:
        return self.said.popleft() if self.said else None

    def broke(self) -> bool:
        return False

    def probe(self) -> None:
        return None

    def close(self) -> None:
        return None


class Copying:
    """A server that copies what it lacks, without sockets."""

    def __init__(self, number: int) -> None:
        self.change = change = WORLDS[number]
        self.peers = _Peers()
        self.arrived = 0  # rows that others have sent
        config = _config(change)
        self.holding = Holding(config, change.index, None)
        if change.index not in change.missing:
            held = shards_of(change.index, change.before, change.replication)
            self.holding.present = Division(change.before, {i: _copy(number, i) for i in held}, complete=True)
        missing = change.index in change.missing
        servers = tuple(map(str, range(change.after)))
        held_by = tuple(map(str, range(change.before))) if change.before != change.after else ()
        announced: Any = _Announced(servers, held_by, change.missing)
        self.copies_ahead = change.ahead in ("copies", "again")
        self.training = self._rows() if self.copies_ahead else {}  # that copies must not touch
        if change.ahead == "again":
            self._have_copied(number, 1)
        if self.copies_ahead:
            announced = CopyAhead(1, servers, held_by)
        else:
            if change.ahead == "copied":
                self._have_copied(number, 0)
            self.holding.begin_generation(change.after, change.before, 0, missing=missing)
        nothing: Any = None
        with replaced(recovery_module, "Connections", lambda *_: self.peers):
            self.recovery = Recovery(nothing, nothing, "ps", announced, self.holding, change.replication, _storage())

    def _rows(self) -> dict[str, list[bytes]]:
        """Rows of the present shards, by shard and part."""
        found = {}
        for index, shard in self.holding.present.shards.items():
            for part in shard.describe().parts:
                rows = answer(shard, CopyRows(1, index, index, self.change.before, part, 0))
                assert isinstance(rows, ShardRows)
                found[f"{index} {part}"] = [rows.keys.tobytes(), *(v.tobytes() for v in rows.columns.values())]
        return found

    def _have_copied(self, number: int, generation: int) -> None:
        ahead = self.holding.begin_ahead(generation, self.change.before, self.change.after)
        for index, target in ahead.shards.items():
            present = self.holding.present.shards.get(index)
            target.stores.update(present.stores if present else {})
            target.define(_TABLES, {}, {})
            for shard in range(self.change.before):
                if present and shard == index:
                    continue
                state, given = _trained(number, shard)
                ahead.origins[shard] = Origin(shard, dict.fromkeys(state.parts, 1))
                for rows in given:
                    mine = shard_of(rows.keys, slot_map(self.change.after)) == index
                    columns = {name: values[mine] for name, values in rows.columns.items()}
                    target.take_rows(rows.part, rows.keys[mine], columns, ahead=self.copies_ahead)
        ahead.complete = True

    def hear(self, server: int, message: Message) -> bool:
        """Handle what a server says, and copy what is within this one; return whether all is there."""
        self.arrived += len(message.keys) if isinstance(message, ShardRows) and message.keys.ndim else 0
        self.peers.said.append((server, message))
        with replaced(keyed, "rows_of_piece", lambda row_nbytes: _PIECE_ROWS):
            done = self.recovery.advance()
            while not done and self.recovery.is_busy:
                done = self.recovery.advance()
        return done

    def check(self, done: bool) -> None:
        """Compare what is kept with its bounds; if all is there, the server must be able to work with it."""
        ahead = self.holding.ahead.shards if self.holding.ahead and self.copies_ahead else {}
        for shard in (self.holding.in_use.shards | ahead).values():
            for store in shard.stores.values():
                for rows_of in (store, store.candidates):
                    assert rows_of is None or rows_of._keys.capacity <= _LEAST_ROOM + _AHEAD * self.arrived
        if self.copies_ahead:
            assert self._rows() == self.training
        if not done:
            return
        if self.copies_ahead:
            assert self.holding.copied_ahead(2, self.change.before, self.change.after) is not None
            for index, shard in ahead.items():
                for part, copied in shard.parts.items():
                    copied.accept()
                    rows = answer(shard, CopyRows(1, index, index, self.change.after, part, 0))
                    assert isinstance(rows, ShardRows)
                    assert (shard_of(rows.keys, slot_map(self.change.after)) == index).all()
            return
        self.holding.note_complete()
        self.holding.finish_change()
        self.holding.finish_dropping()
        assert self.holding.committed == _STEPS
        for index, shard in self.holding.in_use.shards.items():
            described = answer(shard, CopyShard(1, index))
            assert isinstance(described, ShardState)
            encode(described, Stamp(1, 1))
            for part, count in described.parts.items():
                rows = answer(shard, CopyRows(1, index, index, self.change.after, part, 0))
                assert isinstance(rows, ShardRows)
                assert (shard_of(rows.keys, slot_map(self.change.after)) == index).all()
                assert rows.next >= 0 or len(rows.keys) == count
            shard.dense.load(shard.dense.snapshot())
            shard.commit_dense(_STEPS, 1)
            shard.commit_rows(_STEPS, 1)


@dataclass(frozen=True)
class _Announced:
    """What a server reads of a `Generation`."""

    servers: tuple[str, ...]
    held_by: tuple[str, ...]
    missing: tuple[int, ...]
    generation: int = 1
    lineage: int = 1
    committed: int = _STEPS


@cache
def _storage() -> Storage:
    """The storage of the job's checkpoints, with one of which others may say that it has what is not defined yet."""
    storage = Storage(fs._MockFileSystem(), "c", "mock://c")
    storage.write_atomic(f"{CHECKPOINT}/{_MANIFEST.name}", _MANIFEST.read_bytes())
    return storage


@cache
def _config(change: Change) -> Any:
    config = World([("cpu", 0, 1)], change.before).config
    optimizers = {"name": "adam", "learningRate": "0.1"}, {"name": "adagrad", "learningRate": "0.1"}
    return replace(
        config, dense_optimizer=optimizers[0], sparse_optimizer=optimizers[1], tables=_RULES,
        replication=change.replication,
    )  # fmt: skip


@cache
def _trained(number: int, index: int) -> tuple[ShardState, tuple[ShardRows, ...]]:
    """A shard of the division before, as the answers that a copy of it is made of."""
    change = WORLDS[number]
    shard = Shard(_config(change), index)
    shard.begin_generation(change.before)
    shard.reset(_storage(), None)
    start, stop = (_WIDTH * i // change.before for i in (index, index + 1))
    pieces = {"top.weight": DensePiece(start, (1, _WIDTH), np.linspace(0.0, 1.0, _WIDTH, dtype=np.float32)[start:stop])}
    shard.define(_TABLES, pieces, {"mean": np.full((2, 1), 0.5, np.float32)} if index == 0 else {})
    for step in range(_STEPS):
        chunks = []
        for table, count in ((_TABLES[0], 30), (_TABLES[1], 18 + 6 * step)):
            keys = np.arange(count, dtype=np.int64) | np.int64(table.index << 48)
            keys = keys[shard_of(keys, slot_map(change.before)) == index]
            chunks.append((table.dim, keys, np.full((len(keys), table.dim), 0.5, np.float32)))
        gradients = {"top.weight": np.full(stop - start, 0.25, np.float32)}
        shard.push(step, "worker-0-0", Gradients(tuple(chunks), gradients, {}))
        shard.commit_dense(step, 1)
        shard.commit_rows(step, 1)
    state = answer(shard, CopyShard(1, index))
    assert isinstance(state, ShardState)
    rows = []
    for part in state.parts:
        start = 0
        while start >= 0:
            given = answer(shard, CopyRows(1, index, index, change.before, part, start))
            assert isinstance(given, ShardRows)
            rows.append(given)
            start = given.next
    return state, tuple(rows)


def _copy(number: int, index: int) -> Shard:
    state, rows = _trained(number, index)
    shard = Shard(_config(WORLDS[number]), index)
    shard.begin_generation(WORLDS[number].before)
    shard.begin_copy(state, _STEPS, _storage())
    for one in rows:
        shard.take_rows(one.part, one.keys, one.columns)
    return shard


def play(document: Any) -> None:
    """Let other servers say what a document says.

    Args:
        document: `{"world": N, "entries": [...]}`. An entry is `[server, header, contents]`: the header
            of a message, and the elements of each of its arrays, which are repeated.
    """
    if not isinstance(document, dict) or not isinstance(entries := document.get("entries"), list):
        return
    world = document.get("world")
    copying, done = Copying(world if type(world) is int and 0 <= world < len(WORLDS) else 0), False
    with contextlib.suppress(ProtocolError, StorageError, DamagedError):
        done = feed(copying, entries)
    copying.check(done)


def feed(copying: Copying, entries: Sequence[Any]) -> bool:
    """Let other servers say what entries say (see `play`); return whether all is copied.

    Raises:
        ProtocolError, StorageError, DamagedError: as of `Recovery`.
    """
    for entry in entries[:_ENTRIES]:
        if not isinstance(entry, list) or len(entry) != 3 or type(entry[0]) is not int:
            continue
        message = _message(*entry[1:])
        if message is not None and copying.hear(entry[0], message):
            return True
    return False


def _message(header: Any, contents: Any) -> Message | None:
    """A message with this header and the elements of its arrays; None: it is malformed."""
    op = header.get("op") if isinstance(header, dict) else None
    kind = MESSAGES.get(op) if isinstance(op, str) else None
    if kind is None or not isinstance(contents, list):
        return None
    given = iter(contents)
    arrays = [_bytes_of(described, next(given, None)) for described in _arrays([header.get(n) for n in _fields(kind)])]
    frames = [json.dumps(header).encode(), *arrays]
    checksum, stamp = xxhash.xxh3_64(bytes(16)), bytes(16)
    for frame in frames:
        checksum.update(frame)
    try:
        return decode([checksum.digest() + stamp, *frames])
    except ProtocolError:
        return None


def _fields(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


def _arrays(value: Any) -> Iterator[list[Any]]:
    """The descriptions of arrays in a header, `[dtype, shape]` each, in the order of their frames."""
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and value[0] in _DTYPES:
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _arrays(item)


def _bytes_of(described: list[Any], elements: Any) -> bytes:
    dtype, shape = np.dtype(described[0]), described[1]
    size = 1
    for length in shape if isinstance(shape, list) else ():
        size *= length if type(length) is int and 0 <= length <= _ARRAY_BYTES else _ARRAY_BYTES
        size = min(size, _ARRAY_BYTES // dtype.itemsize)
    try:
        with np.errstate(all="ignore"):
            values = np.resize(np.array(elements if isinstance(elements, list) and elements else [0], dtype), size)
    except (ValueError, TypeError, OverflowError):
        values = np.zeros(size, dtype)
    return values.tobytes()


def regular(number: int, checkpoint: str = "") -> dict[str, Any]:
    """What the other servers say when all goes well.

    Args:
        number: of the world.
        checkpoint: folder of the checkpoint with what is not defined yet.
    """
    entries = []
    copying, done = Copying(number), False
    shards = {index: _copy(number, index) for index in range(WORLDS[number].before)}
    if WORLDS[number].ahead in ("copied", "again"):
        for shard in shards.values():
            assert set(shard.note().notes.values()) == {1}
            for store in shard.stores.values():
                store.remove(np.arange(4, dtype=np.int32))
                if WORLDS[number].ahead == "again":
                    store.changes.touch(np.arange(4, 8, dtype=np.int32), ALONE)
    while not done:
        server, request = copying.peers.asked.popleft()
        with replaced(keyed, "rows_of_piece", lambda row_nbytes: _PIECE_ROWS):
            message = answer(shards[request.shard], request)
        if isinstance(message, ShardState):
            message = replace(message, checkpoint=checkpoint)
        _, header, *frames = encode(message, Stamp(1, 1))
        described = json.loads(header)
        order = _arrays([described.get(name) for name in _fields(type(message))])
        contents = [np.frombuffer(f, kind).tolist() for f, (kind, _) in zip(frames, order, strict=True)]
        entries.append([server, described, contents])
        done = copying.hear(server, message)
    copying.check(done)
    return {"world": number, "entries": entries}
