"""Buffers that training changes, as servers keep them."""

from __future__ import annotations

import numpy as np
import pytest

from heterps_runtime.store.statistics import StatisticsStore


def make() -> StatisticsStore:
    store = StatisticsStore()
    store.add("mean", np.array([1.0, 2.0], np.float32))
    store.add("count", np.array(7))
    return store


def test_a_step_adds_the_mean_change_over_all_samples() -> None:
    store = make()
    before = store.snapshot()
    # Two workers of 1 and 3 samples, whose micro-batches have changed the mean by 4 and by -4, and the count by 1.
    store.apply(
        [
            {"mean": np.array([4.0, 0.0], np.float32), "count": np.array(1)},
            {"mean": np.array([-12.0, 0.0], np.float32), "count": np.array(3)},
        ],
        1 / 4,
    )
    mean, count = store.pull(["mean", "count"])
    assert (mean.tolist(), mean.dtype) == ([-1.0, 2.0], np.float32)
    assert (count.tolist(), count.dtype, count.shape) == (8, np.int64, ())
    assert before["mean"].tolist() == [1.0, 2.0], "answers that are under way keep their values"


def test_counts_of_thirds_are_whole() -> None:
    store = make()
    for step in range(30):
        store.apply([{"count": np.array(1)}] * 3, 1 / 3)
        assert int(store.pull(["count"])[0]) == 8 + step


def test_a_worker_without_samples_changes_nothing_and_a_known_name_keeps_its_value() -> None:
    store = make()
    store.apply([{}, {"count": np.array(2)}], 1 / 2)
    store.add("count", np.array(0))
    assert {name: value.tolist() for name, value in store.snapshot().items()} == {"mean": [1.0, 2.0], "count": 8}
    assert store.nbytes == 16


def test_unknown_names_and_shapes_are_refused() -> None:
    store = make()
    with pytest.raises(ValueError, match="buffer 'x': is unknown, there are mean, count"):
        store.pull(["x"])
    with pytest.raises(ValueError, match=r"change of 'mean': must have the shape \(2,\), has \(3,\)"):
        store.apply([{"mean": np.zeros(3)}], 1.0)
