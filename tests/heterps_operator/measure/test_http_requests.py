"""A request ends by its deadline and within its limit, whatever the server sends."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from heterps_operator.measure import http_requests
from heterps_operator.measure.http_requests import HttpConnection, HttpResponse, NoResponseError, send_request
from tests.heterps_operator.helpers.hostile_server import OK, Script, drips, floods, hostile, says, sends

SHORT, LONG = 0.2, 30.0  # seconds: of requests that must end by their deadline, and of those that must end before
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def ask(script: Script, timeout: float = LONG, most_bytes: int = 65_536) -> HttpResponse:
    with hostile(script) as address:
        return send_request("GET", f"{address}/v1/status", headers={}, timeout=timeout, most_bytes=most_bytes)


SLOW = {
    "nothing": drips(b"", b""),
    "status line in drops": drips(b"", b"H"),
    "headers in drops": drips(OK, b"X"),
    "headers one by one": drips(OK, b"X-Name: value\r\n"),
    "continue without end": drips(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body in drops": drips(OK + b"\r\n", b"x"),
    "body in drops with a length": drips(OK + b"Content-Length: 1000000\r\n\r\n", b"x"),
    "chunks in drops": drips(CHUNKED, b"1\r\nx\r\n"),
    "size of a chunk in drops": drips(CHUNKED, b"0"),
    "trailers in drops": drips(CHUNKED + b"0\r\n", b"X: y\r\n"),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_server_is_given_up_at_the_deadline_of_the_whole_exchange(name: str) -> None:
    with pytest.raises(NoResponseError, match=r"no complete response within 0\.2 s|more than 100 headers|line"):
        ask(SLOW[name], SHORT)


def test_a_server_that_does_not_read_the_request_is_given_up() -> None:
    body = "x" * 50_000_000  # more than the buffers of both sockets
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        with pytest.raises(NoResponseError, match=r"no complete response within 0\.2 s"):
            send_request("PUT", url, headers={}, timeout=SHORT, most_bytes=1, body=body)


LARGE = {
    "body": floods(OK + b"\r\n", b"x" * 65_536),
    "chunks": floods(CHUNKED, b"8000\r\n" + b"x" * 0x8000 + b"\r\n"),
    "announced": floods(OK + b"Content-Length: 1000000000000\r\n\r\n", b"x" * 65_536),
    "by one byte": says(b"x" * 65_537),
}


@pytest.mark.parametrize("name", LARGE)
def test_an_endless_body_is_given_up_at_its_limit(name: str) -> None:
    with pytest.raises(NoResponseError, match="the response is larger than 65536 bytes"):
        ask(LARGE[name])


def test_a_body_of_the_limit_is_taken() -> None:
    assert ask(says(b"x" * 65_536)).text == "x" * 65_536


BROKEN = {
    "endless status line": floods(b"", b"HTTP"),
    "endless header": floods(OK, b"X" * 65_536),
    "endless headers": floods(OK, b"X-Name: value\r\n" * 1000),
    "no HTTP": sends(b"220 mail.example.com ESMTP\r\n"),
    "binary": sends(bytes(range(256)) * 100),
    "nothing": sends(b""),
    "half a body": sends(OK + b"Content-Length: 100\r\n\r\nx"),
    "half a chunk": sends(CHUNKED + b"ff\r\nx"),
    "no chunk": sends(CHUNKED + b"xyz\r\nx\r\n"),
    "negative chunk": sends(CHUNKED + b"-5\r\nx\r\n"),
    "huge chunk": sends(CHUNKED + b"f" * 5000 + b"\r\nx"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_response_that_is_no_http_is_no_response(name: str) -> None:
    with pytest.raises(NoResponseError, match="does not answer"):
        ask(BROKEN[name])


def test_redirects_are_not_followed() -> None:
    asked = list[int]()

    def script(connection: socket.socket, ended: threading.Event) -> None:
        asked.append(1)
        connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: /v1/status\r\nContent-Length: 0\r\n\r\n")

    assert ask(script) == HttpResponse(302, "Found", "")
    assert asked == [1]


def test_a_compressed_body_is_not_expanded() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    response = ask(says(bomb, b"Content-Encoding: gzip"))
    assert len(response.text) <= len(bomb)


def test_bytes_of_another_encoding_are_replaced() -> None:
    response = ask(says("größe".encode("latin-1"), b"Content-Type: text/plain; charset=no-such-charset"))
    assert response.text == "gr\ufffd\ufffde"


def test_a_long_reason_is_cut() -> None:
    assert len(ask(sends(b"HTTP/1.1 500 " + b"x" * 60_000 + b"\r\n\r\n")).reason) == 100


# --- a connection that stays open -------------------------------------------------------------------------------------


class Keeper:
    """A server that keeps its connections open. It answers each request with its number.

    Attributes:
        address: `http://127.0.0.1:PORT`.
        connections: number of the connection of each request.
        mute: it closes the connection instead of the next answer.
        silent: it does not answer.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = list[int]()
        self.mute = self.silent = False
        self._open = list[socket.socket]()
        self._serving = list[threading.Thread]()
        self._acceptor = threading.Thread(target=self._accept)

    def __enter__(self) -> Keeper:
        self._acceptor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        self.close_connections()

    def close_connections(self) -> None:
        """Close all connections, and wait until that is done."""
        for connection, thread in zip(self._open, self._serving, strict=True):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join()

    def say(self, data: bytes) -> None:
        """Send bytes on the last connection."""
        self._open[-1].sendall(data)

    def wait_for_end(self, number: int) -> bool:
        """Wait until a connection has ended."""
        self._serving[number].join(LONG)
        return not self._serving[number].is_alive()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                self._serving.append(threading.Thread(target=self._serve, args=(connection, len(self._serving))))
                self._serving[-1].start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with connection, contextlib.suppress(OSError), connection.makefile("rb") as stream:
            while stream.readline():
                headers = http.client.parse_headers(stream)
                stream.read(int(headers.get("Content-Length", 0)))
                self.connections.append(number)
                if self.mute:
                    self.mute = False
                    return
                if not self.silent:
                    text = str(len(self.connections) - 1).encode()
                    connection.sendall(OK + b"Content-Length: %d\r\n\r\n%s" % (len(text), text))


@pytest.fixture
def server() -> Iterator[Keeper]:
    with Keeper() as keeper:
        yield keeper


def get(connection: HttpConnection, method: str = "GET", body: str | None = None) -> str:
    return connection.send(method, "/", headers={}, timeout=LONG, most_bytes=65_536, body=body).text


def test_questions_share_a_connection(server: Keeper) -> None:
    connection = HttpConnection(server.address)
    assert [get(connection) for _ in range(3)] == ["0", "1", "2"]
    assert server.connections == [0, 0, 0]


def test_a_request_that_changes_something_gets_a_connection_of_its_own_which_stays(server: Keeper) -> None:
    connection = HttpConnection(server.address)
    for method in ("GET", "PUT", "GET", "POST"):
        get(connection, method, None if method == "GET" else "{}")
    assert server.connections == [0, 1, 1, 2]


def test_a_connection_that_the_server_has_closed_is_replaced(server: Keeper) -> None:
    connection = HttpConnection(server.address)
    get(connection)
    server.close_connections()
    assert get(connection) == "1"
    assert server.connections == [0, 1]


def test_a_connection_that_the_server_closes_at_the_next_question_is_replaced(server: Keeper) -> None:
    connection = HttpConnection(server.address)
    get(connection)
    server.mute = True
    assert get(connection) == "2", "the question on the old connection had no answer, and was asked again"
    assert server.connections == [0, 0, 1]


def test_a_connection_on_which_something_comes_unasked_is_not_used(server: Keeper) -> None:
    connection = HttpConnection(server.address)
    get(connection)
    server.say(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
    assert get(connection) == "1"
    assert server.connections == [0, 1]


def test_an_idle_connection_is_given_up_before_the_server_closes_it(
    server: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = HttpConnection(server.address)
    get(connection)
    monkeypatch.setattr(http_requests, "_LONGEST_IDLE_SECONDS", 0.0)
    get(connection)
    assert server.connections == [0, 1]


def test_a_silent_server_is_given_up_at_the_deadline_also_on_an_open_connection(server: Keeper) -> None:
    connection = HttpConnection(server.address)
    get(connection)
    server.silent = True
    with pytest.raises(NoResponseError, match=r"no complete response within 0\.2 s"):
        connection.send("GET", "/", headers={}, timeout=SHORT, most_bytes=1)
    server.silent = False
    assert get(connection) == "2"
    assert server.connections == [0, 0, 1], "what it sends too late is not taken for the answer to another question"


def test_the_connection_is_closed_with_its_object(server: Keeper) -> None:
    connection = HttpConnection(server.address)
    get(connection)
    del connection
    assert server.wait_for_end(0)


def test_a_response_without_an_end_of_its_own_ends_the_connection() -> None:
    with hostile(sends(OK + b"\r\nto the end")) as address:
        connection = HttpConnection(address)
        assert [get(connection) for _ in range(2)] == ["to the end"] * 2
