"""Errors of the runtime.

    HeterpsRuntimeError
    ├── UserError            wrong input; a restart cannot help (exit code 2)
    └── TransientError       a failure outside; the controller may start the process again (exit code 1)
        └── PeerLostError    a member of the job was lost

Packages with their own errors (`intake`, `data`, `checkpoint`) derive them from `UserError` or `ValueError`; the entry
point treats both as wrong input.
"""

from __future__ import annotations

__all__ = ["HeterpsRuntimeError", "PeerLostError", "TransientError", "UserError"]


class HeterpsRuntimeError(Exception):
    """Base class of the runtime's errors."""


class UserError(HeterpsRuntimeError, ValueError):
    """Wrong input: the message names the field or file, the value, and a remedy."""


class TransientError(HeterpsRuntimeError):
    """A failure that may not occur again."""


class PeerLostError(TransientError):
    """Another member of the job has ended or does not answer."""
