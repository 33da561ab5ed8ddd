"""Sockets between the processes of a job.

Listening sockets require the job's token, and encrypt if the job asks for it (security.py). `TokenAuthority` answers
handshakes and compares in constant time.

ZeroMQ repairs connections by itself, but what was under way when one broke can be lost in either direction. Both ends
notice: `broke` at the end that connects, `Departures` at the end that listens. Heartbeats find connections
of which the other end is gone without a word. Messages that are lost while a connection lasts leave a gap in their
numbers (`sequence`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Generic, TypeVar

import zmq
from zmq.utils.monitor import recv_monitor_message

from heterps_runtime.errors import TransientError
from heterps_runtime.processes.process import log
from heterps_runtime.wire.codec import MAX_FRAME_BYTES, decode, encode, read_stamp
from heterps_runtime.wire.host_port import is_ipv6, join_host_port
from heterps_runtime.wire.messages import Message, Probe
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.sequence import Numbering, Peers

__all__ = ["Connection", "Connections", "Departures", "Listener", "TokenAuthority", "listen_socket"]

# A connection without a sign of life for this long is closed. It must outlast the transmission of a frame over a slow
# network, and be shorter than the coordinator's patience with a silent member (liveness.py).
_SILENCE_MILLISECONDS = 15_000
_HEARTBEAT_MILLISECONDS = 3_000
_HANDSHAKE_MILLISECONDS = 10_000
_MOST_REFUSED = 1000  # addresses that are logged
_REFUSALS = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_POLLIN = int(zmq.POLLIN)  # with an enumeration, `&` takes as long as the look itself
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"  # fixed by ZeroMQ's RFC 27


def _configure(socket: zmq.Socket[bytes], security: LinkSecurity) -> None:
    # The protocol bounds the messages in flight, so the queues need no limits, which would drop messages.
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.RECONNECT_IVL, 50)
    socket.set(zmq.RECONNECT_IVL_MAX, 1000)
    socket.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + security.frame_overhead)
    socket.set(zmq.HANDSHAKE_IVL, _HANDSHAKE_MILLISECONDS)
    socket.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MILLISECONDS)
    socket.set(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MILLISECONDS)


def listen_socket(
    context: zmq.Context[zmq.Socket[bytes]], host: str, security: LinkSecurity, port: int = 0
) -> tuple[zmq.Socket[bytes], str]:
    """A ROUTER socket that requires the token, and its address, tcp://host:port.

    Connections of a process that has ended, in TIME_WAIT, do not keep its port (ZeroMQ sets SO_REUSEADDR).

    Args:
        context: ZeroMQ context.
        host: IPv4 or IPv6 address to listen on.
        security: of the job's links.
        port: to listen on; 0: any free one.

    Raises:
        TransientError: the host is not an address of this machine, or the port is taken.
    """
    socket = context.socket(zmq.ROUTER)
    _configure(socket, security)
    socket.set(zmq.IPV6, is_ipv6(host))
    # A peer that connects again takes its identity over from a connection that is dead but not closed yet.
    socket.set(zmq.ROUTER_HANDOVER, 1)
    security.guard_listener(socket)
    try:
        socket.bind(f"tcp://{join_host_port(host, port or '*')}")
    except zmq.ZMQError as error:
        socket.close()
        where = f"{join_host_port(host, port)} for messages" if port else host
        raise TransientError(f"cannot listen on {where}: {error}") from error
    return socket, socket.get_string(zmq.LAST_ENDPOINT)


class Listener:
    """A socket with many peers such as a `listen_socket`, and the numbers of their messages.

    Args:
        socket: to receive from and to send with.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        self._peers = Peers()

    def begin(self, session: int) -> None:
        """Forget what earlier sessions have sent."""
        self._peers.begin(session)

    def send(self, identity: bytes, message: Message) -> None:
        """Send to a peer without blocking; a peer that is gone gets nothing."""
        frames = encode(message, self._peers.stamp(identity, time.monotonic()))
        self.socket.send_multipart([identity, *frames], flags=zmq.NOBLOCK, copy=False)

    def receive(self) -> tuple[bytes, Message] | None:
        """The next message, if one has arrived, and the identity of its sender.

        Raises:
            ProtocolError: the frames are not a message of this protocol, or messages before it are lost.
        """
        while (frames := _arrived(self.socket)) is not None:
            identity, message = frames[0].bytes, decode(frames[1:])
            if self._peers.accept(identity, read_stamp(frames[1:])) and not isinstance(message, Probe):
                return identity, message
        return None

    def probe(self) -> None:
        """Show to peers whether messages to them were lost; call it at least once a second."""
        for identity in self._peers.probes_due(time.monotonic()):
            self.send(identity, Probe())


def _arrived(socket: zmq.Socket[bytes]) -> list[zmq.Frame] | None:
    """Return the frames of the next message, if one has arrived."""
    return socket.recv_multipart(flags=zmq.NOBLOCK, copy=False) if _readable(socket) else None


def _readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message has arrived: a tenth of the price of a poll, or of an attempt that fails."""
    events = socket.getsockopt(zmq.EVENTS)
    assert isinstance(events, int)
    return bool(events & _POLLIN)


class Connection:
    """A DEALER socket that connects to a `listen_socket`.

    Args:
        context: ZeroMQ context.
        address: of the listening socket, tcp://host:port; an IPv6 address is in brackets.
        identity: name of this end; unique at the listening socket.
        security: of the job's links.
        session: with which the numbers of messages begin.

    Attributes:
        pollables: sockets to poll for messages and for the end of the connection.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        identity: str,
        security: LinkSecurity,
        session: int = 0,
    ) -> None:
        self._numbering = Numbering(session)
        self._socket = context.socket(zmq.DEALER)
        _configure(self._socket, security)
        self._socket.set(zmq.IPV6, address.startswith("tcp://["))
        self._socket.set(zmq.IDENTITY, identity.encode())
        security.guard_connection(self._socket)
        self._watch = _Watch(self._socket)
        self.pollables = (self._socket, self._watch.socket)
        self._socket.connect(address)

    def renew(self, session: int) -> None:
        """Begin a session: what was lost before does not matter any more."""
        self._numbering.renew(session)

    def send(self, message: Message) -> None:
        """Send without blocking; the message waits until there is a connection."""
        frames = encode(message, self._numbering.stamp(time.monotonic()))
        self._socket.send_multipart(frames, flags=zmq.NOBLOCK, copy=False)

    def receive(self) -> Message | None:
        """The next message, if one has arrived.

        Raises:
            ProtocolError: the frames are not a message of this protocol, or messages before it are lost.
        """
        while (frames := _arrived(self._socket)) is not None:
            message = decode(frames)
            if self._numbering.accept(read_stamp(frames)) and not isinstance(message, Probe):
                return message
        return None

    def probe(self) -> None:
        """Show to the other end whether messages to it were lost; call it at least once a second."""
        if self._numbering.probe_due(time.monotonic()):
            self.send(Probe())

    def broke(self) -> bool:
        """Whether an established connection has ended since the last call. Messages that were under way may be lost."""
        return self._watch.ended()

    def close(self, linger: int = 0) -> None:
        """Close the connection; wait at most `linger` ms until messages are sent."""
        self._watch.close()
        self._socket.close(linger)


class Connections(Listener):
    """One ROUTER socket that connects to several `listen_socket`s, at the latest when each is first sent something.

    A socket for each would make a wait, and each look at what has arrived, as long as their number.

    Args:
        context: ZeroMQ context.
        addresses: of the listening sockets, tcp://host:port; IPv6 addresses are in brackets.
        identity: name of this end; unique at the listening sockets.
        security: of the job's links.
        session: with which the numbers of messages begin.

    Attributes:
        pollables: sockets to poll for messages and for the end of a connection.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        addresses: Sequence[str],
        identity: str,
        security: LinkSecurity,
        session: int,
    ) -> None:
        super().__init__(context.socket(zmq.ROUTER))
        _configure(self.socket, security)
        self.socket.set(zmq.IDENTITY, identity.encode())
        security.guard_connection(self.socket)
        self._watch = _Watch(self.socket)
        self.pollables = (self.socket, self._watch.socket)
        self._addresses = tuple(addresses)
        self._session = session
        self._connected: set[int] = set()

    def send_to(self, index: int, message: Message) -> None:
        """Send to one of the listening sockets without blocking; the message waits until there is a connection."""
        self.connect(index)
        self.send(_route(index), message)

    def connect(self, index: int) -> None:
        """Connect to one of the listening sockets, unless that has been done."""
        if index in self._connected:
            return
        address = self._addresses[index]
        self.socket.set(zmq.IPV6, address.startswith("tcp://["))
        self.socket.set(zmq.CONNECT_ROUTING_ID, _route(index))  # of the next connection
        self.socket.connect(address)
        self._peers.expect(_route(index), self._session)
        self._connected.add(index)

    def receive_from(self) -> tuple[int, Message] | None:
        """The next message, if one has arrived, and the index of its sender.

        Raises:
            ProtocolError: the frames are not a message of this protocol, or messages before it are lost.
        """
        received = self.receive()
        return None if received is None else (int(received[0]), received[1])

    def broke(self) -> bool:
        """Whether an established connection has ended since the last call. Messages that were under way may be lost."""
        return self._watch.ended()

    def close(self) -> None:
        """Close all connections."""
        self._watch.close()
        self.socket.close(linger=0)


def _route(index: int) -> bytes:
    """The name of a connection at this end."""
    return str(index).encode()


class _Watch:
    """Notices the end of the connections that a socket makes.

    Args:
        connecting: the socket.

    Attributes:
        socket: to poll for the end of a connection.
    """

    def __init__(self, connecting: zmq.Socket[bytes]) -> None:
        self._connecting = connecting
        self.socket = connecting.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | _REFUSALS)
        self._established: set[bytes] = set()  # addresses
        self._refused: set[bytes] = set()

    def ended(self) -> bool:
        """Whether an established connection has ended since the last call."""
        ended = False
        while _readable(self.socket):
            message = recv_monitor_message(self.socket)
            event, address = message["event"], message["endpoint"]
            ended = ended or (event == zmq.EVENT_DISCONNECTED and address in self._established)
            if event & _REFUSALS and address not in self._refused:  # ZeroMQ tries again and again
                self._refused.add(address)
                log(
                    f"the handshake with {address.decode()} fails: it ends, is of another job, "
                    "or does not encrypt alike"
                )
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._established.add(address)
            else:
                self._established.discard(address)
        return ended

    def close(self) -> None:
        """Stop watching."""
        self._connecting.disable_monitor()
        self.socket.close()


Peer = TypeVar("Peer")


class Departures(Generic[Peer]):
    """Peers of a listening socket whose connection has ended.

    ZeroMQ reports the file descriptor of a connection that ends, and that of a frame that has arrived. A descriptor is
    used again after the end was reported, so call `departed` before `heard`.
    """

    def __init__(self, listener: zmq.Socket[bytes]) -> None:
        self._listener = listener
        self._monitor = listener.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._peers: dict[int, Peer] = {}
        self._descriptors: dict[Peer, int] = {}

    def fileno(self) -> int:
        """A descriptor that becomes readable when a connection ends; then call `departed`."""
        return int(self._monitor.getsockopt(zmq.FD))

    def heard(self, frame: zmq.Frame, peer: Peer) -> None:
        """Note that a frame was sent by a peer. The end of an earlier connection of it no longer matters."""
        descriptor, previous = int(frame.get(zmq.SRCFD)), self._descriptors.get(peer)
        if previous is not None and previous != descriptor:
            self._peers.pop(previous, None)
        self._peers[descriptor], self._descriptors[peer] = peer, descriptor

    def departed(self) -> list[Peer]:
        """Peers whose connection has ended since the last call."""
        peers = []
        while _readable(self._monitor):
            descriptor = int(recv_monitor_message(self._monitor)["value"])
            peer = self._peers.pop(descriptor, None)
            if peer is not None:
                del self._descriptors[peer]
                peers.append(peer)
        return peers

    def close(self) -> None:
        """Stop watching."""
        self._listener.disable_monitor()
        self._monitor.close()


class TokenAuthority:
    """Answers the authentication requests of a ZeroMQ context (ZAP, RFC 27)."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], security: LinkSecurity) -> None:
        self._security = security
        self._refused: set[bytes] = set()  # addresses
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
                address, mechanism, credentials = frames[3], frames[5], frames[6:]
                granted = self._security.admits(mechanism, credentials)
                if not granted and address not in self._refused and len(self._refused) < _MOST_REFUSED:
                    self._refused.add(address)  # it tries again and again
                    log(f"refused a connection from {address.decode(errors='replace')}: it does not hold the token")
                status = (b"200", b"OK") if granted else (b"400", b"wrong token")
                self._socket.send_multipart([version, request, *status, b"heterps" if granted else b"", b""])
        except zmq.ContextTerminated:
            self._socket.close()
