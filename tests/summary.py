"""The closing line of a test run."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.processes import ending


@dataclass(frozen=True)
class Results:
    """Results of the tests, and problems that kept others from running."""

    passed: int = 0
    failed: int = 0
    errors: int = 0  # tests whose fixtures failed, files that cannot be imported
    skipped: Counter[str] = field(default_factory=Counter)  # number of tests by reason
    problems: tuple[str, ...] = ()  # problems outside the tests

    def __add__(self, other: Results) -> Results:
        return Results(
            self.passed + other.passed,
            self.failed + other.failed,
            self.errors + other.errors,
            self.skipped + other.skipped,
            self.problems + other.problems,
        )

    @property
    def good(self) -> bool:
        """Whether nothing failed, and something ran or was skipped."""
        return not (self.failed or self.errors or self.problems) and bool(self.passed or self.skipped)


def results_of(part: str, file: Path, code: int) -> Results:
    """Return the results of a pytest run.

    Args:
        part: name of the part.
        file: file of `recording`; missing if pytest was killed.
        code: pytest's exit code; negative: the signal that killed it.
    """
    results = _read(file)
    if results is None:
        return Results(problems=(f"{part}: pytest {ending(code)} and left no results",))
    if results == Results():
        return Results(problems=(f"{part}: pytest ran no test",))
    # 1 means failed tests, which the results contain too
    if code not in (0, 1) or (code == 1 and results.good):
        return results + Results(problems=(f"{part}: pytest {ending(code)}",))
    return results


def closing_line(results: Results, seconds: float) -> str:
    """Return the numbers of passed, failed and skipped tests with reasons, in the form of pytest's own last line.

    The reasons follow the time: programs that parse the line find the counts in the usual place.
    """
    counts = [f"{results.passed} passed", f"{results.failed} failed", f"{results.skipped.total()} skipped"]
    if errors := results.errors + len(results.problems):
        counts.append(f"{errors} error{'s' if errors > 1 else ''}")
    reasons = [f"{number} skipped: {reason}" for reason, number in results.skipped.most_common()]
    explained = "; ".join([*results.problems, *reasons])
    return f"=== {', '.join(counts)} in {seconds:.2f}s {f'({explained}) ' if explained else ''}==="


def _read(file: Path) -> Results | None:
    """Return the results that `recording` has written; empty if there are none."""
    try:
        read = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    return Results(read["passed"], read["failed"], read["error"], Counter(read["skipped"]))
