"""Leader election with a Lease: two replicas run, one is active.

The other replica takes over when the Lease has not been renewed for its duration. Clocks need not agree: a Lease has
expired when this process has seen the same renewal for longer than its duration, on its own monotonic clock.
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
_LONGEST_PAUSE_SECONDS = 2.0  # however long a Lease lasts: a released one should be acquired soon


class Lease:
    """A `coordination.k8s.io` Lease.

    Args:
        api: API server of the cluster; its requests should take no longer than an attempt may.
        namespace: namespace of the Lease.
        name: name of the Lease.
        identity: unique name of this process.
        seconds: duration without a renewal after which the Lease is free. A holder gives up after two thirds of it, so
            that it has stopped before another replica starts.
        clock: monotonic seconds, which also pass while the machine is suspended.
    """

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        name: str,
        identity: str,
        *,
        seconds: float = 15.0,
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._api = api
        self._list = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._list}/{name}"
        self._head: dict[str, Any] = {"name": name, "namespace": namespace}
        self._identity = identity
        self._seconds = seconds
        self._clock = clock
        self._renewed = 0.0  # when this process sent the last successful renewal
        self._seen: tuple[str, str] = ("", "")  # last observed holder and time of renewal
        self._seen_at = 0.0
        self.holder = ""

    @property
    def pause_seconds(self) -> float:
        """Seconds between two attempts to acquire or renew the Lease."""
        return min(self._seconds / 5, _LONGEST_PAUSE_SECONDS)

    def is_held(self) -> bool:
        """Return whether this process holds the Lease and was able to renew it in time; without a request.

        It is asked before every action: a process that was stopped for a while (SIGSTOP, a suspended machine) must not
        carry out what it decided before, though no other thread has noticed yet.
        """
        return self._remaining() > 0 and self.holder == self._identity

    def try_once(self) -> bool:
        """Acquire or renew the Lease; return whether this process holds it now."""
        try:
            held = self._attempt()
        except (ApiError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            if not isinstance(error, ApiError):
                text = "the Lease %s cannot be read (%r); delete it, and an operator creates a new one"
                _LOG.warning(text, self._path, error)
            held = self.is_held()
        return held

    def acquire(self, stop: threading.Event) -> bool:
        """Wait until this process holds the Lease; return False if `stop` is set first."""
        while not stop.is_set():
            if self.try_once():
                return True
            stop.wait(self.pause_seconds)
        return False

    def keep(self, stop: threading.Event, lost: Callable[[], None]) -> None:
        """Renew the Lease until `stop` is set; call `lost` and return when this process cannot hold it any longer.

        Renewals run in a separate thread: `lost` is called in time even while a request hangs.
        """
        ended = threading.Event()

        def renew() -> None:
            while not stop.wait(self.pause_seconds) and self.try_once():
                pass
            ended.set()

        threading.Thread(target=renew, name="lease-renewal", daemon=True).start()
        while (remaining := self._remaining()) > 0 and not ended.wait(remaining):
            pass  # renewed in the meantime, unless nothing remains
        if not stop.is_set():
            lost()

    def release(self) -> None:
        """Give the Lease up, so that another replica need not wait for its expiry."""
        try:
            found = self._api.get(self._path)
            if found is not None and (found.get("spec") or {}).get("holderIdentity") == self._identity:
                self._api.replace(self._path, {**found, "spec": {**found["spec"], "holderIdentity": ""}})
        except (ApiError, AttributeError, KeyError, TypeError, ValueError):
            return  # it expires

    def _remaining(self) -> float:
        """Return the seconds until a holder must give up."""
        return self._renewed + self._seconds * 2 / 3 - self._clock()

    def _attempt(self) -> bool:
        """Acquire or renew the Lease.

        Raises:
            ApiError: no answer, or another replica has written the Lease in the meantime; the next attempt sees it.
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
