"""A server on 127.0.0.1 that sends any bytes, at any pace."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

Script = Callable[[socket.socket, threading.Event], None]

OK = b"HTTP/1.1 200 OK\r\n"
DRIP_SECONDS = 0.01


@contextlib.contextmanager
def hostile(script: Script) -> Iterator[str]:
    """Serve connections with a script until the block ends.

    Args:
        script: is called per connection, after the request was read, with the socket and an event that is set when the
            block ends. The connection is closed after it.

    Yields:
        The address, `http://127.0.0.1:PORT`.
    """
    ended, threads = threading.Event(), list[threading.Thread]()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(65_536)
            script(connection, ended)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                if ended.is_set():
                    connection.close()
                    return
                threads.append(threading.Thread(target=serve, args=(connection,)))
                threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    port = listener.getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        ended.set()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            pass  # wakes the acceptor
        acceptor.join()
        listener.close()
        for thread in threads:
            thread.join()


def sends(data: bytes) -> Script:
    """Send these bytes, and close the connection."""
    return lambda connection, ended: connection.sendall(data)


def drips(head: bytes, drop: bytes) -> Script:
    """Send the head, then one drop after the other without end."""

    def script(connection: socket.socket, ended: threading.Event) -> None:
        connection.sendall(head)
        while not ended.wait(DRIP_SECONDS):
            connection.sendall(drop)

    return script


def floods(head: bytes, piece: bytes) -> Script:
    """Send the head, then pieces without a pause and without end."""

    def script(connection: socket.socket, ended: threading.Event) -> None:
        connection.sendall(head)
        while not ended.is_set():
            connection.sendall(piece)

    return script


def says(body: bytes, *headers: bytes) -> Script:
    """Send a complete response."""
    lines = [b"Content-Length: %d" % len(body), *headers]
    return sends(OK + b"\r\n".join(lines) + b"\r\n\r\n" + body)
