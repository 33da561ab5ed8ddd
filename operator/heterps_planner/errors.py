"""Exceptions of the planner.

All of them are `ValueError`s: they mean that the input, not the planner, has to change. An infeasible problem is a
result, not an exception (`heterps_planner.plans.plan.Infeasible`): it is a normal answer to a valid question.

    PlannerError (ValueError)
    ├── ProblemError         a field of the input is wrong; `.path` names it
    │   └── UnknownNameError an unknown name; `.nearest` suggests a known one
    ├── TooLargeError        the method cannot handle a problem of this size
    ├── MissingPackageError  the method needs a package that is not installed
    └── DeadlineError        the time limit passed before any feasible plan was found
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["DeadlineError", "MissingPackageError", "PlannerError", "ProblemError", "TooLargeError", "UnknownNameError"]


_SHOWN_CHARACTERS = 60  # of a name, so that a message stays one line


class PlannerError(ValueError):
    """Base of all exceptions that the planner raises for its users."""


class ProblemError(PlannerError):
    """A field of the input is wrong.

    Attributes:
        path: where the field is, such as `problem.layers[3].pools.v100.computeSeconds`.
        complaint: what is wrong with it, with the value found.
    """

    def __init__(self, path: str, complaint: str) -> None:
        super().__init__(f"{path}: {complaint}")
        self.path = path
        self.complaint = complaint


class UnknownNameError(ProblemError):
    """An unknown field, pool, layer or method name.

    Attributes:
        nearest: the most similar known name, if any is similar.
    """

    def __init__(self, path: str, what: str, name: str, known: Iterable[str]) -> None:
        names = list(known)
        close = difflib.get_close_matches(name, names, n=1)
        self.nearest = close[0] if close else None
        shown = ", ".join(map(_shortened, names[:12])) + (", ..." if len(names) > 12 else "")
        hint = f"did you mean {self.nearest!r}?" if self.nearest else f"known: {shown}"
        super().__init__(path, f"unknown {what} {_shortened(name)!r}; {hint}")


def _shortened(name: str) -> str:
    return name if len(name) <= _SHOWN_CHARACTERS else name[: _SHOWN_CHARACTERS - 3] + "..."


class TooLargeError(PlannerError):
    """The chosen method cannot handle a problem of this size; the message names one that can."""


class MissingPackageError(PlannerError):
    """The chosen method needs a package that is not installed; the message names the command that installs it."""


class DeadlineError(PlannerError):
    """The deadline passed before any plan that meets the throughput floor was found."""
