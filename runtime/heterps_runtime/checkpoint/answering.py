"""What the tools have in common: one JSON document on stdout, progress on stderr."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from heterps_runtime.checkpoint.errors import CheckpointError
from heterps_runtime.contract import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_OK
from heterps_runtime.errors import UserError
from heterps_runtime.processes.work import WorkCounter
from heterps_runtime.storage import StorageError

__all__ = ["answer", "progress"]

_PROGRESS_SECONDS = 2.0


def answer(act: Callable[[], dict[str, Any]]) -> int:
    """Print the document of an action, or `{"error": {"reason", "message"}}`.

    Returns:
        The exit code of a process of the runtime.
    """
    try:
        document, code = act(), EXIT_OK
    except (UserError, CheckpointError) as error:
        document, code = _refusal("BadInput", error), EXIT_BAD_INPUT
    except StorageError as error:
        document, code = _refusal("StorageError", error), EXIT_FAILED
    sys.stdout.write(json.dumps(document) + "\n")
    return code


def _refusal(reason: str, error: Exception) -> dict[str, Any]:
    return {"error": {"reason": reason, "message": str(error)}}


@contextmanager
def progress(work: WorkCounter, doing: str, size: int | None = None) -> Iterator[None]:
    """Say on stderr from time to time how far an action is.

    Args:
        work: counts the bytes that are read and written.
        doing: what is done with them, "verified".
        size: number of all of them; None: not known.
    """
    begun, over = work.total, threading.Event()

    def say() -> None:
        while not over.wait(_PROGRESS_SECONDS):
            of_all = "" if size is None else f" of {size / 1e9:.1f}"
            sys.stderr.write(f"{doing} {(work.total - begun) / 1e9:.1f}{of_all} GB\n")
            sys.stderr.flush()

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
