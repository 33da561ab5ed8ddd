"""What the client needs of an API server. `heterps_operator.kubernetes.api` has it; tests have one in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from heterps_operator.documents import Json

__all__ = ["FIELD_MANAGER", "ApiServer"]

FIELD_MANAGER = "heterps-client"  # owner of the fields that users write with the command line


class ApiServer(Protocol):
    """Objects by path, as plain JSON. Every method raises `ApiError` where the server refuses or does not answer."""

    def get(self, path: str) -> dict[str, Any] | None:
        """The object, or None if there is none."""
        ...

    def list(
        self, path: str, *, label_selector: str = "", field_selector: str = ""
    ) -> tuple[Sequence[dict[str, Any]], str]:
        """The objects of a collection, and the resourceVersion of the list."""
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
        """Delete the object; one that is not there is fine."""
        ...

    def lines(self, path: str, query: Mapping[str, str], read_seconds: float) -> Iterator[str]:
        """The lines of an answer that goes on: a watch, or the log of a pod.

        Args:
            path: of the collection or the log.
            query: its parameters.
            read_seconds: without a line after which the connection counts as lost.

        Raises:
            ApiError: with code 0 if the connection is lost.
        """
        ...
