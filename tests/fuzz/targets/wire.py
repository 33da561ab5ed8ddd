"""Frames between the processes of a job."""

from __future__ import annotations

import contextlib
import dataclasses
import struct
import types
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import xxhash

from heterps_runtime.errors import ProtocolError, UserError
from heterps_runtime.partition.pieces import DensePiece
from heterps_runtime.wire.codec import decode, encode, read_stamp
from heterps_runtime.wire.host_port import split_host_port
from heterps_runtime.wire.link import Credentials, read_identity
from heterps_runtime.wire.messages import MESSAGES, Array, Message
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.sequence import Peers, Stamp
from tests.fuzz.mutation import SEPARATOR
from tests.fuzz.target import Form, Target


def decode_checked(data: bytes) -> Message:
    """Decode frames with the right checksum, so that mutations get past it.

    Raises:
        ProtocolError: they are no message.
    """
    frames, stamp = data.split(SEPARATOR), bytes(16)
    checksum = xxhash.xxh3_64(stamp)
    for frame in frames:
        checksum.update(frame)
    return decode([checksum.digest() + stamp, *frames])


def _decode_raw(data: bytes) -> None:
    frames = data.split(SEPARATOR)
    decode(frames)
    read_stamp(frames)


def _take_stamps(data: bytes) -> None:
    """Take stamps from peers, as a listener does: an identity of one byte, session and number each."""
    peers = Peers()
    for at in range(0, len(data) - 16, 17):
        stamp = Stamp(*struct.unpack_from(">QQ", data, at + 1))
        with contextlib.suppress(ProtocolError):
            peers.accept(data[at : at + 1], stamp)


def _read_coordinator(data: bytes) -> None:
    """Read the address of the coordinator, as the environment of a member has it."""
    Credentials(data.decode(errors="replace"), _SECURITY)


def _read_rendezvous(data: bytes) -> None:
    """Read the address of another worker's rendezvous."""
    split_host_port(data.decode(errors="replace"))


def _read_identity(data: bytes) -> None:
    """Read the identity of a socket, which its owner chooses."""
    read_identity(data.decode(errors="replace"))


def _example(hint: Any) -> Any:
    """Return a value of a declared type, with one entry in each list and mapping."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint == Array:
        return np.ones((2, 1), np.float32)
    if origin is tuple:
        return (_example(arguments[0]),)
    if origin is dict:
        return {"a" if arguments[0] is str else 8: _example(arguments[1])}
    if origin is types.UnionType:
        return _example(arguments[0])
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return next(iter(hint))
    if hint is DensePiece:  # its values must fit together
        return DensePiece(1, (2, 2), np.ones(3, np.float32))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(*(_example(hints[field.name]) for field in dataclasses.fields(hint)))
    return {int: 1, float: 0.5, str: "a", bool: True}.get(hint, {})


def _messages() -> Iterator[list[bytes]]:
    for kind in MESSAGES.values():
        yield [bytes(frame) for frame in encode(_example(kind), Stamp(3, 7))]


_SECURITY = LinkSecurity("token", encrypted=False)

TARGETS = [
    Target(
        "wire.message",
        decode_checked,
        (ProtocolError,),
        lambda: [SEPARATOR.join(frames[1:]) for frames in _messages()],
        Form.JSON,
    ),
    Target("wire.frames", _decode_raw, (ProtocolError,), lambda: [SEPARATOR.join(frames) for frames in _messages()]),
    Target(
        "wire.stamps",
        _take_stamps,
        (),
        lambda: [b"".join(struct.pack(">cQQ", b"a", 1, number) for number in (0, 1, 1, 4))],
        Form.BYTES,
        longest=1024,
    ),
    Target(
        "wire.coordinator",
        _read_coordinator,
        (UserError,),
        lambda: [b"http://10.0.0.1:8080/", b"http://[::1]:80"],
        Form.TEXT,
        longest=512,
    ),
    Target(
        "wire.rendezvous",
        _read_rendezvous,
        (ValueError,),
        lambda: [b"10.0.0.1:7403", b"[fd00::1]:7403"],
        Form.TEXT,
        longest=512,
    ),
    Target(
        "wire.identity", _read_identity, (), lambda: [b"worker-0-0/0a1b", b"ps-0/0a1b#pulse"], Form.TEXT, longest=512
    ),
]
