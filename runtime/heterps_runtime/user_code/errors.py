"""Errors of `spec.code`, worded for users.

Only what a restart may mend is a `TransientError`: an interrupted download, say.
"""

from __future__ import annotations

from heterps_runtime.errors import TransientError, UserError

__all__ = ["CodeError", "CodeUnreachableError"]


class CodeError(UserError):
    """The code is not there, is not what the job names, or cannot be unpacked safely."""


class CodeUnreachableError(TransientError):
    """The server of a repository does not answer."""
