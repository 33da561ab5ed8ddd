"""The gate in front of a small API server with TLS, whose watches last until the connection ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from tests.availability import unavailable
from tests.chaos.cluster.gate import Gate

PATIENCE_SECONDS = 30.0
EVENT = b'{"type":"ADDED","object":{}}\n'


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    over: threading.Event

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # the base class's name
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        if "watch=true" in self.path:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(f"{len(EVENT):x}\r\n".encode() + EVENT + b"\r\n")
            self.over.wait(PATIENCE_SECONDS)
            self.close_connection = True
            return
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    if shutil.which("openssl") is None:
        unavailable("no command openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
                   check=True, capture_output=True)  # fmt: skip
    over = threading.Event()
    server = ThreadingHTTPServer(("localhost", 0), type("TestHandler", (Handler,), {"over": over}))
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    address = {"server": f"https://localhost:{server.server_port}", "certificate-authority": str(certificate)}
    config = tmp_path / "config"
    config.write_text(yaml.safe_dump({"clusters": [{"name": "test", "cluster": address}]}))
    with Gate(config) as running:
        yield running
        over.set()
    server.shutdown()
    server.server_close()
    thread.join()


@contextlib.contextmanager
def asked(gate: Gate, folder: Path, path: str) -> Iterator[http.client.HTTPResponse]:
    """The answer to a request through the gate."""
    [cluster] = yaml.safe_load(gate.write_kubeconfig(folder / "gate").read_text())["clusters"]
    parts = urlsplit(cluster["cluster"]["server"])
    assert parts.hostname is not None
    with contextlib.closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE_SECONDS)) as client:
        client.request("GET", path)
        with client.getresponse() as answer:
            yield answer


def works(gate: Gate, folder: Path) -> bool:
    """Return whether a request succeeds."""
    try:
        with asked(gate, folder, "/api") as answer:
            return answer.status == http.client.OK
    except (http.client.HTTPException, ConnectionError):
        return False


def ending(watch: http.client.HTTPResponse) -> str:
    """Return how a watch ends."""
    try:
        rest = watch.read()
    except http.client.IncompleteRead:
        return "watch cut"
    except ConnectionResetError:
        return "watch cut"
    return "watch gone" if rest and json.loads(rest)["type"] == "ERROR" else "watch ended"


def test_everything_passes_until_a_fault_is_set(gate: Gate, tmp_path: Path) -> None:
    assert all(works(gate, tmp_path) for _ in range(12))


def test_requests_fail_while_a_fault_lasts(gate: Gate, tmp_path: Path) -> None:
    gate.one_in = 2
    assert [works(gate, tmp_path) for _ in range(20)] == [True, False] * 10
    assert set(gate.injected) == {"429", "500", "503", "reset before", "reset after"}
    gate.one_in = 0
    assert all(works(gate, tmp_path) for _ in range(5))


def test_watches_break_in_every_way(gate: Gate, tmp_path: Path) -> None:
    endings = []
    for _ in range(3):
        with asked(gate, tmp_path, "/api/v1/pods?watch=true") as watch:
            assert watch.readline() == EVENT
            assert gate.break_watches() == 1
            endings.append(ending(watch))
    assert sorted(endings) == ["watch cut", "watch ended", "watch gone"]
    assert gate.break_watches() == 0
