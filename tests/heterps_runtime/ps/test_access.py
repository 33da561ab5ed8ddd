"""Checkpoints of a server whose ids get rows after some steps and lose them: no file says what has been evicted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps_runtime.checkpoint import CheckpointManifest, iterate_rows
from heterps_runtime.checkpoint.comparison import compare
from heterps_runtime.checkpoint.restore import iterate_keys
from heterps_runtime.checkpoint.survey import count_rows
from heterps_runtime.ps import increments
from heterps_runtime.store import snapshot
from tests.heterps_runtime.helpers.servers import Rows, Server, restored

RULES = [
    {"name": "sm*", "admission": {"minSteps": 2, "unusedSteps": 5}, "eviction": {"unusedSteps": 9}},
    {"name": "large", "eviction": {"unusedSteps": 8}},
]


@pytest.fixture(autouse=True)
def small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(increments, "SMALLEST_BYTES", 0)
    monkeypatch.setattr(snapshot, "_MOST_PIECE_ROWS", 64)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, rules=RULES)
    yield server
    server.writer.close()


def some_ids(rng: np.random.Generator) -> list[int]:
    """Different ids, some of them in most of the steps."""
    return [int(i) for i in np.unique(np.minimum(rng.zipf(1.3, 40), 3000))]


def rows_in(found: Rows) -> set[int]:
    return {key for key in found if key >= 0}


def files_with_rows(manifest: CheckpointManifest) -> int:
    return len(manifest.files_of("rows"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_what_servers_restore_is_what_there_was(seed: int, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps_runtime.ps.shard.builds_on", lambda *_: True)  # increments for as long as possible
    rng = np.random.default_rng(seed)
    before: tuple[CheckpointManifest, Rows] | None = None
    gone = came_back = 0
    ever: set[int] = set()
    for turn in range(30):
        for _ in range(int(rng.integers(1, 4))):
            server.train(some_ids(rng), some_ids(rng))
        expected = server.rows()

        def train_on() -> None:
            for _ in range(4):
                server.train(some_ids(rng), some_ids(rng))

        manifest = server.write(during=train_on)
        for servers in (1, 3):
            assert restored(server, manifest, servers) == expected
        assert set(np.concatenate([*iterate_keys(server.storage, manifest)]).tolist()) == rows_in(expected)
        assert count_rows(server.storage, manifest) == len(rows_in(expected))
        if before is not None:
            gone += len(before[1].keys() - expected.keys())
            came_back += len((rows_in(expected) - before[1].keys()) & ever)
            change = {t.name: t for t in compare(server.storage, before[0], manifest).tables}
            assert sum(t.removed for t in change.values()) == len(rows_in(before[1]) - rows_in(expected))
        ever |= rows_in(expected)
        before = manifest, expected
        if turn % 10 == 9:
            server.restore(manifest)
            server.lineage += 1
            assert server.rows() == expected
    assert files_with_rows(before[0] if before else manifest) > 5
    assert gone > 50
    assert came_back > 10


def test_a_checkpoint_shrinks_when_rows_go(server: Server) -> None:
    server.train([], range(2000))
    first = server.write()
    for _ in range(20):
        server.train([], [0])
    assert server.shard.num_rows == 1
    second = server.write()
    assert files_with_rows(second) == 1
    assert second.files_of("rows")[0].bytes < 0.1 * first.files_of("rows")[0].bytes


def test_rows_that_went_take_no_file_but_are_not_counted_any_more(server: Server, monkeypatch: Any) -> None:
    monkeypatch.setattr("heterps_runtime.ps.shard.builds_on", lambda *_: True)
    server.train([], range(100))
    server.write()
    for _ in range(20):
        server.train([])
    manifest = server.write()
    assert [entry.added for entry in manifest.files_of("rows")] == [100, -100]
    assert count_rows(server.storage, manifest) == 0
    assert list(iterate_rows(server.storage, manifest)) == []
    assert restored(server, manifest) == {}


def test_the_same_job_without_rules_writes_what_it_wrote_before(tmp_path: Path) -> None:
    plain, ruled = Server(tmp_path / "plain"), Server(tmp_path / "ruled", rules=RULES)
    manifests = []
    for one in (plain, ruled):
        one.train(range(10), range(10))
        manifests.append(one.write())
        one.writer.close()
    assert [m.version for m in manifests] == [1, 3]
    assert b"unused_steps" not in manifests[0].to_json()
    names: list[set[str]] = [set(), set()]
    for block in iterate_rows(plain.storage, manifests[0]):
        names[0] |= block.state.keys()
    for block in iterate_rows(ruled.storage, manifests[1]):
        names[1] |= block.state.keys()
    assert names == [{"sum"}, {"sum", "last_step"}]
