"""A machine that crashes at the n-th change of its disk: that change and all later ones do not happen."""

from __future__ import annotations

import builtins
import functools
import io
import os
from collections.abc import Callable
from typing import Any

import pytest

from heterps_runtime.checkpoint import Storage, publishing

_CHANGES = ("mkdir", "write", "fsync", "replace", "rename", "unlink", "rmdir", "posix_fallocate")


class Crash(BaseException):
    """The machine has crashed."""


class Disk:
    """Counts the changes of the disk by this process, and crashes at one of them.

    Args:
        crash_at: number of the first change that does not happen, from 0; None: there is no crash.
    """

    def __init__(self, crash_at: int | None = None) -> None:
        self.changes = 0
        self._crash_at = crash_at

    def change(self) -> None:
        """Something is about to be changed."""
        if self._crash_at is not None and self.changes >= self._crash_at:
            raise Crash
        self.changes += 1

    def attach(self, patch: pytest.MonkeyPatch) -> None:
        """Count all changes from now on, until the patch is undone."""
        for name in _CHANGES:
            patch.setattr(os, name, self._counting(getattr(os, name)))
        for module in (builtins, io):
            patch.setattr(module, "open", self._counting_writers(open))
        patch.setattr(publishing, "_exchange", self._counting(publishing._exchange))

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*arguments: Any, **options: Any) -> Any:
            self.change()
            return function(*arguments, **options)

        return counted

    def _counting_writers(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if set(mode) & set("wax+"):
                self.change()
            return function(file, mode, *arguments, **options)

        return counted


class CrashingStorage(Storage):
    """A local storage whose deletions are changes that `Disk` counts, one per file."""

    def delete(self, name: str) -> None:
        """Delete a file."""
        if self.exists(name):
            os.unlink(self.path(name))

    def delete_dir(self, name: str) -> None:
        """Delete the files of a folder one by one, then the folder."""
        for file in self.files(name):
            os.unlink(self.path(file))
        os.rmdir(self.path(name))
