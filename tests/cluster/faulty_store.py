"""A proxy in front of a store with the interface of HTTP: it refuses requests, or cuts off answers."""

from __future__ import annotations

import contextlib
import http.client
import multiprocessing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

__all__ = ["FaultyStore"]

_SPAWNING = multiprocessing.get_context("spawn")
_OF_CONNECTIONS = ("connection", "transfer-encoding", "keep-alive")
_LARGE_BYTES = 10_000


class FaultyStore:
    """Runs inside the block; requests reach the store as they are, so that their signatures are right.

    It is a process of its own: pyarrow's client of GCS keeps the interpreter's lock while it opens a file.

    Args:
        upstream: HOST:PORT of the store.

    Attributes:
        address: HOST:PORT of the proxy.
    """

    def __init__(self, upstream: str) -> None:
        self._faults = {fault: _SPAWNING.Value("i", 0) for fault in ("refuse", "cut")}
        ours, theirs = _SPAWNING.Pipe()
        self._process = _SPAWNING.Process(target=_serve, args=(upstream, self._faults, theirs), daemon=True)
        self._process.start()
        self.address: str = ours.recv()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()

    def refuse(self, count: int) -> None:
        """Answer the next requests with 503."""
        self._faults["refuse"].value = count

    def cut(self, count: int) -> None:
        """End the next answers in the middle, of those with more than 10 kB."""
        self._faults["cut"].value = count

    @property
    def left(self) -> int:
        """Return the number of faults that have not come yet."""
        return sum(fault.value for fault in self._faults.values())


def _serve(upstream: str, faults: dict[str, Any], told: Connection) -> None:
    handler = type("Handler", (_Handler,), {"upstream": upstream, "faults": faults})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        told.send(f"127.0.0.1:{server.server_port}")
        server.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: str
    faults: dict[str, Any]

    def __getattr__(self, name: str) -> object:
        if name.startswith("do_"):  # do_GET, do_PUT, ...: all are passed on alike
            return self._forward
        raise AttributeError(name)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is that of the base class
        pass

    def _take(self, fault: str) -> bool:
        """Return whether this request gets a fault."""
        with self.faults[fault].get_lock():
            left: int = self.faults[fault].value
            self.faults[fault].value = max(0, left - 1)
        return left > 0

    def _forward(self) -> None:
        body = self._body()
        if self._take("refuse"):
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        upstream = http.client.HTTPConnection(self.upstream, timeout=60)
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in (*_OF_CONNECTIONS, "expect", "content-length"):
                upstream.putheader(name, value)
        upstream.putheader("Content-Length", str(len(body)))
        upstream.endheaders(body)
        answer = upstream.getresponse()
        content = answer.read()
        length = answer.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(content))
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in (*_OF_CONNECTIONS, "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if len(content) > _LARGE_BYTES and self._take("cut"):
            content = content[: len(content) // 2]
            self.close_connection = True
        with contextlib.suppress(ConnectionError):  # clients leave when they have read what they wanted
            self.wfile.write(content)
        upstream.close()

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)
