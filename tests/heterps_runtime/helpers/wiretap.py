"""A stranger on the network: all connections of a job go through it, and it records every byte."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pytest

from heterps_runtime.coordinator import connections as coordinator
from heterps_runtime.ps import server as ps
from heterps_runtime.wire import transport
from heterps_runtime.worker import member

__all__ = ["Wiretap"]


class Wiretap:
    """Forwards connections to the listeners of a job."""

    def __init__(self) -> None:
        self._listeners: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._streams: list[list[bytes]] = []  # one per connection and direction

    def tap(self, address: str) -> str:
        """The address at which strangers listen on the way to a listener, `scheme://host:port`."""
        parts = urlsplit(address)
        assert parts.hostname is not None
        assert parts.port is not None
        listener = socket.create_server(("127.0.0.1", 0))
        self._listeners.append(listener)
        self._threads.append(self._start(self._accept, listener, (parts.hostname, parts.port)))
        return f"{parts.scheme}://127.0.0.1:{listener.getsockname()[1]}"

    def tap_listeners(
        self, patch: pytest.MonkeyPatch, modules: Iterable[ModuleType] = (coordinator, ps, member)
    ) -> None:
        """Tap every listening socket that processes of a job open from now on, those of these modules."""

        def listen(*arguments: Any) -> Any:
            opened, address = transport.listen_socket(*arguments)
            return opened, self.tap(address)

        for module in modules:
            patch.setattr(module, "listen_socket", listen)

    @property
    def connections(self) -> int:
        """Number of connections so far."""
        return len(self._streams) // 2

    def heard(self, secret: bytes) -> bool:
        """Whether these bytes crossed the network on any connection."""
        return any(secret in b"".join(stream) for stream in self._streams)

    def close(self) -> None:
        """Accept no more connections, and wait until all have ended."""
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _start(self, run: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=run, args=arguments, name="wiretap", daemon=True)
        thread.start()
        return thread

    def _accept(self, listener: socket.socket, target: tuple[str, int]) -> None:
        connected: list[threading.Thread] = []
        with listener, contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                connected.append(self._start(self._connect, client, target))
        for thread in connected:
            thread.join()

    def _connect(self, client: socket.socket, target: tuple[str, int]) -> None:
        with client:
            try:
                server = socket.create_connection(target)
            except OSError:  # the listener has ended, as it may before a last attempt: the client finds it closed
                return
            with server:
                back = self._start(self._forward, server, client)
                self._forward(client, server)
                back.join()

    def _passing(self) -> Callable[[bytes], bytes]:
        """Return a function for one direction of a connection, which turns received bytes into those to forward."""
        stream: list[bytes] = []
        self._streams.append(stream)

        def record(data: bytes) -> bytes:
            stream.append(data)
            return data

        return record

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        passing = self._passing()
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(passing(data))
        for end in (source, sink):  # the other direction ends with this one
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
