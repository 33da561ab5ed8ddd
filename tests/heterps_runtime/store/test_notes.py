"""A copy that is made while rows change, and what has changed since its note, are together the rows at the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heterps_runtime.ps.recovery import answer
from heterps_runtime.ps.shard import Shard
from heterps_runtime.store import keyed, notes
from heterps_runtime.store.changes import MAX_SNAPSHOTS, Changes
from heterps_runtime.store.notes import ALL, Notes
from heterps_runtime.wire.messages import CopyRows, CopyShard, ShardRows, ShardState
from tests.heterps_runtime.helpers.servers import TABLES, Server, rows_of

RULES = [{"name": "large", "admission": {"minSteps": 2, "unusedSteps": 5}, "eviction": {"unusedSteps": 6}}]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "rows_of_piece", lambda row_nbytes: 8)


class _Copy:
    """A store that gets the rows of a server's.

    Attributes:
        notes: by part, what has changed since then is missing.
    """

    def __init__(self, server: Server, target: int = 0, num_servers: int = 1) -> None:
        self._server = server
        self._place = (target, num_servers)
        self.shard = Shard(server.config, target)
        self.shard.begin_generation(num_servers)
        self.shard.define(TABLES, {}, {})
        self.notes = self.take_notes()

    def take_notes(self) -> dict[str, int]:
        """Let the server take new notes."""
        state = answer(self._server.shard, CopyShard(1, 0, note=True))
        assert isinstance(state, ShardState)
        return state.notes

    def take(self, part: str, start: int, since: int = ALL) -> ShardRows:
        rows = answer(self._server.shard, CopyRows(1, 0, *self._place, part, start, since))
        assert isinstance(rows, ShardRows)
        self.shard.part(part).discard(rows.removed)
        self.shard.take_rows(part, rows.keys, rows.columns)
        return rows

    def take_changes(self) -> tuple[int, int]:
        """Take what has changed since the notes; return the numbers of rows and of removed keys."""
        taken = [0, 0]
        for part, note in self.notes.items():
            start = 0
            while start >= 0:
                rows = self.take(part, start, note)
                taken = [taken[0] + len(rows.keys), taken[1] + len(rows.removed)]
                start = rows.next
        return taken[0], taken[1]


def _train(server: Server, steps: range) -> None:
    """Rows of the table `large` come, go when no step uses them, and some come again."""
    for step in steps:
        large = [*range(3 * step, 3 * step + 12), *range(step % 9, step % 9 + 3)]
        server.train(range(step, step + 30), large)


@pytest.mark.parametrize(("target", "num_servers"), [(0, 1), (1, 3), (2, 3)])
def test_a_copy_between_steps_ends_with_the_rows_at_the_end(target: int, num_servers: int, tmp_path: Path) -> None:
    server = Server(tmp_path, rules=RULES)
    _train(server, range(12))
    copy, step = _Copy(server, target, num_servers), 12
    for part in copy.notes:
        start = 0
        while start >= 0:
            start = copy.take(part, start).next
            _train(server, range(step, step + 1))
            step += 1
    rows, removed = copy.take_changes()
    assert min(rows, removed) > 0
    wanted = server.shard.filter_of(target, num_servers)
    expected = rows_of(server.shard)
    mine = {k for k in expected if wanted is None or wanted(np.array([max(k, -1 - k)], np.int64))[0]}
    assert rows_of(copy.shard) == {key: expected[key] for key in mine}
    assert sorted(copy.notes) == sorted(server.shard.describe().parts), "also candidates"


@pytest.mark.parametrize("rounds", [1, 4])
def test_what_changes_while_changes_are_copied_is_sent_in_the_next_round(rounds: int, tmp_path: Path) -> None:
    server = Server(tmp_path, rules=RULES)
    _train(server, range(12))
    copy, step = _Copy(server), 12
    for part in copy.notes:
        start = 0
        while start >= 0:
            start = copy.take(part, start).next
    for _ in range(rounds):
        notes = copy.take_notes()
        for part, note in copy.notes.items():
            start = 0
            while start >= 0:
                start = copy.take(part, start, note).next
                _train(server, range(step, step + 1))
                step += 1
        copy.notes = notes
    assert min(copy.take_changes()) > 0
    assert rows_of(copy.shard) == rows_of(server.shard)


def test_few_marks_are_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server reads the marks of a large table between other requests."""
    server = Server(tmp_path)
    server.train(range(200))
    copy = _Copy(server)
    server.train([3, 130])
    monkeypatch.setattr(keyed, "_MARKS_READ", 64)
    sizes, start = [], 0
    while start >= 0:
        rows = copy.take("group-3", start, copy.notes["group-3"])
        sizes.append(len(rows.keys))
        start = rows.next
    assert sizes == [1, 0, 1, 0]


def test_only_what_has_changed_is_sent_again(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.train(range(200), range(200))
    copy = _Copy(server)
    server.train(range(7), range(20, 25))
    assert copy.take_changes() == (12, 0)


def test_a_note_does_not_disturb_a_checkpoint_in_progress_or_the_next_increment(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.train(range(200))
    store = server.shard.stores[3]
    first, _ = store.begin_snapshot()
    note = store.notes.take()
    assert note == first + 1
    store.end_snapshot()
    server.train(range(5))
    assert store.count_changed(first) == store.count_changed(note) == 5
    second = store.notes.take()
    server.train(range(3, 9))
    assert (store.count_changed(first), store.count_changed(second)) == (9, 6)


def test_each_note_has_its_own_removals() -> None:
    """A row that was removed before a note, and has come back, was copied with it."""
    kept = Notes(Changes())
    first = kept.take()
    kept.removed(np.array([1, 2], np.int64))
    second = kept.take()
    kept.removed(np.array([3], np.int64))
    assert first is not None
    assert second is not None
    assert kept.removed_after(first).tolist() == [1, 2, 3]
    assert kept.removed_after(second).tolist() == [3]
    assert kept.oldest == first
    kept.end()
    assert kept.oldest is None


@pytest.mark.parametrize("note", [0, 2, 1 << 70, -2])
def test_a_note_is_kept_from_the_time_it_is_taken(note: int) -> None:
    kept = Notes(Changes())
    assert not kept.keeps(1)
    assert kept.take() == 1
    assert kept.keeps(1)
    assert not kept.keeps(note)


def test_a_server_without_the_note_sends_nothing_and_says_so(tmp_path: Path) -> None:
    """Rows may have changed since, or none may have: it does not know."""
    server = Server(tmp_path)
    server.train(range(20), range(20))
    copy = _Copy(server)
    server.train(range(7), range(20, 25))
    for store in server.shard.parts.values():
        store.notes.end()
    for part, note in copy.notes.items():
        rows = copy.take(part, 0, note)
        assert (len(rows.keys), rows.next, rows.kept) == (0, -1, False)
        assert copy.take(part, 0).kept, "all rows can be had without a note"


def test_too_many_removals_end_all_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "_MOST_REMOVED", 3)
    kept = Notes(Changes())
    kept.take()
    kept.removed(np.arange(3, dtype=np.int64))
    assert kept.oldest == 1
    kept.removed(np.arange(1, dtype=np.int64))
    assert kept.oldest is None
    assert kept.take() == 2
    assert kept.removed_after(2).tolist() == []


def test_there_is_no_note_when_all_numbers_are_used() -> None:
    """The next snapshot begins with 1 again."""
    changes = Changes()
    changes.now = MAX_SNAPSHOTS
    kept = Notes(changes)
    assert kept.take() == MAX_SNAPSHOTS
    assert kept.take() is None
    assert kept.oldest == MAX_SNAPSHOTS


def test_a_snapshot_that_counts_anew_ends_the_notes(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.train(range(9))
    store = server.shard.stores[3]
    store.changes.now = MAX_SNAPSHOTS
    assert store.notes.take() is not None
    store.begin_snapshot()
    assert store.notes.oldest is None
