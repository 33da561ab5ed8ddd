"""A fault on the network: ZeroMQ swallows single messages of a job, and the connections last."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from tests.heterps_runtime.helpers.wiretap import Wiretap

__all__ = ["Swallowing"]

_GREETING_BYTES = 64  # of ZMTP 3 (RFC 23); then frames: flags, length (1 byte, or 8 in long frames), body
_MORE, _LONG, _COMMAND = 1, 2, 4  # flags
_OP = re.compile(rb'\{"op":"([a-z-]+)"')


class Swallowing(Wiretap):
    """Marks the frames of some messages as commands, which makes ZeroMQ ignore them.

    Args:
        faults: names of messages, of which one after the other is swallowed: the first one of its name that passes.
            Each fault begins only when a generation has begun to work again.
    """

    def __init__(self, faults: Iterable[Sequence[str]]) -> None:
        super().__init__()
        self.remaining = deque(deque(fault) for fault in faults)
        self._works = True
        self._lock = threading.Lock()

    def _swallows(self, op: str) -> bool:
        with self._lock:
            self._works = self._works or op == "go"
            if not (self._works and self.remaining and op == self.remaining[0][0]):
                return False
            self.remaining[0].popleft()
            if not self.remaining[0]:
                self.remaining.popleft()
                self._works = False
            return True

    def _passing(self) -> Callable[[bytes], bytes]:
        waiting = bytearray()
        greeting = _GREETING_BYTES  # left of it
        message: list[bytes] = []  # frames of a message whose end has not arrived

        def forward(data: bytes) -> bytes:
            nonlocal greeting
            waiting.extend(data)
            passed = bytearray(_take(waiting, greeting))
            greeting -= len(passed)
            while not greeting and (frame := _take_frame(waiting)) is not None:
                if frame[0] & _COMMAND:
                    passed += frame
                    continue
                message.append(frame)
                if not frame[0] & _MORE:
                    passed += b"".join(self._sent(message))
                    message.clear()
            return bytes(passed)

        return forward

    def _sent(self, message: list[bytes]) -> list[bytes]:
        found = _OP.search(message[1]) if len(message) > 1 else None
        if found is None or not self._swallows(found[1].decode()):
            return message
        return [bytes([frame[0] & ~_MORE | _COMMAND]) + frame[1:] for frame in message]


def _take(waiting: bytearray, size: int) -> bytes:
    taken = bytes(waiting[:size])
    del waiting[:size]
    return taken


def _take_frame(waiting: bytearray) -> bytes | None:
    """Take a frame if all of it has arrived."""
    head = 9 if waiting and waiting[0] & _LONG else 2
    if len(waiting) < head:
        return None
    size = head + int.from_bytes(waiting[1:head], "big")
    return _take(waiting, size) if len(waiting) >= size else None
