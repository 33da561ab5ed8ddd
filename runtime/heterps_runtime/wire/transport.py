"""Sockets between the processes of a job.

Listening sockets require the job's token (ZeroMQ's PLAIN mechanism). `TokenAuthority` answers handshakes and compares
in constant time. Traffic is not encrypted: a NetworkPolicy isolates a job's network, or it is the loopback interface.
"""

from __future__ import annotations

import hmac
import threading

import zmq

from heterps_runtime.errors import TransientError
from heterps_runtime.wire.codec import decode, encode
from heterps_runtime.wire.messages import Message

__all__ = ["TokenAuthority", "connect_socket", "listen_socket", "receive", "send"]

_DOMAIN = b"heterps"
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"  # fixed by ZeroMQ's RFC 27


def send(socket: zmq.Socket[bytes], message: Message, identity: bytes | None = None) -> None:
    """Send without blocking; `identity` is the peer of a ROUTER socket."""
    frames = encode(message)
    if identity is not None:
        frames.insert(0, identity)
    socket.send_multipart(frames, flags=zmq.NOBLOCK, copy=False)


def receive(socket: zmq.Socket[bytes], *, routed: bool = False) -> tuple[bytes, Message] | None:
    """Receive a message if one has arrived: (identity of the sender, empty unless `routed`; message).

    Raises:
        TransientError: the frames are not a message of this protocol.
    """
    try:
        frames = socket.recv_multipart(flags=zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None
    identity = b""
    if routed:
        identity, frames = frames[0].bytes, frames[1:]
    return identity, decode(frames)


def _configure(socket: zmq.Socket[bytes]) -> None:
    # The protocol bounds the messages in flight, so the queues need no limits, which would drop messages.
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.RECONNECT_IVL, 50)
    socket.set(zmq.RECONNECT_IVL_MAX, 1000)


def listen_socket(context: zmq.Context[zmq.Socket[bytes]], host: str, token: str) -> tuple[zmq.Socket[bytes], str]:
    """A ROUTER socket on a free port that requires the token, and its address.

    Raises:
        TransientError: the host is not an address of this machine.
    """
    socket = context.socket(zmq.ROUTER)
    _configure(socket)
    socket.set(zmq.PLAIN_SERVER, 1)
    socket.set(zmq.ZAP_DOMAIN, _DOMAIN)
    try:
        port = socket.bind_to_random_port(f"tcp://{host}", min_port=20000, max_port=60000, max_tries=1000)
    except zmq.ZMQError as error:
        socket.close()
        raise TransientError(f"cannot listen on {host}: {error}") from error
    return socket, f"tcp://{host}:{port}"


def connect_socket(
    context: zmq.Context[zmq.Socket[bytes]], address: str, identity: str, token: str
) -> zmq.Socket[bytes]:
    """A DEALER socket, connected to a `listen_socket`."""
    socket = context.socket(zmq.DEALER)
    _configure(socket)
    socket.set(zmq.IDENTITY, identity.encode())
    socket.set(zmq.PLAIN_USERNAME, _DOMAIN)
    socket.set(zmq.PLAIN_PASSWORD, token.encode())
    socket.connect(address)
    return socket


class TokenAuthority:
    """Answers the authentication requests of a ZeroMQ context (ZAP, RFC 27)."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], token: str) -> None:
        self._token = token.encode()
        self._socket = context.socket(zmq.REP)
        self._socket.set(zmq.LINGER, 0)
        self._socket.bind(_ZAP_ENDPOINT)
        self._thread = threading.Thread(target=self._serve, name="token-authority", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            while True:
                frames = self._socket.recv_multipart()
                version, request = frames[0], frames[1]
                mechanism, credentials = frames[5], frames[6:]
                granted = (
                    mechanism == b"PLAIN" and len(credentials) == 2 and hmac.compare_digest(credentials[1], self._token)
                )
                status = (b"200", b"OK") if granted else (b"400", b"wrong token")
                self._socket.send_multipart([version, request, *status, b"heterps" if granted else b"", b""])
        except zmq.ContextTerminated:
            self._socket.close()
