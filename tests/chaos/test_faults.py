"""The parts of the fault injection, each alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from heterps_runtime.wire.codec import encode
from heterps_runtime.wire.messages import Ack, Checkpoint, Commit, Done, Evaluate, Message, Probe, Pulse, Push, Ready
from heterps_runtime.wire.sequence import Stamp
from tests.chaos.faults import director as directing
from tests.chaos.faults.director import Director, Pace
from tests.chaos.faults.disturbances import Disturbance
from tests.chaos.faults.moments import Scanner, Sighting
from tests.chaos.faults.schedule import TOPOLOGIES, Fault, Run

MESSAGES: list[tuple[Message, tuple[str, int | None]]] = [
    (Commit(1, 5, 256), ("commit", 5)),
    (Ready(2), ("ready", None)),
    (Done(1, 7, 0.5, True, {"step": 1.0}), ("done", 7)),
    (Push(3, 0, 8, "worker-0-0", (), {}, {}), ("push", 8)),
    (Ack(9, 0), ("ack", 9)),
    (Checkpoint(1, 20, "step-20", None), ("checkpoint", 20)),
    (Evaluate(2, 5), ("evaluate", None)),
    (Pulse(1, 'says {"op":', {}), ("pulse", None)),
    (Probe(), ("probe", None)),
]


# --- moments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_messages_are_recognised_in_chunks_of_any_size(size: int) -> None:
    """Between them is what ZeroMQ adds, and binary data."""
    frames = [frame for message, _ in MESSAGES for frame in encode(message, Stamp(1, 2))]
    stream = b"".join(b"\x04\x2a" + bytes(frame) + b"\x00{\xff" for frame in frames)
    scanner = Scanner()
    found = [each for i in range(0, len(stream), size) for each in scanner.feed(stream[i : i + size])]
    assert found == [expected for _, expected in MESSAGES]


# --- disturbances -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "amount", "parts"),
    [
        ("delay", 0.5, [(0.5, b"abcd")]),
        ("slow", 40.0, [(0.05, b"ab"), (0.05, b"cd")]),
        ("corrupt", 0.5, [(0.0, b"absd")]),
        ("duplicate", 0.0, [(0.0, b"abcd"), (0.0, b"abcd")]),
        ("reorder", 0.0, [(0.0, b"cd"), (0.0, b"ab")]),
    ],
)
def test_a_disturbance_shapes_a_chunk(kind: str, amount: float, parts: list[tuple[float, bytes]]) -> None:
    assert Disturbance(kind, "a>b", True, 1.0, amount).shape(b"abcd") == parts


def test_a_disturbance_ends() -> None:
    corrupt, delay = Disturbance("corrupt", "a>b", True, 9.0, 0.0), Disturbance("delay", "a>b", True, 9.0, 0.1)
    assert not corrupt.applies("a>b", False, 1.0), "the other direction"
    assert delay.applies("a>b", False, 1.0)
    assert not delay.applies("b>a", True, 1.0)
    assert corrupt.applies("a>b", True, 1.0)
    corrupt.shape(b"x")
    assert not corrupt.applies("a>b", True, 1.0), "it changes one chunk"
    assert not delay.applies("a>b", True, 9.5)


# --- the director -----------------------------------------------------------------------------------------------------


class _Nothing:
    """Stands for the proxy and the disk, which these tests do not use."""


def _director(
    monkeypatch: pytest.MonkeyPatch, *faults: Fault, pause: float = 0.0
) -> tuple[Director, list[int], list[float]]:
    """A director, the pids that it has killed, and its clock."""
    killed: list[int] = []
    now = [100.0]

    def kill(pid: int, number: int) -> None:
        assert number == signal.SIGKILL
        killed.append(pid)

    monkeypatch.setattr(directing, "processes", lambda: {"ps-0": 7, "worker-0-0": 8})
    monkeypatch.setattr(os, "kill", kill)
    run = Run(1, "sync", "counting", TOPOLOGIES[0], 64, faults)
    director = Director(run, pause, lambda: now[0])
    nothing: Any = _Nothing()
    director.use(nothing, nothing, nothing, nothing)
    return director, killed, now


def _sight(op: str, step: int | None = None, listener: str = "ps-0") -> Sighting:
    return Sighting("worker-0-0", listener, True, op, step)


def _status(committed: int, *, running: bool = True, ready: Sequence[str] = ("ps-0", "worker-0-0")) -> dict[str, Any]:
    members = [{"name": name, "state": "ready"} for name in ready]
    job = {"committedSteps": committed, "running": running, "phase": "Training", "events": []}
    return {**job, "members": members, "expectedMembers": ["ps-0", "worker-0-0"]}


def test_a_fault_happens_at_its_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    director, killed, _ = _director(monkeypatch, Fault("kill", "ps-0", "push", 5, near=True))
    director.sighted(_sight("push", 4))
    director.sighted(_sight("ack", 5))
    director.sighted(_sight("push", 5, listener="ps-1"))
    assert killed == []
    director.sighted(_sight("push", 6))
    director.sighted(_sight("push", 6))
    assert killed == [7]
    assert not director.pending


def test_a_fault_counts_only_if_it_finds_something_to_disturb(monkeypatch: pytest.MonkeyPatch) -> None:
    director, _, _ = _director(monkeypatch, *(Fault("disk-full", "disk", "file", 5, soon=True) for _ in range(2)))
    disk: Any = SimpleNamespace(disturb=lambda *_: None, close=lambda: None)
    director.use(disk, disk, disk, disk)
    for _ in range(2):
        director.sighted(_sight("file", 5))
    hit = director.incidents[0].hit
    assert hit is not None
    hit.happened = True
    director.finish()
    assert [incident.done for incident in director.incidents] == ["the disk", ""]


def test_the_next_fault_waits_until_the_job_has_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    director, killed, now = _director(
        monkeypatch, Fault("kill", "ps-0", "push", 5), Fault("kill", "worker-0-0", "push", 5)
    )
    director.sighted(_sight("push", 5))
    director.sighted(_sight("push", 6))
    for seconds, status in ((1.0, _status(5)), (2.0, _status(3, running=False)), (3.0, _status(4)), (4.0, _status(5))):
        now[0] = 100.0 + seconds
        director.observed(status)
        assert director.incidents[0].recovery.seconds == (None if seconds < 4.0 else 4.0)
    assert killed == [7]
    assert director.pace() == Pace.FULL
    director.sighted(_sight("push", 6))
    assert killed == [7, 8]


def test_training_is_slow_until_a_message_that_is_far_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    director, killed, _ = _director(
        monkeypatch, Fault("kill", "ps-0", "checkpointed", 5), Fault("kill", "ps-0", "go", -1)
    )
    director.observed(_status(17))
    assert director.pace() == Pace.FULL
    director.observed(_status(18))
    assert director.pace() == Pace.SLOW, "else training could end before the checkpoint is written"
    director.sighted(_sight("checkpointed", 10))
    director.observed(_status(21))
    assert killed == [7]
    assert director.pace() == Pace.FULL, "a message of no step is never late"


def test_the_next_fault_waits_for_all_members(monkeypatch: pytest.MonkeyPatch) -> None:
    director, killed, _ = _director(
        monkeypatch, Fault("kill", "ps-0", "push", 5), Fault("kill", "worker-0-0", "push", 5)
    )
    director.sighted(_sight("push", 5))
    for committed in (5, 7):
        director.observed(_status(committed, ready=["worker-0-0"]))
    director.sighted(_sight("push", 6))
    assert killed == [7]
    assert director.pace() == Pace.HELD, "else training could end meanwhile"
    director.observed(_status(8))
    assert director.pace() == Pace.FULL
    director.sighted(_sight("push", 6))
    assert killed == [7, 8]


def test_a_fault_may_happen_during_the_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    director, killed, _ = _director(
        monkeypatch, Fault("kill", "ps-0", "push", 5), Fault("kill", "worker-0-0", "generation", -1, soon=True)
    )
    director.sighted(_sight("push", 5))
    director.sighted(_sight("generation"))
    assert killed == [7, 8]


def test_faults_keep_their_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    director, killed, now = _director(
        monkeypatch, Fault("kill", "ps-0", "push", 5), Fault("kill", "worker-0-0", "push", -1, soon=True), pause=10.0
    )
    director.sighted(_sight("push", 5))
    now[0] = 109.0
    director.sighted(_sight("push", 6))
    assert killed == [7]
    now[0] = 110.0
    director.sighted(_sight("push", 6))
    assert killed == [7, 8]


def test_a_missing_target_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    director, killed, _ = _director(monkeypatch, Fault("kill", "ps-9", "push", 5))
    director.sighted(_sight("push", 5))
    assert (killed, director.incidents[0].done) == ([], "")
