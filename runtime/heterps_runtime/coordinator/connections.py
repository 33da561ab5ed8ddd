"""The connections of members to the coordinator, on its event loop.

A message for many members is encoded once. What has arrived is handled in batches, between which the loop serves HTTP
and ticks. ZeroMQ's socket is not wrapped for asyncio: that costs as much per message as handling it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import zmq

from heterps_runtime.coordinator.effects import Address
from heterps_runtime.errors import ProtocolError
from heterps_runtime.processes.process import log
from heterps_runtime.wire.codec import decode, encode_for_all, read_stamp
from heterps_runtime.wire.host_port import split_host_port
from heterps_runtime.wire.link import member_identity, read_identity
from heterps_runtime.wire.messages import FromCoordinator, FromMember, Join, Message, Probe, Pulse
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.sequence import Peers
from heterps_runtime.wire.transport import Departures, TokenAuthority, listen_socket

__all__ = ["Audience", "MemberConnections"]

_AT_ONCE = 256  # messages, about 10 ms of work
# As numbers: combining pyzmq's flags takes as long as sending a frame.
_NOW = int(zmq.NOBLOCK)
_NOW_AND_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)


class Audience(Protocol):
    """Takes what members say; `sender` and `incarnation` are the address of a process."""

    def together(self) -> AbstractContextManager[None]:
        """Within this context, calls report what has happened at the same time."""

    def hear(self, sender: str, incarnation: str, message: FromMember) -> None:
        """Take a message; raises nothing."""

    def lose(self, sender: str, incarnation: str, reason: str) -> None:
        """Note that messages of a member are lost."""


class MemberConnections:
    """The listening socket of the coordinator.

    Args:
        host: IPv4 or IPv6 address to listen on.
        security: of the job's links.
        port: to listen on; 0: any free one.
        audience: takes what members say.

    Raises:
        TransientError: it cannot listen there.
    """

    def __init__(self, host: str, security: LinkSecurity, port: int, audience: Audience) -> None:
        self._audience = audience
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authority = TokenAuthority(self._context, security)
        self._socket, address = listen_socket(self._context, host, security, port)
        self._departures: Departures[Address] = Departures(self._socket)
        self._peers = Peers()  # not of pulses, of which the next one says the same
        self._incarnations: dict[str, str] = {}  # of the members' processes, by name
        self._loop: asyncio.AbstractEventLoop | None = None  # while it takes messages
        self._due = False  # whether the loop will look for messages
        _, self.port = split_host_port(address.removeprefix("tcp://"))

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take messages from now on, in this event loop."""
        self._loop = loop
        loop.add_reader(self._socket, self._take_batch)
        loop.add_reader(self._departures.fileno(), self._lose_departed)
        self._look_again()

    def stop(self) -> None:
        """Take no more messages."""
        if self._loop is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_reader(self._departures.fileno())
            self._loop = None

    def close(self) -> None:
        """Close all connections; wait at most a second until messages are sent."""
        self._departures.close()
        self._socket.close(linger=1000)
        self._context.term()

    # --- to members ---------------------------------------------------------------------------------------------------

    def send(self, processes: Sequence[Address], message: FromCoordinator) -> None:
        """Send a message to processes, without blocking."""
        self._send((member_identity(*process).encode() for process in processes), message)

    def probe(self) -> None:
        """Show to members whether messages to them were lost; call it at least once a second."""
        self._send(self._peers.probes_due(time.monotonic()), Probe())

    def _send(self, identities: Iterable[bytes], message: FromCoordinator | Probe) -> None:
        encoded, now, send = encode_for_all(message), time.monotonic(), self._socket.send
        *others, last = encoded.frames
        for identity in identities:
            send(identity, _NOW_AND_MORE)
            send(encoded.first_frame(self._peers.stamp(identity, now)), _NOW_AND_MORE)
            for frame in others:
                send(frame, _NOW_AND_MORE)
            send(last, _NOW)
        self._look_again()

    # --- from members -------------------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        """Let the loop look for messages.

        The socket's descriptor tells of a message once, and any use of the socket may take this notice, sending too.
        """
        if self._loop is not None and not self._due:
            self._due = True
            self._loop.call_soon(self._take_batch)

    def _take_batch(self) -> None:
        """Take what has arrived, but leave the loop to others after some messages."""
        self._due = False
        if self._loop is None:
            return
        with self._audience.together():
            for _ in range(_AT_ONCE):
                try:
                    frame = self._socket.recv(_NOW, copy=False)
                except zmq.Again:
                    return
                self._take(frame, self._socket.recv_multipart(_NOW))
        self._look_again()

    def _take(self, sender: zmq.Frame, frames: list[bytes]) -> None:
        identity = sender.bytes
        name, incarnation, pulses_only = read_identity(identity.decode(errors="replace"))
        try:
            message = self._read(identity, frames, pulses_only=pulses_only)
        except ProtocolError as error:
            log(f"{name}: {error}")
            self._audience.lose(name, incarnation, str(error))
            return
        if message is None:
            return
        if isinstance(message, Join):
            self._begin(name, incarnation, sender)
        self._audience.hear(name, incarnation, message)

    def _read(self, identity: bytes, frames: list[bytes], *, pulses_only: bool) -> FromMember | None:
        """Read a message; None if there is nothing to hear.

        Raises:
            ProtocolError: it is malformed or unexpected, or messages before it are lost.
        """
        message: Message = decode(frames)
        if pulses_only:
            if not isinstance(message, Pulse):
                raise ProtocolError(f"sent an unexpected {message.op!r} message")
            return message
        if not self._peers.accept(identity, read_stamp(frames)) or isinstance(message, Probe):
            return None
        if not isinstance(message, FromMember):
            raise ProtocolError(f"sent an unexpected {message.op!r} message")
        return message

    def _begin(self, name: str, incarnation: str, sender: zmq.Frame) -> None:
        """Follow the connection of a process that joins."""
        self._lose_departed()  # first, since descriptors are used again
        self._departures.heard(sender, (name, incarnation))
        # The numbers of the process before are forgotten now: not at its end, which may be seen before its last words.
        previous = self._incarnations.get(name)
        if previous is not None and previous != incarnation:
            self._peers.forget(member_identity(name, previous).encode())
        self._incarnations[name] = incarnation

    def _lose_departed(self) -> None:
        with self._audience.together():
            for name, incarnation in self._departures.departed():
                self._audience.lose(name, incarnation, "its connection ended")
