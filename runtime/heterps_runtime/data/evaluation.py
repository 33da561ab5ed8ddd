"""Figures of a model on held-out data, in a form that workers compute apart and the coordinator merges.

AUC is the probability that a positive sample gets a higher logit than a negative one, ties counting half. It needs the
ranks of all logits, so workers send a histogram. A bin holds the logits with equal leading bits, under the mapping of
floats to integers that keeps their order; it starts with all 32 bits, which makes the result exact, and gives up its
last bits one by one only when there are more than `max_bins` different ones. Resolution is thus relative to where the
logits lie, whatever their scale, memory is bounded, and the error has a bound that is reported (`auc_error`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from heterps_runtime.data.errors import DataError
from heterps_runtime.data.spec import label_kind

__all__ = ["BinaryMetrics", "ClassMetrics", "LossMetrics", "Metrics", "metrics_for"]

Arrays = dict[str, npt.NDArray[Any]]

_PENDING_SAMPLES = 1 << 16  # collected before they are sorted into bins


def metrics_for(loss: str) -> Metrics:
    """Empty metrics that suit a loss (`spec.model.loss`): AUC if binary, accuracy for classes, else the loss only."""
    kinds: dict[str, type[Metrics]] = {"binary": BinaryMetrics, "class": ClassMetrics, "number": LossMetrics}
    return kinds[label_kind(loss)]()


class Metrics(ABC):
    """Sums over samples. Merging in any grouping gives the figures of all samples together."""

    def __init__(self) -> None:
        self.samples = 0
        self.loss_sum = 0.0  # of the job's own loss, over samples

    def update(self, logits: npt.NDArray[Any], labels: npt.NDArray[Any], loss_sum: float) -> None:
        """Add samples.

        Args:
            logits: the model's output, (n,) or (n, C).
            labels: (n,).
            loss_sum: sum of the job's loss over these samples.

        Raises:
            DataError: the model's output is NaN.
        """
        if not len(labels):  # a worker's share may be empty
            return
        count = int(np.isnan(logits).reshape(len(logits), -1).any(axis=1).sum())
        if count:
            raise DataError(
                f"evaluation: the model gives NaN for {count} of {len(logits)} samples; training has diverged, so "
                f"lower spec.training.optimizer's learningRate"
            )
        self.samples += len(labels)
        self.loss_sum += float(loss_sum)
        self._add(logits, labels)

    def merge(self, other: Metrics) -> None:
        """Add the samples of another instance of the same class."""
        assert type(self) is type(other), (type(self), type(other))
        self.samples += other.samples
        self.loss_sum += other.loss_sum
        self._merge(other)

    def to_arrays(self) -> Arrays:
        """Everything as plain arrays, for the wire."""
        return {"samples": np.array([self.samples]), "lossSum": np.array([self.loss_sum]), **self._arrays()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Metrics:
        """The inverse of `to_arrays`."""
        metrics = cls()
        metrics.samples = int(arrays["samples"][0])
        metrics.loss_sum = float(arrays["lossSum"][0])
        metrics._load(arrays)
        return metrics

    def results(self) -> dict[str, Any]:
        """The figures, as in the status: `samples`, `loss` and the class's own; a figure that is undefined is None."""
        mean = self.loss_sum / self.samples if self.samples else None
        return {"samples": self.samples, "loss": mean, **self._results()}

    @abstractmethod
    def _add(self, logits: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None: ...

    @abstractmethod
    def _merge(self, other: Any) -> None: ...

    @abstractmethod
    def _arrays(self) -> Arrays: ...

    @abstractmethod
    def _load(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None: ...

    @abstractmethod
    def _results(self) -> dict[str, Any]: ...


class LossMetrics(Metrics):
    """The mean loss, for losses that are neither a binary nor a multi-class cross-entropy."""

    def _add(self, logits: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
        return None

    def _merge(self, other: LossMetrics) -> None:
        return None

    def _arrays(self) -> Arrays:
        return {}

    def _load(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        return None

    def _results(self) -> dict[str, Any]:
        return {}


class ClassMetrics(Metrics):
    """Accuracy and cross-entropy of a multi-class model: logits (n, C), labels (n,) integers."""

    def __init__(self) -> None:
        super().__init__()
        self.correct = 0
        self.entropy_sum = 0.0

    def _add(self, logits: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
        wide = logits.astype(np.float64)  # (n, C)
        top = wide.max(axis=1)
        log_sum = top + np.log(np.exp(wide - top[:, None]).sum(axis=1))
        self.entropy_sum += float((log_sum - wide[np.arange(len(labels)), labels]).sum())
        self.correct += int((wide.argmax(axis=1) == labels).sum())

    def _merge(self, other: ClassMetrics) -> None:
        self.correct += other.correct
        self.entropy_sum += other.entropy_sum

    def _arrays(self) -> Arrays:
        return {"correct": np.array([self.correct]), "entropySum": np.array([self.entropy_sum])}

    def _load(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self.correct = int(arrays["correct"][0])
        self.entropy_sum = float(arrays["entropySum"][0])

    def _results(self) -> dict[str, Any]:
        if not self.samples:
            return {"accuracy": None, "crossEntropy": None}
        return {"accuracy": self.correct / self.samples, "crossEntropy": self.entropy_sum / self.samples}


class BinaryMetrics(Metrics):
    """AUC and log loss of a binary model: logits (n,), labels (n,) 0 or 1.

    Args:
        max_bins: bound on the histogram's size; at 24 bytes per bin, the default takes at most 3 MiB.
    """

    def __init__(self, max_bins: int = 1 << 17) -> None:
        super().__init__()
        self.max_bins = max_bins
        self.log_loss_sum = 0.0
        self._shift = 0  # bits that the bins have given up
        self._keys = np.empty(0, dtype=np.uint64)  # (n,) sorted: the logits' leading bits
        self._counts = np.empty((2, 0), dtype=np.int64)  # (2, n) negatives, positives of each bin
        self._pending: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]] = []
        self._num_pending = 0

    @property
    def positives(self) -> int:
        """Samples with label 1."""
        self._settle()
        return int(self._counts[1].sum())

    @property
    def log_loss(self) -> float | None:
        """Mean binary cross-entropy, None without samples."""
        return self.log_loss_sum / self.samples if self.samples else None

    @property
    def auc(self) -> float | None:
        """Area under the ROC curve; None unless there are positives and negatives."""
        self._settle()
        negatives, positives = self._counts  # (n,) each
        pairs = int(negatives.sum()) * int(positives.sum())
        if not pairs:
            return None
        below = np.cumsum(negatives) - negatives  # negatives in lower bins
        return float((positives.astype(np.float64) * (below + 0.5 * negatives)).sum() / pairs)

    @property
    def auc_error(self) -> float | None:
        """Bound on |auc - exact AUC|: half the share of pairs that fell into one bin; 0 while no bits were given up."""
        self._settle()
        negatives, positives = self._counts
        pairs = int(negatives.sum()) * int(positives.sum())
        if not pairs:
            return None
        return float((positives.astype(np.float64) * negatives).sum() / pairs / 2) if self._shift else 0.0

    def _add(self, logits: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
        z, y = logits.astype(np.float64), labels.astype(np.float64)
        # log(1 + exp(z)) - y z, without overflow and without 0 * infinity
        right = np.where(y == 1, z, -z)  # the logit's margin on the label's side
        self.log_loss_sum += float((np.maximum(-right, 0) + np.log1p(np.exp(-np.abs(right)))).sum())
        self._collect(
            _ordered_bits(logits) >> np.uint64(self._shift), np.stack([labels == 0, labels == 1]).astype(np.int64)
        )

    def _merge(self, other: BinaryMetrics) -> None:
        other._settle()
        self.log_loss_sum += other.log_loss_sum
        self._collect_shifted(other._keys, other._counts, other._shift)

    def _arrays(self) -> Arrays:
        self._settle()
        return {
            "logLossSum": np.array([self.log_loss_sum]),
            "shift": np.array([self._shift]),
            "keys": self._keys,
            "negatives": self._counts[0],
            "positives": self._counts[1],
        }

    def _load(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self.log_loss_sum = float(arrays["logLossSum"][0])
        counts = np.stack([arrays["negatives"], arrays["positives"]])
        self._collect_shifted(arrays["keys"], counts, int(arrays["shift"][0]))

    def _results(self) -> dict[str, Any]:
        return {"auc": self.auc, "logLoss": self.log_loss, "positives": self.positives}

    # --- the histogram ------------------------------------------------------------------------------------------------
    def _collect_shifted(self, keys: npt.NDArray[np.uint64], counts: npt.NDArray[np.int64], shift: int) -> None:
        """Add bins that have given up `shift` bits."""
        if shift > self._shift:
            self._settle()
            self._keys = self._keys >> np.uint64(shift - self._shift)
            self._shift = shift
        self._collect(keys >> np.uint64(self._shift - shift), counts)

    def _collect(self, keys: npt.NDArray[np.uint64], counts: npt.NDArray[np.int64]) -> None:
        if not len(keys):
            return
        self._pending.append((keys, counts))
        self._num_pending += len(keys)
        if self._num_pending >= _PENDING_SAMPLES:
            self._settle()

    def _settle(self) -> None:
        """Sort what is pending into bins, then give up bits until there are few enough."""
        if not self._pending:
            return
        keys = np.concatenate([self._keys, *(k for k, _ in self._pending)])
        counts = np.concatenate([self._counts, *(c for _, c in self._pending)], axis=1)
        self._pending, self._num_pending = [], 0
        self._keys, self._counts = _grouped(keys, counts)
        while len(self._keys) > self.max_bins:
            self._shift += 1
            self._keys, self._counts = _grouped(self._keys >> np.uint64(1), self._counts)


def _grouped(
    keys: npt.NDArray[np.uint64], counts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Sort bins by key and add up equal ones."""
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[:, order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[starts], np.add.reduceat(counts, starts, axis=1)


def _ordered_bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Map float32 values to integers with the same order; -0 and 0 are equal."""
    bits = (values.astype(np.float32) + np.float32(0.0)).view(np.uint32).astype(np.uint64)
    negative = bits >> np.uint64(31) == 1
    return np.where(negative, np.uint64(0xFFFFFFFF) - bits, bits + np.uint64(0x80000000))
