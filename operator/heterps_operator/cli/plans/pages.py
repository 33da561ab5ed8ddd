"""The HTML files of commands."""

from __future__ import annotations

from pathlib import Path

from heterps_operator.documents import write_text
from heterps_operator.errors import UsageError

__all__ = ["write_page"]


def write_page(text: str, target: str) -> None:
    """Write a page, or replace it; a reader sees the old or the new one, and never a part.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        write_text(Path(target), text)
    except OSError as error:
        raise UsageError(f"--html {target}: cannot be written ({error.strerror})") from error
