"""What a member answers to the order of a checkpoint."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from heterps_runtime.checkpoint import Origin, StateFile, Storage
from heterps_runtime.saver import Saver
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
    return Checkpoint(2, step, f"step-{step}")


def state() -> list[StateFile]:
    return [StateFile("rows-0.safetensors", {"a": np.arange(5)}, Origin(10, 1), "rows")]


def test_a_checkpoint_is_written_reported_and_the_next_one_refused_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, woken, disk = Line(), threading.Event(), threading.Event()
    write = Storage.write_atomic

    def write_when_there_is_a_disk(self: Storage, *arguments: Any) -> None:
        assert disk.wait(PATIENCE_SECONDS)
        write(self, *arguments)

    monkeypatch.setattr(Storage, "write_atomic", write_when_there_is_a_disk)
    saver = Saver(Storage.open(tmp_path), cast(ControlLink, line), woken.set)
    saver.save(order(10), state)
    saver.report()
    assert line.said == []
    saver.save(order(20), lambda: pytest.fail("a second snapshot would be held in memory"))
    assert line.said == [Checkpointed(2, 20, "step-20", (), "an earlier checkpoint is still being written")]
    disk.set()
    assert woken.wait(PATIENCE_SECONDS)
    saver.report()
    assert [said.step for said in line.said] == [20, 10]
    assert [entry.name for entry in line.said[1].entries] == ["rows-0.safetensors"]
    assert (tmp_path / "step-10" / "rows-0.safetensors").exists()
    saver.close()


def test_a_checkpoint_that_cannot_be_written_is_told_with_its_reason(tmp_path: Path) -> None:
    line, woken = Line(), threading.Event()
    (tmp_path / "step-10").write_text("a file where a folder should be")
    saver = Saver(Storage.open(tmp_path), cast(ControlLink, line), woken.set)
    saver.save(order(10), state)
    assert woken.wait(PATIENCE_SECONDS)
    saver.report()
    [said] = line.said
    assert "step-10" in said.error
    saver.close()
