"""A Prometheus endpoint in every process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, start_http_server

__all__ = ["serve_metrics"]


def serve_metrics(registry: CollectorRegistry, host: str) -> int:
    """Serve a registry over HTTP from a thread, on a free port; returns the port."""
    server, _ = start_http_server(0, addr=host, registry=registry)
    return int(server.server_port)
