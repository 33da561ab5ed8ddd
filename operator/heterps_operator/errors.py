"""The operator's exceptions, all in one hierarchy.

    HeterpsError                 anything that a user or administrator can act on
    ├── ManifestError            manifests that cannot be used; holds every problem found
    ├── UsageError               an option of the command line that cannot be followed
    ├── WorkspaceError           a work directory that cannot be used as it is
    ├── StateError               a state file that cannot be read
    ├── ApiError                 the API server failed or refused (kubernetes/api.py)
    ├── ClusterError             an unusable cluster, or a refused request
    ├── StoreError               a store of checkpoints that fails or does not answer
    └── InstallationError        a file of HeterPS itself is missing

Add new exceptions here: the command line turns every `HeterpsError`, and nothing else, into its text and an exit code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from heterps_operator.addresses import redacted

__all__ = [
    "MISSING",
    "ClusterError",
    "FieldError",
    "HeterpsError",
    "InstallationError",
    "ManifestError",
    "Missing",
    "StateError",
    "StoreError",
    "UsageError",
    "WorkspaceError",
]


class Missing:
    """The type of `MISSING`, the value of an absent field (null is a value)."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()

_LONGEST_VALUE = 80  # characters of a value in a message


class HeterpsError(Exception):
    """Base of all errors with a message for users."""


class InstallationError(HeterpsError):
    """HeterPS is not installed completely."""


class UsageError(HeterpsError, ValueError):
    """An invalid command-line option."""


class WorkspaceError(HeterpsError, ValueError):
    """The work directory is unusable; the message names the fix."""


class StateError(HeterpsError, ValueError):
    """A state file that cannot be read."""


class ClusterError(HeterpsError):
    """A cluster is unusable or refused a request; the message names the fix.

    Attributes:
        reason: one word, for programs: NoKubeconfig, Unreachable, NotInstalled, NotFound, Forbidden, ...
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class StoreError(HeterpsError):
    """A store of checkpoints fails or does not answer; a later try may succeed."""


@dataclass(frozen=True)
class FieldError:
    """One problem of a manifest."""

    path: str  # the field as users write it, spec.pools[1].name; "" for a whole document or file
    value: object  # the value found; MISSING if there is none to show
    message: str  # what must hold
    fix: str  # what to do about it
    document: str = ""  # kind and name of the object, "HeterPSJob flights"
    source: str = ""  # file and line, "job.yaml:12"

    def __str__(self) -> str:
        places = [text for text in (self.source, self.document, self.path) if text]
        found = ""
        if not isinstance(self.value, Missing):
            shown = _show(self.value)
            found = f", is {shown}" if self.message.startswith("must ") else f" (found {shown})"
        text = ": ".join([*places, f"{self.message}{found}; {self.fix}"])
        return text.encode("utf-8", "backslashreplace").decode()  # JSON may hold halves of surrogate pairs


class ManifestError(HeterpsError, ValueError):
    """Invalid manifests.

    Attributes:
        problems: all problems found, in file order.
    """

    def __init__(self, problems: Sequence[FieldError]) -> None:
        assert problems, "a ManifestError needs a problem"
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems]
        super().__init__(lines[0] if len(lines) == 1 else "\n".join([f"{len(lines)} problems:", *lines]))


def _show(value: object) -> str:
    """Format a value as one short line of JSON (which is also YAML)."""
    text = redacted(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."
