"""A process of TensorFlow's ParameterServerStrategy that trains the flights model; runs where only TensorFlow is.

    python tensorflow_process.py SETTINGS.json chief|ps|worker INDEX

It follows TensorFlow's tutorial on parameter-server training: the chief schedules steps on workers, saves a checkpoint
after every so many, and ends when a server fails. The benchmark starts it again, and it restores the checkpoint.
Tables are trained with Adagrad on sparse gradients, the dense part with Adam.
"""

import importlib
import itertools
import json
import os
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

SETTINGS, ROLE, INDEX = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2], int(sys.argv[3])
os.environ |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2", "TF_CPP_MIN_LOG_LEVEL": "1"}

tf: Any = importlib.import_module("tensorflow")  # reads the variables above; its types are not installed here

FOLDER = Path(SETTINGS["folder"])
TABLES, NUMBERS, RECORD_BYTES = 10, 19, 120
WORKER_BATCH = SETTINGS["batch"] // len(SETTINGS["cluster"]["worker"])
EPSILON = 1e-7
SHUFFLED = 65_536  # records in a worker's shuffle buffer


def serve() -> None:
    """Serve as a parameter server or a worker until killed."""
    tf.distribute.Server(SETTINGS["cluster"], ROLE, INDEX, protocol="grpc").join()


def records() -> Any:
    """Return batches (ids (b, 10), numbers (b, 19), labels (b,)) for one worker."""

    def columns(batch: Any) -> Any:
        words = tf.io.decode_raw(batch, tf.int32)  # (b, 30)
        floats = tf.bitcast(words, tf.float32)
        return words[:, :TABLES], floats[:, TABLES : TABLES + NUMBERS], floats[:, -1]

    raw = tf.data.FixedLengthRecordDataset(SETTINGS["records"], RECORD_BYTES)
    batches = raw.shuffle(SHUFFLED, seed=SETTINGS["seed"]).repeat().batch(WORKER_BATCH, drop_remainder=True)
    return batches.map(columns).prefetch(2)


class Model:
    """Variables on the servers, and their optimizers' state."""

    def __init__(self) -> None:
        dim, (first, second) = SETTINGS["arguments"]["embedding_dim"], SETTINGS["arguments"]["hidden"]
        widths = [TABLES * dim + NUMBERS, first, second, 1]
        self.tables: list[Any] = [
            tf.Variable(tf.random.normal((rows, dim), stddev=SETTINGS["embeddingStd"])) for rows in SETTINGS["tables"]
        ]
        self.dense: list[Any] = []
        for into, out in itertools.pairwise(widths):
            bound = into**-0.5
            self.dense.append(tf.Variable(tf.random.uniform((into, out), -bound, bound)))
            self.dense.append(tf.Variable(tf.zeros(out)))
        self.squares = [tf.Variable(tf.zeros_like(table)) for table in self.tables]
        self.moments = [(tf.Variable(tf.zeros_like(v)), tf.Variable(tf.zeros_like(v))) for v in self.dense]
        self.powers = (tf.Variable(0.9), tf.Variable(0.999))
        self.steps = tf.Variable(0, dtype=tf.int64)

    def loss(self, ids: Any, numbers: Any, labels: Any) -> Any:
        """Return the mean loss of a batch."""
        x = tf.concat([tf.gather(table, ids[:, i]) for i, table in enumerate(self.tables)] + [numbers], axis=1)
        layers = list(zip(self.dense[::2], self.dense[1::2], strict=True))
        for weight, bias in layers[:-1]:
            x = tf.nn.relu(x @ weight + bias)
        weight, bias = layers[-1]
        logits = tf.squeeze(x @ weight + bias, axis=1)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))

    def apply(self, gradients: Any) -> None:
        """Apply gradients of the tables, then of the dense part."""
        for table, square, gradient in zip(self.tables, self.squares, gradients[:TABLES], strict=True):
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=table.handle,
                accum=square.handle,
                lr=SETTINGS["sparseRate"],
                epsilon=EPSILON,
                grad=gradient.values,
                indices=gradient.indices,
            )
        for variable, (m, v), gradient in zip(self.dense, self.moments, gradients[TABLES:], strict=True):
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
        self.steps.assign_add(1)


def chief() -> None:
    """Train without an end."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(SETTINGS["cluster"]), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = Model()
    checkpoint = tf.train.Checkpoint(model=_tracked(model))
    manager = tf.train.CheckpointManager(checkpoint, str(FOLDER / "checkpoints"), max_to_keep=2)
    checkpoint.restore(manager.latest_checkpoint)
    batches = iter(coordinator.create_per_worker_dataset(records))

    def step(iterator: Any) -> None:
        ids, numbers, labels = next(iterator)
        variables = [*model.tables, *model.dense]
        with tf.GradientTape() as tape:
            loss = model.loss(ids, numbers, labels)
        model.apply(tape.gradient(loss, variables))

    def report() -> None:
        with (FOLDER / "samples").open("r+b", buffering=0) as progress:
            while True:
                os.pwrite(progress.fileno(), struct.pack("q", int(model.steps.numpy()) * WORKER_BATCH), 0)
                time.sleep(0.01)

    threading.Thread(target=report, daemon=True).start()
    compiled = tf.function(step)
    scheduled = SETTINGS["checkpointSteps"] * len(SETTINGS["cluster"]["worker"])
    while True:
        for _ in range(scheduled):
            coordinator.schedule(compiled, args=(batches,))
        coordinator.join()
        manager.save()


def _tracked(model: Model) -> Any:
    """Return the model's variables as an object that a checkpoint can follow."""
    root = tf.Module()
    root.variables_of_model = [
        *model.tables,
        *model.dense,
        *model.squares,
        *(v for pair in model.moments for v in pair),
        *model.powers,
        model.steps,
    ]
    return root


if __name__ == "__main__":
    if ROLE == "chief":
        try:
            chief()
        except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.FailedPreconditionError) as error:
            sys.stderr.write(f"chief: {error}\n")
            os._exit(1)  # the coordinator's threads would wait for the lost server
    else:
        serve()
