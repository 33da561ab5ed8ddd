"""API server methods that the client needs. `heterps_operator.kubernetes.api` implements them; tests use a fake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from heterps_operator.documents import Json

__all__ = ["FIELD_MANAGER", "ApiServer"]

FIELD_MANAGER = "heterps-client"  # owner of the fields that users set with the command line


class ApiServer(Protocol):
    """Objects by path, as plain JSON. Every method raises `ApiError` if the server refuses or does not answer."""

    def get(self, path: str) -> dict[str, Any] | None:
        """Return the object, or None if it does not exist."""
        ...

    def list(
        self, path: str, *, label_selector: str = "", field_selector: str = ""
    ) -> tuple[Sequence[dict[str, Any]], str]:
        """Return the objects of a collection, and the resourceVersion of the list."""
        ...

    def apply(
        self, path: str, body: Json, field_manager: str = ..., force: bool = ..., *, dry_run: bool = False
    ) -> dict[str, Any]:
        """Server-side apply."""
        ...

    def patch(self, path: str, body: Json) -> dict[str, Any]:
        """Merge patch."""
        ...

    def delete(self, path: str) -> None:
        """Delete the object; a missing one is not an error."""
        ...

    def lines(self, path: str, query: Mapping[str, str], read_seconds: float) -> Iterator[str]:
        """Yield the lines of a streaming response: a watch, or the log of a pod.

        Args:
            path: path of the collection or the log.
            query: query parameters.
            read_seconds: seconds without a line after which the connection counts as lost.

        Raises:
            ApiError: code 0: the connection was lost.
        """
        ...
