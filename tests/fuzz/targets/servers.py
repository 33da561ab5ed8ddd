"""What a parameter server reads of others."""

from __future__ import annotations

import json

from tests.fuzz.target import Form, Target
from tests.fuzz.targets.copying import CHECKPOINT, WORLDS, play, regular
from tests.fuzz.targets.documents import NotJsonError, parse


def _copy(data: bytes) -> None:
    play(parse(data))


def _conversations() -> list[bytes]:
    found = [regular(number) for number in range(len(WORLDS))]
    return [json.dumps(document).encode() for document in (*found, regular(0, CHECKPOINT))]


TARGETS = [Target("servers.copy", _copy, (NotJsonError,), _conversations, Form.JSON, lines_per_byte=200.0)]
