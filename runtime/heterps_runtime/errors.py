"""Errors of the runtime.

    HeterpsRuntimeError
    ├── UserError            the user's input is wrong; trying again cannot help (exit code 2)
    └── TransientError       something outside broke; the controller may start the process again (exit code 1)
        └── PeerLostError    a member of the job went away in the middle of a step

Parts with errors of their own (`intake`, `data`, `checkpoint`) derive them from `UserError` or `ValueError`; the entry
point treats both as wrong input.
"""

from __future__ import annotations

__all__ = ["HeterpsRuntimeError", "PeerLostError", "TransientError", "UserError"]


class HeterpsRuntimeError(Exception):
    """Base class of everything that the runtime raises on purpose."""


class UserError(HeterpsRuntimeError, ValueError):
    """Wrong input: the message names the field or file, the value, and what to do."""


class TransientError(HeterpsRuntimeError):
    """A failure that may pass."""


class PeerLostError(TransientError):
    """Another member of the job is gone or does not answer."""
