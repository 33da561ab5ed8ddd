"""What TensorFlow trains beside HeterPS: tables with Adagrad on sparse gradients, an MLP with Adam or Adagrad.

Imported by processes of `_tensorflow.tensorflow_command`, where only TensorFlow is installed. A process is alone, or
one of ParameterServerStrategy as in TensorFlow's tutorial on parameter-server training.
"""

import importlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["Adagrad", "Adam", "Model", "coordinate", "read_records", "serve", "tf"]

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


class Adam:
    """Adam for variables with dense gradients."""

    def __init__(self, variables: Sequence[Any], rate: float) -> None:
        self._of, self._rate = variables, rate
        self._moments = [(tf.Variable(tf.zeros_like(v)), tf.Variable(tf.zeros_like(v))) for v in variables]
        self._powers = (tf.Variable(0.9), tf.Variable(0.999))

    @property
    def variables(self) -> list[Any]:
        """Its state."""
        return [*(v for pair in self._moments for v in pair), *self._powers]

    def apply(self, gradients: Sequence[Any]) -> None:
        """Apply a gradient of each variable."""
        for variable, (m, v), gradient in zip(self._of, self._moments, gradients, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=self._powers[0],
                beta2_power=self._powers[1],
                lr=self._rate,
                beta1=0.9,
                beta2=0.999,
                epsilon=_EPSILON,
                grad=gradient,
            )
        self._powers[0].assign(self._powers[0] * 0.9)
        self._powers[1].assign(self._powers[1] * 0.999)


class Adagrad:
    """Adagrad for variables with dense gradients."""

    def __init__(self, variables: Sequence[Any], rate: float) -> None:
        self._of, self._rate = variables, rate
        self.variables = [tf.Variable(tf.zeros_like(v)) for v in variables]

    def apply(self, gradients: Sequence[Any]) -> None:
        """Apply a gradient of each variable."""
        for variable, square, gradient in zip(self._of, self.variables, gradients, strict=True):
            tf.raw_ops.ResourceApplyAdagradV2(
                var=variable.handle, accum=square.handle, lr=self._rate, epsilon=_EPSILON, grad=gradient
            )


class Model:
    """Variables, and their optimizers' state.

    Args:
        settings: `denseRate` and `sparseRate`.
        tables: initial values of each table, (rows, dim).
        dense: initial weights (in, out) and biases (out,) of the fully connected layers, in turns.
        slots: of each table, the first and the end of the ids that it looks up.
        optimizer: of the fully connected layers.
        short: products are computed in bfloat16, as Keras does under mixed_bfloat16.
    """

    def __init__(
        self,
        settings: Json,
        tables: Sequence[Any],
        dense: Sequence[Any],
        slots: Sequence[tuple[int, int]],
        optimizer: type[Adam] | type[Adagrad] = Adam,
        *,
        short: bool = False,
    ) -> None:
        self._settings, self._slots, self._type = settings, slots, tf.bfloat16 if short else tf.float32
        self.tables: list[Any] = [tf.Variable(values) for values in tables]
        self.dense: list[Any] = [tf.Variable(values) for values in dense]
        self.squares = [tf.Variable(tf.zeros_like(table)) for table in self.tables]
        self._optimizer = optimizer(self.dense, settings["denseRate"])
        self.steps = tf.Variable(0, dtype=tf.int64)

    @classmethod
    def random(
        cls,
        settings: Json,
        tables: Sequence[int],
        dim: int,
        slots: Sequence[tuple[int, int]],
        numbers: int,
        hidden: Sequence[int],
    ) -> "Model":
        """Return a model that is drawn at random.

        Args:
            settings: `embeddingStd` beside the others.
            tables: rows of each table.
            dim: of all embeddings.
            slots: as above.
            numbers: beside the ids.
            hidden: widths of the hidden layers.
        """
        dense = []
        for into, out in itertools.pairwise([slots[-1][1] * dim + numbers, *hidden, 1]):
            bound = into**-0.5
            dense += [tf.random.uniform((into, out), -bound, bound), tf.zeros(out)]
        rows = [tf.random.normal((size, dim), stddev=settings["embeddingStd"]) for size in tables]
        return cls(settings, rows, dense, slots)

    @property
    def variables(self) -> list[Any]:
        """All that a checkpoint has to hold."""
        return [*self.tables, *self.dense, *self.squares, *self._optimizer.variables, self.steps]

    def step(self, ids: Any, numbers: Any, labels: Any) -> Any:
        """Train on a batch and return its mean loss."""
        with tf.GradientTape() as tape:
            logits = self.logits(ids, numbers)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
        self._apply(tape.gradient(loss, [*self.tables, *self.dense]))
        return loss

    def logits(self, ids: Any, numbers: Any) -> Any:
        """Ids (b, n) and numbers (b, m) -> logits (b,)."""
        parts = [
            tf.reshape(tf.gather(table, ids[:, first:end]), (-1, (end - first) * table.shape[1]))
            for table, (first, end) in zip(self.tables, self._slots, strict=True)
        ]
        x = tf.cast(tf.concat([*parts, numbers], axis=1), self._type)
        layers = [tf.cast(variable, self._type) for variable in self.dense]
        *hidden, (weight, bias) = zip(layers[::2], layers[1::2], strict=True)
        for into, offset in hidden:
            x = tf.nn.relu(x @ into + offset)
        return tf.cast(tf.squeeze(x @ weight + bias, axis=1), tf.float32)

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
        self._optimizer.apply(dense)
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
