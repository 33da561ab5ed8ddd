"""The time of day of a job's processes: one machine has one clock, and it may be stepped.

`date --set` would step the clock of the whole machine, and time namespaces have no offset of the time of day. So a
small library (`clock.c`) is preloaded into the processes, and adds the offset that a shared file contains. Debian's
libfaketime reads its file with each call, and its processes share a semaphore, which a killed one may hold.
"""

from __future__ import annotations

import hashlib
import mmap
import shutil
import struct
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

from tests.chaos.faults.incident import Hit

__all__ = ["Clock", "can_step"]

_COMPILER = "cc"
_SOURCE = Path(__file__).with_suffix(".c")
_LIBRARIES = Path(__file__).parents[3] / ".cache" / "chaos"
_FORMAT = struct.Struct("=qq")  # nanoseconds that are added; how often a changed time was read


def can_step() -> bool:
    """Return whether this machine has what it takes: a C compiler."""
    return shutil.which(_COMPILER) is not None


class Clock:
    """The time of day of processes that are started with `environment`; it stays right unless `can_step`.

    Args:
        file: for the offset; is created.

    Attributes:
        environment: variables of these processes.
    """

    def __init__(self, file: Path) -> None:
        file.write_bytes(_FORMAT.pack(0, 0))
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), _FORMAT.size)
        self._lock = threading.Lock()
        self._timers: list[threading.Timer] = []
        self.environment: Mapping[str, str] = {}
        if can_step():
            self.environment = {"LD_PRELOAD": str(_library()), "HETERPS_TEST_CLOCK": str(file)}

    def step(self, by: float, seconds: float, hit: Hit) -> None:
        """Step the clock, and step it back later.

        Args:
            by: seconds; negative: back.
            seconds: until it is right again.
            hit: set if a process has read a wrong time until then.
        """
        before = self._reads
        self.add(by)

        def step_back() -> None:
            self.add(-by)
            hit.happened = self._reads > before

        timer = threading.Timer(seconds, step_back)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def close(self) -> None:
        """End steps that still last, as if their time were over."""
        for timer in self._timers:
            if timer.is_alive():
                timer.cancel()
                timer.function()

    def add(self, seconds: float) -> None:
        """Step the clock by this time."""
        with self._lock:
            (offset,) = struct.unpack_from("=q", self._shared)
            struct.pack_into("=q", self._shared, 0, offset + round(seconds * 1e9))

    @property
    def _reads(self) -> int:
        return int(_FORMAT.unpack(self._shared[:])[1])


def _library() -> Path:
    """Return the path of the library, compiled if this version of it is not there yet."""
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]
    library = _LIBRARIES / f"clock-{digest}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        made = library.with_suffix(".unfinished")
        options = ("-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror")
        subprocess.run([_COMPILER, *options, "-o", str(made), str(_SOURCE), "-ldl"], check=True)
        made.replace(library)
    return library
