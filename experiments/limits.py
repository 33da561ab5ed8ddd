"""Real limits on the processor time of processes: control groups with quotas (Linux, root).

Within the context, this process and those that it starts come before all others of the machine, so that other programs
change little. Where control groups cannot be written, `unavailable` says why.
"""

from __future__ import annotations

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
    """Control groups of this process and of limited ones, removed with the context, when the latter have ended.

    Args:
        groups: mount point of control groups, of version 1 or 2.
    """

    def __init__(self, groups: Path = _GROUPS) -> None:
        self._is_v1 = (groups / "cpu" / "cpu.cfs_quota_us").exists()
        self._mount = groups / "cpu" if self._is_v1 else groups
        self._top = self._mount / f"heterps-limits-{os.getpid()}"
        self._made: list[Path] = []
        self._before = self._mount

    def __enter__(self) -> CpuLimits:
        self._before = self._own_group()
        self._top.mkdir()
        try:
            if not self._is_v1:
                for group in (self._mount, self._top):
                    (group / "cgroup.subtree_control").write_text("+cpu")
            file, most = ("cpu.shares", "262144") if self._is_v1 else ("cpu.weight", "10000")
            (self._top / file).write_text(most)
            _move(os.getpid(), self._make("self"))
        except OSError:
            self._remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        _move(os.getpid(), self._before)
        self._remove()

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
        group = self._make(str(len(self._made)))
        if self._is_v1:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")
        _move(pid, group)

    def _own_group(self) -> Path:
        """Return the group of this process."""
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if ("cpu" in controllers.split(",")) if self._is_v1 else not controllers:
                return self._mount / path.lstrip("/")
        return self._mount

    def _make(self, name: str) -> Path:
        group = self._top / name
        group.mkdir()
        self._made.append(group)
        return group

    def _remove(self) -> None:
        end = time.monotonic() + _EMPTYING_SECONDS
        for group in [*self._made, self._top]:
            while group.exists():
                try:
                    group.rmdir()
                except OSError:  # an ended process leaves its group a moment later
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.01)


def _move(pid: int, group: Path) -> None:
    (group / "cgroup.procs").write_text(str(pid))


def unavailable(groups: Path = _GROUPS) -> str:
    """Return why processes cannot be limited here; empty if they can."""
    try:
        with CpuLimits(groups):
            return ""
    except OSError as error:
        return f"control groups cannot be written ({error.strerror})"
