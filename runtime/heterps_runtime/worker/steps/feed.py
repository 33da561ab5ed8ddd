"""Batches prepared ahead of time, in threads of their own (first stage only).

A batch is read, its ids are made unique, and its tensors are laid out, so that the engine can request its rows at once.
The engine asks for the next batch at the end of a step, when it is about to wait, rather than while it computes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Feed"]

T = TypeVar("T")


@dataclass(frozen=True)
class _Failure:
    error: BaseException


class Feed(Generic[T]):
    """Runs `prepare(step)` for consecutive steps, a bounded number of steps ahead.

    Args:
        prepare: makes one step's batch; runs in the feed's threads.
        first: first step.
        stop: step after the last.
        notify: called from the feed's threads when a step is ready.
        threads: that prepare steps at the same time; one step more is prepared at the start, later ones are on
            `prepare_next`.
    """

    def __init__(
        self, prepare: Callable[[int], T], first: int, stop: int, notify: Callable[[], None], threads: int = 1
    ) -> None:
        self._prepare = prepare
        self._steps = iter(range(first, stop))
        self._next = first  # to be taken
        self._ready: dict[int, T | _Failure] = {}
        self._lock = threading.Lock()
        self._asked = threading.Semaphore(threads + 1)
        self._notify = notify
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._run, name="feed", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def take(self) -> T | None:
        """The next prepared step, or None if it is not ready.

        Raises:
            Exception: of `prepare`.
        """
        with self._lock:
            item = self._ready.pop(self._next, None)
            if item is None:
                return None
            self._next += 1
        if isinstance(item, _Failure):
            raise item.error
        return item

    def prepare_next(self) -> None:
        """Prepare one more step; calls are counted."""
        self._asked.release()

    def close(self) -> None:
        """End the threads and drop prepared steps."""
        self._closed.set()
        self._asked.release(len(self._threads))
        for thread in self._threads:
            thread.join()
        self._ready.clear()

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            with self._lock:
                step = None if self._closed.is_set() else next(self._steps, None)
            if step is None:
                return
            item: T | _Failure
            try:
                item = self._prepare(step)
            except Exception as error:
                item = _Failure(error)
            with self._lock:
                self._ready[step] = item
            self._notify()
            if isinstance(item, _Failure):
                return
