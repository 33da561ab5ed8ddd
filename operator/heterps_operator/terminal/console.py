"""Where text for people goes."""

from __future__ import annotations

import os

from rich.console import Console

__all__ = ["Console", "make_console"]

# Tables for a file or a pipe are not squeezed into the 80 columns of a terminal that is not there.
_PIPE_WIDTH = 160


def make_console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr; as wide as the terminal, or wide enough for every table."""
    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        return Console(stderr=stderr, width=_PIPE_WIDTH)
    return console
