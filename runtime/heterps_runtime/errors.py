"""Errors of the runtime.

    HeterpsRuntimeError
    ├── UserError            wrong input; a restart cannot help (exit code 2)
    └── TransientError       a failure outside; the controller may start the process again (exit code 1)
        ├── ProtocolError    a message is damaged, or not one of the protocol
        ├── PeerLostError    a member of the job was lost, or the connection to it
        └── SupersededError  the coordinator has announced something else

Packages with their own errors (`intake`, `data`, `checkpoint`) derive them from `UserError` or `ValueError`; the entry
point treats both as wrong input.
"""

from __future__ import annotations

__all__ = ["HeterpsRuntimeError", "PeerLostError", "ProtocolError", "SupersededError", "TransientError", "UserError"]


class HeterpsRuntimeError(Exception):
    """Base class of the runtime's errors."""


class UserError(HeterpsRuntimeError, ValueError):
    """Wrong input: the message names the field or file, the value, and a remedy."""


class TransientError(HeterpsRuntimeError):
    """A failure that may not occur again."""


class ProtocolError(TransientError):
    """A message is damaged, or not one that its sender may send."""


class PeerLostError(TransientError):
    """Another member of the job has ended or does not answer, or the connection to it broke."""


class SupersededError(TransientError):
    """What was being set up is out of date: the coordinator has announced something else."""
