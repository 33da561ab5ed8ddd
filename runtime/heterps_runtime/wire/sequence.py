"""Numbers of messages, by which the receiver notices that one was lost or repeated.

TCP loses nothing while a connection lasts, but what stands between two processes can: ZeroMQ ignores a frame whose
flags say that it is a command which it does not know, so a few damaged or swapped bytes can swallow a message and leave
the connection intact.

Each message carries a *stamp*: the session of the link, and the number of messages that were sent before it in this
session and direction. A lost message shows when the next one arrives. An end that has been silent for a second sends a
`probe`, so there is always a next one (compare TCP's tail loss probe, RFC 8985).

A *session* is a new start in both directions: a generation between workers and servers or stages, a join between a
member and the coordinator. The end that connects begins it, and the end that listens follows. Messages of a session
that is over are not checked: the receiver no longer relies on them.
"""

from __future__ import annotations

from typing import NamedTuple

from heterps_runtime.errors import ProtocolError

__all__ = ["PROBE_SECONDS", "Numbering", "Peers", "Stamp"]

PROBE_SECONDS = 1.0  # of silence, after which an end sends a probe


class Stamp(NamedTuple):
    """The place of a message on its link; both numbers have 64 bits."""

    session: int
    number: int  # of messages before it


_UNCHECKED = Stamp(0, 0)  # for a peer of which no message has arrived; sessions that are checked begin with 1


class Numbering:
    """One end of a link.

    Args:
        session: with which it begins.
    """

    def __init__(self, session: int = 0) -> None:
        self.renew(session)

    def renew(self, session: int) -> None:
        """Begin a session."""
        self.session = session
        self._sent = 0
        self._received = 0
        self._last_sent = 0.0

    def stamp(self, now: float) -> Stamp:
        """The stamp of the next message.

        Args:
            now: monotonic seconds.
        """
        stamp = Stamp(self.session, self._sent)
        self._sent += 1
        self._last_sent = now
        return stamp

    def probe_at(self, now: float) -> float:
        """The earliest time at which a probe may be due; a message that is sent before then puts it off."""
        return (self._last_sent if self._sent else now) + PROBE_SECONDS

    def probe_due(self, now: float) -> bool:
        """Whether a probe must be sent, because a message was the last one for a while and may be lost."""
        return now >= self.probe_at(now)

    def accept(self, stamp: Stamp) -> bool:
        """Whether to take a message that has arrived; False: it was taken before.

        Raises:
            ProtocolError: messages before it are lost. They are reported once.
        """
        if stamp.session != self.session:
            return True
        lost, self._received = stamp.number - self._received, max(self._received, stamp.number + 1)
        if lost > 0:
            raise ProtocolError(f"{lost} message(s) before number {stamp.number} of session {stamp.session} are lost")
        return lost == 0


class Peers:
    """The ends of a socket with many peers, one for each identity that it has heard or was told to expect."""

    def __init__(self) -> None:
        self._numberings: dict[bytes, Numbering] = {}
        self._oldest = 0
        self._probe_at = 0.0  # no probe is due before

    def begin(self, session: int) -> None:
        """Forget all earlier sessions."""
        self._oldest = session
        self._numberings = {i: n for i, n in self._numberings.items() if n.session >= session}

    def expect(self, identity: bytes, session: int) -> None:
        """Begin a session with a peer."""
        self._numberings[identity] = Numbering(session)

    def forget(self, identity: bytes) -> None:
        """Forget a peer whose connection has ended."""
        self._numberings.pop(identity, None)

    def accept(self, identity: bytes, stamp: Stamp) -> bool:
        """Whether to take a message that has arrived from a peer; False: it was taken before.

        Raises:
            ProtocolError: messages before it are lost. They are reported once.
        """
        if stamp.session < self._oldest:
            return True
        numbering = self._numberings.get(identity)
        if numbering is None:
            numbering = self._numberings[identity] = Numbering(stamp.session)
        elif stamp.session > numbering.session:
            numbering.renew(stamp.session)
        return numbering.accept(stamp)

    def stamp(self, identity: bytes, now: float) -> Stamp:
        """The stamp of the next message to a peer.

        Args:
            identity: of the peer.
            now: monotonic seconds.
        """
        numbering = self._numberings.get(identity)
        return _UNCHECKED if numbering is None else numbering.stamp(now)

    def probes_due(self, now: float) -> list[bytes]:
        """Peers to which a probe must be sent, which the caller does.

        Callers ask after each message, so the peers are looked at only when a probe may be due.
        """
        if now < self._probe_at:
            return []
        due = {identity for identity, numbering in self._numberings.items() if numbering.probe_due(now)}
        others = (numbering.probe_at(now) for identity, numbering in self._numberings.items() if identity not in due)
        self._probe_at = min(others, default=now + PROBE_SECONDS)
        return sorted(due)
