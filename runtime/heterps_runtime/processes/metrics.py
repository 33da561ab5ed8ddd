"""The Prometheus endpoint of a server or worker."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, start_http_server

__all__ = ["MetricsServer"]


class MetricsServer:
    """Serves a registry over HTTP from a thread, on a free port of `host`."""

    def __init__(self, registry: CollectorRegistry, host: str) -> None:
        self._server, self._thread = start_http_server(0, addr=host, registry=registry)

    @property
    def port(self) -> int:
        """The port of the endpoint."""
        return int(self._server.server_port)

    def close(self) -> None:
        """End the endpoint and its thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
