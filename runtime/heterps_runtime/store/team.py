"""Threads that compute the loops of a store together.

A kernel takes the parts of its arrays that it is to work on, and releases the interpreter lock. So a loop whose items
do not depend on each other is called once for each part, all at the same time, and the result is that of one call.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

__all__ = ["ALONE", "Team"]

T = TypeVar("T")

# Of a part; handing over fewer takes as long as computing them.
_LEAST_ROWS = 4096
_LEAST_ELEMENTS = 65_536


class Team:
    """The calling thread and some others. Not for two callers at the same time.

    Args:
        size: threads, the caller included.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._others = ThreadPoolExecutor(size - 1, thread_name_prefix="team") if size > 1 else None

    def share_rows(self, count: int, work: Callable[[int, int], T]) -> list[T]:
        """Call `work(start, stop)` for parts of `count` rows or keys, in several threads if they are many.

        Returns:
            The results, in the order of the parts.
        """
        return self._share(count, self.parts_of_rows(count), work)

    def share_elements(self, count: int, work: Callable[[int, int], T]) -> list[T]:
        """As `share_rows`, for elements of an array, of which each takes little time."""
        return self._share(count, self._parts(count, _LEAST_ELEMENTS), work)

    def parts_of_rows(self, count: int) -> int:
        """The number of parts into which work on so many rows or keys is divided."""
        return self._parts(count, _LEAST_ROWS)

    def each(self, parts: int, work: Callable[[int], T]) -> list[T]:
        """Call `work(part)` for each of some parts, at most `size`, at the same time; returns the results in order."""
        if self._others is None or parts == 1:
            return [work(part) for part in range(parts)]
        others = [self._others.submit(work, part) for part in range(1, parts)]
        try:
            first = work(0)
        finally:
            wait(others)  # they write to memory that the next call uses
        return [first, *(other.result() for other in others)]

    def _parts(self, count: int, least: int) -> int:
        return 1 if self._others is None else max(1, min(self.size, count // least))

    def _share(self, count: int, parts: int, work: Callable[[int, int], T]) -> list[T]:
        if parts == 1:
            return [work(0, count)]
        return self.each(parts, lambda part: work(count * part // parts, count * (part + 1) // parts))


ALONE = Team(1)
"""One thread."""
