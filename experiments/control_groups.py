"""Control groups (cgroups(7), version 1 or 2) that limit what processes may use of this machine. They need root.

Within the context, this process and those that it starts come before all others of the machine, so that other programs
change little.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["OWN", "ControlGroups", "unavailable"]

OWN = "self"  # the group of this process within the context
_MOUNT = Path("/sys/fs/cgroup")
_LEAST_MICROSECONDS = 1_000  # of a quota, by the kernel
_EMPTYING_SECONDS = 5.0


class ControlGroups:
    """Groups of processes, removed with the context, when their processes have ended.

    Args:
        controllers: what is limited: `cpu`, which must be the first, and perhaps `memory`.
        period_microseconds: of the quotas. The shorter it is, the less a process is slow by turns; the least quota is a
            millisecond.
        mount: mount point of control groups.
    """

    def __init__(
        self, controllers: Sequence[str] = ("cpu",), *, period_microseconds: int = 10_000, mount: Path = _MOUNT
    ) -> None:
        self._is_v1 = (mount / "cpu" / "cpu.cfs_quota_us").exists()
        self._mount = mount
        self._controllers = tuple(controllers)
        self._period = period_microseconds
        self._name = f"heterps-limits-{os.getpid()}"
        self._made: list[str] = []
        self._before = self._of("cpu")

    @property
    def least_cores(self) -> float:
        """The least limit on cores that the kernel can enforce."""
        return _LEAST_MICROSECONDS / self._period

    def __enter__(self) -> ControlGroups:
        self._before = self._own_group()
        try:
            for top in self._tops():
                top.mkdir()
                if not self._is_v1:
                    for group in (self._mount, top):
                        (group / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in self._controllers))
            file, most = ("cpu.shares", "262144") if self._is_v1 else ("cpu.weight", "10000")
            (self._of("cpu") / file).write_text(most)
            self.make(OWN)
            _move(os.getpid(), self._of("cpu") / OWN)
        except OSError:
            self._remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        _move(os.getpid(), self._before)
        self._remove()

    def make(self, name: str) -> None:
        """Make a group without limits."""
        for top in self._tops():
            (top / name).mkdir()
        self._made.append(name)

    def limit(self, pid: int, cores: float) -> None:
        """Give a running process, with all its threads, a group of its own and at most a part of a core.

        Raises:
            ValueError: less than the kernel can enforce.
            OSError: it has ended, or the group cannot be made.
        """
        name = str(len(self._made))
        self.make(name)
        self.limit_cores(name, cores)
        self.move(pid, name)

    def move(self, pid: int, name: str) -> None:
        """Move a running process, with all its threads, into a group.

        Raises:
            OSError: it has ended.
        """
        for top in self._tops():
            _move(pid, top / name)

    def limit_cores(self, name: str, cores: float | None) -> None:
        """Let a group use at most so many processors; None: no limit.

        Raises:
            ValueError: less than the kernel can enforce.
        """
        if cores is not None and cores < self.least_cores:
            raise ValueError(f"cores must be at least {self.least_cores:g}, is {cores:g}")
        quota = None if cores is None else round(cores * self._period)
        group = self._of("cpu") / name
        if self._is_v1:
            (group / "cpu.cfs_quota_us").write_text("-1")  # each pair on the way must be valid
            (group / "cpu.cfs_period_us").write_text(str(self._period))
            (group / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))
        else:
            (group / "cpu.max").write_text(f"{'max' if quota is None else quota} {self._period}")

    def limit_memory(self, name: str, size: int | None) -> None:
        """Let a group use at most `size` bytes, page cache included; None: no limit.

        Raises:
            OSError: it uses more, and the kernel cannot take it back.
        """
        file, none = ("memory.limit_in_bytes", "-1") if self._is_v1 else ("memory.max", "max")
        (self._of("memory") / name / file).write_text(none if size is None else str(size))

    def memory(self, name: str) -> int:
        """Bytes that a group uses, as its limit counts them."""
        file = "memory.usage_in_bytes" if self._is_v1 else "memory.current"
        return int((self._of("memory") / name / file).read_text())

    def _of(self, controller: str) -> Path:
        """The folder of the groups that have a controller."""
        return (self._mount / controller if self._is_v1 else self._mount) / self._name

    def _tops(self) -> list[Path]:
        return list(dict.fromkeys(map(self._of, self._controllers)))

    def _own_group(self) -> Path:
        """The group that limits the processors of this process."""
        mount = self._mount / "cpu" if self._is_v1 else self._mount
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if ("cpu" in controllers.split(",")) if self._is_v1 else not controllers:
                return mount / path.lstrip("/")
        return mount

    def _remove(self) -> None:
        end = time.monotonic() + _EMPTYING_SECONDS
        for group in (top / name for top in self._tops() for name in (*self._made, "")):
            while group.exists():
                try:
                    group.rmdir()
                except OSError:  # an ended process leaves its group a moment later
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.01)


def unavailable(controllers: Sequence[str] = ("cpu",), mount: Path = _MOUNT) -> str:
    """Return why processes cannot be limited here; empty if they can."""
    try:
        with ControlGroups(controllers, mount=mount):
            return ""
    except OSError as error:
        return f"control groups cannot be written ({error.strerror})"


def _move(pid: int, group: Path) -> None:
    (group / "cgroup.procs").write_text(str(pid))
