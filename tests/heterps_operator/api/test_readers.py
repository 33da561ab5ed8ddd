"""Every field of a spec has a reader: another value makes a difference to what carries the job out."""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.api.job import Balancing, Elasticity, FailureRule, JobSpec, PoolSpec, RunPolicy
from heterps_operator.api.schema import load_schemas
from heterps_operator.control.members import coordinator, profiler
from heterps_operator.kubernetes.building.objects import pod_groups
from heterps_operator.kubernetes.building.pods import build_pod
from heterps_operator.kubernetes.reading.pools import Capacity, namespace_limits, pool_limit
from heterps_operator.kubernetes.reading.prices import ANNOTATION_UPDATED, price_source, read_quote
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.values import ProcessSpec
from heterps_runtime.config import PoolConfig, RunConfig
from heterps_runtime.contract import Role
from tests.heterps_operator.api.mutations import FULL_JOB, FULL_POOL, LEFT_OUT
from tests.heterps_operator.api.samples import changed

Json = dict[str, Any]

ROOT = Path(__file__).parents[3]
SPECS = (ProcessSpec("ps-0", Role.PS, "v100", 1), ProcessSpec("worker-0-0", Role.WORKER, "v100", 1))
PLAN = JobPlan.from_json({
    "stages": [
        {"name": "s", "pool": "v100", "firstLayer": 0, "lastLayer": 1, "layers": ["a", "b"], "units": 1, "pods": 1}
    ],
    "parameterServer": {"pool": "v100", "replicas": 1, "units": 1},
})  # fmt: skip
PRICES = {  # updated at 400
    "metadata": {"annotations": {ANNOTATION_UPDATED: "1970-01-01T00:06:40Z"}}, "data": {"v100": "2.00"},
}  # fmt: skip
# Read by one line each, which needs a cluster around it.
ELSEWHERE = {"HeterPSJob": {"spec.managedBy": "controller/jobs/controller.py"}, "DevicePool": {}}


def leaves(schema: Json, value: Any, path: str) -> Iterator[tuple[str, Json]]:
    """The fields of a document that have no fields themselves, with their schemas."""
    if schema.get("properties") and isinstance(value, dict):
        for name, field in schema["properties"].items():
            if name in value:
                yield from leaves(field, value[name], f"{path}.{name}")
    elif schema.get("type") == "array" and schema["items"].get("properties"):
        for number, item in enumerate(value):
            yield from leaves(schema["items"], item, f"{path}[{number}]")
    else:
        yield path, schema


def another(schema: Json, value: Any) -> Any:
    """A value that the schema allows, and that differs."""
    if "enum" in schema:
        return next(word for word in schema["enum"] if word != value)
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case list():
            return [*value, value[0] + 1 if isinstance(value[0], int) else "another"]
        case dict():
            return (
                {"another": {"x": "y"}} if "additionalProperties" in schema else {"labels": {"x": "y"}, "nodeName": "x"}
            )
    try:
        return str(float(value) / 2 + 0.1)
    except ValueError:
        if value[0].isdigit():  # a quantity such as 8Gi
            return f"1{value}"
        return f"another{value}" if ":" not in value else f"another.{value}"


def readings(job: Json, pool: Json) -> dict[str, Any]:
    """What the product makes of a job and its pool."""
    document = {"version": 1, "job": job, "pools": [pool], "workDirectory": "/work"}
    owner = {**job, "metadata": {"name": "flights", "namespace": "default", "uid": "1"}}
    spec = JobSpec.from_manifests(job, [pool])
    processes = [(coordinator(), None), (profiler(spec, spec.pools[0].name), pool), *((p, pool) for p in SPECS)]
    return {
        "the control loop": spec,
        "the runtime": RunConfig.from_json(document),
        "pods": [build_pod(owner, of, process, coordinator="http://x:1", pools=[pool]) for process, of in processes],
        "gangs": pod_groups(owner, PLAN, 1, {"v100": pool}),
        "capacity": pool_limit(pool, Capacity(4)),
        "limits": namespace_limits(pool),
        "prices": [price_source(pool["spec"]), read_quote(pool["spec"], PRICES, 4000.5)],
    }


FIELDS = [
    (kind, path)
    for kind, document in (("HeterPSJob", FULL_JOB), ("DevicePool", FULL_POOL))
    for path, _ in leaves(load_schemas()[kind].openapi["properties"]["spec"], document["spec"], "spec")
]


@pytest.mark.parametrize(("kind", "path"), FIELDS, ids=[f"{kind}-{path}" for kind, path in FIELDS])
def test_a_field_makes_a_difference(kind: str, path: str) -> None:
    if path in ELSEWHERE[kind]:
        text = (ROOT / "operator" / "heterps_operator" / ELSEWHERE[kind][path]).read_text()
        assert f'"{path.rpartition(".")[2]}"' in text
        return
    document = FULL_JOB if kind == "HeterPSJob" else FULL_POOL
    schema = dict(leaves(load_schemas()[kind].openapi["properties"]["spec"], document["spec"], "spec"))[path]
    other = copy.deepcopy(document)
    *steps, last = [int(step) if step.isdigit() else step for step in re.sub(r"\[(\d)\]", r".\1", path).split(".")]
    holder: Any = other
    for step in steps:
        holder = holder[step]
    holder[last] = another(schema, holder[last])
    job, pool = (other, FULL_POOL) if kind == "HeterPSJob" else (FULL_JOB, other)
    if path == "spec.pools[0].name":
        pool = changed(pool, "metadata.name", other["spec"]["pools"][0]["name"])
    before, after = readings(FULL_JOB, FULL_POOL), readings(job, pool)
    assert [name for name in before if before[name] != after[name]], f"{path} has no reader"


def test_every_field_of_the_schemas_is_looked_at() -> None:
    """A field that the full documents lack would have no test above."""
    known = {(kind, re.sub(r"\[\d\]", "[]", path)) for kind, path in FIELDS}
    for kind, schema in load_schemas().items():
        stack = [("spec", schema.openapi["properties"]["spec"])]
        while stack:
            path, node = stack.pop()
            if node.get("type") == "array" and node["items"].get("properties"):
                stack.append((f"{path}[]", node["items"]))
            elif node.get("properties"):
                stack += [(f"{path}.{name}", field) for name, field in node["properties"].items()]
            elif path not in LEFT_OUT:
                assert (kind, path) in known, f"{kind} {path}: add it to FULL_JOB or FULL_POOL"


@pytest.mark.parametrize(
    "owner", [JobSpec, PoolSpec, RunPolicy, Balancing, Elasticity, FailureRule, RunConfig, PoolConfig]
)
def test_every_typed_field_is_used(owner: type) -> None:
    """What is read into a typed value must be asked for again, outside of the module that reads it."""
    home = "job.py" if owner.__module__.endswith("job") else "config.py"
    assert [field.name for field in dataclasses.fields(owner) if field.name not in names_used(home)] == []


@functools.cache
def names_used(home: str) -> set[str]:
    """Names that are asked for in both packages, but not by the readers in the module `home`."""
    used: set[str] = set()
    for root in ("operator/heterps_operator", "runtime/heterps_runtime"):
        for file in (ROOT / root).rglob("*.py"):
            if file.name == home and file.parent.name in ("api", "heterps_runtime"):
                tree = ast.parse(file.read_text())
                methods = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name != "from_json"]
                nodes = [node for method in methods for node in ast.walk(method)]
            else:
                nodes = list(ast.walk(ast.parse(file.read_text())))
            used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return used
