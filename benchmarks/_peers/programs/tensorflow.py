"""TensorFlow's ParameterServerStrategy as in its tutorial: a chief that schedules steps on workers, and a server.

It is asynchronous: a worker applies the gradient of its share of a batch as soon as it is there, to the dense part,
too. The chief names the share that a scheduled step reads, so that all are read in order, and each once.

Roles: chief, ps, worker.
"""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np
from benchmarks._peers.programs.protocol import Task, emit, started_as
from benchmarks._tensorflow_model import Adagrad, Model, coordinate, serve

tf: Any = importlib.import_module("tensorflow")  # its types are not installed here


def make_model(task: Task) -> Model:
    """Return the model with its initial values."""
    dense = [values.T if values.ndim == 2 else values for values in task.dense()]
    tables = [np.asarray(values) for values in task.tables()]
    return Model(task.settings, tables, dense, task.slots, Adagrad, short=task.precision == "bf16")


def read(task: Task, file: Any) -> tuple[Any, Any, Any]:
    """Read a share (ids, numbers, labels) in the graph."""
    fields = task.slots[-1][1]
    words = tf.io.decode_raw(tf.io.read_file(file), tf.int32)
    size = tf.size(words) // (fields + task.numbers + 1)
    floats = tf.bitcast(words[size * fields :], tf.float32)
    numbers = tf.reshape(floats[: size * task.numbers], (size, task.numbers))
    return tf.reshape(words[: size * fields], (size, fields)), numbers, floats[size * task.numbers :]


def train(task: Task) -> None:
    """Schedule all steps, and evaluate."""
    coordinator, model = coordinate(task.cluster, lambda: make_model(task))
    compiled = tf.function(lambda file: model.step(*read(task, file)))
    files = [tf.constant(str(task.share(step, part))) for step in range(task.steps) for part in range(task.parts)]
    counted = task.skip * task.parts

    def run(some: list[Any]) -> None:
        for file in some:
            coordinator.schedule(compiled, args=(file,))
        coordinator.join()

    run(files[:counted])
    emit("begin", time=time.monotonic())
    run(files[counted:])
    samples = sum(len(task.batch(step, range(task.parts)).labels) for step in range(task.skip, task.steps))
    emit("end", time=time.monotonic(), samples=samples)
    held_out = task.held_out()
    task.save_logits(model.logits(tf.constant(held_out.ids), tf.constant(held_out.numbers)).numpy())


def main(task: Task, role: str, index: int) -> None:
    """Train or serve."""
    if role == "chief":
        train(task)
    else:
        serve(task.cluster, role, index)


if __name__ == "__main__":
    main(*started_as())
