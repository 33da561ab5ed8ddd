"""Batches prepared ahead of time, in a separate thread (first stage only).

A batch is read, its ids are made unique, and its tensors are laid out, so that the engine can request its rows at once.
The engine asks for the next batch at the end of a step, when it is about to wait, rather than while it computes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Feed"]

T = TypeVar("T")

_WAIT_SECONDS = 0.1  # between two checks of a full queue for `close`


@dataclass(frozen=True)
class _Failure:
    error: BaseException


class Feed(Generic[T]):
    """Runs `prepare(step)` for consecutive steps, a bounded number of steps ahead.

    Args:
        prepare: makes one step's batch; runs in the feed's thread.
        first: first step.
        stop: step after the last.
        depth: number of steps to prepare at the start; later ones are prepared on `prepare_next`.
        notify: called from the feed's thread when a step is ready.
    """

    def __init__(
        self, prepare: Callable[[int], T], first: int, stop: int, depth: int, notify: Callable[[], None]
    ) -> None:
        self._prepare = prepare
        self._range = range(first, stop)
        self._ready: queue.Queue[T | _Failure] = queue.Queue(maxsize=max(1, depth))
        self._asked = threading.Semaphore(max(1, depth))
        self._notify = notify
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def take(self) -> T | None:
        """The next prepared step, or None if it is not ready.

        Raises:
            Exception: of `prepare`.
        """
        try:
            item = self._ready.get_nowait()
        except queue.Empty:
            return None
        if isinstance(item, _Failure):
            raise item.error
        return item

    def prepare_next(self) -> None:
        """Prepare one more step; calls are counted."""
        self._asked.release()

    def close(self) -> None:
        """End the thread and drop prepared steps."""
        self._closed.set()
        self._asked.release()
        self._thread.join()

    def _run(self) -> None:
        for step in self._range:
            self._asked.acquire()
            if self._closed.is_set():
                return
            item: T | _Failure
            try:
                item = self._prepare(step)
            except Exception as error:
                item = _Failure(error)
            while not self._closed.is_set():
                try:
                    self._ready.put(item, timeout=_WAIT_SECONDS)
                    break
                except queue.Full:
                    continue
            if self._closed.is_set():
                return
            self._notify()
            if isinstance(item, _Failure):
                return
