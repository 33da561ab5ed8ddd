"""A store of objects of one kind, filled by watches and lists. Decisions read from stores and cost no requests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from heterps_operator.documents import Json

__all__ = ["Key", "ObjectStore", "key_of"]

Key = tuple[str, str]  # namespace ("" for cluster-scoped objects) and name

_MOST_GONE = 4096  # remembered deleted objects: late answers concern only the last few


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
        self._gone: OrderedDict[tuple[Key, str], None] = OrderedDict()  # the last deleted objects, in order

    def put(self, item: Json) -> bool:
        """Store an object unless it is older than the stored one; return whether the part that is kept has changed.

        Changes of different objects may arrive out of order: the last change of a deleted object may come after its
        successor of the same name.
        """
        with self._lock:
            known = self._items.get(key_of(item))
            if _are_different(item, known) and _created(item) < _created(known):
                return False
            self._gone.pop(_identity(item), None)  # a watch by label reports an object that gets its label back as new
            return self._put(item)

    def put_answer(self, item: Json, before: Json | None) -> bool:
        """Store the answer to a request unless the object has changed since; return whether anything has changed.

        A watch may report a later version before the request is answered. The answer must not replace that one: if no
        further change comes, it would stay until the next list. An earlier object of the same name, and its deletion,
        say nothing about the answer.

        Args:
            item: the object as the API server returned it.
            before: what the store had before the request.
        """
        with self._lock:
            known = self._items.get(key_of(item))
            if _identity(item) in self._gone:
                return False
            news = known is None or known is before or _are_different(item, known)  # names are unique
            return news and self._put(item)

    def remove(self, item: Json) -> bool:
        """Remove a deleted object; return whether it was known. A newer object of the same name stays."""
        key = key_of(item)
        with self._lock:
            self._gone[_identity(item)] = None
            if len(self._gone) > _MOST_GONE:
                self._gone.popitem(last=False)
            known = self._items.get(key)
            if known is None or _are_different(item, known):
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


def _uid(item: Json | None) -> str:
    return str(((item or {}).get("metadata") or {}).get("uid") or "")


def _identity(item: Json) -> tuple[Key, str]:
    return key_of(item), _uid(item)


def _created(item: Json | None) -> str:
    """RFC 3339 times in UTC, to the second: they compare as text."""
    return str(((item or {}).get("metadata") or {}).get("creationTimestamp") or "")


def _are_different(item: Json, other: Json | None) -> bool:
    """Whether both are known by their uids not to be one object."""
    return bool(_uid(item) and _uid(other) and _uid(item) != _uid(other))
