from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from heterps_runtime.store.initial import TableSpec
from heterps_runtime.store.optimizers import DenseOptimizer, SparseOptimizer
from heterps_runtime.store.rows import RowStore
from tests.heterps_runtime.helpers.checkpoint_samples import make_keys
from tests.heterps_runtime.helpers.store_reference import all_rows, sparse_optimizer

DIM, NUM_IDS, NUM_STEPS = 6, 12, 20
PRECISIONS = [(np.float64, torch.float64, 1e-12), (np.float32, torch.float32, 2e-5)]


def batches(dtype: type) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Twenty batches of (ids with repetitions, gradients of each occurrence)."""
    rng = np.random.default_rng(3)
    return [(rng.integers(0, NUM_IDS, 9), rng.normal(size=(9, DIM)).astype(dtype)) for _ in range(NUM_STEPS)]


def train_with_store(optimizer: SparseOptimizer, dtype: type, scale: float = 0.5) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows of all ids before and after training, each batch split over three pushes."""
    store = RowStore(DIM, dtype, optimizer, 5, {0: TableSpec("t", NUM_IDS)})
    keys = make_keys(0, np.arange(NUM_IDS))
    before = store.pull(keys)
    for t, (ids, grads) in enumerate(batches(dtype), start=1):
        pushes = [(make_keys(0, ids[i::3]), grads[i::3]) for i in range(3)]
        assert store.apply(pushes, scale, t) == 0
    return before, store.pull(keys)


def train_with_torch(
    optimizer_class: Any, weight: NDArray[Any], options: dict[str, Any], scale: float = 0.5
) -> NDArray[Any]:
    checked: Any = torch.sparse.check_sparse_tensor_invariants
    parameter = torch.nn.Parameter(torch.from_numpy(weight.copy()))
    optimizer = optimizer_class([parameter], **options)
    with checked(True):  # torch warns unless one chooses
        for ids, grads in batches(weight.dtype.type):
            values = torch.from_numpy(grads) * scale
            parameter.grad = torch.sparse_coo_tensor(torch.from_numpy(ids)[None], values, weight.shape).coalesce()
            optimizer.step()
    return parameter.detach().numpy()


@pytest.mark.parametrize(("dtype", "torch_dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(
    ("optimizer", "torch_class", "options"),
    [
        (sparse_optimizer("sgd", "0.3"), torch.optim.SGD, {"lr": 0.3}),
        (sparse_optimizer("adagrad", "0.2", epsilon="1e-10"), torch.optim.Adagrad, {"lr": 0.2}),
        (
            sparse_optimizer("adagrad", "0.2", initialAccumulator="0.5", epsilon="1e-3"),
            torch.optim.Adagrad,
            {"lr": 0.2, "initial_accumulator_value": 0.5, "eps": 1e-3},
        ),
        (sparse_optimizer("adam", "0.05", beta1="0.9"), torch.optim.SparseAdam, {"lr": 0.05}),
        (
            sparse_optimizer("adam", "0.05", beta1="0", beta2="0.9", epsilon="1e-4"),
            torch.optim.SparseAdam,
            {"lr": 0.05, "betas": (0.0, 0.9), "eps": 1e-4},
        ),
    ],
    ids=["sgd", "adagrad", "adagrad-options", "adam", "adam-options"],
)
def test_sparse_training_equals_torch(
    optimizer: SparseOptimizer,
    torch_class: Any,
    options: dict[str, Any],
    dtype: Any,
    torch_dtype: torch.dtype,
    tolerance: float,
) -> None:
    before, after = train_with_store(optimizer, dtype)
    expected = train_with_torch(torch_class, before, options)
    np.testing.assert_allclose(after, expected, rtol=tolerance, atol=tolerance)
    assert np.abs(after - before).max() > 0.1


def test_rowwise_adagrad_is_adagrad_with_the_mean_square_of_the_row() -> None:
    # With one element per row, the mean over the row is the element itself.
    results = []
    for name in ("adagrad", "rowwise-adagrad"):
        store = RowStore(1, np.float64, sparse_optimizer(name, "0.2", epsilon="1e-8"), 5, {0: TableSpec("t", NUM_IDS)})
        for t, (ids, grads) in enumerate(batches(np.float64), start=1):
            store.apply([(make_keys(0, ids), grads[:, :1])], 1.0, t)
        results.append(store.pull(make_keys(0, np.arange(NUM_IDS))))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-12)
    # By hand: mean of (3², 4²) is 12.5; rate 1 moves by g / sqrt(12.5).
    store = RowStore(2, np.float64, sparse_optimizer("rowwise-adagrad", "1", epsilon="0"), 5, {0: TableSpec("t", 1)})
    before = store.pull(np.zeros(1, np.int64))
    store.apply([(np.zeros(1, np.int64), np.array([[3.0, -4.0]]))], 1.0, 1)
    np.testing.assert_allclose(store.pull(np.zeros(1, np.int64)), before - np.array([[3, -4]]) / np.sqrt(12.5))
    np.testing.assert_allclose(all_rows(store).state["sum"], [[12.5]])


def test_ftrl_with_l1_makes_rows_sparse_and_without_regularisation_is_adagrad() -> None:
    _, sparse = train_with_store(sparse_optimizer("ftrl", "0.1", l1="2"), np.float64)
    assert 0.1 < (sparse == 0).mean() < 1
    plain = train_with_store(sparse_optimizer("ftrl", "0.1", l1="0"), np.float64)[1]
    adagrad = train_with_store(sparse_optimizer("adagrad", "0.1", epsilon="0"), np.float64)[1]
    np.testing.assert_allclose(plain, adagrad, rtol=1e-10, atol=1e-12)


def test_ftrl_takes_other_powers_of_the_learning_rate() -> None:
    # Power 0: n^0 = 1, so the step size is constant and z collects plain gradients; one step from z = 0:
    # w = -z / (1 / lr + 2 l2) with z = g.
    optimizer = sparse_optimizer("ftrl", "0.5", learningRatePower="0", l2="1")
    store = RowStore(2, np.float64, optimizer, 5, {0: TableSpec("t", 1)})
    store.apply([(np.zeros(1, np.int64), np.array([[3.0, -4.0]]))], 1.0, 1)
    np.testing.assert_allclose(store.pull(np.zeros(1, np.int64)), [[-3 / 4, 4 / 4]])


def test_the_manifest_gives_decimal_strings_and_torch_gives_defaults() -> None:
    assert SparseOptimizer.from_manifest({"name": "adam", "learningRate": "0.001"}).options == {
        "learningRate": 0.001,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-8,
    }
    adagrad = DenseOptimizer.from_manifest({"name": "adagrad", "learningRate": "0.01", "weightDecay": "0.1"})
    assert adagrad.options == {"learningRate": 0.01, "epsilon": 1e-10, "initialAccumulator": 0.0, "weightDecay": 0.1}


@pytest.mark.parametrize(
    ("parser", "manifest", "message"),
    [
        (
            SparseOptimizer,
            {"name": "lion", "learningRate": "1"},
            "training.optimizer.sparse.name: 'lion' is unknown, use one of",
        ),
        (SparseOptimizer, {"learningRate": "1"}, "training.optimizer.sparse.name: '' is unknown"),
        (
            DenseOptimizer,
            {"name": "ftrl", "learningRate": "1"},
            "training.optimizer.dense.name: 'ftrl' is unknown, use one of sgd",
        ),
        (SparseOptimizer, {"name": "sgd"}, "training.optimizer.sparse.learningRate: must be given"),
        (
            SparseOptimizer,
            {"name": "sgd", "learningRate": "1", "momentum": "0.9"},
            "training.optimizer.sparse.momentum: 'sgd' has no",
        ),
        (
            SparseOptimizer,
            {"name": "adam", "learningRate": "1", "weightDecay": "0"},
            "training.optimizer.sparse.weightDecay: 'adam'",
        ),
        (
            SparseOptimizer,
            {"name": "sgd", "learningRate": "fast"},
            "training.optimizer.sparse.learningRate: 'fast' is not a number",
        ),
        (
            SparseOptimizer,
            {"name": "sgd", "learningRate": "0"},
            "training.optimizer.sparse.learningRate: must be finite, > 0, is 0",
        ),
        (
            SparseOptimizer,
            {"name": "sgd", "learningRate": "nan"},
            "training.optimizer.sparse.learningRate: must be finite",
        ),
        (
            SparseOptimizer,
            {"name": "sgd", "learningRate": "inf"},
            "training.optimizer.sparse.learningRate: must be finite",
        ),
        (
            SparseOptimizer,
            {"name": "adam", "learningRate": "1", "beta1": "1"},
            "beta1: must be finite, >= 0 and < 1, is 1",
        ),
        (
            SparseOptimizer,
            {"name": "ftrl", "learningRate": "1", "l1": "-1"},
            "training.optimizer.sparse.l1: must be finite, >= 0",
        ),
        (
            SparseOptimizer,
            {"name": "ftrl", "learningRate": "1", "learningRatePower": "0.5"},
            "learningRatePower: .* <= 0",
        ),
    ],
)
def test_a_wrong_optimizer_is_refused_by_name(parser: Any, manifest: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parser.from_manifest(manifest)
