"""Addresses of both families, wherever the operator builds or reads one, and its requests to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import AF_INET6
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_operator.kubernetes.names import coordinator_address
from heterps_operator.loop.coordinator_client import CoordinatorClient
from heterps_operator.measure.http_requests import send_request
from heterps_operator.measure.measurement import PrometheusServer
from tests.heterps_operator.helpers.documents import make_job

ADDRESSES = st.ip_addresses().map(str)


@given(host=ADDRESSES, encrypted=st.booleans())
def test_the_address_of_a_coordinator_is_read_as_it_was_written(host: str, encrypted: bool) -> None:
    job = make_job()
    job["spec"]["encryption"] = "Required" if encrypted else "Disabled"
    client = CoordinatorClient(coordinator_address(job, host), "token")
    parts = urlsplit(client.address)
    assert (parts.scheme, parts.hostname, parts.port) == ("https" if encrypted else "http", host, 7400)


@given(host=st.ip_addresses(v=6).map(str), port=st.integers(1, 65535) | st.none())
def test_prometheus_may_have_an_ipv6_address(host: str, port: int | None) -> None:
    PrometheusServer(f"http://[{host}]" + ("" if port is None else f":{port}"))


class _Listener(HTTPServer):
    address_family = AF_INET6


class _Echo(BaseHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Log nothing."""

    def do_GET(self) -> None:
        """Answer with the Host header."""
        body = self.headers["Host"].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    with _Listener(("::1", 0), _Echo) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_request_names_the_ipv6_host_that_it_goes_to(server: HTTPServer) -> None:
    for url in (f"http://[::1]:{server.server_port}/", f"http://[0:0::1]:{server.server_port}/x?y=1"):
        answer = send_request("GET", url, headers={}, timeout=10.0, most_bytes=1000)
        assert answer.text == urlsplit(url).netloc


def test_a_request_to_an_ipv6_host_without_a_port_names_the_whole_host(
    server: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Port 80, which a test may not have: only there could `http.client` mistake the end of the address for a port."""
    monkeypatch.setattr("http.client.HTTP_PORT", server.server_port)
    answer = send_request("GET", "http://[::1]/", headers={}, timeout=10.0, most_bytes=1000)
    assert answer.text == f"[::1]:{server.server_port}"
