"""Cores that a process may use, and how much of them it has used."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heterps_runtime.cores import processor_seconds, usable_cores

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
