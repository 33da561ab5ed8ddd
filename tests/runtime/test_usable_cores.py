"""Cores that a process may use: a container's quota is less than what its machine has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from heterps_runtime.process import usable_cores

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
