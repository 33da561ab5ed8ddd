"""The wire format of messages: a checksum and a stamp, a JSON header, then the arrays.

The first frame is the XXH3 checksum of all that follows, and the message's stamp (`sequence`): three integers of 64
bits, big-endian. TCP's own checksum has 16 bits, and a broken network card or proxy can compute it over damaged bytes.

The header is an object with the message's name as `op`, and its fields. It describes an array as `[dtype, shape]`. The
frames contain the bytes of the arrays in the order of the header. They are never unpickled, and only arrays of more
than one frame are copied: no frame is longer than MAX_FRAME_BYTES, so that a receiver can refuse longer ones. The set
of dtypes is fixed, and the length of the frames must match dtype and shape.

Readers and writers are built once per type from the type hints of `messages`. A received message has exactly the
declared fields and types, or is refused. An unknown field is an error, because all processes of a job run the same
version.
"""

from __future__ import annotations

import json
import math
import struct
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import xxhash
import zmq

from heterps_runtime.errors import ProtocolError
from heterps_runtime.wire.messages import MESSAGES, Array, Message
from heterps_runtime.wire.sequence import Stamp

__all__ = ["MAX_FRAME_BYTES", "Encoded", "decode", "encode", "encode_for_all", "read_stamp"]

# Bounds what a peer can make a receiver hold before it has shown the token. Frames of a step are a few MB.
MAX_FRAME_BYTES = 16 * 1024 * 1024

_DTYPES = {
    name: np.dtype(name)
    for name in (
        "float64",
        "float32",
        "float16",
        "uint16",
        "uint32",
        "uint64",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "bool",
    )
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MAX_AXES = 32  # of an array; the product of a long list of large sizes would take quadratic time
_MAX_SIZE = 2**63 - 1
_SHOWN_CHARACTERS = 60  # of a wrong value, in an error
_CHECKSUM_BYTES = 8
_STAMP = struct.Struct(">QQ")  # session, number

_to_text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_to_object = json.JSONDecoder().decode

Buffers = Iterator[memoryview]


class _MismatchError(Exception):
    """A value does not match its type; `path` is its place in the message, such as `.plan.stages[0]`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.path = ""


@dataclass(frozen=True, slots=True)
class _Format:
    """Conversion of the values of a type to and from a header."""

    read: Callable[[Any, Buffers], Any]  # (value in the header, remaining frames) -> value; raises _MismatchError
    write: Callable[[Any, list[Any]], Any] | None  # (value, frames so far) -> value in the header; None: unchanged


# --- messages ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Encoded:
    """A message without its place on a link, so that any number of receivers share its header and arrays."""

    frames: tuple[Any, ...]  # the header, then the bytes of the arrays

    def first_frame(self, stamp: Stamp) -> bytes:
        """The frame that precedes the others on one link: the checksum of all that follows, and the stamp."""
        place = _STAMP.pack(*stamp)
        return _checksum(place, self.frames) + place


def encode_for_all(message: Message) -> Encoded:
    """Encode a message for several links. Arrays are not copied, and must not change until ZeroMQ has sent them.

    Raises:
        ValueError: the header is longer than MAX_FRAME_BYTES.
    """
    frames: list[Any] = [b""]
    header = {"op": message.op, **_RECORDS[message.op].write(message, frames)}
    frames[0] = _to_text(header).encode()
    if len(frames[0]) > MAX_FRAME_BYTES:
        raise ValueError(f"the header of a {message.op} has {len(frames[0])} bytes, more than {MAX_FRAME_BYTES}")
    return Encoded(tuple(frames))


def encode(message: Message, stamp: Stamp) -> list[Any]:
    """Frames of a message for one link; see `encode_for_all`.

    Args:
        message: its content.
        stamp: its place on the link.

    Raises:
        ValueError: the header is longer than MAX_FRAME_BYTES.
    """
    encoded = encode_for_all(message)
    return [encoded.first_frame(stamp), *encoded.frames]


def _checksum(place: bytes | memoryview, frames: Sequence[Any]) -> bytes:
    state = xxhash.xxh3_64(place)
    for frame in frames:
        state.update(frame)
    return state.digest()


def read_stamp(frames: Sequence[zmq.Frame | bytes]) -> Stamp:
    """The stamp of a message that `decode` has read, which covers it with the checksum."""
    return Stamp(*_STAMP.unpack_from(_view(frames[0]), _CHECKSUM_BYTES))


def _view(frame: zmq.Frame | bytes) -> memoryview:
    return frame.buffer if isinstance(frame, zmq.Frame) else memoryview(frame)


def decode(frames: Sequence[zmq.Frame | bytes]) -> Message:
    """Read a message. Its arrays are read-only views of the frames.

    Raises:
        ProtocolError: the frames are not a message of this protocol.
    """
    name = ""
    try:
        received = [_view(frame) for frame in frames]
        first = received[0] if received else b""
        if len(first) != _CHECKSUM_BYTES + _STAMP.size:
            raise _MismatchError(f"its first frame has {len(first)} bytes, not {_CHECKSUM_BYTES + _STAMP.size}")
        if first[:_CHECKSUM_BYTES] != _checksum(first[_CHECKSUM_BYTES:], received[1:]):
            raise _MismatchError("its checksum is wrong")
        buffers = iter(received[1:])
        header = _to_object(str(next(buffers, b""), "utf-8"))
        if type(header) is not dict:
            raise _MismatchError("the header is not an object")
        name = header.pop("op", None)
        record = _RECORDS.get(name) if type(name) is str else None
        if record is None:
            raise _MismatchError(f"there is no message {_shown(name)}")
        message: Message = record.read(header, buffers)
        if next(buffers, None) is not None:
            raise _MismatchError(f"{name} has more frames than arrays")
    except _MismatchError as error:
        where = f"{name}{error.path} " if error.path else ""
        raise ProtocolError(f"received a malformed message: {where}{error}") from None
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"received a malformed message: the header is not JSON: {error}") from error
    return message


# --- values -----------------------------------------------------------------------------------------------------------


class _Record:
    """Dataclasses (messages and their values), as objects with all fields."""

    def __init__(self, kind: type[Any]) -> None:
        hints = get_type_hints(kind)
        formats = [(f.name, _format(hints[f.name])) for f in fields(kind)]
        self._kind = kind
        self._read = tuple((name, form.read) for name, form in formats)
        self._write = tuple((name, form.write) for name, form in formats)

    def read(self, value: Any, frames: Buffers) -> Any:
        if type(value) is not dict:
            raise _MismatchError(f"is {_shown(value)}, not an object")
        values = []
        try:
            for name, read in self._read:
                values.append(read(value[name], frames))
        except _MismatchError as error:
            error.path = f".{name}{error.path}"
            raise
        except KeyError:
            missing = _MismatchError("is missing")
            missing.path = f".{name}"
            raise missing from None
        if len(value) != len(values):
            unknown = _MismatchError("is not declared")
            unknown.path = f".{next(iter(value.keys() - {name for name, _ in self._read}))}"
            raise unknown
        try:
            return self._kind(*values)
        except ValueError as error:  # the values do not fit together
            raise _MismatchError(f"is invalid: {error}") from error

    def write(self, value: Any, frames: list[Any]) -> dict[str, Any]:
        return {
            name: getattr(value, name) if write is None else write(getattr(value, name), frames)
            for name, write in self._write
        }


def _format(hint: Any) -> _Format:
    """The format of a declared type.

    Raises:
        TypeError: the type is not supported.
    """
    if hint in _SCALARS:
        return _SCALARS[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _list_format(_format(arguments[0]))
    if origin is dict and arguments[0] in (str, int):
        return _mapping_format(arguments[0], _format(arguments[1]))
    if origin in (Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        return _optional_format(_format(next(a for a in arguments if a is not type(None))))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _enum_format(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        record = _Record(hint)
        return _Format(record.read, record.write)
    raise TypeError(f"messages have no fields of type {hint}")


def _list_format(item: _Format) -> _Format:
    read_item, write_item = item.read, item.write

    def read(value: Any, frames: Buffers) -> Any:
        if type(value) is not list:
            raise _MismatchError(f"is {_shown(value)}, not a list")
        items: list[Any] = []
        try:
            for given in value:
                items.append(read_item(given, frames))
        except _MismatchError as error:
            error.path = f"[{len(items)}]{error.path}"
            raise
        return tuple(items)

    def write(value: Any, frames: list[Any]) -> Any:
        assert write_item is not None
        return [write_item(v, frames) for v in value]

    return _Format(read, None if write_item is None else write)


def _mapping_format(key: type[str] | type[int], item: _Format) -> _Format:
    """Mappings keep their order, which is that of their frames. JSON writes integer keys as strings."""
    read_item, write_item = item.read, item.write

    def read(value: Any, frames: Buffers) -> Any:
        if type(value) is not dict:
            raise _MismatchError(f"is {_shown(value)}, not an object")
        items: dict[Any, Any] = {}
        try:
            for name, given in value.items():
                items[name if key is str else _number(name)] = read_item(given, frames)
        except _MismatchError as error:
            error.path = f"[{_shown(name)}]{error.path}"
            raise
        return items

    def write(value: Any, frames: list[Any]) -> Any:
        assert write_item is not None
        return {k: write_item(v, frames) for k, v in value.items()}

    return _Format(read, None if write_item is None else write)


def _number(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = None
    if str(number) != text:  # only one text per number, so that keys are unique
        raise _MismatchError("has a key that is not an int")
    return int(text)


def _optional_format(inner: _Format) -> _Format:
    read_inner, write_inner = inner.read, inner.write

    def read(value: Any, frames: Buffers) -> Any:
        return None if value is None else read_inner(value, frames)

    def write(value: Any, frames: list[Any]) -> Any:
        assert write_inner is not None
        return None if value is None else write_inner(value, frames)

    return _Format(read, None if write_inner is None else write)


def _enum_format(kind: type[StrEnum]) -> _Format:
    def read(value: Any, frames: Buffers) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise _MismatchError(f"is {_shown(value)}, not one of {', '.join(kind)}") from None

    return _Format(read, None)


# --- scalars and arrays -----------------------------------------------------------------------------------------------


def _scalar_format(kind: type[Any]) -> _Format:
    def read(value: Any, frames: Buffers) -> Any:
        if type(value) is not kind:  # not isinstance: a bool is not accepted as an int
            raise _MismatchError(f"is {_shown(value)}, not {kind.__name__}")
        return value

    return _Format(read, None)


def _read_float(value: Any, frames: Buffers) -> float:
    if type(value) is float:
        return value
    if type(value) is not int:
        raise _MismatchError(f"is {_shown(value)}, not float")
    try:
        return float(value)
    except OverflowError as error:
        raise _MismatchError(f"is not a float: {error}") from error


def _read_array(value: Any, frames: Buffers) -> Array:
    try:
        name, shape = value
        dtype = _DTYPES[name]
        if type(shape) is not list or len(shape) > _MAX_AXES:
            raise ValueError(f"shape {_shown(shape)}")
        for size in shape:
            if type(size) is not int or not 0 <= size <= _MAX_SIZE:
                raise ValueError(f"shape {_shown(shape)}")
        buffer = _gather(frames, math.prod(shape) * dtype.itemsize)
        array: Array = np.frombuffer(buffer, dtype) if len(buffer) else np.empty(0, dtype)
        return array.reshape(shape)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise _MismatchError(f"is not an array ({_shown(value)}): {error}") from error


def _gather(frames: Buffers, expected: int) -> memoryview:
    """The bytes of an array, which are copied if they came in several frames.

    Raises:
        ValueError: the lengths of the frames do not match.
    """
    buffer = next(frames, None)
    if buffer is None:
        raise ValueError("its frame is missing")
    if len(buffer) == expected:
        return buffer
    parts, received = [buffer], len(buffer)
    while received < expected and len(parts[-1]) == MAX_FRAME_BYTES and (part := next(frames, None)) is not None:
        parts.append(part)
        received += len(part)
    if received != expected:
        raise ValueError(f"{received} bytes instead of {expected}")
    return memoryview(b"".join(parts))


def _write_array(value: Array, frames: list[Any]) -> tuple[str, tuple[int, ...]]:
    array = np.asarray(value, order="C")  # ascontiguousarray turns 0-d arrays into 1-d ones
    content = array.data.cast("B") if array.size else memoryview(b"")
    for start in range(0, max(1, len(content)), MAX_FRAME_BYTES):
        frames.append(content[start : start + MAX_FRAME_BYTES])
    return _DTYPE_NAMES[array.dtype], array.shape


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


_SCALARS: dict[Any, _Format] = {
    **{kind: _scalar_format(kind) for kind in (int, bool, str)},
    float: _Format(_read_float, None),
    Array: _Format(_read_array, _write_array),
}
_RECORDS = {op: _Record(kind) for op, kind in MESSAGES.items()}
