"""The disk under a job's work directory, and its faults.

Faults of kinds other than `power-loss` hit the files of some checkpoints, from the one that is written next. They spare
the last checkpoint: without it there is no model, and the job is right to fail.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

from tests.chaos.faults.fuse import Mount, Request
from tests.chaos.faults.incident import Hit
from tests.chaos.faults.kinds import DISK
from tests.chaos.faults.moments import Sighting
from tests.chaos.faults.peers import name_of

__all__ = ["Disk"]

_CHECKPOINT = re.compile(r"/checkpoints/step-0*(\d+)\.\d+-[0-9a-f]+/")  # `checkpoint.manifest.new_folder`


class Disk:
    """A mounted file system with faults.

    Args:
        point: folder that becomes the mount point.
        backing: empty folder that holds the files.
        last_step: of the job.
        on_sighting: called before a file of interest is written, in another thread.
    """

    def __init__(self, point: Path, backing: Path, last_step: int, on_sighting: Callable[[Sighting], None]) -> None:
        point.mkdir()
        backing.mkdir()
        self._backing = backing
        self._last_step = last_step
        self._on_sighting = on_sighting
        self._lock = threading.Lock()
        self._kind = ""  # of the fault in force; empty: none
        self._amount = 0.0
        self._hit = Hit()
        self._checkpoints = 0  # that it still affects, including the present one
        self._step: int | None = None  # of the present one
        self._unsynced: dict[str, int] = {}  # path -> bytes that are safe
        self._mount = Mount(point, backing, self._before, self._cut)

    def close(self) -> None:
        """Unmount it; the files stay in the backing folder."""
        self._mount.close()

    def disturb(self, kind: str, amount: float, checkpoints: int, hit: Hit) -> None:
        """Let a fault of a kind affect the next checkpoints; `hit` is set when it fails or delays a request."""
        with self._lock:
            self._kind, self._amount, self._checkpoints, self._step = kind, amount, checkpoints, None
            self._hit = hit

    def lose_power(self) -> list[str]:
        """Lose what was written but not synced; returns the damaged files. No process may be writing."""
        with self._lock:
            damaged = []
            for path, safe in sorted(self._unsynced.items()):
                with contextlib.suppress(FileNotFoundError):
                    if os.path.getsize(self._backing / path) > safe:
                        damaged.append(path)
                        os.truncate(self._backing / path, safe)
            self._unsynced.clear()
            return damaged

    def _before(self, request: Request) -> float:
        """See `Mount`."""
        self._report(request)
        with self._lock:
            pause = 0.0
            # What is left of a checkpoint after its last write is not torn, so it must not count as the first one.
            if self._kind != "disk-torn" and self._affects(request):
                match self._kind:
                    case "disk-full" if request.op != "fsync":
                        self._hit.happened = True
                        raise OSError(errno.ENOSPC, "disk full")
                    case "disk-error" if request.op == "fsync":
                        self._hit.happened = True
                        raise OSError(errno.EIO, "I/O error")
                    case "disk-slow":
                        self._hit.happened = True
                        pause = self._amount
            self._follow(request)
            return pause

    def _cut(self, request: Request, size: int) -> int | None:
        """See `Mount`."""
        with self._lock:
            if self._kind != "disk-torn" or not self._affects(request):
                return None
            self._hit.happened = True
            return size // 2

    def _affects(self, request: Request) -> bool:
        found = _CHECKPOINT.search(f"/{request.path}/")
        if not self._kind or found is None or int(found[1]) >= self._last_step:
            return False
        step = int(found[1])
        if self._step is None or step > self._step:
            self._step, self._checkpoints = step, self._checkpoints - 1
        if self._checkpoints < 0:
            self._kind = ""
        return bool(self._kind) and step == self._step

    def _follow(self, request: Request) -> None:
        """Note which bytes are not synced."""
        match request.op:
            case "write":
                if request.path not in self._unsynced:
                    self._unsynced[request.path] = os.path.getsize(self._backing / request.path)
            case "create":
                self._unsynced[request.path] = 0
            case "fsync":
                self._unsynced.pop(request.path, None)
            case "rename":
                safe = self._unsynced.pop(request.source, None)
                self._unsynced.pop(request.path, None)
                if safe is not None:
                    self._unsynced[request.path] = safe

    def _report(self, request: Request) -> None:
        """Report the beginning of a manifest, of a checkpoint's file and of the export."""
        found = _CHECKPOINT.search(f"/{request.path}")
        if request.op == "create" and found:
            op, step = "manifest" if ".manifest.json" in request.path else "file", int(found[1])
        elif request.op == "mkdir" and request.path.endswith("/.model.exporting"):
            op, step = "export", None
        elif request.op == "rename" and request.path.endswith("/state.json"):
            op, step = "state", None
        else:
            return
        self._on_sighting(Sighting(name_of(request.pid) or "other", DISK, True, op, step))
