"""Events of the protocol, recognised in the bytes of a connection.

Every message starts with a JSON header `{"op":"push","generation":3,"step":17,...` (`heterps_runtime.wire.codec`).
The proxy looks for these headers in the bytes that it forwards, so a fault can happen while a certain message is on
its way: after the sender has sent it, and before the receiver has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Scanner", "Sighting"]

_OPENING = b'{"op":"'
# The fields up to the first nested value; a step is always among them.
_HEADER = re.compile(rb'\{"op":"([a-z-]+)"([^{}\[]*)[{}\[]')
_STEP = re.compile(rb'"step":(\d+)')
_LONGEST = 512  # bytes of that part of a header


@dataclass(frozen=True)
class Sighting:
    """A message on its way.

    Attributes:
        client: process that made the connection, such as `worker-0-1`.
        listener: process that accepted it.
        forward: whether the message goes from client to listener.
        op: name of the message.
        step: step in the message; None if it has none.
    """

    client: str
    listener: str
    forward: bool
    op: str
    step: int | None = None

    @property
    def link(self) -> str:
        return f"{self.client}>{self.listener}"

    def involves(self, name: str) -> bool:
        """Whether a process, or a link, takes part in the transfer."""
        return name in (self.client, self.listener, self.link)


class Scanner:
    """Finds the headers in one direction of a connection."""

    def __init__(self) -> None:
        self._tail = b""  # the beginning of a header that is not complete yet

    def feed(self, chunk: bytes) -> list[tuple[str, int | None]]:
        """Return the messages (name, step) whose headers the next bytes of the stream complete."""
        data = self._tail + chunk
        found, end = [], 0
        for match in _HEADER.finditer(data):
            step = _STEP.search(match[2])
            found.append((match[1].decode(), int(step[1]) if step else None))
            end = match.end()
        start = _unfinished(data, end)
        self._tail = data[start:] if len(data) - start < _LONGEST else b""
        return found


def _unfinished(data: bytes, begin: int) -> int:
    """Return where a header begins that the data does not complete; their length if there is none."""
    start = data.find(_OPENING, begin)
    if start >= 0:
        return start
    return next(
        (i for i in range(max(begin, len(data) - len(_OPENING)), len(data)) if _OPENING.startswith(data[i:])), len(data)
    )
