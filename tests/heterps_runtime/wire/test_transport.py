"""The token is required, over the sockets and over HTTP."""

from __future__ import annotations

import hmac
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from heterps_runtime.contract import PATH_HEALTH, PATH_METRICS
from heterps_runtime.errors import TransientError
from heterps_runtime.wire.link import ControlLink
from heterps_runtime.wire.messages import Forward, Go, Shutdown
from heterps_runtime.wire.transport import TokenAuthority, connect_socket, listen_socket, receive, send
from heterps_runtime.worker.exchange.peers import Downstream, Upstream
from tests.heterps_runtime.helpers.jobs import TOKEN, ThreadedJob, configuration


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
        send(socket, Shutdown("intrusion"))
    right = connect_socket(context, address, "right", TOKEN)
    send(right, Go(7))
    assert listener.poll(10_000)
    received = receive(listener, routed=True)
    assert received is not None
    assert received == (b"right", Go(7))
    send(listener, Go(8), received[0])
    assert right.poll(10_000)
    assert not listener.poll(300), "no other is heard, although they spoke first"
    for socket in (*wrong, bare, right, listener):
        socket.close(linger=0)


def test_a_stage_refuses_what_the_stage_before_or_after_it_does_not_send(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    TokenAuthority(context, TOKEN)
    listener, address = listen_socket(context, "127.0.0.1", TOKEN)
    upstream, downstream = Upstream(listener), Downstream(context, TOKEN, "worker-0-0", 1, [address])
    forward = Forward(1, 0, True, 0, 0, {}, ())
    for message in (replace(forward, generation=0), forward):
        downstream.send(0, message)
    assert listener.poll(10_000)
    accepted: list[tuple[bytes, Forward]] = []
    while not accepted:
        accepted = upstream.poll(1)
    assert [message for _, message in accepted] == [forward]
    assert upstream.refused == 1, "of a generation that is over"
    send(listener, Go(1), accepted[0][0])
    assert downstream.sockets[0].poll(10_000)
    with pytest.raises(TransientError, match="the next stage sent an unexpected 'go' message"):
        downstream.poll()
    send(downstream.sockets[0], Go(1))
    assert listener.poll(10_000)
    with pytest.raises(TransientError, match="the previous stage sent an unexpected 'go' message"):
        upstream.poll(1)
    downstream.close()
    listener.close(linger=0)


def test_messages_that_are_put_back_are_received_again_before_others(tmp_path: Path) -> None:
    job = ThreadedJob(configuration(tmp_path / "job"))
    link = ControlLink(job.credentials, "worker-0-0")
    link.put_back([Go(2), Go(3)])
    link.put_back([Go(1)])
    assert [link.receive() for _ in range(4)] == [Go(1), Go(2), Go(3), None]
    link.close()
    job.close()


def test_an_address_of_another_machine_is_an_error_that_says_so(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    TokenAuthority(context, TOKEN)
    with pytest.raises(TransientError, match=r"cannot listen on 192\.0\.2\.1: "):
        listen_socket(context, "192.0.2.1", TOKEN)


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
    send(stranger, Shutdown("intrusion"))
    assert not listener.poll(300)
    assert (b"wrong", TOKEN.encode()) in compared
    stranger.close(linger=0)
    listener.close(linger=0)
    context.term()
