"""A process that trains CTRDNN on the click log with TensorFlow, for `_tensorflow.tensorflow_command`.

    python -m benchmarks._tensorflow_clicks SETTINGS.json single|chief|ps|worker INDEX

`single` trains in one process that has all threads. With the others the chief schedules steps of a share of the batch
on the workers. `single` and `chief` print one JSON object: the samples and seconds after the warm-up.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._tensorflow_model import Model, coordinate, read_records, serve, tf

SETTINGS, ROLE, INDEX = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2], int(sys.argv[3])
FIELDS, NUMBERS, SLOTS = 26, 13, ((0, 10), (10, 20), (20, 26))
WORKERS = 1 if ROLE == "single" else len(SETTINGS["cluster"]["worker"])
BATCH = SETTINGS["batch"] // WORKERS
CHUNK = 5  # steps between two looks at the clock


def records() -> Any:
    """Return the batches of one worker."""
    return read_records(SETTINGS["records"], FIELDS, NUMBERS, BATCH, SETTINGS["seed"])


def make_model() -> Model:
    """Return CTRDNN."""
    arguments = SETTINGS["arguments"]
    hidden = [arguments["hidden"]] * (arguments["layers"] - 5)
    return Model.random(SETTINGS, [SETTINGS["rows"]] * len(SLOTS), arguments["embedding_dim"], SLOTS, NUMBERS, hidden)


def measure(train: Callable[[int], float]) -> None:
    """Warm up, train for the seconds of the settings, and print what was reached.

    Args:
        train: trains so many steps of a worker's batch, and returns the last known loss.
    """
    train(SETTINGS["warmUp"] * WORKERS)
    began, steps, loss = time.monotonic(), 0, 0.0
    while time.monotonic() - began < SETTINGS["seconds"]:
        loss = train(CHUNK * WORKERS)
        steps += CHUNK * WORKERS
    print(json.dumps({"samples": steps * BATCH, "seconds": time.monotonic() - began, "loss": loss}), flush=True)


def single() -> None:
    """Train in this process."""
    model = make_model()
    batches = iter(records())
    compiled = tf.function(model.step)

    def train(steps: int) -> float:
        loss = 0.0
        for _ in range(steps):
            loss = compiled(*next(batches))
        return float(loss)

    measure(train)


def chief() -> None:
    """Schedule steps on the workers."""
    coordinator, model = coordinate(SETTINGS["cluster"], make_model)
    batches = iter(coordinator.create_per_worker_dataset(records))
    compiled = tf.function(lambda iterator: model.step(*next(iterator)))

    def train(steps: int) -> float:
        results = [coordinator.schedule(compiled, args=(batches,)) for _ in range(steps)]
        coordinator.join()
        return float(results[-1].fetch())

    measure(train)


if __name__ == "__main__":
    if ROLE == "single":
        single()
    elif ROLE == "chief":
        chief()
    else:
        serve(SETTINGS["cluster"], ROLE, INDEX)
