"""The controller's requests to a coordinator with encryption: over TLS, and only if it holds the job's token."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from heterps_operator.loop.coordinator_client import CoordinatorClient, CoordinatorError
from heterps_runtime.tls import server_context

TOKEN = "a token of the tests"


class Coordinator(BaseHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        body = f'{{"authorization": "{self.headers["Authorization"]}"}}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


class Server(ThreadingHTTPServer):
    """Performs handshakes in the threads of their connections; those that fail are no errors of the test."""

    daemon_threads = False

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with Server(("127.0.0.1", 0), Coordinator) as server:
        context = server_context(TOKEN)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_status_is_read_over_tls(address: str) -> None:
    assert CoordinatorClient(address, TOKEN, 30).status() == {"authorization": f"Bearer {TOKEN}"}


def test_who_does_not_hold_the_token_gets_the_cause(address: str) -> None:
    with pytest.raises(CoordinatorError, match=r"does not answer \(.*certificate verify failed"):
        CoordinatorClient(address, "the token of another job", 30).status()
    in_clear = address.replace("https:", "http:")
    with pytest.raises(CoordinatorError, match="does not answer"):
        CoordinatorClient(in_clear, TOKEN, 30).status()
