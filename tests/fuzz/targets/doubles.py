"""Stand-ins for what is around a parser: a replaced function of a module, an API server with one object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

__all__ = ["ApiServer", "replaced"]


@contextmanager
def replaced(module: ModuleType | type, name: str, value: Any) -> Iterator[None]:
    """Replace a name of a module or class for a while; `unittest.mock.patch` takes longer than most parsers."""
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)


class ApiServer:
    """An API server whose every object is the given one, and which accepts all changes."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def get(self, path: str) -> Any:
        return self._found

    def replace(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return body
