"""Reports objects that the operator cannot read or does not count: a line of the log, and an event on the object.

The cost is bounded however many objects are at fault: one report per object and hour, a few reports per second, and a
limited memory of past reports.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from heterps_operator.api.shapes import UnreadableError
from heterps_operator.kubernetes.api import KubernetesApi
from heterps_operator.kubernetes.events import EventRecorder, reference_to
from heterps_operator.kubernetes.reading.complaints import Complaint, unreadable
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
    """Writes complaints from a separate thread (`run`): watches must not wait for the API server.

    Args:
        api: API server of the cluster.
        clock: Unix seconds.
        pause_seconds: seconds between two complaints.
    """

    def __init__(self, api: KubernetesApi, clock: Callable[[], float], pause_seconds: float = _PAUSE_SECONDS) -> None:
        self._api = api
        self._clock = clock
        self._pause = pause_seconds
        self._lock = threading.Lock()
        self._told: OrderedDict[tuple[str, ...], tuple[Complaint, float]] = OrderedDict()
        self._queue: queue.Queue[_Waiting | None] = queue.Queue(_WAITING)

    def tell(self, kind: str, item: Any, complaint: Complaint, error: BaseException | None = None) -> None:
        """Queue a complaint, unless the same one about the object was queued within the last hour.

        Args:
            kind: kind of the object.
            item: the object, however malformed.
            complaint: the complaint.
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
            except queue.Full:  # it is queued when the object is seen again
                return
            self._told[key] = complaint, now
            self._told.move_to_end(key)
            while len(self._told) > _REMEMBERED:
                self._told.popitem(last=False)

    def tell_unreadable(self, kind: str, item: Any, error: Exception) -> None:
        """Queue a complaint about an object that raised an error while it was read."""
        self.tell(kind, item, unreadable(kind, error), None if isinstance(error, UnreadableError) else error)

    def run(self, stop: threading.Event) -> None:
        """Write queued complaints until `close` is called."""
        while (waiting := self._queue.get()) is not None and not stop.is_set():
            try:
                self._write(waiting)
            except Exception:  # one complaint must not hold up the others
                _LOG.exception("%s: the event cannot be recorded", waiting.about["kind"])
            stop.wait(self._pause)

    def close(self) -> None:
        """Make `run` return."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return  # `run` checks `stop` after the next complaint

    def _write(self, waiting: _Waiting) -> None:
        about, complaint = waiting.about, waiting.complaint
        name = "/".join(str(about[key]) for key in ("namespace", "name") if key in about)
        _LOG.warning(
            "%s %s: %s",
            about["kind"],
            name or "without a name",
            complaint.message,
            exc_info=waiting.error,
            extra={"k8s_ref": about},
        )
        if "name" in about:
            event = Event("Warning", complaint.reason, complaint.message, self._clock())
            EventRecorder(self._api, about).record(event)
