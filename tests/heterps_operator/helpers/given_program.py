"""Programs of tests, as text: each in an interpreter of its own, or forked."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from heterps_operator.local.children import Child, Command, ForkServer, Program

ROOT = Path(__file__).parents[3]


def run_text(arguments: list[str]) -> None:
    """Run the first argument as a program."""
    exec(arguments[0], {})


def make_server() -> ForkServer:
    """Return a server that forks programs."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return ForkServer(f"{__name__}:run_text", environment={"PYTHONPATH": path})


class Given:
    """A program.

    Args:
        text: its source.
        server: forks it; None: it has an interpreter.
    """

    def __init__(self, text: str, server: ForkServer | None = None) -> None:
        first = (text,)
        self._first = first if server is not None else ()
        self._program: Program = server or Command((sys.executable, "-c", *first))

    def start(self, arguments: Sequence[str], output: Path, messages: Path, memory_bytes: int | None) -> Child:
        """Start it."""
        return self._program.start([*self._first, *arguments], output, messages, memory_bytes)
