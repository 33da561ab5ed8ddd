"""What TensorFlow trains beside HeterPS: tables with Adagrad on sparse gradients, an MLP with Adam.

Imported by processes of `_tensorflow.tensorflow_command`, where only TensorFlow is installed. A process is alone, or
one of ParameterServerStrategy as in TensorFlow's tutorial on parameter-server training.
"""

import importlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["Model", "coordinate", "read_records", "serve", "tf"]

tf: Any = importlib.import_module("tensorflow")  # its types are not installed here

Json = Mapping[str, Any]

_EPSILON = 1e-7
_SHUFFLED = 65_536  # records in the shuffle buffer


def read_records(file: str, ids: int, numbers: int, batch: int, seed: int) -> Any:
    """Return batches (ids (b, n), numbers (b, m), labels (b,)) without an end, from records of 4 bytes a value."""

    def columns(records: Any) -> Any:
        words = tf.io.decode_raw(records, tf.int32)  # (b, n + m + 1)
        floats = tf.bitcast(words, tf.float32)
        return words[:, :ids], floats[:, ids : ids + numbers], floats[:, -1]

    raw = tf.data.FixedLengthRecordDataset(file, 4 * (ids + numbers + 1))
    batches = raw.shuffle(_SHUFFLED, seed=seed).repeat().batch(batch, drop_remainder=True)
    return batches.map(columns).prefetch(2)


class Model:
    """Variables, and their optimizers' state.

    Args:
        settings: `embeddingStd`, `denseRate` and `sparseRate`.
        tables: rows of each table.
        dim: of all embeddings.
        slots: of each table, the first and the end of the ids that it looks up.
        numbers: beside the ids.
        hidden: widths of the hidden layers.
    """

    def __init__(
        self,
        settings: Json,
        tables: Sequence[int],
        dim: int,
        slots: Sequence[tuple[int, int]],
        numbers: int,
        hidden: Sequence[int],
    ) -> None:
        self._settings, self._dim, self._slots = settings, dim, slots
        std = settings["embeddingStd"]
        self.tables: list[Any] = [tf.Variable(tf.random.normal((rows, dim), stddev=std)) for rows in tables]
        self.dense: list[Any] = []
        for into, out in itertools.pairwise([slots[-1][1] * dim + numbers, *hidden, 1]):
            bound = into**-0.5
            self.dense.append(tf.Variable(tf.random.uniform((into, out), -bound, bound)))
            self.dense.append(tf.Variable(tf.zeros(out)))
        self.squares = [tf.Variable(tf.zeros_like(table)) for table in self.tables]
        self.moments = [(tf.Variable(tf.zeros_like(v)), tf.Variable(tf.zeros_like(v))) for v in self.dense]
        self.powers = (tf.Variable(0.9), tf.Variable(0.999))
        self.steps = tf.Variable(0, dtype=tf.int64)

    @property
    def variables(self) -> list[Any]:
        """All that a checkpoint has to hold."""
        moments = [v for pair in self.moments for v in pair]
        return [*self.tables, *self.dense, *self.squares, *moments, *self.powers, self.steps]

    def step(self, ids: Any, numbers: Any, labels: Any) -> Any:
        """Train on a batch and return its mean loss."""
        with tf.GradientTape() as tape:
            loss = self._loss(ids, numbers, labels)
        self._apply(tape.gradient(loss, [*self.tables, *self.dense]))
        return loss

    def _loss(self, ids: Any, numbers: Any, labels: Any) -> Any:
        parts = [
            tf.reshape(tf.gather(table, ids[:, first:end]), (-1, (end - first) * self._dim))
            for table, (first, end) in zip(self.tables, self._slots, strict=True)
        ]
        x = tf.concat([*parts, numbers], axis=1)
        layers = list(zip(self.dense[::2], self.dense[1::2], strict=True))
        for weight, bias in layers[:-1]:
            x = tf.nn.relu(x @ weight + bias)
        weight, bias = layers[-1]
        logits = tf.squeeze(x @ weight + bias, axis=1)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))

    def _apply(self, gradients: Any) -> None:
        """Apply gradients of the tables, then of the dense part."""
        sparse, dense = gradients[: len(self.tables)], gradients[len(self.tables) :]
        for table, square, gradient in zip(self.tables, self.squares, sparse, strict=True):
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=table.handle,
                accum=square.handle,
                lr=self._settings["sparseRate"],
                epsilon=_EPSILON,
                grad=gradient.values,
                indices=gradient.indices,
            )
        for variable, (m, v), gradient in zip(self.dense, self.moments, dense, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=self.powers[0],
                beta2_power=self.powers[1],
                lr=self._settings["denseRate"],
                beta1=0.9,
                beta2=0.999,
                epsilon=_EPSILON,
                grad=gradient,
            )
        self.powers[0].assign(self.powers[0] * 0.9)
        self.powers[1].assign(self.powers[1] * 0.999)
        self.steps.assign_add(1)


def coordinate(cluster: Json, make: Callable[[], Model]) -> tuple[Any, Model]:
    """Return the chief's coordinator of a cluster, and a model with its variables on the servers."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        return coordinator, make()


def serve(cluster: Json, role: str, index: int) -> None:
    """Serve as a parameter server or a worker until killed."""
    tf.distribute.Server(cluster, role, index, protocol="grpc").join()
