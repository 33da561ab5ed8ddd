"""The bench of peers: rounds that are kept and resumed, and entrants that fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks._peers.entrants import Entrant
from benchmarks._peers.rounds import FAILURE, Cell, Results, run_rounds
from benchmarks._peers.running import EntrantFailedError

A, B = Entrant("a", "a", ()), Entrant("b", "b", ())
DEEP, WIDE = Cell("deep", "fp32"), Cell("wide", "fp32")
BOTH = {"deep": (A, B), "wide": (A,)}


class Runs:
    """Runs that return their number; some do something else instead."""

    def __init__(self, instead: dict[int, BaseException] | None = None) -> None:
        self.names: list[tuple[str, str]] = []
        self._instead = instead or {}

    def __call__(self, entrant: Entrant, cell: Cell) -> dict[str, Any]:
        self.names.append((entrant.name, cell.model))
        if len(self.names) in self._instead:
            raise self._instead[len(self.names)]
        return {"samplesPerSecond": float(len(self.names))}


def rates(results: Results, cell: Cell, *names: str) -> list[list[float]]:
    return [[o[name]["samplesPerSecond"] for name in names] for o in results.rounds(cell, names)]


def run(cells: list[Cell], rounds: int, results: Results, runs: Runs, say: Callable[[str], None] = print) -> None:
    run_rounds(cells, BOTH, rounds, results, runs, say)


def test_entrants_take_turns_and_another_one_begins_each_round(tmp_path: Path) -> None:
    runs = Runs()
    run([DEEP, WIDE], 2, Results(tmp_path / "r.json", {}), runs)
    one, two = [("a", "deep"), ("b", "deep"), ("a", "wide")], [("b", "deep"), ("a", "deep"), ("a", "wide")]
    assert runs.names == one + two


def test_an_interrupted_round_begins_again_and_finished_ones_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "r.json"
    with pytest.raises(KeyboardInterrupt):
        run([DEEP], 2, Results(path, {"steps": 70}), Runs({4: KeyboardInterrupt()}))
    results, runs = Results(path, {"steps": 70}), Runs()
    run([DEEP], 3, results, runs)
    assert runs.names == [(name, "deep") for name in "baab"]
    assert rates(results, DEEP, "a", "b") == [[1, 2], [2, 1], [3, 4]]
    assert rates(Results(path, {"steps": 70}), DEEP, "b") == [[2], [1], [4]]
    again = Runs()
    run([DEEP], 3, Results(path, {"steps": 70}), again)
    assert again.names == []


def test_rounds_of_other_facts_or_without_a_wanted_entrant_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    only = Results(path, {"steps": 70})
    run_rounds([DEEP], {"deep": (A,)}, 1, only, Runs(), print)
    assert Results(path, {"steps": 71}).rounds(DEEP, ["a"]) == []
    runs = Runs()
    run([DEEP], 1, Results(path, {"steps": 70}), runs)
    assert runs.names == [("a", "deep"), ("b", "deep")]


def test_an_entrant_that_fails_once_is_run_again(tmp_path: Path) -> None:
    said: list[str] = []
    results = Results(tmp_path / "r.json", {})
    run([DEEP], 1, results, Runs({1: EntrantFailedError("no memory")}), said.append)
    assert rates(results, DEEP, "a", "b") == [[2, 3]]
    assert said[0] == "a (deep, fp32) failed, and is run again: no memory"


def test_an_entrant_that_fails_twice_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    said: list[str] = []
    results, runs = Results(tmp_path / "r.json", {}), Runs({1: EntrantFailedError("x"), 2: EntrantFailedError("y")})
    run([DEEP, WIDE], 2, results, runs, said.append)
    deep = results.rounds(DEEP, ["a", "b"])
    assert [o["a"] for o in deep] == [{FAILURE: "y"}] * 2
    assert rates(results, DEEP, "b") == [[3], [5]]
    assert rates(results, WIDE, "a") == [[4], [6]], "another cell is another chance"
    assert said[1] == "a (deep, fp32) failed again, and is left out: y"
