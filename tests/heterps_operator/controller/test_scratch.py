"""The folder of planners: made when needed, removed at the end, and after SIGKILL by the next operator."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from heterps_operator.controller.planners import FairSemaphore, QueuedPlanner
from heterps_operator.controller.scratch import ScratchFolder

KILLED = """
import sys
from pathlib import Path
from heterps_operator.controller.scratch import ScratchFolder
scratch = ScratchFolder(Path(sys.argv[1]))
scratch.make()
(scratch.path / "ml").mkdir()
print(scratch.path, flush=True)
sys.stdin.read()
"""


def test_the_folder_is_made_for_the_first_planner_and_is_private(tmp_path: Path) -> None:
    scratch = ScratchFolder(tmp_path)
    ended = threading.Event()
    planner = QueuedPlanner(
        FairSemaphore(1), "ml", scratch.path / "ml" / "job", "optimal", 30.0, prepare=scratch.make, on_end=ended.set
    )
    assert list(tmp_path.iterdir()) == []
    planner.start({})
    assert list(tmp_path.iterdir()) == [scratch.path]
    assert scratch.path.stat().st_mode & 0o777 == 0o700
    assert (scratch.path / "ml" / "job" / "problem.json").exists()
    planner.close()
    assert ended.wait(30)
    scratch.close()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_operator_s_folder_is_removed_and_a_living_one_s_is_not(tmp_path: Path) -> None:
    living = ScratchFolder(tmp_path)
    living.make()
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        first = ScratchFolder(tmp_path)
        first.make()
        assert left.is_dir(), "its operator lives"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert left.is_dir(), "SIGKILL removes nothing"
    last = ScratchFolder(tmp_path)
    last.make()
    assert set(tmp_path.iterdir()) == {living.path, first.path, last.path}


def test_what_is_not_an_operator_s_folder_is_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "heterps-planners-link").symlink_to(elsewhere)
    (tmp_path / "heterps-planners-file").write_text("")
    before = set(tmp_path.iterdir())
    scratch = ScratchFolder(tmp_path)
    scratch.make()
    scratch.make()
    scratch.close()
    assert set(tmp_path.iterdir()) == before


def test_a_folder_that_is_taken_for_one_that_was_left_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, waits, flock = ScratchFolder(tmp_path), list[bool](), fcntl.flock

    def lock(descriptor: int, operation: int) -> None:
        waits.append(not operation & fcntl.LOCK_NB)
        if len(waits) == 1:
            scratch.path.rmdir()  # by an operator that had the lock first
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock)
    scratch.make()
    assert waits == [True, True]
    assert scratch.path.is_dir()
