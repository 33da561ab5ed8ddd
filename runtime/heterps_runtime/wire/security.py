"""How the sockets of a job prove that they belong to it, and whether they encrypt.

Without encryption, a connection shows the token (PLAIN, ZeroMQ's RFC 24). With encryption (CURVE, RFC 26), both ends
prove with key pairs derived from the token that they hold it; it does not cross the network. One key pair is for ends
that listen, the other for ends that connect, so no end can be answered with its own words.
"""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from heterps_runtime.tls import client_context, derive_key, server_context

__all__ = ["LinkSecurity"]

_DOMAIN = b"heterps"
_CURVE_OVERHEAD = 33  # bytes of a MESSAGE command around a frame: name 8, nonce 8, authentication 16, flags 1 (RFC 26)


@dataclass(frozen=True)
class LinkSecurity:
    """The security of all links of a job."""

    token: str = field(repr=False)  # the job's secret
    encrypted: bool  # spec.encryption is Required

    @property
    def frame_overhead(self) -> int:
        """Bytes by which a frame is longer on the network than in a message."""
        return _CURVE_OVERHEAD if self.encrypted else 0

    def guard_listener(self, socket: zmq.Socket[bytes]) -> None:
        """Let a listening socket require the token; `admits` decides on each connection."""
        socket.set(zmq.ZAP_DOMAIN, _DOMAIN)
        if self.encrypted:
            socket.set(zmq.CURVE_SERVER, 1)
            socket.set(zmq.CURVE_SECRETKEY, self._listening_key())
        else:
            socket.set(zmq.PLAIN_SERVER, 1)

    def guard_connection(self, socket: zmq.Socket[bytes]) -> None:
        """Let a connecting socket prove that it holds the token; with encryption, the other end must prove it too."""
        if self.encrypted:
            key = self._connecting_key()
            socket.set(zmq.CURVE_SERVERKEY, zmq.curve_public(self._listening_key()))
            socket.set(zmq.CURVE_PUBLICKEY, zmq.curve_public(key))
            socket.set(zmq.CURVE_SECRETKEY, key)
        else:
            socket.set(zmq.PLAIN_USERNAME, _DOMAIN)
            socket.set(zmq.PLAIN_PASSWORD, self.token.encode())

    def admits(self, mechanism: bytes, credentials: Sequence[bytes]) -> bool:
        """Whether a connection may be established (ZAP, RFC 27).

        CURVE itself accepts every client that knows the listener's public key, so the client's key is compared here.

        Args:
            mechanism: of the connection, PLAIN or CURVE.
            credentials: user name and password, or the public key of the client (32 bytes).
        """
        if self.encrypted:
            expected, count, proof = b"CURVE", 1, z85.decode(zmq.curve_public(self._connecting_key()))
        else:
            expected, count, proof = b"PLAIN", 2, self.token.encode()
        return mechanism == expected and len(credentials) == count and hmac.compare_digest(credentials[-1], proof)

    def http_server(self) -> ssl.SSLContext | None:
        """TLS settings of the coordinator; None without encryption."""
        return server_context(self.token) if self.encrypted else None

    def http_client(self) -> ssl.SSLContext | None:
        """TLS settings of its clients; None without encryption."""
        return client_context(self.token) if self.encrypted else None

    def _listening_key(self) -> bytes:
        return z85.encode(derive_key(self.token, "heterps CURVE listener"))

    def _connecting_key(self) -> bytes:
        return z85.encode(derive_key(self.token, "heterps CURVE connection"))
