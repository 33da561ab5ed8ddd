"""What a worker reads of servers and of the neighbouring stages."""

from __future__ import annotations

from heterps_runtime.errors import ProtocolError
from heterps_runtime.wire.codec import encode
from heterps_runtime.wire.sequence import Stamp
from tests.fuzz.mutation import SEPARATOR
from tests.fuzz.target import Form, Target
from tests.fuzz.targets.wire import decode_checked
from tests.fuzz.targets.working import give, messages


def _give(data: bytes) -> None:
    give(decode_checked(data))


def _messages() -> list[bytes]:
    return [SEPARATOR.join(bytes(frame) for frame in encode(message, Stamp(1, 0))[1:]) for message in messages()]


TARGETS = [
    # Native threads of torch go on after an input.
    Target("workers.message", _give, (ProtocolError,), _messages, Form.JSON, lines_per_byte=200.0, memory=None),
]
