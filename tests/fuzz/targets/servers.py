"""What a parameter server reads of others."""

from __future__ import annotations

import json

from heterps_runtime.errors import ProtocolError, TransientError
from heterps_runtime.wire.codec import encode
from heterps_runtime.wire.sequence import Stamp
from tests.fuzz.mutation import SEPARATOR
from tests.fuzz.target import Form, Target
from tests.fuzz.targets.copying import CHECKPOINT, WORLDS, play, regular
from tests.fuzz.targets.documents import NotJsonError, parse
from tests.fuzz.targets.requesting import ask, requests
from tests.fuzz.targets.wire import decode_checked


def _copy(data: bytes) -> None:
    play(parse(data))


def _conversations() -> list[bytes]:
    found = [regular(number) for number in range(len(WORLDS))]
    return [json.dumps(document).encode() for document in (*found, regular(0, CHECKPOINT))]


def _ask(data: bytes) -> None:
    ask(decode_checked(data))


def _requests() -> list[bytes]:
    return [SEPARATOR.join(bytes(frame) for frame in encode(request, Stamp(1, 0))[1:]) for request in requests()]


TARGETS = [
    Target("servers.copy", _copy, (NotJsonError,), _conversations, Form.JSON, lines_per_byte=200.0),
    # A TransientError, which ends the server until the controller starts it again: a gradient is not finite.
    Target("servers.request", _ask, (ProtocolError, TransientError), _requests, Form.JSON, lines_per_byte=200.0),
]
