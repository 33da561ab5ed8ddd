"""The API server as operators see it: a proxy that fails while a fault lasts."""

from __future__ import annotations

import time
from pathlib import Path

from tests.cluster.proxy import Proxy

__all__ = ["Gate"]

_WATCH_SECONDS = 3600.0  # longer than any run


class Gate(Proxy):
    """Passes everything on, unless a fault is set.

    Args:
        kubeconfig: kubeconfig of the API server.

    Attributes:
        late_seconds: by which each request is late.
        one_in: at most so many requests in a row succeed; 0: all.
    """

    def __init__(self, kubeconfig: Path) -> None:
        super().__init__(kubeconfig, seed=0)
        self.late_seconds = 0.0
        self.one_in = 0

    def fault(self, *, writes: bool) -> str | None:
        """Return the fault of a request, or None, after the time by which it is late."""
        time.sleep(self.late_seconds)
        return self.next_fault(writes=writes, gap=self.one_in) if self.one_in else None

    def watch_fault(self) -> tuple[float, str]:
        """Return that a watch lasts."""
        return _WATCH_SECONDS, "watch ended"
