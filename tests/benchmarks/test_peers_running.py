"""The bench of peers: processes of an entrant that train, fail, hang or are interrupted, and that none is left."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks._peers import running
from benchmarks._peers.entrants import Role
from benchmarks._peers.running import EntrantFailedError, run_entrant

from tests.benchmarks.small import fake, write_small_task

ROOT = Path(__file__).parents[2]
PROGRAMS = "tests.benchmarks.programs"
WORKERS = Role("worker", 2)
SERVER = Role("server", ends=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_figures_are_those_of_all_workers_from_the_first_begin_to_the_last_end(folder: Path, tmp_path: Path) -> None:
    settings = write_small_task(tmp_path / "data")
    labels = np.array([1, 0, 1, 0], np.float32)
    (tmp_path / "data" / "held-out").write_bytes(bytes(4 * 6 * 4) + labels.tobytes())  # ids and numbers are zeros
    outcome = run_entrant(fake("trains", WORKERS, SERVER), settings, folder, programs=PROGRAMS)
    assert outcome["samplesPerSecond"] == 2000 / 5
    assert outcome["samplesPerCpuSecond"] > 0
    assert outcome["others"] >= 0
    # Logits -1, 2, 0.5, -3: a positive is above a negative in 2 of 4 pairs; the loss is the mean of log(1 + e^-margin).
    assert outcome["auc"] == 0.5
    assert outcome["logLoss"] == pytest.approx((1.313262 + 2.126928 + 0.474077 + 0.048587) / 4, abs=1e-6)


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("fails", r"worker [01] ended with exit code 3: ValueError: no such table"),
        ("hangs", r"no sign of life for 1\.5 s"),
        ("says nothing", "it did not print when its steps began and ended"),
        ("has no quality", "it did not print its quality"),
    ],
)
def test_an_entrant_that_fails_or_hangs_says_why(behaviour: str, message: str, folder: Path, tmp_path: Path) -> None:
    settings = write_small_task(tmp_path / "data")
    with pytest.raises(EntrantFailedError, match=message):
        run_entrant(fake(behaviour, WORKERS, SERVER), settings, folder, 1.5 if behaviour == "hangs" else 60, PROGRAMS)


def test_processor_time_that_the_kernel_has_not_counted_yet_is_one_tick(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_processor_seconds", lambda sessions: {})
    outcome = run_entrant(
        fake("has no quality", WORKERS, SERVER, learns=False),
        write_small_task(tmp_path / "data"),
        folder,
        programs=PROGRAMS,
    )
    assert outcome["samplesPerCpuSecond"] == 2000 * os.sysconf("SC_CLK_TCK")


def test_what_learns_nothing_needs_no_quality(folder: Path, tmp_path: Path) -> None:
    settings = write_small_task(tmp_path / "data")
    outcome = run_entrant(fake("has no quality", WORKERS, learns=False), settings, folder, programs=PROGRAMS)
    assert "logLoss" not in outcome


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_bench_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    command = [sys.executable, "-m", "tests.benchmarks.interrupted", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as bench:
        pids = [int(word) for word in (tmp_path / "fifo").read_text().split()]
        handles = [os.pidfd_open(pid) for pid in pids]
        try:
            bench.send_signal(number)
            _, said = bench.communicate(timeout=60)
            _await_ends(handles)
        finally:
            bench.kill()
            for handle in handles:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                os.close(handle)
    assert bench.returncode == 130
    assert "interrupted; the same command goes on" in said
    assert not (tmp_path / "peers.json").exists(), "an unfinished round is not kept"


def _await_ends(handles: list[int]) -> None:
    """Wait until the processes of these file descriptors have ended, whether or not their parent has taken note."""
    waiting = select.poll()
    for handle in handles:
        waiting.register(handle, select.POLLIN)
    while handles:
        ended = {handle for handle, _ in waiting.poll(30_000)}
        assert ended, "a process goes on"
        for handle in ended:
            waiting.unregister(handle)
        handles = [handle for handle in handles if handle not in ended]
