"""Parsers with planted bugs: the fuzzer must find them."""

from __future__ import annotations

import json

from tests.fuzz.target import Form, Target

_SEED = b'{"kind": "planted", "count": 3}'


def _crash(data: bytes) -> None:
    document = json.loads(data)
    if isinstance(document, dict) and document.get("kind") == "planted" and document.get("count") is None:
        raise RuntimeError("planted")


def _allocate(data: bytes) -> bytearray:
    """Believe an announced length."""
    return bytearray(1 << min(data[0], 28)) if data else bytearray()


def _repeat(data: bytes) -> int:
    """Compare each byte with each other."""
    count = 0
    for one in data:
        for other in data:
            count += one == other
    return count


TARGETS = [
    Target("control.crash", _crash, (ValueError,), lambda: [_SEED], Form.JSON),
    Target("control.memory", _allocate, (), lambda: [b"\x01"]),
    Target("control.quadratic", _repeat, (), lambda: [b"ab"], longest=256),
]
