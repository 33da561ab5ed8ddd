"""Invalid values for every field of a problem file, generated from one complete document.

For any value of a field, the result is an error that names a field, or a plan with finite numbers. `test_problem_input`
checks the error texts.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from heterps_planner import Infeasible, Plan, Problem, ProblemError, plan
from heterps_planner.errors import DeadlineError, PlannerError
from heterps_planner.model.fields import Fields
from heterps_planner.model.limits import MAX_LAYERS, MAX_POOLS
from heterps_planner.scenarios.evaluate import evaluate
from heterps_planner.scenarios.migration import plan_from
from tests.heterps_planner.helpers.problems import document

Key = tuple[str | int, ...]
SERVERS: list[dict[str, Any]] = [
    {"pool": "cpu", "coresPerSamplePerSecond": 0.001, "leastUnits": 2},
    {"pool": "cpu", "units": 2},
]
ABSENT: Any = object()
# The planner looks at the clock up to 91 times, but for a dozen problems whose numbers are beyond floats' precision.
LOOKS = 200.0
# No field accepts these.
NUMBERS_THAT_ARE_NONE = [math.nan, math.inf, -math.inf, 10**400, -1, -1e300]
OTHER_KINDS: dict[type, list[Any]] = {
    float: ["1", True, [], [1], {}, {"a": 1}],
    str: [1, 1.5, True, [], ["a"], {}, math.nan],
    list: [1, "a", True, {}, {"a": 1}, []],
    dict: [1, "a", True, [], [{}]],
    bool: [0, 1, "true", None, [], {}],
}
# Some fields accept these.
EDGES: dict[type, list[Any]] = {
    float: [ABSENT, None, 0, -0.0, 5e-324, 1e-12, 0.5, 1, 7, 1e9, 2**53, 1e18, 1e300, 10**30],
    str: [ABSENT, None, "", "cpu", "gpu", "GPU", "x" * 10_000, "\x00", "ü\n[bold]"],
    bool: [ABSENT, False, True],
    list: [ABSENT, None, [None], [1, 2], [{}, {}]],
    dict: [ABSENT, None, {}, {"a": 1}],
}


def everything(server: int = 0) -> dict[str, Any]:
    """Return a problem file with all fields."""
    value = document(
        globalBatchSize=64,
        microBatches=2,
        maxCostPerHour=100.0,
        parameterServer=dict(SERVERS[server]),
        provenance={"host": "a"},
        interruption={"workerSeconds": 5.0, "serverSeconds": 50.0, "checkpointSamples": 1e5},
    )
    for pool in value["pools"]:
        pool |= {
            "unitsPerPod": 1,
            "stageSeconds": 0.002,
            "stageParallelFraction": 0.5,
            "stageFixedSeconds": 0.001,
            "stageProcessorSeconds": 0.003,
            "stageSerialSeconds": 0.004,
            "memoryBytesPerPod": 1e10,
            "interruptionsPerUnitHour": 0.01,
            "denseExchange": "AllReduce",
        }
    for layer in value["layers"]:
        layer |= {"kind": "Linear", "inputBytes": 8.0, "weightBytes": 4.0, "denseBytes": 4.0, "waitsForCommit": True}
        layer |= {"residentBytes": 1e6, "activationBytes": 1e3}
        layer["pools"] = {
            name: {
                "computeSeconds": 0.1,
                "parallelFraction": 0.5,
                "measured": {"units": [1, 2, 4], "computeSeconds": [0.1, 0.06, 0.05]},
                "transferSeconds": 0.04,
                "transferParallelFraction": 0.25,
                "computeFixedSeconds": 0.01,
                "transferFixedSeconds": 0.01,
                "processorSeconds": 0.12,
                "processorFixedSeconds": 0.01,
                "transferProcessorSeconds": 0.05,
                "transferProcessorFixedSeconds": 0.01,
                "serverSeconds": 0.01,
                "serverFixedSeconds": 0.001,
                "spread": 0.02,
                "derived": "no",
                "source": "a test",
            }
            for name in ("cpu", "gpu")
        }
    return value


def keys(value: Any, key: Key = ()) -> Iterator[Key]:
    """Return all paths of a document except the root."""
    if key[:1] == ("provenance",) and len(key) > 1:
        return
    if key:
        yield key
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield from keys(item, (*key, name))


def at(value: Any, key: Key) -> Any:
    for part in key:
        value = value[part]
    return value


def with_value(key: Key, new: Any, server: int = 0) -> dict[str, Any]:
    result = everything(server)
    target = at(result, key[:-1])
    if new is not ABSENT:
        target[key[-1]] = copy.deepcopy(new)
    else:
        del target[key[-1]]
    return result


def dotted(key: Key) -> str:
    return "problem" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)


def kind_of(value: Any) -> type:
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


# The second of everything is parsed by the same code as the first, whose times cover the second's too.
PLACES = [(key, 0) for key in keys(everything()) if key[:2] not in (("pools", 1), ("layers", 1))]
PLACES += [(key, 1) for key in keys(everything(1)) if key[0] == "parameterServer" and len(key) > 1]
IDS = [dotted(key) + f"({server})" * server for key, server in PLACES]


def read(value: dict[str, Any]) -> tuple[str, Problem | None]:
    try:
        return "", Problem.from_json(value)
    except ProblemError as error:
        return str(error), None


def check_answer(value: dict[str, Any]) -> tuple[Problem, Plan] | None:
    """Check for an error that names a field, or a result with finite numbers; return a plan."""
    refusal, problem = read(value)
    if problem is None:
        assert refusal.startswith("problem")
        assert "\n" not in refusal
        assert len(refusal) < 400
        return None
    assert Problem.from_json(json.loads(json.dumps(problem.to_json(), allow_nan=False))) == problem
    try:
        found = plan(problem, deadline=LOOKS, clock=map(float, itertools.count()).__next__)
    except DeadlineError:
        return None
    json.dumps(found.to_json(), allow_nan=False)
    if isinstance(found, Infeasible):
        assert found.best_throughput < problem.min_samples_per_second or problem.max_cost_per_hour is not None
        return None
    assert found.throughput >= problem.min_samples_per_second * (1 - 2e-9)
    assert 0 <= found.lower_bound <= found.cost * (1 + 1e-8)
    return problem, found


def test_no_field_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser reads exactly the fields of the document above."""
    known: set[str] = set()

    def note(self: Fields, name: str) -> None:
        known.add(f"{self.path}.{name}")

    take, contains = Fields.take, Fields.__contains__

    def noted_take(self: Fields, name: str, *default: Any) -> Any:
        note(self, name)
        return take(self, name, *default)

    def noted_contains(self: Fields, name: str) -> bool:
        note(self, name)
        return contains(self, name)

    monkeypatch.setattr(Fields, "take", noted_take)
    monkeypatch.setattr(Fields, "__contains__", noted_contains)
    present = set()
    for server in range(len(SERVERS)):
        value = everything(server)
        Problem.from_json(value)
        present |= {dotted(key) for key in keys(value)}
    # Entries of lists and of the layers' pool tables have no field name.
    entries = {place for place in present if place.endswith(("]", ".pools.cpu", ".pools.gpu"))}
    assert known == present - entries


def test_the_document_itself_can_be_planned() -> None:
    for server in range(len(SERVERS)):
        assert isinstance(plan(Problem.from_json(everything(server) | {"minSamplesPerSecond": 10})), Plan)


@pytest.mark.parametrize(("key", "server"), PLACES, ids=IDS)
def test_a_value_that_is_none_is_refused_by_name(key: Key, server: int) -> None:
    kind = kind_of(at(everything(server), key))
    for wrong in OTHER_KINDS[kind] + (NUMBERS_THAT_ARE_NONE if kind is float else []):
        if key[0] == "provenance" and wrong == {"a": 1}:
            continue
        with pytest.raises(ProblemError) as caught:
            Problem.from_json(with_value(key, wrong, server))
        path = caught.value.path
        # The message may also name an unknown field or an entry within.
        assert path == dotted(key) or path.startswith((dotted(key) + ".", dotted(key) + "[")), (
            wrong,
            str(caught.value),
        )


@pytest.mark.parametrize(("key", "server"), PLACES, ids=IDS)
def test_edges_are_refused_or_planned(key: Key, server: int) -> None:
    for edge in EDGES[kind_of(at(everything(server), key))]:
        value = with_value(key, edge, server)
        if key != ("minSamplesPerSecond",):
            value["minSamplesPerSecond"] = 10
        check_answer(value)


@pytest.mark.parametrize("seed", range(30))
def test_edges_together_are_refused_or_planned(seed: int) -> None:
    """Several fields at once, each of them valid alone."""
    rng = np.random.default_rng(seed)
    value = everything(seed % 2)
    numbers = [key for key in keys(value) if kind_of(at(value, key)) is float and key != ("version",)]
    for index in rng.choice(len(numbers), size=int(rng.integers(2, 25)), replace=False):
        key = numbers[index]
        for edge in rng.permutation(np.array(EDGES[float], dtype=object)).tolist():
            if edge is None or edge is ABSENT:
                continue
            before = at(value, key)
            at(value, key[:-1])[key[-1]] = edge
            try:
                Problem.from_json(value)
            except PlannerError:
                at(value, key[:-1])[key[-1]] = before
            else:
                break
    answer = check_answer(value)
    if answer is not None:
        problem, found = answer
        stages = [{"pool": s.pool, "lastLayer": s.last_layer, "units": s.units} for s in found.stages]
        assert isinstance(evaluate(problem, stages), Plan)
        plan_from(problem, found, restart_seconds=1, pod_start_seconds=1)


@pytest.mark.parametrize("name", ["pools", "layers"])
def test_two_of_one_name_are_refused(name: str) -> None:
    value = everything()
    value[name][1]["name"] = value[name][0]["name"]
    with pytest.raises(
        ProblemError, match=rf"^problem\.{name}\[1\]\.name: .* is already the name of problem\.{name}\[0\]"
    ):
        Problem.from_json(value)


def test_ten_thousand_layers_or_a_thousand_pools_are_refused_at_once() -> None:
    value = everything()
    layers = [value["layers"][0] | {"name": f"layer{i}"} for i in range(10_000)]
    pools = [value["pools"][0] | {"name": f"pool{i}"} for i in range(1_000)]
    for changes, message in (
        ({"layers": layers}, f"problem.layers: must have at most {MAX_LAYERS} entries, has 10000"),
        ({"pools": pools}, f"problem.pools: must have at most {MAX_POOLS} entries, has 1000"),
        ({"layers": layers[:1000]}, "problem.layers: tables with 3 different numbers of units for 1000 layers"),
    ):
        with pytest.raises(ProblemError) as caught:
            Problem.from_json(value | changes)
        assert str(caught.value).startswith(message)
