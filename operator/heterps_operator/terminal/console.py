"""Consoles for user-facing text."""

from __future__ import annotations

import os

from rich.console import Console

__all__ = ["Console", "make_console"]

# Tables for a file or a pipe must not be squeezed into 80 columns.
_PIPE_WIDTH = 160


def make_console(*, stderr: bool = False) -> Console:
    """Return a console on stdout or stderr, as wide as the terminal, or wide enough for every table."""
    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        return Console(stderr=stderr, width=_PIPE_WIDTH)
    return console
