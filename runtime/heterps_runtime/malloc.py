"""Settings of malloc in a process of glibc. Other C libraries have none, and are left as they are.

Standard library only: the operator imports this module too (decision 0018).
"""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory", "share_arenas"]

# glibc's malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8


def share_arenas(number: int) -> None:
    """Limit the number of arenas of all threads, of which glibc gives each thread its own."""
    _set(_M_ARENA_MAX, number)


def keep_freed_memory() -> None:
    """Keep freed memory in the process, to be used again.

    Otherwise the kernel maps the memory of each tensor above 32 MB anew and fills it with zeros: 26,000 page faults,
    and a quarter of a step, where 4,096 samples have 3,213 inputs (decision 82). The process keeps what it needed most.
    """
    _set(_M_MMAP_MAX, 0)
    _set(_M_TRIM_THRESHOLD, -1)  # never


def _set(parameter: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)
