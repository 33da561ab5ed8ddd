"""Real limits on the processor time of processes: one control group with a quota for each (Linux, root).

Where control groups cannot be written, `unavailable` says why.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

__all__ = ["PERIOD_MICROSECONDS", "CpuLimits", "unavailable"]

# Short, so that a process is slow rather than stopped for a while; the kernel's least quota is a tenth of it.
PERIOD_MICROSECONDS = 10_000
_LEAST_MICROSECONDS = 1_000
_GROUPS = Path("/sys/fs/cgroup")
_EMPTYING_SECONDS = 5.0


class CpuLimits:
    """Control groups of limited processes, removed with the context, when the processes have ended.

    Args:
        groups: mount point of control groups, of version 1 or 2.
    """

    def __init__(self, groups: Path = _GROUPS) -> None:
        self._is_v1 = (groups / "cpu" / "cpu.cfs_quota_us").exists()
        self._top = (groups / "cpu" if self._is_v1 else groups) / f"heterps-limits-{os.getpid()}"
        self._made: list[Path] = []

    def __enter__(self) -> CpuLimits:
        self._top.mkdir()
        if not self._is_v1:
            for group in (self._top.parent, self._top):
                (group / "cgroup.subtree_control").write_text("+cpu")
        return self

    def __exit__(self, *error: object) -> None:
        end = time.monotonic() + _EMPTYING_SECONDS
        for group in [*self._made, self._top]:
            while group.exists():
                try:
                    group.rmdir()
                except OSError:  # an ended process leaves its group a moment later
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.01)

    def limit(self, pid: int, cores: float) -> None:
        """Give a process, with all its threads, at most a part of a core.

        Args:
            pid: of a running process.
            cores: at least 0.1.

        Raises:
            ValueError: less than the kernel can enforce.
            OSError: the process has ended, or the group cannot be made.
        """
        quota = round(cores * PERIOD_MICROSECONDS)
        if quota < _LEAST_MICROSECONDS:
            raise ValueError(f"cores must be at least {_LEAST_MICROSECONDS / PERIOD_MICROSECONDS:g}, is {cores:g}")
        group = self._top / str(len(self._made))
        group.mkdir()
        self._made.append(group)
        if self._is_v1:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")
        (group / "cgroup.procs").write_text(str(pid))


def unavailable(groups: Path = _GROUPS) -> str:
    """Return why processes cannot be limited here; empty if they can."""
    limits = CpuLimits(groups)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(limits)
        except OSError as error:
            return f"control groups cannot be written ({error.strerror})"
    return ""
