"""A server that copies its state from others refuses what no server can have, before it takes memory for it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from heterps_runtime.errors import ProtocolError
from heterps_runtime.partition.pieces import DensePiece
from heterps_runtime.ps.division import WholeState
from heterps_runtime.store.dense import LAST_STEP, DenseStore
from heterps_runtime.store.memory import Slab
from heterps_runtime.store.optimizers import DenseOptimizer
from heterps_runtime.wire.messages import ShardState
from tests.fuzz.targets.copying import Copying, feed, regular

# Worlds of `copying`: all is lost, a server is new, one of three goes; a new one copies ahead, or has done so, or one
# that trains copies ahead, or again what has changed.
BOTH, NEW, FEWER, AHEAD, CHANGED, TRAINS, AGAIN = range(7)


def answers(world: int) -> list[Any]:
    entries: list[Any] = copy.deepcopy(regular(world)["entries"])
    return entries


@pytest.mark.parametrize("world", [BOTH, NEW, FEWER, AHEAD, TRAINS, AGAIN])
def test_right_answers_are_taken(world: int) -> None:
    copying = Copying(world)
    assert feed(copying, answers(world))
    copying.check(done=True)
    assert copying.recovery.num_rows > 0


def _rows(copying: Copying) -> int:
    """Rows and candidates of the first shard."""
    return sum(next(iter(copying.holding.in_use.shards.values())).describe().parts.values())


def test_rows_that_were_removed_after_the_note_are_removed_here() -> None:
    """None has changed."""
    whole, copying = Copying(NEW), Copying(CHANGED)
    assert feed(whole, answers(NEW))
    assert feed(copying, answers(CHANGED))
    copying.check(done=True)
    assert copying.recovery.num_rows == 0
    assert 0 < _rows(copying) < _rows(whole)


def test_without_the_notes_all_rows_are_copied() -> None:
    """The server that has them has forgotten them, or never took them."""
    entries = answers(NEW)
    for note in ({}, {"group-3": 1}, {"group-3": 1, "group-4": 2, "candidates-4": 1}):
        entries[0][1]["notes"] = note
        copying = Copying(CHANGED)
        assert feed(copying, entries)
        copying.check(done=True)
        assert copying.recovery.num_rows > 0


def test_another_round_copies_what_has_changed_only() -> None:
    all_rows, changed = Copying(TRAINS), Copying(AGAIN)
    for copying, world in ((all_rows, TRAINS), (changed, AGAIN)):
        assert feed(copying, answers(world))
    assert 0 < 2 * changed.recovery.num_rows < all_rows.recovery.num_rows
    ahead = changed.holding.copied_ahead(2, 2, 1)
    assert ahead is not None
    assert set(ahead.origins[1].notes.values()) == {2}, "the first was taken for the round before"


def _removed_twice(header: Any, contents: Any) -> None:
    """A list of removed keys comes with rows that were not asked for by a note."""
    header["removed"] = ["int64", [1]]
    contents.append([2])


def _removed_text(header: Any, _: Any) -> None:
    header["removed"] = ["float32", header["removed"][1]]


def _note_lost(header: Any, _: Any) -> None:
    header["kept"] = False


def _removed_elsewhere(header: Any, contents: Any) -> None:
    header["removed"] = ["int64", [64]]
    contents[-1] = list(range(64))


@pytest.mark.parametrize(
    ("world", "change", "text"),
    [
        (AHEAD, _removed_twice, "have keys that were removed, and all rows of 'group-3' were asked for"),
        (CHANGED, _removed_text, r"have float32 \[\d+\] as keys that were removed"),
        (CHANGED, _removed_elsewhere, "are not all of shard 1"),
        (CHANGED, _note_lost, "rows of shard 0: it is no longer known which ones have changed"),
        (AGAIN, _removed_elsewhere, "rows of shard 1 are not all of that shard"),
        (AGAIN, _note_lost, "rows of shard 1: it is no longer known which ones have changed"),
    ],
)
def test_changes_that_were_not_asked_for_are_refused(world: int, change: Any, text: str) -> None:
    entries = answers(world)
    assert entries[1][1]["op"] == "shard-rows"
    change(*entries[1][1:])
    with pytest.raises(ProtocolError, match=text):
        feed(Copying(world), entries)


def _name_twice(header: Any, _: Any) -> None:
    header["tables"][1]["name"] = "small"


def _index_twice(header: Any, _: Any) -> None:
    header["tables"][1]["index"] = 0


def _wide(header: Any, _: Any) -> None:
    header["tables"][0]["dim"] = 10**12


def _widest(header: Any, _: Any) -> None:
    header["tables"][0]["dim"] = 10**30


def _no_step(header: Any, _: Any) -> None:
    header["optimizer"][LAST_STEP] = ["int64", [2]]


def _endless_step(header: Any, contents: Any) -> None:
    header["optimizer"][LAST_STEP] = ["float64", []]
    contents[1] = [float("inf")]


def _parameter_step(header: Any, _: Any) -> None:
    header["dense"][LAST_STEP] = header["dense"].pop("top.weight")


def _parameter_state(header: Any, contents: Any) -> None:
    header["dense"]["top.weight::exp_avg"] = header["dense"]["top.weight"]
    del header["optimizer"]["top.weight::exp_avg"]
    contents[1:1] = [[0.0]]


def _most_rows(header: Any, _: Any) -> None:
    header["parts"]["group-3"] = 10**400


def _least_rows(header: Any, _: Any) -> None:
    header["parts"]["group-3"] = -1


@pytest.mark.parametrize("world", [BOTH, NEW])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_name_twice, "two have the same name"),
        (_index_twice, "two have the same index"),
        (_wide, "no memory for"),
        (_widest, "no memory for"),
        (_no_step, "step must be an int64 >= 0"),
        (_endless_step, "step must be an int64 >= 0"),
        (_parameter_step, "'::step' is no name of a parameter"),
        (_parameter_state, "'top.weight::exp_avg' is no name of a parameter"),
        (_most_rows, "a server has at most"),
        (_least_rows, "a server has at most"),
    ],
)
def test_a_state_that_no_server_can_have_is_refused(world: int, change: Callable[[Any, Any], None], text: str) -> None:
    entries = answers(world)
    for _, header, contents in entries:
        if header["op"] == "shard-state":
            change(header, contents)
    with pytest.raises(ProtocolError, match=text):
        feed(Copying(world), entries)


def _again(header: Any, _: Any) -> None:
    header["next"] = 0


def _far(header: Any, _: Any) -> None:
    header["next"] = 1 << 40


def _too_early(header: Any, _: Any) -> None:
    header["next"] = -1


def _more(header: Any, _: Any) -> None:
    header["keys"] = ["int64", [300]]


def _foreign(_: Any, contents: Any) -> None:
    contents[0] = list(range(8))


def _one_key(header: Any, _: Any) -> None:
    header["keys"] = ["int64", []]


def _other_keys(header: Any, _: Any) -> None:
    header["keys"] = ["float64", [8]]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_again, "from 0 on are followed by those from 0 on"),
        (_far, "are followed by those from"),
        (_too_early, "are 8, not 16 as it said before"),
        (_more, "are 300, not 16 as it said before"),
        (_foreign, "are not all of shard 0"),
        (_one_key, r"have int64 \[\] as keys"),
        (_other_keys, r"have float64 \[8\] as keys"),
    ],
)
def test_rows_that_were_not_asked_for_are_refused(change: Callable[[Any, Any], None], text: str) -> None:
    entries = answers(BOTH)
    assert entries[2][1]["op"] == "shard-rows"
    change(*entries[2][1:])
    with pytest.raises(ProtocolError, match=text):
        feed(Copying(BOTH), entries)


def test_rows_that_train_are_not_overwritten_by_copies() -> None:
    entries, copying = answers(TRAINS), Copying(TRAINS)
    assert entries[1][1]["op"] == "shard-rows"
    entries[1][2][0] = list(range(len(entries[1][2][0])))
    with pytest.raises(ProtocolError, match="rows of shard 1 are not all of that shard"):
        feed(copying, entries)
    copying.check(done=False)


def test_a_wrong_number_of_rows_takes_no_memory() -> None:
    entries = answers(BOTH)
    entries[0][1]["parts"]["group-3"] = 10**7
    copying = Copying(BOTH)
    assert not feed(copying, entries[:3])
    assert copying.recovery.total_rows > 10**7
    store = copying.holding.in_use.shards[0].stores[3]
    assert len(store) == 8
    assert store._keys.capacity <= 2048
    assert store._index.nbytes < 1 << 20


def test_a_wrong_shape_takes_no_memory() -> None:
    entries = answers(NEW)
    entries[0][1]["dense"]["top.weight"]["shape"] = [10**15]
    with pytest.raises(ProtocolError, match="5 of 1000000000000000 elements are there"):
        feed(Copying(NEW), entries)


def test_pieces_that_overlap_are_refused() -> None:
    def state(start: int, values: list[float]) -> ShardState:
        pieces = {"weight": DensePiece(start, (4,), np.array(values))}
        return ShardState(0, (), pieces, {LAST_STEP: np.array(1)}, {}, "", {}, {})

    with pytest.raises(ValueError, match="some elements are there twice"):
        WholeState([state(0, [1.0, 2.0]), state(1, [2.0, 3.0])])


@pytest.mark.parametrize("step", [np.array([1, 2]), np.array(np.inf), np.array(-1), np.array("x")])
def test_a_snapshot_has_a_whole_number_as_its_step(step: Any) -> None:
    store = DenseStore(DenseOptimizer.from_manifest({"name": "sgd", "learningRate": "0.1"}))
    with pytest.raises(ValueError, match="step must be an int64 >= 0"):
        store.load({LAST_STEP: step})


@pytest.mark.parametrize("elements", [1 << 45, 1 << 70])
def test_memory_that_is_not_there_is_a_memory_error(elements: int) -> None:
    with pytest.raises(MemoryError, match="no memory for 1024 rows of"):
        Slab(np.float64, (elements,))
    slab = Slab(np.float64)
    with pytest.raises(MemoryError, match="no memory for"):
        slab.reserve(elements)
