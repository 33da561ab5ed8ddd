"""Every field of a problem file: errors state the fault and its path."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import numpy as np
import pytest

from heterps_planner import PlannerError, Problem, ProblemError, UnknownNameError
from heterps_planner.model.limits import MAX_LAYERS, MAX_POOLS
from tests.heterps_planner.helpers.problems import document, random_problem

MISSING = object()


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return the hand-written problem with one field changed (or removed)."""
    result = copy.deepcopy(document())
    target: Any = result
    *parents, name = path.split("/")
    for part in parents:
        target = target[int(part)] if part.isdigit() else target.setdefault(part, {})
    if value is MISSING:
        del target[name]
    else:
        target[int(name) if name.isdigit() else name] = value
    return result


def dotted(path: str) -> str:
    parts = [f"[{part}]" if part.isdigit() else f".{part}" for part in path.split("/")]
    return "problem" + "".join(parts)


POSITIVE = [0, -1, math.nan, math.inf, -math.inf, "1", None, True, [], 10**400]
NOT_NEGATIVE = [-1, -1e-300, math.nan, math.inf, "1", True, {}]
FRACTION = [*NOT_NEGATIVE, 1.0001, 2]
COUNT = [*POSITIVE, 1.5]
NAME = ["", 3, None, True, ["a"], {}]
GPU = "layers/1/pools/gpu"
BAD: list[tuple[str, list[Any]]] = [
    ("version", [0, 2, "1", None, True, MISSING]),
    ("batchSize", [*COUNT, MISSING]),
    ("globalBatchSize", [v for v in COUNT if v is not None]),
    ("microBatches", COUNT),
    ("samples", [*POSITIVE, MISSING]),
    ("minSamplesPerSecond", [*NOT_NEGATIVE, None, 1e300]),
    ("maxCostPerHour", [v for v in POSITIVE if v is not None]),
    ("provenance", [1, "x", []]),
    ("pools", [[], {}, "cpu", None, MISSING]),
    ("layers", [[], {}, "dense", None, MISSING]),
    ("pools/0", [1, "cpu", None, []]),
    ("pools/0/name", [*NAME, MISSING]),
    ("pools/1/name", ["cpu"]),
    ("pools/0/deviceType", ["cpu", "TPU", 1, None, MISSING]),
    ("pools/0/pricePerUnitHour", [*NOT_NEGATIVE, None, 1e12, MISSING]),
    ("pools/0/maxUnits", [-1, 1.5, math.nan, math.inf, "4", True, None, 10**10, MISSING]),
    ("pools/0/unitsPerPod", COUNT),
    ("pools/0/stageSeconds", NOT_NEGATIVE),
    ("pools/0/stageParallelFraction", FRACTION),
    ("pools/0/stageFixedSeconds", [*NOT_NEGATIVE, 0.001]),
    ("layers/1", [1, "dense", None, []]),
    ("layers/1/name", [*NAME, "embedding", MISSING]),
    ("layers/1/kind", [1, None, True]),
    ("layers/1/inputBytes", NOT_NEGATIVE),
    ("layers/1/weightBytes", NOT_NEGATIVE),
    ("layers/1/denseBytes", NOT_NEGATIVE),
    ("layers/1/waitsForCommit", [0, 1, "true", None, []]),
    ("layers/1/pools", [{}, {"cpu": {}}, [], "cpu", None, MISSING]),
    (GPU, [1, "x", None, []]),
    (f"{GPU}/computeSeconds", [*POSITIVE, 1e-20, 1e20, MISSING]),
    (f"{GPU}/parallelFraction", [*FRACTION, None, MISSING]),
    (f"{GPU}/transferSeconds", NOT_NEGATIVE),
    (f"{GPU}/transferParallelFraction", FRACTION),
    (f"{GPU}/computeFixedSeconds", [*NOT_NEGATIVE, 0.06]),
    (f"{GPU}/transferFixedSeconds", [*NOT_NEGATIVE, 0.001]),
    (f"{GPU}/spread", NOT_NEGATIVE),
    (f"{GPU}/derived", [1, None]),
    (f"{GPU}/source", [1, None]),
    ("parameterServer", [1, "cpu", [], {"pool": "cpu"}]),
    ("parameterServer/pool", ["cup", "", 1]),
]
CASES = [(path, value) for path, values in BAD for value in values]


@pytest.mark.parametrize(("path", "value"), CASES, ids=[f"{p}={v!r:.20}" for p, v in CASES])
def test_a_wrong_field_is_named(path: str, value: Any) -> None:
    with pytest.raises(ProblemError) as caught:
        Problem.from_json(changed(path, value))
    assert caught.value.path == dotted(path)
    assert str(caught.value).startswith(caught.value.path + ": ")


@pytest.mark.parametrize(
    ("server", "path"),
    [
        ({"pool": "cpu"}, "problem.parameterServer"),
        ({"units": 1}, "problem.parameterServer.pool"),
        ({"pool": "cpu", "units": 0}, "problem.parameterServer.units"),
        ({"pool": "cpu", "units": 1.5}, "problem.parameterServer.units"),
        ({"pool": "cpu", "coresPerSamplePerSecond": 0}, "problem.parameterServer.coresPerSamplePerSecond"),
        ({"pool": "cpu", "coresPerSamplePerSecond": math.nan}, "problem.parameterServer.coresPerSamplePerSecond"),
        ({"pool": "cpu", "units": 1, "unit": 2}, "problem.parameterServer.unit"),
        ({"pool": "cpu", "leastUnits": 1}, "problem.parameterServer"),
        ({"pool": "cpu", "units": 1, "leastUnits": 1}, "problem.parameterServer.leastUnits"),
        ({"pool": "cpu", "coresPerSamplePerSecond": 1, "leastUnits": 0}, "problem.parameterServer.leastUnits"),
    ],
)
def test_a_wrong_parameter_server_is_named(server: dict[str, Any], path: str) -> None:
    with pytest.raises(ProblemError) as caught:
        Problem.from_json(document(parameterServer=server))
    assert caught.value.path == path


@pytest.mark.parametrize("field", ["units", "leastUnits"])
def test_parameter_server_units_must_fill_pods(field: str) -> None:
    rate = {"coresPerSamplePerSecond": 1.0} if field == "leastUnits" else {}
    value = document(parameterServer={"pool": "cpu", field: 3, **rate})
    value["pools"][0]["unitsPerPod"] = 2
    text = rf"^problem\.parameterServer\.{field}: must be a multiple of the 2 units per pod"
    with pytest.raises(ProblemError, match=text):
        Problem.from_json(value)


def test_the_message_has_the_format_that_is_documented() -> None:
    value = document()
    value["layers"][1]["pools"]["gpu"]["computeSeconds"] = -1
    with pytest.raises(ProblemError) as caught:
        Problem.from_json(value)
    assert str(caught.value) == "problem.layers[1].pools.gpu.computeSeconds: must be > 0, is -1"
    assert isinstance(caught.value, PlannerError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("path", "wrong", "nearest"),
    [
        ("", "minSamplePerSecond", None),
        ("", "batchsize", "globalBatchSize"),
        ("pools/0", "pricePerHour", None),
        ("pools/0", "unitPerPod", "unitsPerPod"),
        ("layers/1", "inputByte", None),
        (GPU, "transferFixedSecond", "transferFixedSeconds"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_name(path: str, wrong: str, nearest: str | None) -> None:
    full = f"{path}/{wrong}" if path else wrong
    with pytest.raises(UnknownNameError) as caught:
        Problem.from_json(changed(full, 1))
    assert caught.value.path == dotted(full)
    if nearest:
        assert caught.value.nearest == nearest
        assert f"did you mean {nearest!r}?" in str(caught.value)


def test_an_unknown_pool_in_a_layer_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        UnknownNameError, match=r"^problem\.layers\[1\]\.pools\.gppu: unknown pool 'gppu'; did you mean 'gpu'"
    ):
        Problem.from_json(changed("layers/1/pools/gppu", {}))


@pytest.mark.parametrize("value", [None, 1, "x", [], True])
def test_a_problem_must_be_an_object(value: Any) -> None:
    with pytest.raises(ProblemError, match=r"^problem: must be an object"):
        Problem.from_json(value)


def test_too_many_layers_are_refused() -> None:
    value = document()
    value["layers"] = [value["layers"][1] | {"name": f"l{i}"} for i in range(10_000)]
    with pytest.raises(ProblemError, match=rf"^problem\.layers: must have at most {MAX_LAYERS} entries, has 10000"):
        Problem.from_json(value)


def test_too_many_pools_are_refused() -> None:
    value = document()
    value["pools"] = [value["pools"][0] | {"name": f"p{i}"} for i in range(MAX_POOLS + 1)]
    with pytest.raises(ProblemError, match=r"^problem\.pools: must have at most"):
        Problem.from_json(value)


def test_many_layers_on_many_pools_are_refused_together() -> None:
    value = document()
    value["pools"] += [value["pools"][0] | {"name": f"p{i}"} for i in range(40)]
    value["layers"] = [value["layers"][1] | {"name": f"l{i}"} for i in range(500)]
    with pytest.raises(ProblemError, match=r"^problem\.layers: 500 layers on 42 pools are too many"):
        Problem.from_json(value)


@pytest.mark.parametrize("seed", range(20))
def test_a_problem_survives_json(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(
        rng,
        4,
        3,
        fixed=seed % 2 == 0,
        pods=True,
        holes=True,
        stage_overhead=True,
        server=["none", "rate", "fixed"][seed % 3],
    )
    assert Problem.from_json(json.loads(json.dumps(problem.to_json()))) == problem


def test_optional_fields_survive_json() -> None:
    value = document(maxCostPerHour=40, globalBatchSize=64, microBatches=4)
    value["layers"][1] |= {"denseBytes": 128, "waitsForCommit": True}
    value["provenance"] = {"host": "a", "runs": [1, 2]}
    value["layers"][1]["pools"]["gpu"] |= {"spread": 0.03, "derived": "from cpu", "source": "profile"}
    problem = Problem.from_json(value)
    assert Problem.from_json(problem.to_json()) == problem
    assert problem.layers[1].pools["gpu"].source == "profile"


def test_an_empty_entry_means_that_the_pool_cannot_run_the_layer() -> None:
    problem = Problem.from_json(document())
    assert set(problem.layers[0].pools) == {"cpu"}
    assert set(problem.layers[1].pools) == {"cpu", "gpu"}
