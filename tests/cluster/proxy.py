"""An API server with injected faults: a proxy in front of the real one.

It speaks plain HTTP to its clients, and chooses failing requests and faults with a seeded random generator. Every kind
of fault occurs. Failures before and after the execution of a request are different faults.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import yaml

Json = dict[str, Any]

# Name of a fault and the client's view: a response, or a connection reset.
REFUSALS = {
    "409": (409, "Conflict", "the object has been modified; please apply your changes to the latest version"),
    "422": (422, "Invalid", "admission webhook denied the request: try again"),
    "429": (429, "TooManyRequests", "the server has received too many requests"),
    "500": (500, "InternalError", "etcdserver: request timed out"),
    "503": (503, "ServiceUnavailable", "the server is currently unable to handle the request"),
}
UNANSWERED = ("reset before", "reset after")  # the request has been executed by then
READS = ("429", "500", "503", *UNANSWERED)
WRITES = (*REFUSALS, *UNANSWERED)
WATCHES = ("watch cut", "watch gone", "watch ended")
WATCH_ERRORS = 2  # limit of "watch error", which ends all watches of an operator
KINDS = (*WRITES, *WATCHES, "watch error")
WATCH_SECONDS = (2.0, 6.0)
RETRY_SECONDS = 1  # Retry-After of a 429
PASSED_ON = ("Authorization", "Accept", "Content-Type", "User-Agent")


class Proxy:
    """Runs inside the block; the calling thread must be able to reach the API server.

    Args:
        kubeconfig: kubeconfig of the API server.
        seed: seed of the faults.
        gap: maximum number of successful requests between two faults.
        watch_seconds: minimum and maximum time until a watch fails.

    Attributes:
        injected: faults so far, by kind.
        created: objects that the API server has created, by path.
    """

    def __init__(
        self, kubeconfig: Path, seed: int, gap: int = 10, watch_seconds: tuple[float, float] = WATCH_SECONDS
    ) -> None:
        self._config: Json = yaml.safe_load(kubeconfig.read_text())
        [cluster] = self._config["clusters"]
        self._upstream = urlsplit(cluster["cluster"]["server"])
        self._tls = ssl.create_default_context(cafile=cluster["cluster"]["certificate-authority"])
        self._random = random.Random(seed)  # the same faults in each run
        self._lock = threading.Lock()
        self._gap = gap
        self._left = gap
        self._watch_errors = WATCH_ERRORS
        self._turns = {kinds: self._take_turns(kinds) for kinds in (READS, WRITES, WATCHES)}
        self._watch_seconds = watch_seconds
        self._watches: set[socket.socket] = set()
        self._silent: set[socket.socket] = set()
        self.injected: Counter[str] = Counter()
        self.created: Counter[str] = Counter()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def write_kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig that leads to the API server through the proxy."""
        clusters = [{**c, "cluster": {"server": self._url}} for c in self._config["clusters"]]
        path.write_text(yaml.safe_dump({**self._config, "clusters": clusters}))
        return path

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def fault(self, *, writes: bool) -> str | None:
        """Return the fault of a request, or None."""
        return self.next_fault(writes=writes, gap=self._gap)

    def next_fault(self, *, writes: bool, gap: int) -> str | None:
        """Return the fault of a request, or None.

        Args:
            writes: whether the request changes something.
            gap: maximum number of requests until the next fault, 2 or more.
        """
        with self._lock:
            self._left = min(self._left, gap) - 1
            if self._left > 0:
                return None
            self._left = self._random.randint(2, gap)
            kind = next(self._turns[WRITES if writes else READS])
            self.injected[kind] += 1
            return kind

    def watch_fault(self) -> tuple[float, str]:
        """Return after how many seconds a watch fails, and how."""
        with self._lock:
            seconds, kind = self._random.uniform(*self._watch_seconds), next(self._turns[WATCHES])
            if kind == "watch ended" and self._watch_errors:
                self._watch_errors -= 1
                kind = "watch error"
            return seconds, kind

    def break_watches(self) -> int:
        """Break all watches that run, each in another way; return their number."""
        with self._lock:
            watches = list(self._watches)
        for upstream in watches:
            with contextlib.suppress(OSError):  # it has ended by itself
                # Not SSLSocket's own method, which must not be called while another thread reads.
                socket.socket.shutdown(upstream, socket.SHUT_RDWR)
        return len(watches)

    def silence_watches(self) -> int:
        """Let all watches that run report nothing from now on, without an end; return their number."""
        with self._lock:
            self._silent |= self._watches
            return len(self._watches)

    def is_silent(self, upstream: socket.socket) -> bool:
        """Whether a watch reports nothing any more."""
        with self._lock:
            return upstream in self._silent

    @contextlib.contextmanager
    def watching(self, upstream: socket.socket) -> Iterator[None]:
        """Count a watch among those that run, for the duration of the context."""
        with self._lock:
            self._watches.add(upstream)
        try:
            yield
        finally:
            with self._lock:
                self._watches.discard(upstream)
                self._silent.discard(upstream)

    def broken_watch(self) -> str:
        """Return how a watch fails whose connection to the API server broke."""
        with self._lock:
            return next(self._turns[WATCHES])

    def note_created(self, path: str, name: str) -> None:
        """Record a created object."""
        with self._lock:
            self.created[f"{path}/{name}"] += 1

    def note_fault(self, kind: str) -> None:
        """Record a watch failure."""
        with self._lock:
            self.injected[kind] += 1

    def _take_turns(self, kinds: tuple[str, ...]) -> Iterator[str]:
        while True:
            yield from self._random.sample(kinds, len(kinds))

    # --- the API server -----------------------------------------------------------------------------------------------

    def connect(self) -> http.client.HTTPSConnection:
        """A connection to the API server."""
        assert self._upstream.hostname is not None
        return http.client.HTTPSConnection(self._upstream.hostname, self._upstream.port, timeout=60, context=self._tls)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: clients come and go."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  # the base class's name
        pass

    def handle_request(self) -> None:
        connection = self.proxy.connect()
        try:
            self._handle(connection)
        except OSError:  # of either side: the other one must see it too
            self._reset()
        finally:
            connection.close()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_request  # noqa: N815  # the base class's names

    def _handle(self, connection: http.client.HTTPSConnection) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
        watching = parse_qs(urlsplit(self.path).query).get("watch", ["false"])[0] in ("true", "1")
        fault = None if watching else self.proxy.fault(writes=self.command in ("POST", "PUT", "PATCH"))
        if fault in REFUSALS:
            self._refuse(fault)
            return
        if fault == "reset before":
            self._reset()
            return
        headers = {name: self.headers[name] for name in PASSED_ON if name in self.headers}
        connection.request(self.command, self.path, body, headers)
        upstream = connection.sock
        answer = connection.getresponse()
        if watching and answer.status == http.client.OK:
            self._relay_watch(upstream, answer)
            return
        data = answer.read()
        if answer.status == http.client.CREATED and self.command == "POST":
            self.proxy.note_created(urlsplit(self.path).path, str(json.loads(data)["metadata"].get("name")))
        if fault == "reset after":
            self._reset()
        else:
            self._answer(answer.status, data, dict(answer.getheaders()))

    def _answer(self, code: int, data: bytes, headers: Json) -> None:
        self.send_response(code)
        for name in ("Content-Type", "Retry-After"):
            if name in headers:
                self.send_header(name, str(headers[name]))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, kind: str) -> None:
        code, reason, message = REFUSALS[kind]
        headers = {"Content-Type": "application/json"}
        if code == http.client.TOO_MANY_REQUESTS:
            headers["Retry-After"] = str(RETRY_SECONDS)
        self._answer(code, _status(code, reason, message), headers)

    def _reset(self) -> None:
        """Reset the connection."""
        self.close_connection = True
        # Without linger time, closing sends a reset.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def _relay_watch(self, upstream: socket.socket, answer: http.client.HTTPResponse) -> None:
        seconds, fault = self.proxy.watch_fault()
        deadline = time.monotonic() + seconds
        self.send_response(http.client.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        rest = b""  # of an incomplete line
        with contextlib.suppress(TimeoutError), self.proxy.watching(upstream):
            while (left := deadline - time.monotonic()) > 0:
                upstream.settimeout(left)
                try:
                    data = answer.read1(65_536)
                except http.client.HTTPException:
                    fault = self.proxy.broken_watch()
                    break
                if not data:
                    fault = "watch ended"
                    break
                lines, newline, rest = (rest + data).rpartition(b"\n")
                if newline and not self.proxy.is_silent(upstream):
                    self._chunk(lines + newline)
        self.proxy.note_fault(fault)
        match fault:
            case "watch cut":
                self._chunk(b'{"type":"MODIFIED","object":{"apiVersion":')
                self._reset()
            case "watch gone":
                self._end_watch(_status(410, "Expired", "too old resource version: 1 (2)"))
            case "watch error":
                self._end_watch(_status(500, "InternalError", "unable to decode an event from the watch stream"))
            case _:
                self._chunk(b"")

    def _end_watch(self, status: bytes) -> None:
        self._chunk(b'{"type":"ERROR","object":' + status + b"}\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _status(code: int, reason: str, message: str) -> bytes:
    document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return json.dumps({**document, "message": message}).encode()
