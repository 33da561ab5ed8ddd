"""An operator that crashes once at every point with unfinished work.

    python -m tests.cluster.faulty_operator operator OPTIONS...

Production code is unaffected: the points are before and after calls of its functions. A parent imports the operator
once and forks it; a child that reaches a new point reports it and exits at once. The next child skips known points, and
continues until it finds another.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from heterps_operator import __main__
from heterps_operator.cli import operator  # noqa: F401  # imported here, so that no child has to
from heterps_operator.controller.jobs.owned_objects import OwnedObjects
from heterps_operator.controller.jobs.publisher import Publisher
from heterps_operator.controller.jobs.session import JobSession
from heterps_operator.controller.lease import Lease
from heterps_operator.loop import control_loop as loop
from heterps_operator.state.values import Action, StartProcess, StopProcess

CODE = 86


class Crashes:
    """Makes this process exit at the first new point.

    Args:
        known: points where earlier processes exited.
        pipe: reports the point to the parent.
    """

    def __init__(self, known: frozenset[str], pipe: int) -> None:
        self._known = known
        self._pipe = pipe
        self._dying = threading.Lock()

    def install(self) -> None:
        """Insert the points into the operator's functions."""
        self._around(loop.ControlLoop, loop.ControlLoop._act, lambda control, action, *_: name_of(action))
        # Between a decision and saving it, and between that and the first action.
        self._around(JobSession, JobSession._save, lambda session, status, *_: f"keeping {status.phase}")
        self._around(OwnedObjects, OwnedObjects.keep_plan, lambda *_: "writing a plan")
        self._around(JobSession, JobSession.__init__, lambda *_: "taking up")
        # After the actions, and before any report.
        self._around(Publisher, Publisher.publish, lambda publisher, turn, *_: f"telling {turn.status.phase}")
        # The holder of the Lease is known to be dead here; waiting until it expires is the subject of another test.
        Lease._expired = lambda self, spec: True  # type: ignore[method-assign]

    def _around(self, owner: type, original: Callable[..., Any], point: Callable[..., str]) -> None:
        @functools.wraps(original)
        def replacement(*arguments: Any, **options: Any) -> Any:
            name = point(*arguments)
            self._come_to(f"before {name}")
            result = original(*arguments, **options)
            self._come_to(f"after {name}")
            return result

        setattr(owner, original.__name__, replacement)

    def _come_to(self, point: str) -> None:
        if point not in self._known:
            self._dying.acquire()  # never released: other threads may reach a point too
            sys.stderr.write(f"dies {point}\n")
            os.write(self._pipe, point.encode())
            os._exit(CODE)


def name_of(action: Action) -> str:
    """Name an action, with the role of its process."""
    match action:
        case StartProcess(spec):
            return f"StartProcess {spec.role}"
        case StopProcess(name, _):
            return f"StopProcess {name.partition('-')[0]}"
        case _:
            return type(action).__name__


def main(arguments: list[str]) -> int:
    """Fork one operator after the other, until one ends by itself or is stopped; return its exit code."""
    points: set[str] = set()
    child = 0
    ended = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ended
        ended = True
        if child:
            os.kill(child, signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    while not ended:
        reading, writing = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until the child is known
        child = os.fork()
        if child == 0:
            os.close(reading)
            Crashes(frozenset(points), writing).install()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            os._exit(__main__.main(arguments))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.close(writing)
        _, status = os.waitpid(child, 0)
        child = 0
        with os.fdopen(reading, "rb") as pipe:
            points.add(pipe.read().decode())
        if (code := os.waitstatus_to_exitcode(status)) != CODE:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
