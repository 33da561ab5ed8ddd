"""A process of TensorFlow's ParameterServerStrategy that trains the flights model, for `tensorflow_command`.

    python -m benchmarks._recovery.tensorflow_process SETTINGS.json chief|ps|worker INDEX

The chief schedules steps on workers, saves a checkpoint after every so many, and ends when a server fails. The
benchmark starts it again, and it restores the checkpoint.
"""

import json
import os
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks._tensorflow_model import Model, coordinate, read_records, serve, tf

SETTINGS, ROLE, INDEX = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2], int(sys.argv[3])
FOLDER = Path(SETTINGS["folder"])
TABLES, NUMBERS = 10, 19
WORKERS = len(SETTINGS["cluster"]["worker"])
WORKER_BATCH = SETTINGS["batch"] // WORKERS


def records() -> Any:
    """Return the batches of one worker."""
    return read_records(SETTINGS["records"], TABLES, NUMBERS, WORKER_BATCH, SETTINGS["seed"])


def make_model() -> Model:
    """Return the model of the flights example."""
    arguments = SETTINGS["arguments"]
    slots = [(i, i + 1) for i in range(TABLES)]
    return Model.random(SETTINGS, SETTINGS["tables"], arguments["embedding_dim"], slots, NUMBERS, arguments["hidden"])


def chief() -> None:
    """Train without an end."""
    coordinator, model = coordinate(SETTINGS["cluster"], make_model)
    checkpoint = tf.train.Checkpoint(model=_tracked(model))
    manager = tf.train.CheckpointManager(checkpoint, str(FOLDER / "checkpoints"), max_to_keep=2)
    checkpoint.restore(manager.latest_checkpoint)
    batches = iter(coordinator.create_per_worker_dataset(records))

    def report() -> None:
        with (FOLDER / "samples").open("r+b", buffering=0) as progress:
            while True:
                os.pwrite(progress.fileno(), struct.pack("q", int(model.steps.numpy()) * WORKER_BATCH), 0)
                time.sleep(0.01)

    threading.Thread(target=report, daemon=True).start()
    compiled = tf.function(lambda iterator: model.step(*next(iterator)))
    while True:
        for _ in range(SETTINGS["checkpointSteps"] * WORKERS):
            coordinator.schedule(compiled, args=(batches,))
        coordinator.join()
        manager.save()


def _tracked(model: Model) -> Any:
    """Return the model's variables as an object that a checkpoint can follow."""
    root = tf.Module()
    root.variables_of_model = model.variables
    return root


if __name__ == "__main__":
    if ROLE == "chief":
        try:
            chief()
        except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.FailedPreconditionError) as error:
            sys.stderr.write(f"chief: {error}\n")
            os._exit(1)  # the coordinator's threads would wait for the lost server
    else:
        serve(SETTINGS["cluster"], ROLE, INDEX)
