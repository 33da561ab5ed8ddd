"""A parser to fuzz: what it is given, and which errors it may raise."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

__all__ = ["CONTROL", "ROOMS", "Form", "Target", "execute", "find", "find_all"]

# Each module has a list TARGETS. The names of its targets begin with the room's, so that only one room is imported.
ROOMS = (
    "answers", "checkpoint", "client", "code", "coordinator", "data", "devices", "manifest", "models", "objects",
    "options", "planner", "scrapes", "servers", "state", "wire", "workers",
)  # fmt: skip
CONTROL = "control"  # targets with planted bugs, which test the fuzzer itself
LONGEST = 16_384


class Form(Enum):
    """What an input is, for mutations that keep it close to valid."""

    BYTES = "bytes"
    TEXT = "text"
    JSON = "json"  # a JSON document; what follows `mutation.SEPARATOR` is bytes


@dataclass(frozen=True)
class Target:
    """A parser to fuzz.

    Attributes:
        name: `room.parser`.
        run: gives an input to the parser. Must not depend on earlier inputs.
        errors: errors that the parser declares; any other is a finding.
        seeds: returns valid inputs, for mutations to begin with.
        form: of the inputs.
        longest: bytes of an input.
        lines: executed lines of Python that an input of any size may cost.
        lines_per_byte: executed lines of Python that a byte of input may cost.
        memory_per_byte: allocated bytes that a byte of input may cost.
        memory: allocated bytes that an input of any size may cost. None: they are not counted, because native threads
            of the parser go on after it; tracemalloc crashes when it is started or stopped beside them.
    """

    name: str
    run: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seeds: Callable[[], Iterable[bytes]]
    form: Form = Form.BYTES
    longest: int = LONGEST
    lines: int = 30_000  # schemas are walked, messages are worded
    lines_per_byte: float = 50.0
    memory_per_byte: float = 200.0
    memory: int | None = 4 * 1024 * 1024


def execute(target: Target, data: bytes) -> bool:
    """Give an input to a parser; return whether the parser accepts it.

    Raises:
        Exception: a finding: the parser raised an error that it does not declare.
    """
    try:
        target.run(data)
    except target.errors:
        return False
    return True


def find(name: str) -> Target:
    """Import and return a target.

    Raises:
        LookupError: there is no such target.
    """
    room = name.partition(".")[0]
    if room in (*ROOMS, CONTROL):
        for target in _targets(room):
            if target.name == name:
                return target
    raise LookupError(f"there is no target {name}")


def find_all() -> list[Target]:
    """Import and return all targets except the planted ones."""
    return [target for room in ROOMS for target in _targets(room)]


def _targets(room: str) -> list[Target]:
    found: list[Target] = importlib.import_module(f"tests.fuzz.targets.{room}").TARGETS
    assert all(target.name.startswith(f"{room}.") for target in found), room
    return found
