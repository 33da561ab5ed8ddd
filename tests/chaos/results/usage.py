"""Memory, threads, open files and sockets of processes over time, and whether they grow."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FIGURES", "Growth", "Sample", "growths", "sample"]

_WARM_UP = 0.25  # share of a process's life in which caches fill


@dataclass(frozen=True)
class Figure:
    """A figure of a process.

    Attributes:
        name: with its unit.
        allowed: growth over a process's life that is still flat, in that unit.
    """

    name: str
    allowed: float


FIGURES = (Figure("memory, MiB", 16.0), Figure("threads", 2.0), Figure("open files", 4.0), Figure("sockets", 4.0))


@dataclass(frozen=True)
class Sample:
    """The figures of a process at a time.

    Attributes:
        seconds: since the beginning.
        process: its name.
        pid: distinguishes it from its replacement.
        values: in the order of `FIGURES`.
    """

    seconds: float
    process: str
    pid: int
    values: tuple[float, ...]


@dataclass(frozen=True)
class Growth:
    """How a figure of one process changes.

    Attributes:
        process: its name.
        figure: what is measured.
        per_hour: slope of the least-squares line after the warm-up.
        total: growth along that line.
    """

    process: str
    figure: Figure
    per_hour: float
    total: float

    @property
    def flat(self) -> bool:
        return self.total <= self.figure.allowed


def sample(seconds: float, processes: Mapping[str, int]) -> list[Sample]:
    """Read the figures of processes (name -> pid) from /proc; those that have ended meanwhile are left out."""
    found = []
    for name, pid in processes.items():
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            status = dict(line.split(":", 1) for line in lines)
            links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
            values = (int(status["VmRSS"].split()[0]) / 1024, int(status["Threads"]), len(links))
        except (OSError, KeyError):
            continue
        sockets = sum(link.startswith("socket:") for link in links)
        found.append(Sample(seconds, name, pid, (*values, sockets)))
    return found


def growths(samples: Sequence[Sample], least_samples: int) -> list[Growth]:
    """Return how each figure of each process grows.

    Args:
        samples: in the order of time.
        least_samples: processes with fewer are left out, as most of their life is the warm-up.
    """
    lives: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for each in samples:
        lives[each.process, each.pid].append(each)
    found = []
    for (process, _), life in lives.items():
        if len(life) < least_samples:
            continue
        life = life[int(len(life) * _WARM_UP) :]
        times = [each.seconds for each in life]
        for place, figure in enumerate(FIGURES):
            slope = statistics.linear_regression(times, [each.values[place] for each in life]).slope
            found.append(Growth(process, figure, slope * 3600, slope * (times[-1] - times[0])))
    return found
