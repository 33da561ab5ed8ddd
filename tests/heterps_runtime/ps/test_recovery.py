"""A shard that is copied from another server's memory is the same shard, also in what it does from then on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from heterps_runtime.errors import ProtocolError
from heterps_runtime.partition.pieces import DensePiece
from heterps_runtime.ps.recovery import answer
from heterps_runtime.ps.shard import Shard
from heterps_runtime.store import keyed
from heterps_runtime.wire.messages import CopyRows, CopyShard, ShardRows, ShardState
from tests.heterps_runtime.helpers.servers import TABLES, Rows, Server, rows_of

RULES = [{"name": "large", "admission": {"minSteps": 2}, "eviction": {"unusedSteps": 6}}]


def _ask(shard: Shard, request: CopyShard | CopyRows) -> ShardState | ShardRows:
    return answer(shard, request)


def _copy(server: Server) -> tuple[Server, int]:
    """A server with a copy of another one's shard, and the number of messages with rows."""
    copy = Server.__new__(Server)
    copy.__dict__ |= server.__dict__
    copy.shard = Shard(server.config, 0)
    copy.shard.begin_generation(1)
    state = _ask(server.shard, CopyShard(1, 0))
    assert isinstance(state, ShardState)
    copy.shard.begin_copy(state, server.shard.committed, server.storage)
    messages = 0
    for part in state.parts:
        start = 0
        while start >= 0:
            rows = _ask(server.shard, CopyRows(1, 0, 0, 1, part, start))
            assert isinstance(rows, ShardRows)
            copy.shard.take_rows(rows.part, rows.keys, rows.columns)
            start, messages = rows.next, messages + 1
    return copy, messages


def _state(server: Server) -> tuple[Rows, dict[str, list[float]]]:
    dense = {name: np.ravel(values).tolist() for name, values in server.shard.dense.snapshot().items()}
    return rows_of(server.shard), dense


def test_a_copy_goes_on_as_the_original_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With rows, candidates, ages, and the state of the optimizers; rows that were evicted leave no hole."""
    monkeypatch.setattr(keyed, "rows_of_piece", lambda row_nbytes: 8)
    server = Server(tmp_path, rules=RULES)
    for step in range(12):
        server.train(range(step, step + 30), range(3 * step, 3 * step + 12))
    assert len(server.shard.stores[8]) < 12 * 3, "some rows were evicted"
    copy, messages = _copy(server)
    assert messages > 8
    assert _state(copy) == _state(server)
    for step in range(12, 24):
        for each in (server, copy):
            each.train(range(step, step + 30), range(3 * step, 3 * step + 12))
    assert _state(copy) == _state(server)


def test_what_no_worker_has_defined_yet_comes_from_the_same_checkpoint(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.train(range(20), range(9))
    expected = _state(server)
    manifest = server.write()
    server.shard.reset(server.storage, manifest)
    copy, _ = _copy(server)
    assert rows_of(copy.shard) == {}
    for each in (server, copy):
        each.shard.define(TABLES, {"weight": DensePiece(0, (4,), np.full(4, 7.0))}, {})
    assert _state(copy) == _state(server) == expected


def test_the_first_checkpoint_of_a_copy_needs_no_file_of_another_server(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.train(range(20), range(9))
    server.write()
    copy, _ = _copy(server)
    copy.train(range(5))
    manifest = copy.write()
    assert [entry.folder for entry in manifest.files_of("rows")] == [""]


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda: CopyRows(1, 0, 0, 1, "group-5", 0), "must be one of"),
        (lambda: CopyRows(1, 0, 0, 1, "group-3", -1), "must not be negative"),
    ],
)
def test_a_wrong_request_ends_no_server(damage: Callable[[], CopyRows], text: str, tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.train(range(20))
    with pytest.raises(ProtocolError, match=text):
        answer(server.shard, damage())
    beyond = answer(server.shard, CopyRows(1, 0, 0, 1, "group-3", 10**12))
    assert isinstance(beyond, ShardRows)
    assert (len(beyond.keys), beyond.next) == (0, -1)


def test_there_are_no_rows_behind_the_last_one(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.train(range(20))
    for start in (20, 10**12, 10**30):
        rows = _ask(server.shard, CopyRows(1, 0, 0, 1, "group-3", start))
        assert isinstance(rows, ShardRows)
        assert (len(rows.keys), rows.next) == (0, -1)
