"""HTTP requests with bounded time and size, to coordinators and Prometheus servers.

A coordinator runs an image of the user: it may answer one byte at a time, without end, or with anything. A request has
one deadline for everything from connecting to the last byte, and a limit for its body. Redirects are not followed, and
compressed bodies are neither asked for nor decompressed.

The API server has its own client (`kubernetes.api`). This one uses the standard library only, so that commands that do
without a cluster start quickly.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import select
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

__all__ = ["HttpConnection", "HttpResponse", "NoResponseError", "send_request"]

_LONGEST_IDLE_SECONDS = 60.0  # of a connection that is used again: servers close one after 75 s
_LONGEST_REASON = 100  # characters of the status line's text


class NoResponseError(Exception):
    """There was no complete response in time."""


@dataclass(frozen=True)
class HttpResponse:
    """A complete response, whatever its status."""

    status: int
    reason: str
    text: str  # the body; bytes that are not UTF-8 are replaced


class HttpConnection:
    """Requests to one server, over one connection for as long as the server keeps it open. Not thread-safe.

    A new connection costs two thirds of the processor time of the rest of a request; over TLS, seven times as much as
    that. It is closed with this object.

    Args:
        address: `http://host:port`, or with a context `https://host:port`.
        context: TLS settings; None: plain HTTP.
    """

    def __init__(self, address: str, context: ssl.SSLContext | None = None) -> None:
        self._kept: socket.socket | None = None
        self._parts = urlsplit(address)
        self._context = context
        self._kept_since = 0.0

    def __del__(self) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def send(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        timeout: float,
        most_bytes: int,
        body: str | None = None,
    ) -> HttpResponse:
        """Send one request.

        A GET may be sent twice: the server may close an open connection at the moment in which it is used. Requests
        that change something get a new connection, and are sent once.

        Args:
            method: HTTP method.
            target: path and query.
            headers: headers of the request.
            timeout: seconds for the whole exchange. Only the lookup of a host name may take longer.
            most_bytes: largest body of a response.
            body: body of the request.

        Raises:
            NoResponseError: the server does not answer, is too slow, or sends too much.
        """
        deadline = time.monotonic() + timeout

        def exchange(connected: socket.socket) -> HttpResponse:
            return self._exchange(connected, deadline, (method, target, body, dict(headers)), most_bytes)

        try:
            if method == "GET" and (kept := self._take()) is not None:
                try:
                    return exchange(kept)
                except TimeoutError:
                    raise
                except (OSError, http.client.HTTPException):
                    pass  # it was closed meanwhile, or what came was no response: asked again on a new one
            self.close()
            return exchange(_connect(self._parts, deadline, self._context))
        except TimeoutError as error:
            raise NoResponseError(f"does not answer (no complete response within {timeout:g} s)") from error
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a malformed length
            raise NoResponseError(f"does not answer ({error or type(error).__name__})") from error

    def _take(self) -> socket.socket | None:
        """Return the open connection if it can be used; what the server has sent unasked counts as its end."""
        kept, self._kept = self._kept, None
        if kept is None:
            return None
        poll = select.poll()
        poll.register(kept, select.POLLIN)
        if time.monotonic() - self._kept_since < _LONGEST_IDLE_SECONDS and not poll.poll(0):
            return kept
        kept.close()
        return None

    def _exchange(
        self, connected: socket.socket, deadline: float, request: tuple[Any, ...], most_bytes: int
    ) -> HttpResponse:
        """Send a request and return its response, and keep the connection if both sides can go on with it."""
        # Without a port, it would read one from the end of an IPv6 address.
        connection = http.client.HTTPConnection(str(self._parts.hostname), self._parts.port or http.client.HTTP_PORT)
        try:
            connection.sock = _Stream(connected, deadline)
            connection.request(*request)
            response = connection.getresponse()
            received = response.read(most_bytes + 1)
            if len(received) > most_bytes:
                raise NoResponseError(f"the response is larger than {most_bytes} bytes")
            if response.length:
                raise NoResponseError(f"does not answer (the response ends {response.length} bytes too early)")
            if response.isclosed() and not response.will_close:
                self._kept, self._kept_since = connected, time.monotonic()
        finally:
            if self._kept is not connected:
                connected.close()
        return HttpResponse(response.status, response.reason[:_LONGEST_REASON], received.decode("utf-8", "replace"))


def send_request(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    timeout: float,
    most_bytes: int,
    body: str | None = None,
    context: ssl.SSLContext | None = None,
) -> HttpResponse:
    """Send one request over a new connection: see `HttpConnection.send`."""
    parts = urlsplit(url)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    connection = HttpConnection(url, context)
    with contextlib.closing(connection):
        return connection.send(method, target, headers=headers, timeout=timeout, most_bytes=most_bytes, body=body)


class _Stream:
    """A connected socket, as far as `http.client` uses one, whose reads and writes end at a deadline."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._socket = connected
        self._deadline = deadline

    def sendall(self, data: Any) -> None:
        self._socket.settimeout(_remaining(self._deadline))
        self._socket.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb"
        return io.BufferedReader(_Reader(self._socket, self._deadline))

    def close(self) -> None:
        """Do nothing: `http.client` closes a connection before it has read the body."""


class _Reader(io.RawIOBase):
    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._socket = connected
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._socket.settimeout(_remaining(self._deadline))
        return self._socket.recv_into(buffer)


def _connect(parts: SplitResult, deadline: float, context: ssl.SSLContext | None) -> socket.socket:
    """Connect to the first address of a host that accepts."""
    port = parts.port or (http.client.HTTP_PORT if context is None else http.client.HTTPS_PORT)
    refusal: OSError = OSError("the host has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM):
        connected = socket.socket(family, kind, protocol)
        try:
            connected.settimeout(_remaining(deadline))
            connected.connect(address)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.settimeout(_remaining(deadline))
            return connected if context is None else context.wrap_socket(connected, server_hostname=parts.hostname)
        except OSError as error:
            connected.close()
            refusal = error
    raise refusal


def _remaining(deadline: float) -> float:
    """Return the seconds until the deadline.

    Raises:
        TimeoutError: it has passed.
    """
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
