"""What earlier runs have done: inputs per target and version of its code, so that a run continues with the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from heterps_operator.documents import read_json, write_json
from tests.fuzz.campaign import Outcome

__all__ = ["Count", "Record", "add", "missing", "seed_of"]


@dataclass(frozen=True)
class Count:
    """What was done with one target.

    Attributes:
        code: version of the code that got the inputs.
        inputs: executed inputs, of all runs.
        seconds: of all runs.
        runs: number of runs.
        coverage: reached edges of the instrumented code.
        corpus: inputs that reach all of these.
        memory_mib: largest memory of a process, in MiB.
        finding: file of the input that fails; None: there is none.
    """

    code: str
    inputs: int = 0
    seconds: float = 0.0
    runs: int = 0
    coverage: int = 0
    corpus: int = 0
    memory_mib: int = 0
    finding: str | None = None


def missing(count: Count, total: int) -> int:
    """Return how many inputs a target still needs; 0 if it fails already, as then its code must change."""
    return 0 if count.finding else max(0, total - count.inputs)


def seed_of(seed: int, count: Count) -> int:
    """Return libFuzzer's seed for the next run: another one each time, or it would repeat the mutations."""
    return seed + count.runs


def add(count: Count, outcome: Outcome) -> Count:
    """Return the sum of earlier runs and one more."""
    return replace(
        count,
        inputs=count.inputs + outcome.inputs,
        seconds=round(count.seconds + outcome.seconds, 1),
        runs=count.runs + 1,
        coverage=max(count.coverage, outcome.coverage),
        corpus=outcome.corpus or count.corpus,
        memory_mib=max(count.memory_mib, outcome.memory_mib),
        finding=outcome.finding,
    )


class Record:
    """The counts of all targets, in a file.

    Args:
        file: is replaced atomically with each change; its folder is created.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        stored: Mapping[str, Any] = read_json(file) or {}
        self._counts = {name: Count(**count) for name, count in stored.items()}

    def count(self, target: str, code: str) -> Count:
        """Return what was done with this version of a target."""
        known = self._counts.get(target)
        return known if known is not None and known.code == code else Count(code)

    def keep(self, target: str, count: Count) -> None:
        """Store what was done with a target."""
        self._counts[target] = count
        write_json(self._file, {name: asdict(known) for name, known in sorted(self._counts.items())})
