"""Processor time of everything that a benchmark has started, by program."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

__all__ = ["cpu_by_program"]

_TICKS = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name: user and system time of the process, and of its children that have ended.
_OWN, _ENDED = slice(11, 13), slice(13, 15)


def cpu_by_program(pid: int | None = None) -> dict[str, float]:
    """Return the CPU seconds of a process and its descendants, by program; those that have ended count for the parent.

    Args:
        pid: the process; None: this one.
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    waiting = [os.getpid() if pid is None else pid]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        try:
            fields = (process / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            words = (process / "cmdline").read_text(errors="replace").split("\0")
            for task in (process / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:
            continue  # it has ended
        seconds[_program(words)] += sum(map(int, fields[_OWN])) / _TICKS
        if ended := sum(map(int, fields[_ENDED])) / _TICKS:
            seconds[f"{_program(words)}, ended children"] += ended
    return dict(seconds)


def _program(words: list[str]) -> str:
    """Return the module of a Python process, or the name of another program."""
    return words[words.index("-m") + 1] if "-m" in words else Path(words[0]).name
