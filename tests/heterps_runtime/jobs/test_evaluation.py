"""Evaluation: AUC against an exact computation, log loss, accuracy, merging, the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import rankdata

from heterps_runtime.data import DataError, metrics_for
from heterps_runtime.data.evaluation import BinaryMetrics, ClassMetrics, Metrics
from tests.heterps_runtime.helpers.data_files import properties

Array = npt.NDArray[Any]


def exact_auc(logits: Array, labels: Array) -> float:
    ranks = rankdata(logits.astype(np.float32)).astype(np.float64)  # newer versions keep the type
    positives = int(labels.sum())
    pairs = positives * (len(labels) - positives)
    return float((ranks[labels == 1].sum() - positives * (positives + 1) / 2) / pairs)


def binary(logits: Array, labels: Array, parts: int = 1, max_bins: int = 1 << 17) -> BinaryMetrics:
    """Metrics of samples that `parts` workers saw, after their journey over the wire."""
    total = BinaryMetrics(max_bins)
    for z, y in zip(np.array_split(logits, parts), np.array_split(labels, parts), strict=True):
        worker = BinaryMetrics(max_bins)
        worker.update(z, y, 0.0)
        total.merge(worker.to_arrays())
    return total


def draw(rows: int, mean: float, deviation: float, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    labels = (rng.random(rows) < 0.2).astype(np.float32)
    return (mean + deviation * (rng.standard_normal(rows) + labels)).astype(np.float32), labels


@properties
@given(
    hnp.arrays(np.float32, st.integers(2, 60), elements=st.floats(-4, 4, width=16)),
    st.randoms(use_true_random=False),
    st.integers(1, 4),
)
def test_auc_of_few_samples_is_exact_with_ties_and_in_parts(logits: Array, random: Any, parts: int) -> None:
    labels = np.array([random.randrange(2) for _ in logits], dtype=np.float32)
    labels[:2] = 0, 1
    metrics = binary(logits, labels, parts)
    assert metrics.auc == pytest.approx(exact_auc(logits, labels), abs=1e-12)


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (-1.3, 0.5), (-1.3, 1e-3), (40.0, 30.0), (0.0, 1e-30)])
def test_auc_of_many_samples_is_within_1e_4_at_any_scale(mean: float, deviation: float) -> None:
    logits, labels = draw(400_000, mean, deviation)
    metrics = binary(logits, labels, parts=3, max_bins=1 << 14)
    assert metrics.auc == pytest.approx(exact_auc(logits, labels), abs=1e-4)
    assert metrics.auc is not None
    negatives, positives = (metrics.to_arrays()[name].astype(float) for name in ("negatives", "positives"))
    bound = (negatives * positives).sum() / (2 * negatives.sum() * positives.sum())  # pairs that share a bin
    assert abs(metrics.auc - exact_auc(logits, labels)) <= bound + 1e-12


def test_memory_is_bounded() -> None:
    logits, labels = draw(300_000, 0.0, 1.0)
    arrays = binary(logits, labels, parts=5, max_bins=1 << 12).to_arrays()
    assert len(arrays["keys"]) <= 1 << 12
    assert int(arrays["negatives"].sum() + arrays["positives"].sum()) == 300_000


def test_merging_a_coarse_histogram_with_a_fine_one_keeps_every_sample() -> None:
    logits, labels = draw(50_000, 0.0, 1.0)
    coarse, fine = binary(logits[:40_000], labels[:40_000], max_bins=1 << 10), binary(logits[40_000:], labels[40_000:])
    expected = exact_auc(logits, labels)
    for first, second in ((coarse, fine), (fine, coarse)):
        total = BinaryMetrics()
        total.merge(first.to_arrays())
        total.merge(second.to_arrays())
        assert total.samples == 50_000
        assert total.positives == int(labels.sum())
        assert total.auc == pytest.approx(expected, abs=5e-4)  # 1,024 bins


def test_negative_and_positive_zero_are_equal() -> None:
    assert binary(np.array([-0.0, 0.0], np.float32), np.array([0, 1])).auc == 0.5


def test_infinite_logits_have_ranks_too() -> None:
    metrics = binary(np.array([-np.inf, 0.0, np.inf], np.float32), np.array([0, 0, 1]))
    assert metrics.auc == 1.0
    assert metrics.log_loss == pytest.approx(np.log(2) / 3)


def test_log_loss_is_stable_for_large_logits() -> None:
    logits = np.array([1000.0, -1000.0, 1000.0, 0.5], np.float32)
    labels = np.array([1.0, 0.0, 0.0, 1.0])
    assert binary(logits, labels).log_loss == pytest.approx((1000.0 + np.log1p(np.exp(-0.5))) / 4)


def test_log_loss_is_that_of_the_formula() -> None:
    logits, labels = draw(5_000, -1.0, 1.0)
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    expected = -(labels * np.log(p) + (1 - labels) * np.log(1 - p)).mean()
    assert binary(logits, labels, parts=4).log_loss == pytest.approx(expected, rel=1e-12)


def test_auc_is_undefined_with_one_class_only() -> None:
    results = binary(np.array([0.1, 0.2], np.float32), np.array([1, 1])).results()
    assert results["auc"] is None
    assert results["positives"] == 2
    assert BinaryMetrics().results() == {"samples": 0, "loss": None, "auc": None, "logLoss": None, "positives": 0}


@pytest.mark.parametrize("metrics", [BinaryMetrics(), ClassMetrics(), Metrics()])
def test_a_model_that_gives_nan_is_reported(metrics: Metrics) -> None:
    logits = np.array([[0.0, np.nan], [1.0, 2.0]], np.float32)
    with pytest.raises(DataError, match=r"the model gives NaN for 1 of 2 samples; training has diverged, so lower"):
        metrics.update(logits, np.array([0, 1]), 0.0)


def test_classes_have_accuracy_and_cross_entropy() -> None:
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((300, 4)).astype(np.float32)
    labels = rng.integers(0, 4, 300)
    total = ClassMetrics()
    for part in range(3):
        worker = ClassMetrics()
        rows = slice(100 * part, 100 * part + 100)
        worker.update(logits[rows], labels[rows], 50.0)
        total.merge(worker.to_arrays())
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(axis=1, keepdims=True)
    results = total.results()
    assert results["samples"] == 300
    assert results["loss"] == pytest.approx(0.5)
    assert results["accuracy"] == pytest.approx((logits.argmax(axis=1) == labels).mean())
    assert results["crossEntropy"] == pytest.approx(-np.log(p[np.arange(300), labels]).mean())


def test_other_losses_have_their_mean_only() -> None:
    total = Metrics()
    total.update(np.zeros(3, np.float32), np.ones(3, np.float32), 6.0)
    total.merge(total.to_arrays())
    assert total.results() == {"samples": 6, "loss": 2.0}


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        ("torch.nn.functional:binary_cross_entropy_with_logits", BinaryMetrics),
        ("torch.nn:BCEWithLogitsLoss", BinaryMetrics),
        ("torch.nn.functional:cross_entropy", ClassMetrics),
        ("torch.nn:CrossEntropyLoss", ClassMetrics),
        ("torch.nn.functional:mse_loss", Metrics),
        ("my.losses:focal", Metrics),
    ],
)
def test_the_loss_decides_which_metrics(loss: str, kind: type) -> None:
    assert type(metrics_for(loss)) is kind
