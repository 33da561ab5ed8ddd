"""Requests of workers that do not fit what a server holds are refused when they arrive, with their sender's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps_runtime.errors import ProtocolError
from heterps_runtime.partition.pieces import DensePiece
from heterps_runtime.partition.tables import Table
from heterps_runtime.ps import requests
from heterps_runtime.ps.division import WholeState
from heterps_runtime.ps.requests import Waiting, check, read_push
from heterps_runtime.store.dense import LAST_STEP
from heterps_runtime.wire.messages import Chunk, Define, Pull, PullDense, Push, ShardState
from tests.heterps_runtime.helpers.checkpoint_samples import make_keys
from tests.heterps_runtime.helpers.servers import TABLES, Server

SENDER = b"worker-0-1/5"
KEYS = make_keys(0, np.arange(4))
CHUNK = Chunk(3, KEYS, np.ones((4, 3)))
PUSH = Push(5, 0, 0, "worker-0-1", (CHUNK,), {"weight": np.ones(4)}, {"mean": np.ones(2)})
DEFINE = Define(5, 0, tuple(TABLES), {"weight": DensePiece(0, (4,), np.ones(4))}, {"mean": np.ones(2)})
FOREIGN = make_keys(0, np.array([1, 1 << 20]))  # the second one is the first id that the table does not have


@pytest.fixture
def server(tmp_path: Path) -> Server:
    server = Server(tmp_path)
    server.shard.define([], {}, {"mean": np.zeros(2)})
    return server


def _pull(dim: int, keys: Any) -> Pull:
    return Pull(5, 1, 0, {dim: keys})


def _chunk(**changes: Any) -> Push:
    return replace(PUSH, chunks=(replace(CHUNK, **changes),))


def _take(server: Server, request: Define | Pull | PullDense | Push) -> None:
    if isinstance(request, Push):
        read_push(SENDER, request, server.shard, server.config)
    else:
        check(SENDER, request, server.shard)


def _table(**changes: Any) -> Define:
    return replace(DEFINE, tables=(replace(TABLES[0], **changes),))


def _piece(name: str, values: Any, shape: tuple[int, ...] = (4,)) -> Define:
    return replace(DEFINE, dense={name: DensePiece(0, shape, values)})


def test_what_fits_is_taken(server: Server) -> None:
    for request in (DEFINE, _pull(3, KEYS), _pull(8, KEYS[:0]), PullDense(5, 1, 0, ("weight", "mean"))):
        check(SENDER, request, server.shard)
    gradients = read_push(SENDER, PUSH, server.shard, server.config)
    [(dim, keys, values)] = gradients.chunks
    assert (dim, keys.tolist(), values.shape) == (3, KEYS.tolist(), (4, 3))
    empty = replace(CHUNK, keys=KEYS[:0], gradients=np.ones((0, 3)))
    assert read_push(SENDER, replace(PUSH, chunks=(empty,)), server.shard, server.config).chunks == ()


WRONG: dict[str, tuple[Callable[[], Define | Pull | PullDense | Push], str]] = {
    "pull of a dimension": (lambda: _pull(7, KEYS), r"rows of 7: this server has tables of \[3, 8\]"),
    "pull of an id": (lambda: _pull(3, FOREIGN), "table 'small' has ids 0 .. 1048575, not 1048576"),
    "pull of another dimension's table": (lambda: _pull(8, KEYS), r"is of table 0, this store has \[1\]"),
    "pull of a negative key": (lambda: _pull(3, -KEYS - 1), "is of table -1"),
    "pull of floats": (lambda: _pull(3, KEYS.astype(float)), "must be int64"),
    "pull of pairs": (lambda: _pull(3, KEYS.reshape(2, 2)), r"must be int64 \(n,\), are int64 \(2, 2\)"),
    "pull of a parameter": (lambda: PullDense(5, 1, 0, ("weight", "w")), r"parameters: \['w'\] are unknown"),
    "push for another": (lambda: replace(PUSH, worker="worker-0-0"), "it has the name of 'worker-0-0'"),
    "push of the future": (lambda: replace(PUSH, step=257), "step 257, this server is at step 0"),
    "push of no step": (lambda: replace(PUSH, step=-1), "step -1"),
    "push of a dimension": (lambda: _chunk(dim=7), "rows of 7"),
    "push of an id": (lambda: _chunk(keys=FOREIGN, gradients=np.ones((2, 3))), "not 1048576"),
    "push of fewer gradients": (lambda: _chunk(gradients=np.ones((3, 3))), r"gradients of 4 rows of 3: .*\(3, 3\)"),
    "push in another precision": (lambda: _chunk(gradients=np.ones((4, 3), np.float32)), "must be float64"),
    "push of a parameter": (lambda: replace(PUSH, dense={"w": np.ones(4)}), "parameter 'w': is unknown"),
    "push of another shape": (lambda: replace(PUSH, dense={"weight": np.ones(5)}), r"must have the shape \(4,\)"),
    "push of another dtype": (lambda: replace(PUSH, dense={"weight": np.ones(4, int)}), "must be float64, is int64"),
    "push of a statistic": (lambda: replace(PUSH, statistics={"mean": np.ones(3)}), r"must have the shape \(2,\)"),
    "definition of a number": (lambda: _table(index=1 << 15), "numbers must be distinct and in 0 .. 32767"),
    "definition of one number twice": (
        lambda: replace(DEFINE, tables=(TABLES[0], TABLES[0])), "numbers must be distinct",
    ),
    "definition without rows": (lambda: _table(index=2, name="new", num_embeddings=0), "num_embeddings must be in 1"),
    "definition without elements": (lambda: _table(index=2, name="new", dim=0), "dim must be in 1 .. 1048576, is 0"),
    "definition of no text": (lambda: _table(index=2, name="\ud800"), "surrogates not allowed"),
    "definition of no text among parameters": (lambda: _piece("\udc00", np.ones(4)), "surrogates not allowed"),
    "definition of a giant": (lambda: _table(index=2, name="giant", dim=10**30), "dim must be in 1 .. 1048576"),
    "definition of a known name": (lambda: _table(index=2), "tables 0 and 2: both have the name 'small'"),
    "definition of another table": (lambda: _table(dim=4), r"table 0: is Table\(.*dim=3.*, not Table\(.*dim=4"),
    "definition of another shape": (lambda: _piece("weight", np.ones(3)), r"must have the shape \(4,\)"),
    "definition of whole numbers": (lambda: _piece("w", np.ones(4, int)), "parameter 'w': is int64"),
    "definition of state": (lambda: _piece("weight::sum", np.ones(4)), "the name of an optimizer's state"),
    "definition of a statistic": (lambda: replace(DEFINE, statistics={"mean": np.ones(3)}), "change of 'mean'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_and_changes_nothing(case: str, server: Server) -> None:
    make, problem = WRONG[case]
    request, before = make(), server.shard.describe()
    with pytest.raises(ProtocolError, match=rf"'worker-0-1' sent a .* that does not fit: .*{problem}"):
        _take(server, request)
    after = server.shard.describe()
    assert (after.tables, after.dense.keys(), after.parts) == (before.tables, before.dense.keys(), before.parts)


@pytest.mark.parametrize(
    ("define", "problem"),
    [
        (_piece("new", np.ones(3), (3,)), r"'new': has 4 elements, not the shape \[3\]"),
        (_piece("new", np.ones(4, np.float32)), "'new': is float64, not float32"),
        (replace(DEFINE, statistics={"later": np.ones(3)}), r"'later': is float64 \(2,\), not float64 \(3,\)"),
    ],
)
def test_what_other_servers_have_keeps_its_shape_while_the_division_changes(
    define: Define, problem: str, server: Server
) -> None:
    step = {LAST_STEP: np.array(7)}
    state = ShardState(0, (), {"new": DensePiece(0, (4,), np.ones(4))}, step, {"later": np.ones(2)}, "", {}, {})
    server.shard.inherited = WholeState([state])
    check(SENDER, replace(_piece("new", np.ones(2)), statistics={"later": np.ones(2)}), server.shard)
    check(SENDER, _piece("other", np.ones(3), (3,)), server.shard)
    with pytest.raises(ProtocolError, match=f"does not fit: {problem}"):
        check(SENDER, define, server.shard)


def test_a_table_may_be_defined_again_by_each_worker(server: Server) -> None:
    more = Table(2, "third", 10, 3, None)
    define = replace(DEFINE, tables=(*TABLES, more))
    for _ in range(2):
        check(SENDER, define, server.shard)
        server.shard.define(define.tables, define.dense, define.statistics)
    assert server.shard.tables.keys() == {0, 1, 2}


def test_requests_wait_in_the_order_of_their_arrival() -> None:
    waiting: Waiting[Pull] = Waiting()
    pulls = [(b"%d" % (number % 2), replace(_pull(3, KEYS), request=number, version=number % 3)) for number in range(6)]
    for sender, pull in pulls:
        waiting.add(sender, pull)
    assert waiting.take(lambda pull: pull.version == 1) == [pulls[1], pulls[4]]
    assert waiting.take(lambda pull: pull.version == 1) == []
    assert waiting.take(lambda pull: True) == [pulls[0], pulls[2], pulls[3], pulls[5]]


def test_one_sender_cannot_fill_the_memory_and_others_are_not_counted_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MOST_WAITING", 3)
    waiting: Waiting[Pull] = Waiting()
    for _ in range(3):
        waiting.add(b"worker-0-0/5", _pull(3, KEYS))
        waiting.add(b"worker-0-1/5", _pull(3, KEYS))
    with pytest.raises(ProtocolError, match="4 requests of 'worker-0-1' wait, and 7 of all senders"):
        waiting.add(SENDER, _pull(3, KEYS))
    assert waiting.take(lambda _: True) == []
    for _ in range(3):  # counted from the beginning
        waiting.add(SENDER, _pull(3, KEYS))


def test_all_senders_together_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MOST_WAITING_OF_ALL", 5)
    waiting: Waiting[Pull] = Waiting()
    for number in range(5):
        waiting.add(b"worker-0-%d/5" % number, _pull(3, KEYS))
    with pytest.raises(ProtocolError, match="1 requests of 'worker-0-9' wait, and 6 of all senders"):
        waiting.add(b"worker-0-9/5", _pull(3, KEYS))
