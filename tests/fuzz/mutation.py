"""Seeded mutations of inputs, close enough to valid ones to get past the first check."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from tests.fuzz.target import Form

__all__ = ["SEPARATOR", "mutate"]

SEPARATOR = b"\n\xff\n"  # cannot occur in UTF-8 text

_deep: Any = []
for _ in range(200):
    _deep = [_deep]
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400, 0.5, -0.0, 1e-320, 1e308,
    float("inf"), float("-inf"), float("nan"), "", "x", "0", "-1", "1e99", "9" * 400, "\x00", "\ud800", "x" * 300,
    "a.b", "../x", "NaN", [], [None], [[]], [0, 0], {}, {"": None}, {"x": {}}, _deep,
)  # fmt: skip
TOKENS = (
    b"0", b"-1", b"1e400", b"nan", b"null", b"''", b'""', b"{", b"}", b"[", b"]", b":", b",", b"=", b"#", b"\n", b"\t",
    b"\x00", b"\xff", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"9" * 30, b"&a ", b"*a", b"<<: ", b"!!int ", b"---\n",
    b"[" * 1500, b"\xb2", b"://", b"[", b"@",
)  # fmt: skip
_EDGES = (0, 1, 0x7F, 0x80, 0xFE, 0xFF)


def mutate(data: bytes, form: Form, draw: random.Random, longest: int) -> bytes:
    """Return a changed input of at most `longest` bytes.

    Args:
        data: an input.
        form: of the input. An input that has lost its form is changed byte by byte.
        draw: source of all decisions.
        longest: bytes of the result.
    """
    if form is Form.JSON and draw.random() < 0.8:
        head, separator, rest = data.partition(SEPARATOR)
        if rest and draw.random() < 0.3:
            return (head + separator + _mutate_bytes(rest, draw))[:longest]
        try:
            changed = json.dumps(_mutate_document(json.loads(head), draw)).encode() + separator + rest
            if len(changed) <= longest:
                return changed
        except (ValueError, RecursionError):  # not JSON, or nested too deeply to be copied
            pass
    if form is Form.TEXT and draw.random() < 0.5:
        return _mutate_text(data, draw)[:longest]
    return _mutate_bytes(data, draw)[:longest]


def _mutate_document(document: Any, draw: random.Random) -> Any:
    made = copy.deepcopy(document)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        places = list(_places(made))
        if not places:
            return copy.deepcopy(draw.choice(VALUES))
        holder, key = draw.choice(places)
        _change(holder, key, places, draw)
    return made


def _change(holder: Any, key: Any, places: list[tuple[Any, Any]], draw: random.Random) -> None:
    """Change one entry of a list or an object."""
    match draw.randrange(6):
        case 0:
            del holder[key]
        case 1:
            other, name = draw.choice(places)
            holder[key] = copy.deepcopy(other[name])
        case 2 if isinstance(holder, list):
            holder.extend(copy.deepcopy(holder[key]) for _ in range(draw.choice((1, 2, 8))))
        case 2:
            holder[draw.choice((f"{key}x", "", "\ud800", str(key).upper()))] = holder[key]
        case 3 if isinstance(holder[key], int | float):
            holder[key] = draw.choice((-holder[key], holder[key] // 3, holder[key] * 2, str(holder[key])))
        case 3 if isinstance(holder[key], str):
            holder[key] = _mutate_text(holder[key].encode(errors="replace"), draw).decode(errors="replace")
        case _:
            holder[key] = copy.deepcopy(draw.choice(VALUES))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each entry of a document as its holder and its key or index."""
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, dict | list):
            for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
                yield holder, key
                waiting.append(holder[key])


def _mutate_text(data: bytes, draw: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    row = draw.randrange(len(lines))
    match draw.randrange(5):
        case 0:
            del lines[row]
        case 1:
            lines.insert(row, draw.choice(lines))
        case 2:
            lines[row:row] = [lines[row]] * draw.choice((2, 8, 32))
        case 3:
            lines[row] = b" " * draw.randrange(1, 5) + lines[row]
        case _:
            place = draw.randrange(len(lines[row]) + 1)
            lines[row] = lines[row][:place] + draw.choice(TOKENS) + lines[row][place:]
    return b"".join(lines)


def _mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4, 8))):
        place, length = draw.randrange(len(made) + 1), draw.choice((1, 1, 2, 4, 8, 64))
        match draw.randrange(6):
            case 0:
                del made[place : place + length]
            case 1:
                made[place:place] = draw.randbytes(length)
            case 2:
                made[place:place] = made[place : place + length] * draw.choice((1, 2, 8))
            case 3:
                made[place:place] = draw.choice(TOKENS)
            case 4 if place < len(made):
                made[place] ^= 1 << draw.randrange(8)
            case _ if place < len(made):
                made[place] = draw.choice(_EDGES)
            case _:
                del made[place // 2 :]
    return bytes(made)
