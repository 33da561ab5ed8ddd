"""Cores that a process may use, and how much of them it has used."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from heterps_runtime.cores import THREADS, computing_threads, main_thread_seconds, processor_seconds, usable_cores

ALL = float(len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ALL),
        ({"cpu.max": "max 100000\n"}, ALL),
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "100000000 100000\n"}, ALL),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, ALL),
        ({"cpu/cpu.cfs_quota_us": "25000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.25),
        ({"cpu/cpu.cfs_quota_us": "25000\n"}, ALL),
        ({"cpu.max": "nonsense"}, ALL),
    ],
)
def test_quotas_of_both_versions_are_read(files: dict[str, str], expected: float, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == expected


def test_the_processor_time_of_a_process_is_its_own_clock() -> None:
    before = time.process_time()
    seen = processor_seconds(os.getpid())
    assert before <= seen <= time.process_time()


def test_the_processor_time_of_another_process_is_told_until_it_is_waited_for() -> None:
    program = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert processor_seconds(process.pid) >= 0.2
        process.communicate(b"\n")
    with pytest.raises(ProcessLookupError):
        processor_seconds(process.pid)


def test_the_main_thread_has_a_part_of_a_process_s_time(tmp_path: Path) -> None:
    def work() -> None:
        begun = time.thread_time()
        while time.thread_time() < begun + 0.1:
            pass

    main, thread = main_thread_seconds(os.getpid()), threading.Thread(target=work)
    assert main is not None, "this kernel has no schedstat"
    thread.start()
    thread.join()
    assert main <= (later := main_thread_seconds(os.getpid()) or 0.0) <= processor_seconds(os.getpid()) - 0.1
    assert later - main < 0.1
    assert main_thread_seconds(os.getpid(), tmp_path) is None


@pytest.mark.parametrize(("given", "threads"), [(None, 1), ("4", 4), ("0", 1), ("4,2", 1), ("", 1)])
def test_a_process_computes_with_the_threads_that_it_is_given(
    given: str | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(THREADS, raising=False)
    if given is not None:
        monkeypatch.setenv(THREADS, given)
    assert computing_threads() == threads
