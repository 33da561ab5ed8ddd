from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from heterps_runtime.store.dense import LAST_STEP, DenseStore
from heterps_runtime.store.optimizers import DenseOptimizer

SHAPES = {"tower.weight": (7, 3), "tower.bias": (7,), "temperature": ()}
CASES: dict[str, tuple[dict[str, str], Any, dict[str, Any]]] = {
    "sgd": ({"name": "sgd", "learningRate": "0.1"}, torch.optim.SGD, {"lr": 0.1}),
    "momentum": (
        {"name": "sgd", "learningRate": "0.1", "momentum": "0.9", "weightDecay": "0.02"},
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.02},
    ),
    "adagrad": (
        {"name": "adagrad", "learningRate": "0.1", "initialAccumulator": "0.2", "weightDecay": "0.02"},
        torch.optim.Adagrad,
        {"lr": 0.1, "initial_accumulator_value": 0.2, "weight_decay": 0.02},
    ),
    "adam": ({"name": "adam", "learningRate": "0.01"}, torch.optim.Adam, {"lr": 0.01}),
    "adam-options": (
        {
            "name": "adam",
            "learningRate": "0.01",
            "beta1": "0.5",
            "beta2": "0.9",
            "epsilon": "1e-3",
            "weightDecay": "0.1",
        },
        torch.optim.Adam,
        {"lr": 0.01, "betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1},
    ),
}


def values(seed: int, dtype: type = np.float64) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.normal(size=shape), dtype) for name, shape in SHAPES.items()}


def dense_store(case: str, dtype: type = np.float64) -> DenseStore:
    store = DenseStore(DenseOptimizer.from_manifest(CASES[case][0]))
    for name, value in values(0, dtype).items():
        store.add(name, value)
    return store


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("case", CASES)
def test_dense_training_equals_torch(case: str, dtype: Any, tolerance: float) -> None:
    store = dense_store(case, dtype)
    parameters = [torch.nn.Parameter(torch.from_numpy(v)) for v in values(0, dtype).values()]
    optimizer = CASES[case][1](parameters, **CASES[case][2])
    for t in range(1, 21):
        pushes = [values(100 * t + worker, dtype) for worker in range(3)]
        for parameter, name in zip(parameters, SHAPES, strict=True):
            parameter.grad = torch.from_numpy(np.asarray(0.25 * sum(push[name] for push in pushes), dtype))
        optimizer.step()
        assert store.apply(pushes, 0.25, t) == 0
    for parameter, value in zip(parameters, store.pull(SHAPES), strict=True):
        np.testing.assert_allclose(value, parameter.detach().numpy(), rtol=tolerance, atol=tolerance)
    snapshot = store.snapshot()
    assert snapshot[LAST_STEP] == 20
    for parameter, name in zip(parameters, SHAPES, strict=True):
        state = {k: v for k, v in optimizer.state[parameter].items() if k != "step" and v is not None}
        assert {f"{name}::{k}" for k in state} == {k for k in snapshot if k.startswith(f"{name}::")}
        for k, v in state.items():
            np.testing.assert_allclose(snapshot[f"{name}::{k}"], v.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_snapshot_trains_on_as_before(case: str) -> None:
    first, second = dense_store(case), DenseStore(DenseOptimizer.from_manifest(CASES[case][0]))
    first.apply([values(1)], 1.0, 1)
    snapshot = first.snapshot()
    second.load(snapshot)
    for store in (first, second):
        store.apply([values(2), values(3)], 1.0, 2)
    assert second.step == 2
    assert second.names == first.names
    for a, b in zip(first.pull(SHAPES), second.pull(SHAPES), strict=True):
        np.testing.assert_array_equal(a, b)
    second.load(snapshot)  # the snapshot did not follow the training
    np.testing.assert_array_equal(second.pull(["temperature"])[0], snapshot["temperature"])
    assert second.nbytes == first.nbytes == sum(a.nbytes for k, a in snapshot.items() if k != LAST_STEP)


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1.7e308])
def test_a_poisoned_step_is_counted_and_changes_nothing(poison: float) -> None:
    store = dense_store("momentum")
    store.apply([values(1)], 1.0, 1)
    before = store.snapshot()
    bad = values(2)
    bad["tower.weight"][2, 1] = poison  # 1.7e308 is finite, but the sum of two would not be
    assert store.apply([bad, values(3)], 1.0, 2) == 1
    after = store.snapshot()
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


def test_a_parameter_without_gradient_stays_as_it_is() -> None:
    store = dense_store("momentum")
    store.apply([values(1)], 1.0, 1)
    before = store.snapshot()
    store.apply([{"temperature": np.array(1.0)}, {"tower.bias": np.ones(7)}], 1.0, 2)
    after = store.snapshot()
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {
        LAST_STEP,
        *(f"{n}{s}" for n in ("temperature", "tower.bias") for s in ("", "::momentum_buffer")),
    }


def test_what_is_pulled_and_pushed_and_added_stays_the_callers_own() -> None:
    store, mine = DenseStore(DenseOptimizer.from_manifest(CASES["sgd"][0])), np.ones((2, 2))
    store.add("w", mine)
    pulled, frozen = store.pull(["w"])[0], np.frombuffer(np.ones(4).tobytes()).reshape(2, 2)
    store.apply([{"w": frozen}, {"w": frozen}, {"w": frozen}], 1.0, 1)
    assert (mine == 1).all()
    assert (pulled == 1).all()
    assert (frozen == 1).all()
    np.testing.assert_allclose(store.pull(["w"])[0], np.full((2, 2), 0.7))


def test_misuse_is_refused_by_name() -> None:
    store = dense_store("adam")
    for action, message in (
        (lambda: store.add("tower.bias", np.zeros(7)), "parameter 'tower.bias': exists already"),
        (
            lambda: store.add("half", np.zeros(2, np.float16)),
            "parameter 'half': must be float32 or float64, is float16",
        ),
        (lambda: store.pull(["towel.bias"]), "parameter 'towel.bias': is unknown, there are tower.weight"),
        (
            lambda: store.apply([{"tower.bias": np.zeros(6)}], 1.0, 1),
            r"gradient of 'tower.bias': must have the shape \(7,\)",
        ),
        (lambda: store.load({LAST_STEP: np.array(0), "w": np.zeros(2)}), r"missing \['w::exp_avg', 'w::exp_avg_sq'\]"),
        (lambda: store.load(store.snapshot() | {"x::sum": np.zeros(2)}), r"unknown \['x::sum'\]"),
        (lambda: store.load(store.snapshot() | {"tower.bias::exp_avg": np.zeros(6)}), "tower.bias::exp_avg must be"),
    ):
        with pytest.raises(ValueError, match=message):
            action()
    assert len(store.names) == 3


def test_its_size_can_be_asked_for_while_a_parameter_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    store = DenseStore(DenseOptimizer("adam", {}))
    store.add("first", np.zeros(4))
    seen: list[int] = []
    full = np.full

    def asked(*arguments: Any) -> Any:
        seen.append(store.nbytes)  # by the pulse, in another thread
        return full(*arguments)

    monkeypatch.setattr(np, "full", asked)
    store.add("second", np.zeros(2))
    assert seen == [3 * 4 * 8] * 2, "of complete parameters"
    assert store.nbytes == 3 * 6 * 8
    monkeypatch.undo()
    other = DenseStore(DenseOptimizer("adam", {}))
    other.load(store.snapshot())
    assert other.nbytes == store.nbytes
