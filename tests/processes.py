"""Descriptions of how a process ended."""

from __future__ import annotations

import signal


def ending(code: int) -> str:
    """Describe an exit code of `subprocess`; a negative one is the signal that killed the process."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
