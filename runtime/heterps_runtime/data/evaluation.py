"""Metrics of a model on held-out data, which workers compute apart and the coordinator merges.

AUC is the probability that a positive sample has a higher logit than a negative one; ties count half. It needs the
ranks of all logits, so workers send histograms. Floats are mapped to integers of the same order, and a bin contains the
logits with equal leading bits. With all 32 bits the result is exact. Trailing bits are dropped one by one while there
are more than `max_bins` bins. Memory is therefore bounded, the resolution is relative to the logits, and the error is
at most half the share of (positive, negative) pairs in common bins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from heterps_runtime.data.errors import DataError
from heterps_runtime.data.spec import label_kind

__all__ = ["BinaryMetrics", "ClassMetrics", "Metrics", "metrics_for"]

Arrays = dict[str, npt.NDArray[Any]]

_BINS = ("keys", "negatives", "positives")  # the arrays of a histogram; all others have one element
_MOST_SAMPLES = 2**40  # of a worker
_LOGIT_BITS = 32
_PENDING_SAMPLES = 1 << 16  # before they are sorted into bins


def metrics_for(loss: str, num_classes: int | None = None) -> Metrics:
    """Empty metrics for a job: AUC if the labels are binary, accuracy for classes, otherwise the loss only.

    Args:
        loss: `spec.model.loss`.
        num_classes: `spec.data.classes`.
    """
    kinds: dict[str, type[Metrics]] = {"binary": BinaryMetrics, "class": ClassMetrics, "number": Metrics}
    return kinds[label_kind(loss, num_classes)]()


class Metrics:
    """The mean loss, and the base of metrics with more figures.

    All are sums over samples: merging in any grouping gives the metrics of all samples together.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.loss_sum = 0.0  # of the job's own loss

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

    def merge(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add the samples of another instance of the same class, from its `to_arrays`.

        Raises:
            ValueError: they are not arrays of that class; nothing has been added.
        """
        self._check(arrays)
        self.samples += int(arrays["samples"][0])
        self.loss_sum += float(arrays["lossSum"][0])
        self._merge(arrays)

    def to_arrays(self) -> Arrays:
        """All sums as arrays, for messages."""
        return {"samples": np.array([self.samples]), "lossSum": np.array([self.loss_sum]), **self._arrays()}

    def results(self) -> dict[str, Any]:
        """The figures of the job's status: `samples`, `loss` and those of the class; None if undefined or infinite."""
        mean = self.loss_sum / self.samples if self.samples else None
        found = {"samples": self.samples, "loss": mean, **self._results()}
        return {name: value if value is not None and math.isfinite(value) else None for name, value in found.items()}

    def _add(self, logits: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
        """Add the samples to further sums."""

    def _check(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Raise ValueError unless these may be the arrays of an instance."""
        expected = self.to_arrays()
        if arrays.keys() != expected.keys():
            raise ValueError(f"metrics: must be {sorted(expected)}, are {sorted(arrays)}")
        for name, array in arrays.items():
            own = expected[name]
            if array.dtype != own.dtype or array.ndim != 1 or (name not in _BINS and len(array) != 1):
                raise ValueError(f"metrics: {name} must be {own.dtype} {own.shape}, is {array.dtype} {array.shape}")
            if array.dtype == np.int64 and len(array) and not 0 <= array.min() <= array.max() <= _MOST_SAMPLES:
                raise ValueError(f"metrics: {name} must be from 0 to {_MOST_SAMPLES}")

    def _merge(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add the further sums of another instance."""

    def _arrays(self) -> Arrays:
        """The further sums."""
        return {}

    def _results(self) -> dict[str, Any]:
        """The further figures."""
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

    def _arrays(self) -> Arrays:
        return {"correct": np.array([self.correct]), "entropySum": np.array([self.entropy_sum])}

    def _merge(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self.correct += int(arrays["correct"][0])
        self.entropy_sum += float(arrays["entropySum"][0])

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
        self._shift = 0  # trailing bits that were dropped
        self._keys = np.empty(0, dtype=np.uint64)  # (n,) sorted; leading bits of the logits
        self._counts = np.empty((2, 0), dtype=np.int64)  # (2, n); negatives and positives of each bin
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

    def _add(self, logits: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
        z, y = logits.astype(np.float64), labels.astype(np.float64)
        # log(1 + exp(z)) - y z, without overflow and without 0 * infinity
        right = np.where(y == 1, z, -z)  # the logit's margin on the label's side
        self.log_loss_sum += float((np.maximum(-right, 0) + np.log1p(np.exp(-np.abs(right)))).sum())
        self._collect(
            _ordered_bits(logits) >> np.uint64(self._shift), np.stack([labels == 0, labels == 1]).astype(np.int64)
        )

    def _arrays(self) -> Arrays:
        self._settle()
        return {
            "logLossSum": np.array([self.log_loss_sum]),
            "shift": np.array([self._shift]),
            "keys": self._keys,
            "negatives": self._counts[0],
            "positives": self._counts[1],
        }

    def _check(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        super()._check(arrays)
        shift, lengths = int(arrays["shift"][0]), {len(arrays[name]) for name in _BINS}
        if shift > _LOGIT_BITS or len(lengths) > 1:
            raise ValueError(f"metrics: a histogram of {sorted(lengths)} bins, {shift} bits dropped")

    def _merge(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self.log_loss_sum += float(arrays["logLossSum"][0])
        counts = np.stack([arrays["negatives"], arrays["positives"]])
        self._collect_shifted(arrays["keys"], counts, int(arrays["shift"][0]))

    def _results(self) -> dict[str, Any]:
        return {"auc": self.auc, "logLoss": self.log_loss, "positives": self.positives}

    # --- the histogram ------------------------------------------------------------------------------------------------
    def _collect_shifted(self, keys: npt.NDArray[np.uint64], counts: npt.NDArray[np.int64], shift: int) -> None:
        """Add bins whose last `shift` bits were dropped."""
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
        """Sort pending samples into bins, then drop bits while there are too many bins."""
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
    """Sort bins by key and merge equal ones."""
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[:, order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[starts], np.add.reduceat(counts, starts, axis=1)


def _ordered_bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Map float32 values to integers of the same order; -0 equals 0."""
    bits = (values.astype(np.float32) + np.float32(0.0)).view(np.uint32).astype(np.uint64)
    negative = bits >> np.uint64(31) == 1
    return np.where(negative, np.uint64(0xFFFFFFFF) - bits, bits + np.uint64(0x80000000))
