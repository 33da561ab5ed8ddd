"""Ctrl-C and SIGTERM as a request to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["ends_in_order"]


@contextmanager
def ends_in_order(on_signal: Callable[[], None]) -> Iterator[None]:
    """Call `on_signal` at every Ctrl-C and SIGTERM inside the block, in place of the previous handlers.

    Args:
        on_signal: runs in a signal handler, in the main thread.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        on_signal()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
