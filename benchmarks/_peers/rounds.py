"""Rounds, in which all entrants train in turn, and the file that keeps them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks._peers.entrants import Entrant
from benchmarks._peers.running import EntrantFailedError, Outcome

__all__ = ["FAILURE", "Cell", "Results", "run_rounds"]

#: Key of an outcome that has no figures, but the reason.
FAILURE = "failure"

Outcomes = dict[str, Outcome]  # by entrant


@dataclass(frozen=True)
class Cell:
    """What all entrants train in a round."""

    model: str
    precision: str

    def __str__(self) -> str:
        """Its name in messages."""
        return f"{self.model}, {self.precision}"


class Results:
    """Finished rounds. A file of other facts, such as other code or another number of steps, is not used.

    Args:
        path: of the file, which need not exist.
        facts: what all rounds have in common; JSON.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self._path, self._facts = path, json.loads(json.dumps(facts))
        self._rounds: list[dict[str, Any]] = []
        if path.exists():
            stored = json.loads(path.read_text())
            if stored["facts"] == self._facts:
                self._rounds = stored["rounds"]

    def rounds(self, cell: Cell, names: Sequence[str]) -> list[Outcomes]:
        """Return the rounds of a cell that have all of these entrants, oldest first, with these entrants alone."""
        return [
            {name: kept["outcomes"][name] for name in names}
            for kept in self._rounds
            if kept["cell"] == asdict(cell) and all(name in kept["outcomes"] for name in names)
        ]

    def add(self, cell: Cell, outcomes: Outcomes) -> None:
        """Keep a finished round."""
        self._rounds.append({"cell": asdict(cell), "outcomes": outcomes})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"facts": self._facts, "rounds": self._rounds}, indent=1))
        partial.replace(self._path)


def run_rounds(
    cells: Sequence[Cell],
    entrants: Mapping[str, Sequence[Entrant]],
    rounds: int,
    results: Results,
    run: Callable[[Entrant, Cell], Outcome],
    say: Callable[[str], None],
) -> None:
    """Complete the rounds of all cells.

    An unfinished round counts for nothing, since its entrants' figures would be of different times. An entrant that
    fails is run once more; if it fails again, the round goes on without it, and so do the others of its cell.

    Args:
        cells: in this order, once a round.
        entrants: by model.
        rounds: wanted; those in `results` count.
        results: to be added to.
        run: trains once.
        say: shows a line.
    """
    given_up: dict[tuple[Cell, str], str] = {}
    for number in range(rounds):
        for cell in cells:
            names = [entrant.name for entrant in entrants[cell.model]]
            done = results.rounds(cell, names)
            if number < len(done):
                continue
            outcomes: Outcomes = {}
            # Another one begins each time, so that none always follows the same.
            shift = number % len(names)
            for entrant in (*entrants[cell.model][shift:], *entrants[cell.model][:shift]):
                key = (cell, entrant.name)
                if key not in given_up:
                    outcomes[entrant.name] = _twice(run, entrant, cell, say)
                    if FAILURE in outcomes[entrant.name]:
                        given_up[key] = outcomes[entrant.name][FAILURE]
                else:
                    outcomes[entrant.name] = {FAILURE: given_up[key]}
            results.add(cell, outcomes)
            shown = ", ".join(f"{n} {o['samplesPerSecond']:,.0f}" for n, o in outcomes.items() if FAILURE not in o)
            say(f"{cell}, round {number + 1} of {rounds}: {shown} samples/s")


def _twice(
    run: Callable[[Entrant, Cell], Outcome], entrant: Entrant, cell: Cell, say: Callable[[str], None]
) -> Outcome:
    try:
        return run(entrant, cell)
    except EntrantFailedError as error:
        say(f"{entrant.name} ({cell}) failed, and is run again: {error}")
    try:
        return run(entrant, cell)
    except EntrantFailedError as error:
        say(f"{entrant.name} ({cell}) failed again, and is left out: {error}")
        return {FAILURE: str(error)}
