"""A process that trains CTRDNN on the click log with TensorFlow; runs where only TensorFlow is.

    python _tensorflow_clicks.py SETTINGS.json single|chief|ps|worker INDEX

`single` trains in one process that has all threads. The others are ParameterServerStrategy as in TensorFlow's tutorial:
the chief schedules steps of a share of the batch on the workers. Both train tables with Adagrad on sparse gradients and
the dense part with Adam, and print one JSON object: the samples and seconds after the warm-up.
"""

import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SETTINGS, ROLE, INDEX = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2], int(sys.argv[3])
THREADS = SETTINGS["threads"] if ROLE == "single" else 1
os.environ |= {
    "TF_NUM_INTRAOP_THREADS": str(THREADS),
    "TF_NUM_INTEROP_THREADS": "2",
    "TF_CPP_MIN_LOG_LEVEL": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
}

tf: Any = importlib.import_module("tensorflow")  # reads the variables above; its types are not installed here

FIELDS, NUMBERS, SLOTS = 26, 13, ((0, 10), (10, 20), (20, 26))
RECORD_BYTES = 4 * (FIELDS + NUMBERS + 1)
WORKERS = 1 if ROLE == "single" else len(SETTINGS["cluster"]["worker"])
BATCH = SETTINGS["batch"] // WORKERS
CHUNK = 5  # steps between two looks at the clock
EPSILON = 1e-7
SHUFFLED = 65_536  # records in the shuffle buffer


def records() -> Any:
    """Return batches (ids (b, 26), numbers (b, 13), labels (b,)) for one worker."""

    def columns(batch: Any) -> Any:
        words = tf.io.decode_raw(batch, tf.int32)  # (b, 40)
        floats = tf.bitcast(words, tf.float32)
        return words[:, :FIELDS], floats[:, FIELDS : FIELDS + NUMBERS], floats[:, -1]

    raw = tf.data.FixedLengthRecordDataset(SETTINGS["records"], RECORD_BYTES)
    batches = raw.shuffle(SHUFFLED, seed=SETTINGS["seed"]).repeat().batch(BATCH, drop_remainder=True)
    return batches.map(columns).prefetch(2)


class Model:
    """CTRDNN's variables, and their optimizers' state."""

    def __init__(self) -> None:
        arguments = SETTINGS["arguments"]
        dim, hidden = arguments["embedding_dim"], arguments["hidden"]
        widths = [FIELDS * dim + NUMBERS, *[hidden] * (arguments["layers"] - 5), 1]
        self.tables: list[Any] = [
            tf.Variable(tf.random.normal((SETTINGS["rows"], dim), stddev=SETTINGS["embeddingStd"])) for _ in SLOTS
        ]
        self.dense: list[Any] = []
        for into, out in itertools.pairwise(widths):
            self.dense.append(tf.Variable(tf.random.normal((into, out), stddev=(2 / into) ** 0.5)))
            self.dense.append(tf.Variable(tf.zeros(out)))
        self.squares = [tf.Variable(tf.zeros_like(table)) for table in self.tables]
        self.moments = [(tf.Variable(tf.zeros_like(v)), tf.Variable(tf.zeros_like(v))) for v in self.dense]
        self.powers = (tf.Variable(0.9), tf.Variable(0.999))

    def step(self, ids: Any, numbers: Any, labels: Any) -> Any:
        """Train on a batch and return its mean loss."""
        variables = [*self.tables, *self.dense]
        with tf.GradientTape() as tape:
            loss = self._loss(ids, numbers, labels)
        self._apply(tape.gradient(loss, variables))
        return loss

    def _loss(self, ids: Any, numbers: Any, labels: Any) -> Any:
        dim = SETTINGS["arguments"]["embedding_dim"]
        parts = [
            tf.reshape(tf.gather(table, ids[:, first:end]), (-1, (end - first) * dim))
            for table, (first, end) in zip(self.tables, SLOTS, strict=True)
        ]
        x = tf.concat([*parts, numbers], axis=1)
        layers = list(zip(self.dense[::2], self.dense[1::2], strict=True))
        for weight, bias in layers[:-1]:
            x = tf.nn.relu(x @ weight + bias)
        weight, bias = layers[-1]
        logits = tf.squeeze(x @ weight + bias, axis=1)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))

    def _apply(self, gradients: Any) -> None:
        for table, square, gradient in zip(self.tables, self.squares, gradients[: len(SLOTS)], strict=True):
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=table.handle,
                accum=square.handle,
                lr=SETTINGS["sparseRate"],
                epsilon=EPSILON,
                grad=gradient.values,
                indices=gradient.indices,
            )
        for variable, (m, v), gradient in zip(self.dense, self.moments, gradients[len(SLOTS) :], strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=self.powers[0],
                beta2_power=self.powers[1],
                lr=SETTINGS["denseRate"],
                beta1=0.9,
                beta2=0.999,
                epsilon=EPSILON,
                grad=gradient,
            )
        self.powers[0].assign(self.powers[0] * 0.9)
        self.powers[1].assign(self.powers[1] * 0.999)


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
    model = Model()
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
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(SETTINGS["cluster"]), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = Model()
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
        tf.distribute.Server(SETTINGS["cluster"], ROLE, INDEX, protocol="grpc").join()
