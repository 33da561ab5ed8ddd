"""What a member answers to the order of a checkpoint."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from heterps_runtime.checkpoint import Origin, StateFile, Storage
from heterps_runtime.saver import Part, Saver
from heterps_runtime.wire.link import ControlLink
from heterps_runtime.wire.messages import Checkpoint, Checkpointed, FromMember

PATIENCE_SECONDS = 120


class Line:
    """A line to a coordinator that keeps what is said."""

    def __init__(self) -> None:
        self.said: list[Checkpointed] = []

    def send(self, message: FromMember) -> None:
        assert isinstance(message, Checkpointed)
        self.said.append(message)


def order(step: int) -> Checkpoint:
    return Checkpoint(2, step, f"step-{step}", None)


def state() -> Part:
    return Part([StateFile("rows-0.safetensors", {"a": np.arange(5)}, Origin(10, 1), "rows")])


class Disk:
    """A disk that takes nothing until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.released = threading.Event()
        write, released = Storage.write_atomic, self.released

        def write_when_released(storage: Storage, *arguments: Any) -> None:
            assert released.wait(PATIENCE_SECONDS)
            write(storage, *arguments)

        monkeypatch.setattr(Storage, "write_atomic", write_when_released)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def report(saver: Saver, line: Line, woken: threading.Event, answers: int) -> None:
    """Report, as a member does each time it is woken, until there are so many answers."""
    while len(line.said) < answers:
        assert woken.wait(PATIENCE_SECONDS)
        woken.clear()
        saver.report()


def test_a_checkpoint_waits_for_an_earlier_one_that_is_still_written(tmp_path: Path, disk: Disk) -> None:
    """The last one of a job does: training has ended, so the state stays that of the order."""
    line, woken = Line(), threading.Event()
    saver = Saver(Storage.open(tmp_path), cast(ControlLink, line), woken.set)
    saver.save(order(10), lambda: 10, state)
    saver.save(order(20), lambda: 20, state)
    saver.report()
    assert line.said == []
    disk.released.set()
    report(saver, line, woken, answers=2)
    assert [(said.step, said.error, [e.name for e in said.entries]) for said in line.said] == [
        (10, "", ["rows-0.safetensors"]),
        (20, "", ["rows-0.safetensors"]),
    ]
    saver.close()


def test_a_checkpoint_fails_if_training_goes_on_before_it_has_begun(tmp_path: Path, disk: Disk) -> None:
    line, woken = Line(), threading.Event()
    saver = Saver(Storage.open(tmp_path), cast(ControlLink, line), woken.set)
    saver.save(order(10), lambda: 10, state)
    saver.save(order(20), lambda: 21, lambda: pytest.fail("the state is another one"))
    disk.released.set()
    report(saver, line, woken, answers=2)
    assert line.said[1] == Checkpointed(
        2, 20, "step-20", (), "training went on while an earlier checkpoint was being written"
    )
    saver.close()


def test_a_checkpoint_that_waits_is_forgotten_with_its_generation(tmp_path: Path, disk: Disk) -> None:
    line, woken = Line(), threading.Event()
    saver = Saver(Storage.open(tmp_path), cast(ControlLink, line), woken.set)
    saver.save(order(10), lambda: 10, state)
    saver.save(order(20), lambda: 20, lambda: pytest.fail("the generation is over"))
    saver.forget()
    disk.released.set()
    report(saver, line, woken, answers=1)
    assert [said.step for said in line.said] == [10]
    saver.close()


def test_a_checkpoint_that_cannot_be_written_is_told_with_its_reason(tmp_path: Path) -> None:
    line, woken = Line(), threading.Event()
    (tmp_path / "step-10").write_text("a file where a folder should be")
    saver = Saver(Storage.open(tmp_path), cast(ControlLink, line), woken.set)
    saver.save(order(10), lambda: 10, state)
    assert woken.wait(PATIENCE_SECONDS)
    saver.report()
    [said] = line.said
    assert "step-10" in said.error
    saver.close()
