"""A request ends by its deadline and within its limit, whatever the server sends."""

from __future__ import annotations

import gzip
import socket
import threading

import pytest

from heterps_operator.measure.http_requests import HttpResponse, NoResponseError, send_request
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
