"""The Prometheus endpoint of a server or worker."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, start_http_server

from heterps_runtime.errors import TransientError

__all__ = ["MetricsServer"]


class MetricsServer:
    """Serves a registry over HTTP from a thread.

    Args:
        registry: what it serves.
        host: address to listen on.
        port: to listen on; 0: any free one.

    Raises:
        TransientError: the port is taken.
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int = 0) -> None:
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            text = f"cannot listen on port {port} of {host} for metrics: {os.strerror(error.errno or 0)}"
            raise TransientError(text) from error

    @property
    def port(self) -> int:
        """The port of the endpoint."""
        return int(self._server.server_port)

    def close(self) -> None:
        """End the endpoint and its thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
