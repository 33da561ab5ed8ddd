"""What a process of an entrant is told, and what it prints.

    python -m benchmarks._peers.programs.NAME SETTINGS.json ROLE INDEX

`Task` describes the settings. A process prints JSON objects, one a line, each with its `event`:

- `step`: a sign of life, now and then.
- `begin`: the steps that count begin; `time` by the machine's monotonic clock.
- `end`: they have ended; `time`, and `samples` of this process alone.
- `quality`: `logLoss` and `auc` on the held-out rows, or `logits`, the file that has them (float32, in order).

Needs the standard library and NumPy only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Batch", "Task", "emit", "end_process", "read_batch", "run_steps", "started_as"]

Json = dict[str, Any]
Item = TypeVar("Item")

_SIGN_OF_LIFE = 10  # steps


class Batch(NamedTuple):
    """Samples in the order of training."""

    ids: NDArray[np.int32]  # (b, fields)
    numbers: NDArray[np.float32]  # (b, 13)
    labels: NDArray[np.float32]  # (b,)


@dataclass(frozen=True)
class Task:
    """What is trained, and how; the same for all processes of an entrant."""

    settings: Json

    def __getattr__(self, name: str) -> Any:
        """A setting by its name, such as `slots` or `denseRate`."""
        try:
            return self.settings[name]
        except KeyError:
            raise AttributeError(f"the settings have no {name}") from None

    @property
    def folder(self) -> Path:
        """An empty folder of this run."""
        return Path(self.settings["folder"])

    @property
    def data(self) -> Path:
        """Folder of batches and initial values."""
        return Path(self.settings["data"])

    @property
    def width(self) -> int:
        """Inputs of the first fully connected layer."""
        return int(self.slots[-1][1] * self.dim + self.numbers)

    def share(self, step: int, part: int) -> Path:
        """File of a worker's share of a step."""
        return self.data / "steps" / f"{step:05}-{part}"

    def batch(self, step: int, parts: Iterable[int]) -> Batch:
        """Shares of a step, together."""
        shares = [read_batch(self.share(step, part), self.slots[-1][1], self.numbers) for part in parts]
        return Batch(*(np.concatenate(columns) for columns in zip(*shares, strict=True)))

    def held_out(self) -> Batch:
        """All held-out rows."""
        return read_batch(self.data / "held-out", self.slots[-1][1], self.numbers)

    def tables(self) -> list[NDArray[np.float32]]:
        """Initial values of the tables, (rows, dim) each."""
        return [np.load(self.data / f"table-{i}.npy", mmap_mode="r") for i in range(len(self.slots))]

    def dense(self) -> list[NDArray[np.float32]]:
        """Initial weights (out, in) and biases (out,) of the fully connected layers, in turns."""
        return [np.load(self.data / f"dense-{i}.npy") for i in range(2 * len(self.hidden) + 2)]

    def save_logits(self, logits: NDArray[np.float32]) -> None:
        """Hand over the held-out rows' logits (N,)."""
        file = self.folder / "logits.npy"
        np.save(file, logits)
        emit("quality", logits=str(file))


def read_batch(file: Path, fields: int, numbers: int) -> Batch:
    """Read a file of int32 ids (b, fields), float32 numbers (b, numbers) and float32 labels (b,)."""
    words = np.fromfile(file, np.int32)
    size = len(words) // (fields + numbers + 1)
    ids, floats = words[: size * fields], words[size * fields :].view(np.float32)
    return Batch(ids.reshape(size, fields), floats[: size * numbers].reshape(size, numbers), floats[size * numbers :])


def emit(event: str, **facts: Any) -> None:
    """Print an event."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def run_steps(
    batches: Iterable[Item],
    skip: int,
    size: Callable[[Item], int],
    step: Callable[[Item], None],
    settle: Callable[[], None],
) -> None:
    """Train, and print when the steps that count begin and end.

    Args:
        batches: of all steps.
        skip: steps that do not count.
        size: samples of a batch.
        step: trains on a batch.
        settle: returns when no process of the entrant has work left; called before each look at the clock.
    """
    samples = 0
    for number, batch in enumerate(batches):
        if number == skip:
            settle()
            emit("begin", time=time.monotonic())
        elif number % _SIGN_OF_LIFE == 0:
            emit("step", step=number)
        step(batch)
        samples += size(batch) if number >= skip else 0
    settle()
    emit("end", time=time.monotonic(), samples=samples)


def started_as() -> tuple[Task, str, int]:
    """Return the task, the role and the index that this process was started with."""
    return Task(json.loads(Path(sys.argv[1]).read_text())), sys.argv[2], int(sys.argv[3])


def end_process() -> NoReturn:
    """End this process at once, once it has printed everything.

    The end of the interpreter destroys torch's process groups. Twice in some hundred runs that aborted a process that
    had done its work ("terminate called without an active exception"); the cause is not known.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
