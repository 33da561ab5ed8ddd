"""Messages survive the wire unchanged; whatever is malformed or carries no token does not get in."""

from __future__ import annotations

import hmac
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from heterps_runtime.contract import PATH_HEALTH, PATH_METRICS
from heterps_runtime.errors import TransientError
from heterps_runtime.transport import (
    Message,
    TokenAuthority,
    connect_socket,
    decode,
    encode,
    listen_socket,
    receive,
    send,
)

from .jobs import TOKEN, ThreadedJob, configuration

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
DTYPES = [np.dtype(n) for n in ("float64", "float32", "float16", "bool", *INTEGERS)]
SHAPES = st_numpy.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@given(st.lists(st_numpy.arrays(st.sampled_from(DTYPES), SHAPES), max_size=4))
def test_arrays_of_every_kind_come_back_as_they_were(arrays: list[np.ndarray[Any, Any]]) -> None:
    fields = {"number": 2**60, "text": "ü", "list": [1, None, True], "small": 1e-300}
    message = decode([bytes(f) for f in encode(Message("op", fields, arrays))])
    assert (message.op, message.fields) == ("op", fields)
    assert len(message.arrays) == len(arrays)
    for sent, received in zip(arrays, message.arrays, strict=True):
        assert (sent.dtype, sent.shape) == (received.dtype, received.shape)
        np.testing.assert_array_equal(sent, received)


def test_arrays_that_do_not_lie_in_order_are_sent_in_order() -> None:
    array = np.arange(24).reshape(4, 6).T[::2]
    np.testing.assert_array_equal(decode(encode(Message("op", {}, [array]))).arrays[0], array)


def _header(described: Any, **other: Any) -> bytes:
    return json.dumps({"o": "op", "f": {}, "a": described, **other}).encode()


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([], id="nothing"),
        pytest.param([b""], id="no header"),
        pytest.param([b"\xff\xfe"], id="no text"),
        pytest.param([b"[1, 2]"], id="no object"),
        pytest.param([b"[" * 100_000], id="nested without end"),
        pytest.param([b'{"o": "op", "f": {}}'], id="no arrays described"),
        pytest.param([_header([], o=7)], id="operation is no text"),
        pytest.param([_header([], f=[])], id="fields are no object"),
        pytest.param([_header(5)], id="descriptions are a number"),
        pytest.param([_header([["int8", [1]]])], id="a frame is missing"),
        pytest.param([_header([]), b"1"], id="a frame too many"),
        pytest.param([_header([["int8", [2]]]), b"1"], id="too short"),
        pytest.param([_header([["int8", [2]]]), b"123"], id="too long"),
        pytest.param([_header([["int32", [1]]]), b"123"], id="no whole number of values"),
        pytest.param([_header([["object", [1]]]), b"12345678"], id="dtype that could run code"),
        pytest.param([_header([["no-such", [1]]]), b"1"], id="unknown dtype"),
        pytest.param([_header([[["int8"], [1]]]), b"1"], id="dtype is a list"),
        pytest.param([_header([["int8", [-1]]]), b"1"], id="negative size"),
        pytest.param([_header([["int8", [1.0]]]), b"1"], id="fractional size"),
        pytest.param([_header([["int8", 1]]), b"1"], id="shape is a number"),
        pytest.param([_header([["int8", [10**18]]]), b""], id="huge shape, no data"),
        pytest.param([_header([["int8", [10**30]]]), b"1"], id="shape beyond 64 bits"),
        pytest.param([_header([["int8", [2**63, 0]]]), b""], id="empty but beyond 64 bits"),
        pytest.param([_header([["int8", [1] * 100]]), b"1"], id="too many dimensions"),
    ],
)
def test_malformed_messages_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(TransientError, match="malformed message"):
        decode(frames)


@given(st.lists(st.binary(max_size=60), max_size=3))
def test_garbage_is_refused_without_a_crash(frames: list[bytes]) -> None:
    with pytest.raises(TransientError, match="malformed message"):
        decode(frames)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.term()


def test_only_holders_of_the_token_are_heard(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    TokenAuthority(context, TOKEN)
    listener, address = listen_socket(context, "127.0.0.1", TOKEN)
    wrong = [connect_socket(context, address, f"wrong-{i}", t) for i, t in enumerate(["x", TOKEN + "x", TOKEN[:-1]])]
    bare = context.socket(zmq.DEALER)
    bare.set(zmq.LINGER, 0)
    bare.connect(address)
    for socket in (*wrong, bare):
        send(socket, Message("intrusion"))
    right = connect_socket(context, address, "right", TOKEN)
    send(right, Message("hello", {}, [np.arange(3)]))
    assert listener.poll(10_000)
    received = receive(listener, routed=True)
    assert received is not None
    assert (received[0], received[1].op) == (b"right", "hello")
    send(listener, Message("answer"), received[0])
    assert right.poll(10_000)
    assert not listener.poll(300), "nobody else is heard, although they spoke first"
    for socket in (*wrong, bare, right, listener):
        socket.close(linger=0)


def test_a_taken_port_is_an_error_that_says_so(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    TokenAuthority(context, TOKEN)
    listener, address = listen_socket(context, "127.0.0.1", TOKEN)
    port = int(address.rsplit(":", 1)[1])
    with pytest.raises(TransientError, match=f"cannot listen on 127.0.0.1:{port}"):
        listen_socket(context, "127.0.0.1", TOKEN, port)
    listener.close(linger=0)


PATHS = [
    ("GET", "/v1/endpoint"),
    ("GET", "/v1/status"),
    ("GET", "/v1/profiles"),
    ("PUT", "/v1/profiles/cpu"),
    ("PUT", "/v1/plan"),
    ("PUT", "/v1/allocation"),
    ("POST", "/v1/checkpoint"),
    ("POST", "/v1/lost"),
    ("POST", "/v1/stop"),
    ("POST", "/v1/fail"),
    ("POST", "/v1/shutdown"),
    ("GET", "/v1/no-such-path"),
]


def _status(url: str, method: str, path: str, header: str | None, body: bytes | None = None) -> int:
    request = urllib.request.Request(url + path, body, {"Authorization": header} if header else {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_every_path_but_health_and_metrics_wants_the_token(tmp_path: Path) -> None:
    job = ThreadedJob(configuration(tmp_path / "job"))
    url = job.credentials.url
    for method, path in PATHS:
        for header in (None, "Bearer ", "Bearer wrong", TOKEN, f"Basic {TOKEN}", "Bearer \xff"):
            assert _status(url, method, path, header, b"{}" if method != "GET" else None) == 401, (path, header)
    assert job.status()["phase"] == "Profiling", "none of these did anything"
    assert _status(url, "GET", PATH_HEALTH, None) == _status(url, "GET", PATH_METRICS, None) == 200
    good = f"Bearer {TOKEN}"
    for body in (b"{}", b"[]", b"nonsense", b'{"stages": 5}', b'{"stages": []}', b"\xff"):
        assert _status(url, "PUT", "/v1/plan", good, body) == 400, body
        assert _status(url, "PUT", "/v1/allocation", good, body) == 400, body
    assert _status(url, "PUT", "/v1/profiles/no-such-pool", good, b"{}") == 400
    job.close()


def test_tokens_are_compared_in_constant_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[Any, Any]] = []

    def compare(given: Any, expected: Any) -> bool:
        compared.append((given, expected))
        return bool(given == expected)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    job = ThreadedJob(configuration(tmp_path / "job"))
    assert _status(job.credentials.url, "GET", "/v1/status", "Bearer wrong") == 401
    assert (b"Bearer wrong", f"Bearer {TOKEN}".encode()) in compared
    job.close()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    TokenAuthority(context, TOKEN)
    listener, address = listen_socket(context, "127.0.0.1", TOKEN)
    stranger = connect_socket(context, address, "stranger", "wrong")
    send(stranger, Message("intrusion"))
    assert not listener.poll(300)
    assert (b"wrong", TOKEN.encode()) in compared
    stranger.close(linger=0)
    listener.close(linger=0)
    context.term()
