"""The operator's folder for planners' files, of which a killed operator leaves none for long."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import threading
from pathlib import Path

__all__ = ["ScratchFolder"]

_PREFIX = "heterps-planners-"


class ScratchFolder:
    """A private folder that exists once it is needed. Thread-safe.

    Its process holds a lock on it while it lives. After SIGKILL the folder stays, without a lock: the next operator of
    this user that needs a folder in the same place removes it. Several operators on one machine do not disturb another.

    Args:
        place: where to make it; None: the folder for temporary files.

    Attributes:
        path: the folder, which `make` makes.
    """

    def __init__(self, place: Path | None = None) -> None:
        self._place = Path(tempfile.gettempdir()) if place is None else place
        self.path = self._place / f"{_PREFIX}{secrets.token_hex(8)}"
        self._guard = threading.Lock()
        self._lock: int | None = None  # descriptor of the folder

    def make(self) -> None:
        """Make the folder unless it exists, and remove those of operators that were killed.

        Raises:
            OSError: it cannot be made.
        """
        with self._guard:
            if self._lock is not None:
                return
            while self._lock is None:
                self.path.mkdir(mode=0o700, exist_ok=True)
                self._lock = _locked(self.path, wait=True)  # None: another operator took it for one that was left
        for other in self._place.glob(f"{_PREFIX}*"):
            if other != self.path:
                _remove_if_left(other)

    def close(self) -> None:
        """Remove the folder with its contents."""
        with self._guard:
            if self._lock is not None:
                shutil.rmtree(self.path, ignore_errors=True)
                os.close(self._lock)
                self._lock = None


def _remove_if_left(folder: Path) -> None:
    """Remove a folder of this user whose operator no longer lives."""
    descriptor = _locked(folder, wait=False)
    if descriptor is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked(folder: Path, *, wait: bool) -> int | None:
    """Lock a folder of this user; return the descriptor that holds the lock, or None if there is no such folder.

    Args:
        folder: the folder; a link is not followed.
        wait: wait for the lock; otherwise return None while another process holds it.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            found = folder.stat(follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode) and os.path.samestat(found, os.fstat(descriptor)):
                return descriptor
    except OSError:
        pass  # removed in the meantime, or in use
    os.close(descriptor)
    return None
