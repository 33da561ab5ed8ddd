"""Servers that divide their state anew have together what they had, and each what is its own."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps_runtime.errors import ProtocolError
from heterps_runtime.partition.pieces import DensePiece
from heterps_runtime.ps.division import WholeState
from heterps_runtime.ps.holding import Division, Holding
from heterps_runtime.ps.recovery import answer, reserve
from heterps_runtime.ps.shard import Shard
from heterps_runtime.slots import overlapping_servers
from heterps_runtime.store.dense import LAST_STEP
from heterps_runtime.wire.messages import CopyRows, ShardRows, ShardState
from tests.heterps_runtime.helpers.servers import TABLES, Rows, Server, rows_of

RULES = [{"name": "large", "admission": {"minSteps": 2}, "eviction": {"unusedSteps": 6}}]


def _holding(server: Server, index: int, shard: Shard | None, num_servers: int) -> Holding:
    holding = Holding(server.config, index, None)
    if shard is not None:
        holding.present = Division(num_servers, {index: shard}, complete=True)
    return holding


def _divide(server: Server, holdings: list[Holding], before: int, after: int) -> None:
    """Change the number of servers, as the processes do with messages."""
    sources = [holding.present.shards[i] for i, holding in enumerate(holdings[:before])]
    states = [shard.describe() for shard in sources]
    for index, holding in enumerate(holdings):
        holding.begin_generation(after, before, 0, missing=index >= before)
        for target, shard in holding.in_use.shards.items():
            kept = holding.present.shards.get(target)
            shard.begin_division(WholeState(states), TABLES, kept, sources[0].committed, server.storage)
            for source in overlapping_servers(target, after, before) - ({target} if kept else set()):
                for part in states[source].parts:
                    start = 0
                    while start >= 0:
                        rows = answer(sources[source], CopyRows(1, source, target, after, part, start))
                        assert isinstance(rows, ShardRows)
                        shard.take_rows(part, rows.keys, rows.columns)
                        start = rows.next
        holding.note_complete()


def _all_rows(holdings: list[Holding]) -> Rows:
    found: Rows = {}
    for holding in holdings:
        for shard in holding.in_use.shards.values():
            mine = rows_of(shard)
            assert not mine.keys() & found.keys(), "each row is on one server"
            found |= mine
    return found


def _trained(folder: Path, rules: list[dict[str, Any]]) -> Server:
    server = Server(folder, rules=rules)
    for step in range(12):
        server.train(range(step, step + 90), range(3 * step, 3 * step + 40))
    return server


@pytest.mark.parametrize("rules", [[], RULES])
def test_all_rows_and_their_state_are_on_one_server_each(rules: list[dict[str, Any]], tmp_path: Path) -> None:
    server = _trained(tmp_path, rules)
    expected = rows_of(server.shard)
    holdings = [_holding(server, i, server.shard if i == 0 else None, 1) for i in range(4)]
    numbers = [1, 3, 2, 4, 1]
    for before, after in pairwise(numbers):
        _divide(server, holdings, before, after)
        for holding in holdings[:after]:
            holding.finish_change()
            holding.finish_dropping()
        holdings[after:] = [_holding(server, i, None, 0) for i in range(after, 4)]
        assert _all_rows(holdings) == expected
        assert [holding.complete for holding in holdings[:after]] == [(after,)] * after
    assert holdings[0].own.committed == server.shard.committed


def test_a_change_that_is_given_up_leaves_no_trace(tmp_path: Path) -> None:
    server = _trained(tmp_path, RULES)
    expected = rows_of(server.shard)
    holdings = [_holding(server, i, server.shard if i == 0 else None, 1) for i in range(3)]
    _divide(server, holdings, 1, 2)
    for holding in holdings[:2]:
        holding.finish_change()
        holding.finish_dropping()
    halves = [rows_of(holding.own) for holding in holdings[:2]]
    _divide(server, holdings, 2, 3)
    assert [holding.complete for holding in holdings] == [(2, 3), (2, 3), (3,)]
    for holding in holdings[:2]:
        holding.begin_generation(2, 2, 0, missing=False)
    assert [rows_of(holding.own) for holding in holdings[:2]] == halves
    assert halves[0] | halves[1] == expected


def _state(start: int, values: list[float], sums: list[float], size: int = 5, step: Any = 7) -> ShardState:
    dense = {"weight": DensePiece(start, (size,), np.array(values))}
    optimizer = {LAST_STEP: np.array(step), "weight::sum": np.array(sums)}
    return ShardState(0, tuple(TABLES), dense, optimizer, {}, "", {}, {})


def test_pieces_of_parameters_and_their_state_are_cut_anew() -> None:
    whole = WholeState([_state(0, [1.0, 2.0], [10.0, 20.0]), _state(2, [3.0, 4.0, 5.0], [30.0, 40.0, 50.0])])
    place = DensePiece(1, (5,), np.zeros(3)).place
    found = {name: values.tolist() for name, values in whole.pieces({"weight": place, "new": place}).items()}
    assert found == {LAST_STEP: 7, "weight": [2.0, 3.0, 4.0], "weight::sum": [20.0, 30.0, 40.0]}


@pytest.mark.parametrize(
    ("states", "text"),
    [
        ([_state(0, [1.0, 2.0], [1.0, 2.0])], "2 of 5 elements are there"),
        ([_state(0, [1.0] * 5, [1.0] * 5, step=[])], "the number of the last step is not there"),
        ([_state(0, [1.0] * 5, [1.0] * 5), _state(0, [1.0], [1.0], size=4)], "is no piece of float64 [5]"),
        ([_state(0, [1.0] * 5, [1.0] * 4)], "'weight::sum': float64 [4] is no piece of float64 [5]"),
    ],
)
def test_pieces_that_do_not_fit_together_are_refused(states: list[ShardState], text: str) -> None:
    with pytest.raises(ValueError, match=text.replace("[", r"\[").replace("]", r"\]")):
        WholeState(states)


@pytest.mark.parametrize(("target", "number"), [(2, 2), (-1, 2), (0, 0), (0, 1 << 40)])
def test_rows_of_an_impossible_division_are_refused(target: int, number: int, tmp_path: Path) -> None:
    server = _trained(tmp_path, [])
    with pytest.raises(ProtocolError, match="target: must be one of at most 1024 servers"):
        answer(server.shard, CopyRows(1, 0, target, number, "group-3", 0))


@pytest.mark.parametrize(("part", "count"), [("group-3", 1 << 40), ("group-3", -1), ("group-5", 1)])
def test_no_memory_is_reserved_for_impossible_numbers_of_rows(part: str, count: int, tmp_path: Path) -> None:
    shard = Server(tmp_path).shard
    with pytest.raises(ValueError, match="group-"):
        reserve(shard, part, count)
    assert shard.num_rows == 0
