"""Watch one object across lost connections and expired histories.

As the API defines: a list returns a resourceVersion, a watch starts from it, bookmarks advance it, and 410 (Gone) means
that the history has expired, so that a new list is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

from heterps_operator.documents import parse_answer
from heterps_operator.kubernetes.api import ApiError, KubernetesApi

__all__ = ["watch_object"]

_WATCH_SECONDS = 60  # then the server ends the watch, and a new one starts
_SLACK_SECONDS = 15.0  # for the end to arrive; after that the connection is dead
_LONGEST_PAUSE = 10.0
_SHOWN_CHARACTERS = 100  # of a line that is not an event
_ATTEMPTS = 8  # consecutive failures before the cluster counts as unreachable


def watch_object(
    server: KubernetesApi, collection: str, name: str, pause: Callable[[float], None], deadline: float | None = None
) -> Iterator[dict[str, Any]]:
    """Yield every version of an object; end when it is deleted, does not exist, or at the deadline.

    Args:
        server: the API server.
        collection: path of the collection.
        name: name of the object.
        pause: waits for the given seconds.
        deadline: time on `time.monotonic()`.

    Raises:
        ApiError: the server refused, or has not answered for about a minute.
    """
    selector = f"metadata.name={name}"
    version, seen, failures = "", "", 0
    while True:
        try:
            if not version:
                found, version = server.list(collection, field_selector=selector)
                failures = 0
                if not found:
                    return
                if found[0]["metadata"]["resourceVersion"] != seen:
                    seen = found[0]["metadata"]["resourceVersion"]
                    yield found[0]
            seconds = _WATCH_SECONDS if deadline is None else min(_WATCH_SECONDS, deadline - time.monotonic())
            if seconds <= 0:
                return
            query = {
                "watch": "1",
                "fieldSelector": selector,
                "resourceVersion": version,
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(max(1, int(seconds))),
            }
            for line in server.lines(collection, query, _WATCH_SECONDS + _SLACK_SECONDS):
                failures = 0
                kind, value = _read_event(line)
                version = value["metadata"]["resourceVersion"]
                if kind == "DELETED":
                    return
                if kind != "BOOKMARK" and version != seen:
                    seen = version
                    yield value
        except ApiError as error:
            if error.code == HTTPStatus.GONE:
                version = ""
                continue
            failures += 1
            late = deadline is not None and time.monotonic() >= deadline
            if (error.code and error.code < 500 and error.code != 429) or failures >= _ATTEMPTS or late:
                raise
            pause(min(_LONGEST_PAUSE, 0.5 * 2.0 ** (failures - 1)))


def _read_event(line: str) -> tuple[str, dict[str, Any]]:
    """Read a line of a watch: the kind of change, and the object, which has a resourceVersion.

    Raises:
        ApiError: the server ends the watch; code 0: the line is not an event, as if the connection was cut within it.
    """
    try:
        event = parse_answer(line)
        kind, value = event["type"], event["object"]
        if kind == "ERROR":
            raise ApiError(int(value.get("code") or 500), str(value.get("reason")), str(value.get("message")))
        if not isinstance(value["metadata"]["resourceVersion"], str):
            raise TypeError("resourceVersion")
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        text = f"a line of the watch is not an event: {line[:_SHOWN_CHARACTERS]!r}"
        raise ApiError(0, "ConnectionLost", text) from error
    return kind, value
