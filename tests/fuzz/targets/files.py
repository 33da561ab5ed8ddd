"""Files in memory, for parsers that take a path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["memory_file"]


@contextmanager
def memory_file(data: bytes) -> Iterator[Path]:
    """Give the path of a file in memory with this content."""
    descriptor = os.memfd_create("fuzz")
    try:
        os.write(descriptor, data)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
