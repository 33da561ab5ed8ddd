"""The one line that a run of the tests ends with."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.processes import ending


@dataclass(frozen=True)
class Results:
    """How tests went, and what kept others from running."""

    passed: int = 0
    failed: int = 0
    errors: int = 0  # tests whose fixtures failed, files that cannot be imported
    skipped: Counter[str] = field(default_factory=Counter)  # number of tests by reason
    problems: tuple[str, ...] = ()  # what is no test's fault

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
        """Nothing failed, and something ran or was skipped."""
        return not (self.failed or self.errors or self.problems) and bool(self.passed or self.skipped)


def results_of(part: str, file: Path, code: int) -> Results:
    """What a run of pytest did.

    Args:
        part: its name.
        file: that `recording` writes; not there if pytest was killed.
        code: pytest's exit code; negative: the signal that killed it.
    """
    results = _read(file)
    if results is None:
        return Results(problems=(f"{part}: pytest {ending(code)} and left no results",))
    if results == Results():
        return Results(problems=(f"{part}: pytest ran no test",))
    # 1 says that tests have failed: then the results say it, too.
    if code not in (0, 1) or (code == 1 and results.good):
        return results + Results(problems=(f"{part}: pytest {ending(code)}",))
    return results


def closing_line(results: Results, seconds: float) -> str:
    """What passed, failed and was skipped, and why, in the form of pytest's own last line.

    The reasons stand behind the time, where pytest puts it in other words: programs that read the line find the counts
    where they look for them.
    """
    counts = [f"{results.passed} passed", f"{results.failed} failed", f"{results.skipped.total()} skipped"]
    if errors := results.errors + len(results.problems):
        counts.append(f"{errors} error{'s' if errors > 1 else ''}")
    reasons = [f"{number} skipped: {reason}" for reason, number in results.skipped.most_common()]
    explained = "; ".join([*results.problems, *reasons])
    return f"=== {', '.join(counts)} in {seconds:.2f}s {f'({explained}) ' if explained else ''}==="


def _read(file: Path) -> Results | None:
    """The results that `recording` has written; nothing if it has not."""
    try:
        read = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    return Results(read["passed"], read["failed"], read["error"], Counter(read["skipped"]))
