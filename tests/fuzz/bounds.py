"""The cost of an input: executed lines of Python and allocated memory, which do not depend on the machine's load."""

from __future__ import annotations

import sys
import tracemalloc
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tests.fuzz.target import Target, execute

__all__ = ["Cost", "find_excess", "measure"]

_PRODUCT = ("heterps_operator", "heterps_planner", "heterps_runtime", "tests/fuzz/targets/control")


@dataclass(frozen=True)
class Cost:
    """The cost of one input.

    Attributes:
        lines: executed lines of Python, libraries included.
        memory: largest number of bytes allocated at the same time; 0 if they are not counted.
        covered: executed lines of the product: file and number.
    """

    lines: int
    memory: int
    covered: frozenset[tuple[str, int]]


def measure(target: Target, data: bytes) -> Cost:
    """Execute an input, and return its cost.

    Raises:
        Exception: the parser raised an error that it does not declare.
    """
    lines = 0
    covered: set[tuple[str, int]] = set()

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += 1
        return count

    def cover(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += 1
        covered.add((frame.f_code.co_filename, frame.f_lineno))
        return cover

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return (cover if any(name in frame.f_code.co_filename for name in _PRODUCT) else count)(frame, event, argument)

    earlier = sys.gettrace()
    memory = 0
    if target.memory is not None:
        tracemalloc.start()
    try:
        sys.settrace(enter)
        execute(target, data)
    finally:
        sys.settrace(earlier)
        if target.memory is not None:
            memory = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    return Cost(lines, memory, frozenset(covered))


def find_excess(target: Target, size: int, cost: Cost) -> str | None:
    """Return in what an input of this size is too expensive; None if it is not.

    Args:
        target: the parser.
        size: bytes of the input.
        cost: of the input.
    """
    most_lines = target.lines + target.lines_per_byte * size
    if cost.lines > most_lines:
        return f"{cost.lines} lines executed for {size} bytes, more than {most_lines:.0f}"
    if target.memory is None:
        return None
    most_memory = target.memory + target.memory_per_byte * size
    if cost.memory > most_memory:
        return f"{cost.memory} bytes allocated for {size} bytes, more than {most_memory:.0f}"
    return None
