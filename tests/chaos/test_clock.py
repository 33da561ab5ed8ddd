"""The clock of a campaign's processes: the time of day steps, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.faults.clock import Clock, can_step
from tests.chaos.faults.incident import Hit

HOUR = 3600.0
LATER = 600.0  # seconds: no test takes that long
# Answers each line with its clocks, and with the seconds that a wait until 50 ms from now takes in the time of day.
PROGRAM = """
import _thread, ctypes, sys, time

class Deadline(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]

library = ctypes.CDLL(None)
semaphore = ctypes.create_string_buffer(64)
library.sem_init(semaphore, 0, 0)
for line in sys.stdin:
    now = time.time_ns() + 50_000_000
    deadline = Deadline(now // 10**9, now % 10**9)
    began = time.monotonic()
    library.sem_timedwait(semaphore, ctypes.byref(deadline))
    print(time.time(), time.monotonic(), time.monotonic() - began, flush=True)
"""


class Watcher:
    """A process with the clock."""

    def __init__(self, clock: Clock) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, **clock.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ahead(self) -> tuple[float, float, float]:
        """Return how far its time of day and its monotonic clock are ahead of ours, and how long it waited."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("now\n")
        self._process.stdin.flush()
        of_day, monotonic, waited = map(float, self._process.stdout.readline().split())
        return of_day - time.time(), monotonic - time.monotonic(), waited

    def end(self) -> None:
        self._process.communicate()


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[Clock]:
    if not can_step():
        pytest.skip("no C compiler (apt-get install gcc)")
    made = Clock(tmp_path / "clock")
    yield made
    made.close()


@pytest.fixture
def watcher(clock: Clock) -> Iterator[Watcher]:
    made = Watcher(clock)
    yield made
    made.end()


@pytest.mark.parametrize("by", [HOUR, -24 * HOUR])
def test_the_time_of_day_of_a_running_process_steps_and_steps_back(clock: Clock, watcher: Watcher, by: float) -> None:
    assert watcher.ahead()[0] == pytest.approx(0, abs=60)
    hit = Hit()
    clock.step(by, LATER, hit)
    of_day, monotonic, waited = watcher.ahead()
    assert of_day == pytest.approx(by, abs=60)
    assert monotonic == pytest.approx(0, abs=60)
    assert waited < HOUR / 2, "the kernel gets deadlines in its own time"
    assert not hit.happened, "what it has disturbed is known at the end"
    clock.close()
    assert hit.happened
    assert watcher.ahead()[0] == pytest.approx(0, abs=60)


def test_steps_that_overlap_add_up(clock: Clock, watcher: Watcher) -> None:
    clock.step(HOUR, LATER, Hit())
    clock.step(HOUR, LATER, Hit())
    assert watcher.ahead()[0] == pytest.approx(2 * HOUR, abs=60)
    clock.close()
    assert watcher.ahead()[0] == pytest.approx(0, abs=60)


def test_a_step_that_no_process_sees_disturbs_nothing(clock: Clock) -> None:
    hit = Hit()
    clock.step(HOUR, LATER, hit)
    clock.close()
    assert not hit.happened
