"""In float32 a job differs from the exact model by no more than rounding can make, on any processor.

The model is logistic regression with plain SGD, for which that can be said. Let F_k(w) = w - η ∇f_k(w) be what step k
does to the parameters w, with the mean loss f_k of its B samples. A sample is a vector φ (1 at its three rows and at
the bias, and its numbers), its logit is φ·w, and R is the largest norm of a φ.

*Errors add up.* f_k is convex, and its gradient is Lipschitz with L <= R²/4, since the sigmoid's slope is at most 1/4.
So ‖F_k(v) - F_k(w)‖ <= ‖v - w‖ for η <= 2/L (Nesterov, Introductory Lectures on Convex Optimization, theorem 2.1.5): a
step makes no earlier error larger. If step k adds an error of its own of norm d_k, then the parameters are off by at
most d_1 + ... + d_n after n steps. Both begin with the same float32 values.

*What one step adds.* Let u = 2^-24 and γ_m = m u / (1 - m u). That is a bound of the relative error of m roundings one
after the other, and of the error of a sum of m + 1 numbers relative to the sum of their absolute values, in whichever
order it is added, with or without fused multiplications (Higham, Accuracy and Stability of Numerical Algorithms,
chapter 3). With W >= ‖w‖ at all steps:

    logit      6 products and sums of φ's 7 entries          γ_8 R W
    residual   sigmoid(logit) - label                        γ_8 R W / 4 + 8 u, and itself at most 1 (+ 8 u)
    gradient   B products and sums, push by push, over B     R (γ_8 R W / 4 + 8 u + γ_(B + 8)) (1 + 8 u)
    update     times η, subtracted                           η times that, + 2 u η R, + u W

The 8 u of a residual are generous: vector libraries' exponential and division are right to 4 u, the difference to 1.
W is taken from the exact trajectory, plus the bound itself.

Here the bound is 3.3e-4, 2e-7 was seen, and a job that loses one sample in one of its last steps is off by 1.7e-2.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heterps_runtime.config import RunConfig
from tests.heterps_runtime.helpers.jobs import Stage, configuration, run_job, trained_model
from tests.heterps_runtime.helpers.plain_torch import Losing, states, train

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]

STEPS, BATCH, RATE = 60, 32, 0.5
RADIUS = math.sqrt(3 + 3 + 1)  # three rows, three numbers of at most 1, a bias
ROUNDOFF: float = 2.0**-24
PLANS: list[tuple[list[Stage], int]] = [
    ([("cpu", 3, 1)], 1),
    ([("cpu", 0, 2), ("card", 2, 3), ("cpu", 3, 2)], 2),
    ([("card", 1, 3), ("cpu", 3, 1)], 3),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("same-model-fp32")


def _document(work: Path) -> dict[str, Any]:
    optimizer = {"name": "sgd", "learningRate": str(RATE)}
    settings = {"steps": STEPS, "globalBatchSize": BATCH, "microBatches": 3}
    return configuration(
        work, "logistic", precision="fp32", optimizer={"dense": optimizer, "sparse": optimizer}, **settings
    )


def _norm(model: dict[str, Array]) -> float:
    return float(np.sqrt(sum(np.square(values, dtype=np.float64).sum() for values in model.values())))


def _distance(one: dict[str, Array], other: dict[str, Array]) -> float:
    assert set(one) == set(other)
    return _norm({name: one[name].astype(np.float64) - other[name] for name in other})


def _gamma(operations: int) -> float:
    return operations * ROUNDOFF / (1 - operations * ROUNDOFF)


def _bound(norm: float) -> float:
    """What `STEPS` steps may add up to while the parameters' norm is at most `norm`."""
    residual = _gamma(8) * RADIUS * norm / 4 + 8 * ROUNDOFF
    gradient = RADIUS * (residual + _gamma(BATCH + 8)) * (1 + 8 * ROUNDOFF)
    return float(STEPS * (RATE * (gradient + 2 * ROUNDOFF * RADIUS) + ROUNDOFF * norm))


@pytest.fixture(scope="module")
def exact(folder: Path) -> tuple[dict[str, Array], float]:
    """What plain PyTorch trains in float64 from the same values, and how far a job in float32 may be from it."""
    assert RATE <= 2 / (RADIUS**2 / 4), "or steps would make errors larger"
    config = RunConfig.from_json(_document(folder / "reference"))
    norm, last = 0.0, {}
    for state in states(config, torch.float64):
        norm, last = max(norm, _norm(state)), state
    bound = _bound(norm + 0.1)
    assert bound < 0.1
    return last, bound


@pytest.mark.parametrize(("stages", "servers"), PLANS)
def test_any_plan_is_as_close_to_the_exact_model_as_rounding_allows(
    stages: list[Stage], servers: int, folder: Path, exact: tuple[dict[str, Array], float]
) -> None:
    model = trained_model(run_job(_document(folder / f"job-{len(stages)}"), stages, servers))
    assert {values.dtype for values in model.values()} == {np.dtype(np.float32)}
    expected, bound = exact
    assert 0 < _distance(model, expected) <= bound


def test_one_lost_sample_is_beyond_what_rounding_allows(folder: Path, exact: tuple[dict[str, Array], float]) -> None:
    config = RunConfig.from_json(_document(folder / "robbed"))
    robbed = train(config, torch.float64, Losing(config))
    expected, bound = exact
    assert _distance(robbed, expected) > 10 * bound
