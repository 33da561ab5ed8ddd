"""Every message survives the wire unchanged; whatever is malformed is refused by the name of what is wrong."""

from __future__ import annotations

import dataclasses
import json
import re
import types
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from heterps_runtime.errors import ProtocolError
from heterps_runtime.partition.allocation import Allocation
from heterps_runtime.partition.pieces import DensePiece
from heterps_runtime.wire import codec
from heterps_runtime.wire.codec import decode, encode, read_stamp
from heterps_runtime.wire.messages import (
    MESSAGES,
    Array,
    Backward,
    DataSize,
    Define,
    Dense,
    Done,
    Message,
    Probe,
    Shutdown,
)
from heterps_runtime.wire.sequence import Stamp

ROOT = Path(__file__).parents[3]
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
DTYPES = [np.dtype(n) for n in ("float64", "float32", "float16", "bool", *INTEGERS)]
SHAPES = st_numpy.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
ARRAYS = st_numpy.arrays(st.sampled_from(DTYPES), SHAPES)
STAMP = Stamp(3, 7)
ALLOCATIONS = st.builds(Allocation, st.integers(0), st.just(((3, 5), (8,), (1, 0, 7))))
PIECES = st.builds(DensePiece, st.integers(0, 8), st.just((4, 5)), st_numpy.arrays(np.float32, st.integers(0, 12)))
SIZES = st.builds(DataSize, st.integers(1, 1 << 60), st.integers(0, 1 << 60), st.text(max_size=5))

# --- values of the declared types -------------------------------------------------------------------------------------


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a declared type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint == Array:
        return ARRAYS
    if hint is Allocation:
        return ALLOCATIONS
    if hint is DataSize:
        return SIZES
    if hint is DensePiece:
        return PIECES
    if hint is int:
        return st.integers(-(2**62), 2**62)
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if origin is types.UnionType:
        return st.one_of([values(a) for a in arguments])
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        assert isinstance(hint, type)
        return st.builds(hint, **{f.name: values(hints[f.name]) for f in dataclasses.fields(hint)})
    return st.from_type(hint)  # bool, float, str, None, enumerations


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same, arrays and what is not a number included."""
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(same, a.values(), b.values()))
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return bool(a == b) or (isinstance(a, float) and a != a and b != b)


@pytest.mark.parametrize("kind", MESSAGES.values(), ids=MESSAGES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_message_comes_back_as_it_was(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(values(kind))
    received = decode([bytes(f) for f in encode(message, STAMP)])
    assert same(message, received), (message, received)


@given(st.builds(Stamp, *[st.integers(0, 2**64 - 1)] * 2))
def test_stamps_come_back_as_they_were(stamp: Stamp) -> None:
    frames = [bytes(f) for f in encode(Probe(), stamp)]
    assert decode(frames) == Probe()
    assert read_stamp(frames) == stamp


@given(st.dictionaries(st.text(max_size=5), ARRAYS, max_size=4))
def test_arrays_of_every_kind_come_back_as_they_were(arrays: dict[str, Array]) -> None:
    received = decode(encode(Dense(2**60, arrays), STAMP))
    assert same(received, Dense(2**60, arrays))


def test_arrays_that_do_not_lie_in_order_are_sent_in_order() -> None:
    array = np.arange(24).reshape(4, 6).T[::2]
    received = decode(encode(Dense(0, {"a": array}), STAMP))
    assert isinstance(received, Dense)
    np.testing.assert_array_equal(received.values["a"], array)


@pytest.mark.parametrize("array", [np.zeros(2, ">f4"), np.array(["text"]), np.array([None]), np.zeros(1, complex)])
def test_arrays_of_other_dtypes_are_not_sent(array: Array) -> None:
    with pytest.raises(KeyError):
        encode(Dense(0, {"a": array}), STAMP)


def test_received_arrays_are_views_of_the_frames_and_cannot_be_written() -> None:
    received = decode([bytes(f) for f in encode(Dense(0, {"a": np.ones(3)}), STAMP)])
    assert isinstance(received, Dense)
    assert not received.values["a"].flags.writeable
    assert received.values["a"].base is not None


def test_every_message_stands_in_the_protocol() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text()
    section = text.partition("\n## Messages\n")[2].partition("\n## ")[0]
    named = {name for line in section.splitlines() if line.startswith("| ") for name in re.findall(r"`([^`]+)`", line)}
    assert named == set(MESSAGES)


# --- malformed messages -----------------------------------------------------------------------------------------------

FIELDS = [(kind, f.name) for kind in MESSAGES.values() for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
IDS = [f"{kind.op}.{name}" for kind, name in FIELDS]


def sample(hint: Any) -> Any:
    """One value of a declared type, with one item in each list."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint == Array:
        return np.arange(3)
    if origin is tuple:
        return (sample(arguments[0]),)
    if origin is dict:
        return {sample(arguments[0]): sample(arguments[1])}
    if origin is types.UnionType:
        return sample(arguments[0])
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return next(iter(hint))
    if hint is DensePiece:  # its values must fit together
        return DensePiece(1, (4,), np.arange(3.0))
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        assert isinstance(hint, type)
        return hint(**{f.name: sample(hints[f.name]) for f in dataclasses.fields(hint)})
    return {int: 1, float: 1.5, str: "text", bool: True}[hint]


def here(*wrong_values: Any) -> list[tuple[str, Any]]:
    return [("", value) for value in wrong_values]


def wrong(hint: Any) -> list[tuple[str, Any]]:
    """Values that a field of a type must not have in a header: (path to what is wrong, value)."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint == Array:
        return here(None, 1, "text", [], ["float32"], ["object", [1]], ["float32", [-1]], ["int8", [1]])
    if origin is tuple:
        return [*here(None, 1, "text", {}), *((f"[0]{path}", [value]) for path, value in wrong(arguments[0]))]
    if origin is dict:
        name = "1" if arguments[0] is int else "name"
        inner = [(f"['{name}']{path}", {name: value}) for path, value in wrong(arguments[1])]
        keys = [("['text']", {"text": None}), ("['01']", {"01": None})] if arguments[0] is int else []
        return [*here(None, 1, "text", []), *inner, *keys]
    if origin is types.UnionType:
        return [(path, value) for path, value in wrong(arguments[0]) if value is not None]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return here(None, 1, "no such value", [])
    if dataclasses.is_dataclass(hint):
        return [*here(None, 1, "text", []), (f".{dataclasses.fields(hint)[0].name}", {})]
    others: dict[Any, list[Any]] = {
        int: [None, True, 1.0, "1", [], {}],
        float: [None, True, "1.5", [], {}, 10**400],
        str: [None, True, 1, [], {}],
        bool: [None, 0, 1, "true", [], {}],
    }
    return here(*others[hint])


def altered(kind: type[Message], **changed: Any) -> list[bytes]:
    """Frames of a message with other fields in its header; those that are `...` are left out."""
    _, header, *arrays = [bytes(f) for f in encode(sample(kind), STAMP)]
    new = {**json.loads(header), **changed}
    return sealed([json.dumps({name: value for name, value in new.items() if value is not ...}).encode(), *arrays])


def sealed(frames: list[bytes]) -> list[bytes]:
    """The frames with a stamp, and a checksum that is right."""
    stamp = bytes(16)
    return [xxhash.xxh3_64(stamp + b"".join(frames)).digest() + stamp, *frames]


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=IDS)
def test_a_missing_field_is_refused_by_name(kind: type[Message], field: str) -> None:
    with pytest.raises(ProtocolError, match=f"malformed message: {kind.op}.{field} is missing"):
        decode(altered(kind, **{field: ...}))


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=IDS)
def test_a_field_of_another_type_is_refused_by_name(kind: type[Message], field: str) -> None:
    cases = wrong(get_type_hints(kind)[field])
    assert cases
    for path, value in cases:
        with pytest.raises(ProtocolError) as caught:
            decode(altered(kind, **{field: value}))
        assert f"malformed message: {kind.op}.{field}{path} " in str(caught.value), (value, str(caught.value))


@pytest.mark.parametrize("kind", MESSAGES.values(), ids=MESSAGES)
def test_a_field_that_is_not_declared_is_refused_by_name(kind: type[Message]) -> None:
    with pytest.raises(ProtocolError, match=f"malformed message: {kind.op}.more is not declared"):
        decode(altered(kind, more=1))


@pytest.mark.parametrize("name", ["no-such-message", "Pull", "", None, 7, [], {}])
def test_an_unknown_message_is_refused_by_name(name: Any) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(altered(Backward, op=name))
    assert f"malformed message: there is no message {name!r}" in str(caught.value)


def test_fields_that_do_not_fit_together_are_refused() -> None:
    allocation = {"from_step": 0, "batches": [[3], [4]]}
    with pytest.raises(ProtocolError, match=r"malformed message: allocation\.allocation is invalid: .*disagree"):
        decode(altered(MESSAGES["allocation"], allocation=allocation))


def test_whole_numbers_are_taken_for_floats() -> None:
    received = decode(altered(Done, loss_sum=3))
    assert isinstance(received, Done)
    assert type(received.loss_sum) is float


def _dense(described: Any) -> bytes:
    return json.dumps({"op": "dense", "request": 1, "values": {"a": described}}).encode()


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([], id="nothing"),
        pytest.param([b""], id="no header"),
        pytest.param([b"\xff\xfe"], id="no text"),
        pytest.param([b"[1, 2]"], id="no object"),
        pytest.param([b"[" * 100_000], id="nested without end"),
        pytest.param([b'{"request": 1}'], id="no name"),
        pytest.param([b'{"op": "ack", "step": ' + b"9" * 5000 + b"}"], id="a number of thousands of digits"),
        pytest.param([_dense(5)], id="description is a number"),
        pytest.param([_dense(["int8", [1]])], id="a frame is missing"),
        pytest.param([_dense(["int8", [1]]), b"1", b"2"], id="a frame too many"),
        pytest.param([_dense(["int8", [2]]), b"1"], id="too short"),
        pytest.param([_dense(["int8", [2]]), b"123"], id="too long"),
        pytest.param([_dense(["int32", [1]]), b"123"], id="no whole number of values"),
        pytest.param([_dense(["object", [1]]), b"12345678"], id="dtype that could run code"),
        pytest.param([_dense(["no-such", [1]]), b"1"], id="unknown dtype"),
        pytest.param([_dense([["int8"], [1]]), b"1"], id="dtype is a list"),
        pytest.param([_dense(["int8", [-1]]), b"1"], id="negative size"),
        pytest.param([_dense(["int8", [1.0]]), b"1"], id="fractional size"),
        pytest.param([_dense(["int8", [True]]), b"1"], id="truth for a size"),
        pytest.param([_dense(["int8", 1]), b"1"], id="shape is a number"),
        pytest.param([_dense(["int8", "1"]), b"1"], id="shape is a text"),
        pytest.param([_dense(["int8", [10**18]]), b""], id="huge shape, no data"),
        pytest.param([_dense(["int8", [10**30]]), b"1"], id="shape beyond 64 bits"),
        pytest.param([_dense(["int8", [2**63, 0]]), b""], id="empty but beyond 64 bits"),
        pytest.param([_dense(["int8", [1] * 100]), b"1"], id="too many dimensions"),
    ],
)
def test_malformed_frames_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError, match="malformed message"):
        decode(sealed(frames))


@pytest.mark.parametrize("shape", [[10**4000] * 10, [2**62] * 1000])
def test_a_shape_that_no_array_has_is_refused_before_it_is_multiplied(shape: list[int]) -> None:
    """The product of a long list of large numbers takes quadratic time."""
    with pytest.raises(ProtocolError, match=r"is not an array .*: shape \["):
        decode(sealed([_dense(["int8", shape]), b""]))


@pytest.mark.parametrize("frames", [[], [b""], [bytes(23)], [bytes(25)], [bytes(8), b"{}"]])
def test_a_first_frame_of_another_length_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError, match=r"its first frame has [0-9]+ bytes, not 24"):
        decode(frames)


@given(st.lists(st.binary(max_size=60), max_size=3))
def test_garbage_is_refused_without_a_crash(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError, match="malformed message"):
        decode(sealed(frames))
    with pytest.raises(ProtocolError, match="malformed message"):
        decode(frames)


@pytest.mark.parametrize("kind", MESSAGES.values(), ids=MESSAGES)
def test_a_changed_bit_is_noticed_wherever_it_is(kind: type[Message]) -> None:
    frames = [bytes(f) for f in encode(sample(kind), STAMP)]
    places = [(i, at) for i, frame in enumerate(frames) for at in {0, len(frame) // 2, len(frame) - 1} if frame]
    assert len(places) > 3
    for i, at in places:
        damaged = list(frames)
        damaged[i] = bytes(b ^ (1 if j == at else 0) for j, b in enumerate(frames[i]))
        with pytest.raises(ProtocolError, match="its checksum is wrong"):
            decode(damaged)


def test_an_array_that_is_longer_than_a_frame_takes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_FRAME_BYTES", 200)
    long, short = np.arange(175, dtype=np.float32), np.arange(50, dtype=np.float32)  # 700 bytes, and exactly one frame
    message = Dense(1, {"a": long, "b": short, "c": long.reshape(25, 7)})
    frames = [bytes(f) for f in encode(message, STAMP)]
    assert [len(f) for f in frames[2:]] == [200, 200, 200, 100, 200, 200, 200, 200, 100]
    received = decode(frames)
    assert isinstance(received, Dense)
    for name, value in message.values.items():
        np.testing.assert_array_equal(received.values[name], value)
    for wrong in (frames[2:5], [*frames[2:5], frames[5][:-1]], [frames[2], frames[5], frames[3], frames[4]]):
        with pytest.raises(ProtocolError, match="bytes instead of 700"):
            decode(sealed([_dense(["float32", [175]]), *wrong]))


def test_a_header_that_no_receiver_would_take_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_FRAME_BYTES", 40)
    with pytest.raises(ValueError, match=r"the header of a shutdown has [0-9]+ bytes, more than 40"):
        encode(Shutdown("x" * 40), STAMP)


@pytest.mark.parametrize(("start", "shape", "size"), [(-1, [4], 3), (2, [4], 3), (0, [-1, -4], 3), (0, [], 2)])
def test_a_piece_beyond_its_parameter_is_refused(start: int, shape: list[int], size: int) -> None:
    frames = encode(Define(1, 0, (), {"w": DensePiece(0, (size,), np.zeros(size))}, {}), STAMP)
    header = json.loads(frames[1])
    header["dense"]["w"] |= {"start": start, "shape": shape}
    with pytest.raises(ProtocolError, match=r"define\.dense\[.w.\] is invalid: "):
        decode(sealed([json.dumps(header).encode(), *map(bytes, frames[2:])]))
