"""Messages between the processes of a job: ZeroMQ sockets, one JSON header, raw numpy frames.

A message is an operation name, a small dictionary of plain values, and a list of arrays. On the wire it is one JSON
frame followed by one frame per array, sent and received without a copy. Nothing is ever unpickled: a received header
names dtypes from a fixed set, and every frame's length must be what its dtype and shape say.

Every listening socket demands the job's token (ZeroMQ's PLAIN mechanism); `TokenAuthority` answers the handshakes and
compares in constant time. Traffic is not encrypted, as in the other parameter servers of this field: a job's network is
closed by a NetworkPolicy or is the loopback interface.
"""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zmq

from heterps_runtime.errors import TransientError

__all__ = ["Message", "TokenAuthority", "connect_socket", "decode", "encode", "listen_socket", "receive", "send"]

_DTYPES = {
    name: np.dtype(name)
    for name in (
        "float64",
        "float32",
        "float16",
        "uint16",
        "uint32",
        "uint64",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "bool",
    )
}
_DOMAIN = b"heterps"
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"  # fixed by ZeroMQ's RFC 27


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        op: what is asked or said, such as "pull".
        fields: plain JSON values.
        arrays: payload; arrays of a received message are read-only views of the received frames.
    """

    op: str
    fields: dict[str, Any] = field(default_factory=dict)
    arrays: Sequence[np.ndarray[Any, Any]] = ()


def encode(message: Message) -> list[Any]:
    """Frames of a message. Arrays are not copied: they must not change until ZeroMQ has sent them."""
    arrays = [np.asarray(a, order="C") for a in message.arrays]  # ascontiguousarray would make 0-d arrays 1-d
    header = {"o": message.op, "f": message.fields, "a": [[a.dtype.name, a.shape] for a in arrays]}
    return [
        json.dumps(header, separators=(",", ":")).encode(),
        *(a.reshape(-1).view(np.uint8).data if a.size else b"" for a in arrays),
    ]


def decode(frames: Sequence[zmq.Frame | bytes]) -> Message:
    """Read a message.

    Raises:
        TransientError: the frames are not a message of this protocol.
    """
    try:
        buffers = [f.buffer if isinstance(f, zmq.Frame) else memoryview(f) for f in frames]
        header = json.loads(bytes(buffers[0]))
        op, fields, described = header["o"], header["f"], header["a"]
        if not isinstance(op, str) or not isinstance(fields, dict) or len(described) != len(frames) - 1:
            raise ValueError("header and frames disagree")
        arrays = []
        for (dtype_name, shape), buffer in zip(described, buffers[1:], strict=True):
            dtype = _DTYPES[dtype_name]
            if any(not isinstance(n, int) or n < 0 for n in shape):
                raise ValueError(f"shape {shape}")
            array = np.frombuffer(buffer, dtype=dtype) if len(buffer) else np.empty(0, dtype)
            arrays.append(array.reshape(shape))
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise TransientError(f"received a malformed message: {error}") from error
    return Message(op, fields, arrays)


def send(socket: zmq.Socket[bytes], message: Message, identity: bytes | None = None) -> None:
    """Send without waiting; `identity` names the peer on a ROUTER socket."""
    frames = encode(message)
    if identity is not None:
        frames.insert(0, identity)
    socket.send_multipart(frames, flags=zmq.NOBLOCK, copy=False)


def receive(socket: zmq.Socket[bytes], *, routed: bool = False) -> tuple[bytes, Message] | None:
    """Receive one message if there is one: (identity of the sender, empty unless `routed`; message)."""
    try:
        frames = socket.recv_multipart(flags=zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None
    identity = b""
    if routed:
        identity, frames = frames[0].bytes, frames[1:]
    return identity, decode(frames)


def _configure(socket: zmq.Socket[bytes]) -> None:
    # The protocol bounds what is in flight (windows, staleness), so the queues need no bound that drops messages.
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.RECONNECT_IVL, 50)
    socket.set(zmq.RECONNECT_IVL_MAX, 1000)


def listen_socket(
    context: zmq.Context[zmq.Socket[bytes]], host: str, token: str, port: int = 0
) -> tuple[zmq.Socket[bytes], str]:
    """A ROUTER socket that admits only holders of the token, and the address to reach it.

    Raises:
        TransientError: the port is taken or the address is not one of this machine.
    """
    socket = context.socket(zmq.ROUTER)
    _configure(socket)
    socket.set(zmq.PLAIN_SERVER, 1)
    socket.set(zmq.ZAP_DOMAIN, _DOMAIN)
    try:
        if port:
            socket.bind(f"tcp://{host}:{port}")
        else:
            port = socket.bind_to_random_port(f"tcp://{host}", min_port=20000, max_port=60000, max_tries=1000)
    except zmq.ZMQError as error:
        socket.close()
        raise TransientError(f"cannot listen on {host}:{port or 'any port'}: {error}") from error
    return socket, f"tcp://{host}:{port}"


def connect_socket(
    context: zmq.Context[zmq.Socket[bytes]], address: str, identity: str, token: str
) -> zmq.Socket[bytes]:
    """A DEALER socket connected to a `listen_socket` under a name of its own."""
    socket = context.socket(zmq.DEALER)
    _configure(socket)
    socket.set(zmq.IDENTITY, identity.encode())
    socket.set(zmq.PLAIN_USERNAME, _DOMAIN)
    socket.set(zmq.PLAIN_PASSWORD, token.encode())
    socket.connect(address)
    return socket


class TokenAuthority:
    """Answers ZeroMQ's authentication requests of one context (ZAP, RFC 27) by comparing the token."""

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
