"""A store of objects of one kind, filled by watches and lists. Decisions read from stores and cost no requests."""

from __future__ import annotations

import threading
from collections.abc import Callable

from heterps_operator.documents import Json

__all__ = ["Key", "ObjectStore", "key_of"]

Key = tuple[str, str]  # namespace ("" for cluster-scoped objects) and name


def key_of(item: Json) -> Key:
    """Return the namespace and name of an object."""
    metadata = item["metadata"]
    return str(metadata.get("namespace") or ""), str(metadata["name"])


class ObjectStore:
    """Objects of one kind, by namespace and name. Thread-safe.

    Args:
        slim: returns the part of an object that is kept.

    Attributes:
        version: the number of changes so far.
    """

    def __init__(self, slim: Callable[[Json], Json] = lambda item: item) -> None:
        self.version = 0
        self._slim = slim
        self._lock = threading.Lock()
        self._items: dict[Key, Json] = {}

    def put(self, item: Json) -> bool:
        """Store an object; return whether the part that is kept has changed."""
        with self._lock:
            return self._put(item)

    def put_answer(self, item: Json, before: Json | None) -> bool:
        """Store the answer to a request unless the object has changed since; return whether anything has changed.

        A watch may tell of a later version before the request is answered. The answer must not replace that one: if no
        further change comes, it would stay until the next list.

        Args:
            item: the object as the API server returned it.
            before: what the store had before the request.
        """
        with self._lock:
            return self._items.get(key_of(item)) is before and self._put(item)

    def remove(self, item: Json) -> bool:
        """Remove a deleted object; return whether it was known. A newer object of the same name stays."""
        key, uid = key_of(item), item["metadata"].get("uid")
        with self._lock:
            known = self._items.get(key)
            if known is None or (uid and known["metadata"].get("uid") not in (None, uid)):
                return False
            del self._items[key]
            self.version += 1
            self._changed(key, known, None)
            return True

    def _put(self, item: Json) -> bool:
        key = key_of(item)
        before = self._items.get(key)
        kept = self._slim(self._merged(item, before))
        if before == kept:
            return False
        self._items[key] = kept
        self.version += 1
        self._changed(key, before, kept)
        return True

    def _merged(self, item: Json, before: Json | None) -> Json:
        """Return the object to store in place of `before`; the lock is held."""
        return item

    def _changed(self, key: Key, before: Json | None, after: Json | None) -> None:
        """Called for each object that was added, changed or removed; the lock is held."""

    def get(self, namespace: str, name: str) -> Json | None:
        """Return an object, or None."""
        with self._lock:
            return self._items.get((namespace, name))

    def all(self) -> tuple[Json, ...]:
        """Return all objects."""
        with self._lock:
            return tuple(self._items.values())

    def snapshot(self) -> dict[Key, Json]:
        """Return all objects by key. Stored objects are never modified: a changed object is another value."""
        with self._lock:
            return dict(self._items)
