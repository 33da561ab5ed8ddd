"""JSON documents as input, for readers of what a library has parsed."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["NotJsonError", "parse"]


class NotJsonError(Exception):
    """The input is not a document, so there is nothing to read."""


def parse(data: bytes) -> Any:
    """Return the document in an input.

    Raises:
        NotJsonError: it is none, or is nested too deeply for Python's parser.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from error
