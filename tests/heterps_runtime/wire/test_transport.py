"""Connections: the token is required, over the sockets and over HTTP; an end is noticed; sizes are bounded."""

from __future__ import annotations

import contextlib
import hmac
import select
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from heterps_runtime.contract import PATH_HEALTH, PATH_METRICS
from heterps_runtime.errors import ProtocolError, TransientError
from heterps_runtime.wire import transport
from heterps_runtime.wire.codec import MAX_FRAME_BYTES, decode, encode
from heterps_runtime.wire.link import ControlLink
from heterps_runtime.wire.messages import Forward, Go, Message, Shutdown
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.sequence import Stamp
from heterps_runtime.wire.transport import Connection, Connections, Departures, Listener, TokenAuthority, listen_socket
from heterps_runtime.worker.exchange.peers import Downstream, Upstream
from tests.heterps_runtime.helpers.jobs import TOKEN, ThreadedJob, configuration

SECURITY = LinkSecurity(TOKEN, encrypted=False)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.term()


def test_only_holders_of_the_token_are_heard(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    TokenAuthority(context, SECURITY)
    listener, address = listen_socket(context, "127.0.0.1", SECURITY)
    wrong = [
        Connection(context, address, f"wrong-{i}", LinkSecurity(token, encrypted=False))
        for i, token in enumerate(["x", TOKEN + "x", TOKEN[:-1]])
    ]
    bare = context.socket(zmq.DEALER)
    bare.set(zmq.LINGER, 0)
    bare.connect(address)
    for connection in wrong:
        connection.send(Shutdown("intrusion"))
    bare.send_multipart(encode(Shutdown("intrusion"), Stamp(0, 0)), copy=False)
    right = Connection(context, address, "right", SECURITY)
    right.send(Go(7))
    assert listener.poll(10_000)
    served = Listener(listener)
    assert served.receive() == (b"right", Go(7))
    served.send(b"right", Go(8))
    assert right.pollables[0].poll(10_000)
    assert not listener.poll(300), "no other is heard, although they spoke first"
    assert not any(connection.broke() for connection in wrong), "there was no connection"
    for connection in (*wrong, right):
        connection.close()
    bare.close(linger=0)
    listener.close(linger=0)


class Cutter:
    """Forwards connections to an address, and resets or mutes them when asked to."""

    def __init__(self, address: str) -> None:
        host, port = address.removeprefix("tcp://").split(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._muted = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._pairs.append((client, server))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self._muted.is_set():
                    sink.sendall(data)

    def mute(self) -> None:
        """Forward nothing any more, and do not let either end know."""
        self._muted.set()

    def cut(self) -> None:
        """Reset all connections; new ones are forwarded."""
        pairs, self._pairs = self._pairs, []
        for end in (end for pair in pairs for end in pair):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):  # the other side was faster
                end.shutdown(socket.SHUT_RDWR)  # ends the thread that reads from it
            end.close()

    def close(self) -> None:
        self._listener.close()
        self.cut()


def _hear(listener: zmq.Socket[bytes], departures: Departures[str]) -> tuple[str, Message]:
    assert listener.poll(10_000)
    frames = listener.recv_multipart(copy=False)
    identity = frames[0].bytes.decode()
    departures.heard(frames[0], identity)
    return identity, decode(frames[1:])


def _departed(departures: Departures[str]) -> list[str]:
    poller = select.poll()
    poller.register(departures.fileno(), select.POLLIN)
    deadline = time.monotonic() + 10
    while not (gone := departures.departed()) and time.monotonic() < deadline:
        poller.poll(10_000)
    return gone


def test_both_ends_notice_a_connection_that_was_reset(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    TokenAuthority(context, SECURITY)
    listener, address = listen_socket(context, "127.0.0.1", SECURITY)
    departures: Departures[str] = Departures(listener)
    cutter = Cutter(address)
    cut, whole = (Connection(context, a, n, SECURITY) for a, n in ((cutter.address, "cut"), (address, "whole")))
    for connection in (cut, whole):
        connection.send(Go(1))
    assert {_hear(listener, departures)[0] for _ in range(2)} == {"cut", "whole"}
    assert not cut.broke()
    assert departures.departed() == []
    cutter.cut()
    assert _departed(departures) == ["cut"]
    assert cut.pollables[1].poll(10_000)
    assert cut.broke()
    assert not whole.broke()
    cut.send(Go(2))  # ZeroMQ connects again by itself
    assert _hear(listener, departures) == ("cut", Go(2))
    Listener(listener).send(b"cut", Go(3))
    assert cut.pollables[0].poll(10_000)
    assert cut.receive() == Go(3)
    assert not cut.broke(), "each end is told once"
    whole.close()
    assert _departed(departures) == ["whole"]
    cut.close()
    cutter.close()
    departures.close()
    listener.close(linger=0)


def test_a_peer_that_returns_takes_its_identity_over(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    TokenAuthority(context, SECURITY)
    listener, address = listen_socket(context, "127.0.0.1", SECURITY)
    departures: Departures[str] = Departures(listener)
    cutter = Cutter(address)
    first = Connection(context, cutter.address, "same", SECURITY)
    first.send(Go(1))
    assert _hear(listener, departures) == ("same", Go(1))
    cutter.mute()  # the first connection is half-open: neither end knows that it is dead
    second = Connection(context, address, "same", SECURITY)
    second.send(Go(2))
    assert _hear(listener, departures) == ("same", Go(2))
    Listener(listener).send(b"same", Go(3))
    assert second.pollables[0].poll(10_000)
    assert second.receive() == Go(3)
    cutter.cut()
    assert departures._monitor.poll(10_000), "the listener learns that the first connection has ended"
    assert departures.departed() == [], "the peer has another one"
    second.close()
    assert _departed(departures) == ["same"]
    first.close()
    cutter.close()
    departures.close()
    listener.close(linger=0)


def test_both_ends_notice_a_connection_that_is_half_open(
    context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_HEARTBEAT_MILLISECONDS", 100)
    monkeypatch.setattr(transport, "_SILENCE_MILLISECONDS", 1000)
    TokenAuthority(context, SECURITY)
    listener, address = listen_socket(context, "127.0.0.1", SECURITY)
    departures: Departures[str] = Departures(listener)
    cutter = Cutter(address)
    silent = Connection(context, cutter.address, "silent", SECURITY)
    silent.send(Go(1))
    assert _hear(listener, departures) == ("silent", Go(1))
    assert not silent.broke()
    cutter.mute()  # nothing arrives any more, and TCP tells neither end
    gone = _departed(departures)
    noticed = silent.pollables[1].poll(10_000)
    broke = silent.broke()
    silent.close()
    cutter.close()
    departures.close()
    listener.close(linger=0)
    assert gone == ["silent"]
    assert noticed
    assert broke


def _is_closed(stranger: socket.socket) -> bool:
    """Whether the other end closes the connection before the timeout of the socket."""
    try:
        while stranger.recv(4096):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def test_a_stranger_that_does_not_finish_the_handshake_is_disconnected(
    context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_HANDSHAKE_MILLISECONDS", 200)
    listener, address = listen_socket(context, "127.0.0.1", SECURITY)
    host, port = address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as stranger:
        closed = _is_closed(stranger)
    listener.close(linger=0)
    assert closed, "ZeroMQ itself would wait for 30 s"


def test_a_frame_that_is_too_long_is_not_even_read(
    context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZMTP 3.0 (RFC 23): a greeting of 64 bytes, then frames; a long one has 8 bytes of length."""
    monkeypatch.setattr(transport, "_HANDSHAKE_MILLISECONDS", 0)  # without a limit, which would end both connections
    listener, address = listen_socket(context, "127.0.0.1", SECURITY)
    host, port = address.removeprefix("tcp://").split(":")
    closed = {}
    for length, refused in ((MAX_FRAME_BYTES + 1, True), (MAX_FRAME_BYTES, False)):
        with socket.create_connection((host, int(port))) as stranger:
            greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"PLAIN".ljust(20, b"\0") + b"\x00" + bytes(31)
            stranger.sendall(greeting + b"\x06" + length.to_bytes(8, "big"))
            stranger.settimeout(10 if refused else 1)
            closed[length] = _is_closed(stranger)
    listener.close(linger=0)
    assert closed == {MAX_FRAME_BYTES + 1: True, MAX_FRAME_BYTES: False}


def test_a_stage_refuses_what_the_stage_before_or_after_it_does_not_send(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    TokenAuthority(context, SECURITY)
    listener, address = listen_socket(context, "127.0.0.1", SECURITY)
    upstream, downstream = Upstream(listener), Downstream(context, SECURITY, "worker-0-0", 1, [address])
    forward = Forward(1, 0, True, 0, 0, {}, (), ())
    for message in (replace(forward, generation=0), forward):
        downstream.send(0, message)
    assert listener.poll(10_000)
    accepted: list[tuple[bytes, Forward]] = []
    while not accepted:
        accepted = upstream.poll(1)
    assert [message for _, message in accepted] == [forward]
    assert upstream.refused == 1, "of a generation that is over"
    Listener(listener).send(accepted[0][0], Go(1))
    assert downstream.pollables[0].poll(10_000)
    with pytest.raises(ProtocolError, match="the next stage sent an unexpected 'go' message"):
        downstream.poll()
    downstream.pollables[0].send_multipart([b"0", *encode(Go(1), Stamp(1, 2))], copy=False)
    assert listener.poll(10_000)
    with pytest.raises(ProtocolError, match="the previous stage sent an unexpected 'go' message"):
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
    TokenAuthority(context, SECURITY)
    with pytest.raises(TransientError, match=r"cannot listen on 192\.0\.2\.1: "):
        listen_socket(context, "192.0.2.1", SECURITY)


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
    TokenAuthority(context, SECURITY)
    listener, address = listen_socket(context, "127.0.0.1", SECURITY)
    stranger = Connection(context, address, "stranger", LinkSecurity("wrong", encrypted=False))
    stranger.send(Shutdown("intrusion"))
    assert not listener.poll(300)
    assert (b"wrong", TOKEN.encode()) in compared
    stranger.close()
    listener.close(linger=0)
    context.term()


def test_one_socket_serves_all_servers_and_connects_to_those_that_are_sent_something(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    TokenAuthority(context, SECURITY)
    opened = [listen_socket(context, "127.0.0.1", SECURITY) for _ in range(4)]
    accepted = [listening.get_monitor_socket(zmq.EVENT_ACCEPTED) for listening, _ in opened]
    servers = [Listener(listening) for listening, _ in opened]
    connections = Connections(context, [address for _, address in opened], "worker-0-0/1", SECURITY, 1)
    assert len(connections.pollables) == 2
    for index in (3, 1, 3):
        connections.send_to(index, Go(index))
    answers: list[tuple[int, Message]] = []
    for index, messages in ((3, 2), (1, 1)):
        for _ in range(messages):
            assert opened[index][0].poll(10_000)
            assert servers[index].receive() == (b"worker-0-0/1", Go(index))
            servers[index].send(b"worker-0-0/1", Go(10 + index))
    while len(answers) < 3:
        assert connections.pollables[0].poll(10_000)
        while (received := connections.receive_from()) is not None:
            answers.append(received)
    assert sorted(answers, key=lambda a: a[0]) == [(1, Go(11)), (3, Go(13)), (3, Go(13))]
    assert [bool(monitor.poll(0)) for monitor in accepted] == [False, True, False, True]
    assert not connections.broke()
    opened[1][0].disable_monitor()
    opened[1][0].close(linger=0)
    assert connections.pollables[1].poll(10_000)
    assert connections.broke()
    assert not connections.broke(), "it is told once"
    connections.close()
    for (listening, _), monitor in zip(opened, accepted, strict=True):
        if not listening.closed:
            listening.disable_monitor()
            listening.close(linger=0)
        monitor.close()


def test_a_message_that_one_of_several_servers_has_sent_and_that_is_lost_is_noticed(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    TokenAuthority(context, SECURITY)
    opened = [listen_socket(context, "127.0.0.1", SECURITY) for _ in range(2)]
    connections = Connections(context, [address for _, address in opened], "worker-0-0/1", SECURITY, 1)
    for index, (listening, _) in enumerate(opened):
        connections.send_to(index, Go(index))
        assert listening.poll(10_000)
        # The second server has sent a message before this one.
        listening.send_multipart([b"worker-0-0/1", *encode(Go(7), Stamp(1, index))])
        assert connections.pollables[0].poll(10_000)
        if not index:
            assert connections.receive_from() == (0, Go(7))
    with pytest.raises(ProtocolError, match=r"1 message\(s\) before number 1 of session 1 are lost"):
        connections.receive_from()
    connections.close()
    for listening, _ in opened:
        listening.close(linger=0)


def test_a_stage_may_have_more_workers_than_a_context_has_sockets(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    TokenAuthority(context, SECURITY)
    listener, address = listen_socket(context, "127.0.0.1", SECURITY)
    workers = 2 * context.get(zmq.MAX_SOCKETS)
    downstream = Downstream(context, SECURITY, "worker-0-0", 1, [*["tcp://127.0.0.1:1"] * workers, address])
    downstream.send(workers, Forward(1, 0, True, 0, 0, {}, (), ()))
    assert listener.poll(10_000)
    downstream.close()
    listener.close(linger=0)
