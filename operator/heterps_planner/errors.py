"""Exceptions of the planner.

All of them are `ValueError`s: they mean that the input, not the planner, has to change. An infeasible problem is no
exception but a result (`heterps_planner.plans.plan.Infeasible`): it is a normal answer to a well-formed question.

    PlannerError (ValueError)
    ├── ProblemError         a field of the input is wrong; `.path` names it
    │   └── UnknownNameError a name that is not among the known ones; `.nearest` offers one
    ├── TooLargeError        the method cannot handle a problem of this size
    ├── MissingPackageError  the method needs a package that is not installed
    └── DeadlineError        the time ended before any feasible plan was found
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["DeadlineError", "MissingPackageError", "PlannerError", "ProblemError", "TooLargeError", "UnknownNameError"]


_SHOWN_CHARACTERS = 60  # of a name, so that a message stays one line


class PlannerError(ValueError):
    """Base of everything that the planner raises for its users."""


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
    """A field, pool, layer or method name that nobody knows.

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
    """The chosen method needs a package that is not installed; the message says how to get it."""


class DeadlineError(PlannerError):
    """The deadline passed before any plan that meets the throughput floor was found."""
