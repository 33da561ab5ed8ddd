"""The cores of this machine: how many there are for this process, and how much of them a process has used.

Standard library only: the controller imports this module too (decision 0018).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from pathlib import Path

__all__ = ["processor_seconds", "usable_cores"]


def usable_cores(groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Cores that this process may use at once: those that it may run on, within its control group's quota.

    Args:
        groups: where control groups are mounted; a container sees its own there.
    """
    cores = float(len(os.sched_getaffinity(0)))
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # version 2
        quota, period = (groups / "cpu.max").read_text().split()
        return min(cores, float(quota) / float(period))  # "max" is no number: no quota
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = ((groups / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        if float(quota) > 0:
            return min(cores, float(quota) / float(period))
    return cores


def processor_seconds(pid: int) -> float:
    """Processor time of a process so far, of all its threads, in user and kernel mode (Linux).

    The clock counts nanoseconds. /proc/PID/stat counts hundredths of a second, which is a whole step of a small model.

    Args:
        pid: of a process that has not been waited for.

    Raises:
        ProcessLookupError: there is no such process.
    """
    clock = ctypes.c_int()
    error = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise ProcessLookupError(error, os.strerror(error))
    return time.clock_gettime(clock.value)
