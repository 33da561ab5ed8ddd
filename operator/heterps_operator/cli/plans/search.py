"""A search that users can watch and stop: a progress bar on terminals, and Ctrl-C for the best answer so far."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from heterps_operator.terminal.console import Console

__all__ = ["Search", "open_search"]

_QUIET_SECONDS = 1.0  # searches shorter than this show no bar


class Search:
    """Progress and deadline of a search.

    Args:
        console: console of the progress bar; None: no bar.
        limit: time limit in seconds; None: no limit.

    Attributes:
        deadline: time on `clock` at which to stop.
        interrupted: whether Ctrl-C was pressed.
    """

    def __init__(self, console: Console | None, limit: float | None) -> None:
        self.interrupted = False
        self.deadline = math.inf
        self._console = console
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._label = "planning"
        self._began = time.monotonic()
        self.restart(limit)

    def restart(self, limit: float | None, label: str = "planning") -> None:
        """Start another search with its own time limit."""
        self.finish()
        self._label, self._began = label, time.monotonic()
        self.deadline = math.inf if limit is None else self._began + limit

    def clock(self) -> float:
        """Return the time in seconds; after Ctrl-C every deadline has passed."""
        return math.inf if self.interrupted else time.monotonic()

    def should_stop(self) -> bool:
        """Whether time is up or the user has pressed Ctrl-C."""
        return self.clock() >= self.deadline

    def share(self, parts: int) -> float:
        """Return the deadline of the first of so many searches that divide the rest of the time equally."""
        now = self.clock()
        return now + (self.deadline - now) / parts if now < self.deadline < math.inf else self.deadline

    @property
    def seconds(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self._began

    def progress(self, fraction: float) -> None:
        """Show progress."""
        if self._console is None or time.monotonic() - self._began < _QUIET_SECONDS:
            return
        if self._bar is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TimeElapsedColumn(),
                TextColumn("Ctrl-C: best so far"),
            )
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task(self._label, total=1.0)
            self._bar.start()
        assert self._task is not None
        self._bar.update(self._task, completed=fraction)

    def finish(self) -> None:
        """Remove the progress bar."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._task = None


@contextmanager
def open_search(console: Console | None, limit: float | None) -> Iterator[Search]:
    """Search until the time is up or Ctrl-C is pressed; a second Ctrl-C ends the command."""
    search = Search(console, limit)

    def handle(number: int, frame: FrameType | None) -> None:
        if search.interrupted:
            raise KeyboardInterrupt
        search.interrupted = True

    if threading.current_thread() is not threading.main_thread():
        yield search
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield search
    finally:
        signal.signal(signal.SIGINT, before)
        search.finish()
