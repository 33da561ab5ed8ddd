"""Displays of a running job: live on a terminal, line by line elsewhere, or none.

A display is a listener of the control loop. It renders from turns alone (panels.py), so a recorded turn renders the
same in a test.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, RenderableType
from rich.live import Live

from heterps_operator.state.status import Event, Phase
from heterps_operator.state.turn import Turn
from heterps_operator.terminal.panels import event_line, live_view, progress_line
from heterps_runtime.contract import JobPhase

__all__ = ["Display", "LiveDisplay", "PlainDisplay", "QuietDisplay", "make_display"]

_PLAIN_SECONDS = 10.0  # between two lines of progress
_KEPT_LOSSES = 2_000


class Display(Protocol):
    """A listener of the loop, used as a context manager around it."""

    def __enter__(self) -> Self:
        """Start the display."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restore the terminal."""
        ...

    def on_turn(self, turn: Turn) -> None:
        """Show a turn."""
        ...

    def say(self, message: str) -> None:
        """Print a permanent line."""
        ...


class _Losses:
    """The loss of each step, at a resolution that one line of text can show."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._step = -1

    def add(self, turn: Turn) -> None:
        view = turn.observed.coordinator
        if view is None or view.committed_steps <= self._step or view.document.get("loss") is None:
            return
        self._step = view.committed_steps
        self.values.append(float(view.document["loss"]))
        if len(self.values) > _KEPT_LOSSES:
            self.values = [(a + b) / 2 for a, b in zip(self.values[::2], self.values[1::2], strict=False)]


class LiveDisplay:
    """Redraws one panel in place on a terminal.

    Args:
        console: a terminal.
        verbose: show every process.
    """

    def __init__(self, console: Console, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._losses = _Losses()
        self._events: list[Event] = []

    def __enter__(self) -> Self:
        """Start drawing."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove the panel; what follows is the report."""
        self._live.stop()

    def on_turn(self, turn: Turn) -> None:
        """Redraw."""
        self._losses.add(turn)
        self._events += turn.events
        self._live.update(self.render(turn), refresh=True)

    def render(self, turn: Turn) -> RenderableType:
        """Render the panel for a turn."""
        return live_view(turn, self._losses.values, self._events, self._verbose)

    def say(self, message: str) -> None:
        """Print a line above the panel."""
        self._console.print(message, markup=False, highlight=False)


class _Lines:
    """A display that leaves the terminal as it is."""

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to undo."""


class PlainDisplay(_Lines):
    """Prints a line per event, and progress every few seconds, for pipes and logs.

    Args:
        console: output of the lines, which are never wrapped or coloured.
        verbose: also print which processes start and end.
    """

    def __init__(self, console: Console, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._phase = ""
        self._last_progress = float("-inf")
        self._known: dict[str, str] = {}

    def on_turn(self, turn: Turn) -> None:
        """Print new events and progress."""
        view, now = turn.observed.coordinator, turn.observed.time
        phase = view.phase if view is not None and turn.status.phase == Phase.RUNNING else turn.status.phase
        if phase != self._phase:
            self._phase = phase
            self.say(
                event_line(Event("Normal", phase, (view.message if view is not None else "") or turn.job.name, now))
            )
        for event in turn.events:
            self.say(event_line(event))
        if self._verbose:
            self._say_processes(turn)
        training = view is not None and view.phase == JobPhase.TRAINING and view.committed_steps > 0
        if training and now - self._last_progress >= _PLAIN_SECONDS:
            self._last_progress = now
            self.say(event_line(Event("Normal", "Progress", progress_line(turn), now)))

    def _say_processes(self, turn: Turn) -> None:
        for process in turn.observed.processes:
            place = f"pid {process.pid} " if process.pid else ""
            state = place + ("runs" if process.running else f"ended with {process.exit_code}")
            if self._known.get(process.name) != state:
                self._known[process.name] = state
                self.say(event_line(Event("Normal", "Process", f"{process.name}: {state}", turn.observed.time)))

    def say(self, message: str) -> None:
        """Print a line."""
        self._console.print(message, markup=False, highlight=False, soft_wrap=True)


class QuietDisplay(_Lines):
    """Shows nothing; the report and the exit code tell the outcome."""

    def on_turn(self, turn: Turn) -> None:
        """Show nothing."""

    def say(self, message: str) -> None:
        """Show nothing."""


def make_display(console: Console, *, quiet: bool, verbose: bool) -> Display:
    """Return the display that suits the console."""
    if quiet:
        return QuietDisplay()
    return LiveDisplay(console, verbose) if console.is_terminal else PlainDisplay(console, verbose)
