"""Tells people of objects that the operator cannot read or does not count: a line of the log and an event on each.

What many objects say must not cost more than what few do: each is told once an hour, all of them together a few a
second, and what is remembered is bounded.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from heterps_operator.kubernetes.api import KubernetesApi
from heterps_operator.kubernetes.events import EventRecorder, reference_to
from heterps_operator.kubernetes.reading.complaints import Complaint
from heterps_operator.state.status import Event

__all__ = ["ProblemRecorder"]

_LOG = logging.getLogger("heterps.operator")
_AGAIN_SECONDS = 3600.0  # API servers keep events for an hour
_REMEMBERED = 4096  # objects
_WAITING = 1000  # complaints
_PAUSE_SECONDS = 0.2  # between two of them


@dataclass(frozen=True)
class _Waiting:
    about: dict[str, Any]
    complaint: Complaint
    error: BaseException | None


class ProblemRecorder:
    """Writes complaints, in a thread of its own: watches must not wait for the API server.

    Args:
        api: of the cluster.
        clock: Unix seconds.
        pause_seconds: between two complaints.
    """

    def __init__(self, api: KubernetesApi, clock: Callable[[], float], pause_seconds: float = _PAUSE_SECONDS) -> None:
        self._api = api
        self._clock = clock
        self._pause = pause_seconds
        self._lock = threading.Lock()
        self._told: OrderedDict[tuple[str, ...], tuple[Complaint, float]] = OrderedDict()
        self._queue: queue.Queue[_Waiting | None] = queue.Queue(_WAITING)

    def tell(self, kind: str, item: Any, complaint: Complaint, error: BaseException | None = None) -> None:
        """Tell of an object unless that was done; returns at once.

        Args:
            kind: of the object.
            item: the object, however malformed.
            complaint: what is wrong.
            error: an unexpected error, for the log.
        """
        about = reference_to(kind, item)
        key = (kind, about.get("namespace", ""), about.get("name", ""), about.get("uid", ""))
        now = self._clock()
        with self._lock:
            known = self._told.get(key)
            if known is not None and known[0] == complaint and now < known[1] + _AGAIN_SECONDS:
                return
            try:
                self._queue.put_nowait(_Waiting(about, complaint, error))
            except queue.Full:  # it is told when it is seen again
                return
            self._told[key] = complaint, now
            self._told.move_to_end(key)
            while len(self._told) > _REMEMBERED:
                self._told.popitem(last=False)

    def run(self, stop: threading.Event) -> None:
        """Write what is to be told until `close`."""
        while (waiting := self._queue.get()) is not None and not stop.is_set():
            try:
                self._write(waiting)
            except Exception:  # one complaint must not hold up the others
                _LOG.exception("%s: the event cannot be recorded", waiting.about["kind"])
            stop.wait(self._pause)

    def close(self) -> None:
        """Let `run` return."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return  # `run` looks at `stop` after the next one

    def _write(self, waiting: _Waiting) -> None:
        about, complaint = waiting.about, waiting.complaint
        name = "/".join(str(about[key]) for key in ("namespace", "name") if key in about)
        _LOG.warning("%s %s: %s", about["kind"], name or "without a name", complaint.message, exc_info=waiting.error)
        if "name" in about:
            event = Event("Warning", complaint.reason, complaint.message, self._clock())
            EventRecorder(self._api, about).record(event)
