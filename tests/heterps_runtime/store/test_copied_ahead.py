"""Rows that were copied ahead of a change count for nothing until they are accepted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heterps_runtime.ps.recovery import answer
from heterps_runtime.store.changes import MAX_SNAPSHOTS
from heterps_runtime.store.keyed import KeyedRows
from heterps_runtime.wire.messages import CopyRows, ShardRows
from tests.heterps_runtime.helpers.servers import Rows, Server, rows_of

RULES = [{"name": "large", "admission": {"minSteps": 2, "unusedSteps": 5}, "eviction": {"unusedSteps": 6}}]
AWAY = 500  # first id of the rows of another server


def _trained(folder: Path) -> Server:
    server = Server(folder, rules=RULES)
    for step in range(8):
        server.train(range(step, step + 30), range(3 * step, 3 * step + 12))
    return server


def _give(server: Server, folder: Path) -> int:
    """Give a server the rows and candidates of another one ahead; return their number."""
    other = Server(folder, rules=RULES)
    for step in range(8):
        other.train(range(AWAY, AWAY + 20), range(AWAY + 3 * step, AWAY + 3 * step + 12))
    given = 0
    for part in other.shard.parts:
        rows = answer(other.shard, CopyRows(1, 0, 0, 1, part, 0))
        assert isinstance(rows, ShardRows)
        server.shard.take_rows(part, rows.keys, rows.columns, ahead=True)
        given += len(rows.keys)
    return given


def _visible(server: Server) -> Rows:
    """What another server would copy."""
    found: Rows = {}
    for number, part in enumerate(server.shard.parts):
        rows = answer(server.shard, CopyRows(1, 0, 0, 1, part, 0))
        assert isinstance(rows, ShardRows)
        for i, key in enumerate(rows.keys.tolist()):
            found[(number << 60) + key] = [values[i].tolist() for values in rows.columns.values()]
    return found


def _parts(server: Server) -> list[KeyedRows]:
    return list(server.shard.parts.values())


def test_they_are_neither_counted_nor_copied_nor_saved(tmp_path: Path) -> None:
    plain, server = _trained(tmp_path / "plain"), _trained(tmp_path / "server")
    assert _give(server, tmp_path / "other") > 20
    assert _visible(server) == _visible(plain)
    assert server.shard.describe().parts == plain.shard.describe().parts
    assert server.shard.num_rows == plain.shard.num_rows
    for each in (plain, server):
        each.write()
        each.train(range(3))
        each.write()  # an increment, if it pays
        each.train(range(40), range(30, 50))
    assert _visible(server) == _visible(plain)
    for one, other in zip(_parts(server), _parts(plain), strict=True):
        for since in (None, 0, 1, 2):
            assert one.count_changed(since) == other.count_changed(since)


def test_a_checkpoint_has_the_rows_of_the_server_only(tmp_path: Path) -> None:
    server = _trained(tmp_path / "server")
    expected = rows_of(server.shard)
    _give(server, tmp_path / "other")
    manifest = server.write()
    server.restore(manifest)
    assert rows_of(server.shard) == expected


def test_they_stay_while_rows_of_the_server_go(tmp_path: Path) -> None:
    """The server that they come from evicts them when their time has come there."""
    server = _trained(tmp_path / "server")
    given = _give(server, tmp_path / "other")
    before = len(rows_of(server.shard))
    for _ in range(30):
        server.train(range(3))
    for part in _parts(server):
        part.accept()
    ids = [max(key, -1 - key) & ((1 << 48) - 1) for key in rows_of(server.shard)]
    assert sum(i < AWAY for i in ids) < before
    assert sum(i >= AWAY for i in ids) == given


def test_those_that_are_dropped_leave_no_trace(tmp_path: Path) -> None:
    server = _trained(tmp_path / "server")
    expected = rows_of(server.shard)
    _give(server, tmp_path / "other")
    for part in _parts(server):
        part.drop_ahead()
        part.accept()
    assert rows_of(server.shard) == expected


def test_accepted_ones_are_the_servers(tmp_path: Path) -> None:
    server = _trained(tmp_path / "server")
    own = server.shard.describe().parts
    given = _give(server, tmp_path / "other")
    for part in _parts(server):
        part.accept()
        part.drop_ahead()
    assert sum(server.shard.describe().parts.values()) == sum(own.values()) + given
    assert len(_visible(server)) == len(rows_of(server.shard)) == sum(own.values()) + given


@pytest.mark.parametrize("accepted", [False, True])
def test_snapshots_that_are_counted_anew_leave_them_what_they_are(tmp_path: Path, *, accepted: bool) -> None:
    server = _trained(tmp_path / "server")
    own = server.shard.num_rows
    _give(server, tmp_path / "other")
    store = server.shard.stores[3]
    store.changes.now = MAX_SNAPSHOTS + 1
    number, _ = store.begin_snapshot()
    assert number == 1
    store.end_snapshot()
    if accepted:
        store.accept()
    store.drop_ahead()
    assert (server.shard.num_rows == own) != accepted


def test_a_second_copy_of_the_same_row_counts_once(tmp_path: Path) -> None:
    server = _trained(tmp_path / "server")
    own = rows_of(server.shard)
    for name in ("other", "again"):
        _give(server, tmp_path / name)
    for part in _parts(server):
        part.discard(np.arange(AWAY, AWAY + 5, dtype=np.int64))
        part.drop_ahead()
    assert rows_of(server.shard) == own
    assert sum(server.shard.describe().parts.values()) == len(own)
