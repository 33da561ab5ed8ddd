"""Cores available to this process, and processor time of a process.

Standard library only: the controller imports this module too (decision 0018).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from pathlib import Path

__all__ = ["THREADS", "computing_threads", "main_thread_seconds", "processor_seconds", "usable_cores"]

THREADS = "OMP_NUM_THREADS"
"""The environment variable with the number of threads for computing, which the controller sets for each process."""


def computing_threads() -> int:
    """Threads that this process computes with; 1 if nothing says more."""
    given = os.environ.get(THREADS, "")
    return max(1, int(given)) if given.isdecimal() else 1


def usable_cores(groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Cores that this process may use at the same time, by its affinity and its control group's quota.

    Args:
        groups: mount point of control groups.
    """
    cores = float(len(os.sched_getaffinity(0)))
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # version 2
        quota, period = (groups / "cpu.max").read_text().split()
        return min(cores, float(quota) / float(period))  # "max" is not a number: no quota
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = ((groups / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        if float(quota) > 0:
            return min(cores, float(quota) / float(period))
    return cores


def processor_seconds(pid: int) -> float:
    """Seconds of processor time of all threads of a process, in user and kernel mode (Linux).

    The resolution is nanoseconds; that of /proc/PID/stat is 0.01 s, a whole step of a small model.

    Args:
        pid: of a process that was not waited for.

    Raises:
        ProcessLookupError: there is no such process.
    """
    clock = ctypes.c_int()
    error = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise ProcessLookupError(error, os.strerror(error))
    return time.clock_gettime(clock.value)


def main_thread_seconds(pid: int, processes: Path = Path("/proc")) -> float | None:
    """As `processor_seconds`, of a process's main thread; None: the kernel does not tell.

    Args:
        pid: of a process that was not waited for.
        processes: mount point of the process file system.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((processes / f"{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
    return None
