"""One active operator: a Lease that is held and renewed.

Two replicas run, one works; the other takes over when the Lease has not been renewed for its duration. The times of the
holder are compared with this process's own clock only: a Lease has expired when *this* process has seen the same
renewal for longer than its duration, so clocks need not agree.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from heterps_operator.kubernetes.api import ApiError, KubernetesApi

__all__ = ["Lease"]

_LOG = logging.getLogger("heterps.operator")
_LONGEST_PAUSE_SECONDS = 2.0  # however long a Lease lasts: one that is given back is to be taken soon


class Lease:
    """A `coordination.k8s.io` Lease.

    Args:
        api: of the cluster.
        namespace: where the Lease lies.
        name: of the Lease.
        identity: of this process, unique.
        seconds: after which it is free if it was not renewed. A holder gives up after two thirds of that, so that it
            has stopped before another one begins.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        name: str,
        identity: str,
        *,
        seconds: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._list = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._list}/{name}"
        self._head: dict[str, Any] = {"name": name, "namespace": namespace}
        self._identity = identity
        self._seconds = seconds
        self._clock = clock
        self._renewed = 0.0  # when this process has renewed it last
        self._seen: tuple[str, str] = ("", "")  # holder and time of renewal that were seen last
        self._seen_at = 0.0
        self.holder = ""

    @property
    def pause_seconds(self) -> float:
        """Between two attempts to take or renew it."""
        return min(self._seconds / 5, _LONGEST_PAUSE_SECONDS)

    def try_once(self) -> bool:
        """Take or renew the Lease; returns whether this process holds it now."""
        try:
            held = self._attempt()
        except (ApiError, AttributeError, KeyError, TypeError, ValueError) as error:
            if not isinstance(error, ApiError):
                text = "the Lease %s cannot be read (%r); delete it, and an operator creates a new one"
                _LOG.warning(text, self._path, error)
            held = self._clock() - self._renewed < self._seconds * 2 / 3 and self.holder == self._identity
        return held

    def acquire(self, stop: threading.Event) -> bool:
        """Wait until it is held; returns False if `stop` came first."""
        while not stop.is_set():
            if self.try_once():
                return True
            stop.wait(self.pause_seconds)
        return False

    def keep(self, stop: threading.Event, lost: Callable[[], None]) -> None:
        """Renew it until `stop`; calls `lost` and returns if it cannot be held any longer."""
        while not stop.wait(self.pause_seconds):
            if not self.try_once():
                lost()
                return

    def release(self) -> None:
        """Give it back, so that the next one need not wait."""
        try:
            found = self._api.get(self._path)
            if found is not None and (found.get("spec") or {}).get("holderIdentity") == self._identity:
                self._api.replace(self._path, {**found, "spec": {**found["spec"], "holderIdentity": ""}})
        except (ApiError, AttributeError, KeyError, TypeError, ValueError):
            return  # it expires

    def _attempt(self) -> bool:
        """Take or renew it.

        Raises:
            ApiError: no answer; or another replica has written it meanwhile, and the next attempt sees the holder.
        """
        began = self._clock()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._seconds)),
            "renewTime": now,
        }
        found = self._api.get(self._path)
        if found is None:
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": self._head}
            self._api.create(self._list, {**body, "spec": {**spec, "acquireTime": now}})
        else:
            old = found.get("spec") or {}
            self.holder = str(old.get("holderIdentity") or "")
            mine = self.holder == self._identity
            if not mine and self.holder and not self._expired(old):
                return False
            changes = spec if mine else {**spec, "acquireTime": now}
            self._api.replace(self._path, {**found, "spec": {**old, **changes}})
        self.holder, self._renewed = self._identity, began
        return True

    def _expired(self, spec: dict[str, Any]) -> bool:
        seen = (str(spec.get("holderIdentity")), str(spec.get("renewTime")))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()
        return self._clock() - self._seen_at > float(spec.get("leaseDurationSeconds") or self._seconds)
