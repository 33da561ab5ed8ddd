"""Every change of a spec has one effect, and none is ignored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.api.defaults import complete_job
from heterps_operator.api.schema import load_schemas
from heterps_operator.control.changes import EFFECTS, Effect, FieldChange, effect_of, spec_change
from tests.heterps_operator.api.samples import JOB, changed, parsed

KIND = load_schemas()["HeterPSJob"]
DOCS = Path(__file__).resolve().parents[3] / "docs"


def completed(manifest: dict[str, Any]) -> dict[str, Any]:
    return complete_job(KIND.with_defaults(manifest))


OLD = completed(changed(parsed(JOB), "spec.pools", [{"name": "cpu", "maxUnits": 4}, {"name": "v100"}]))

# Field below spec, new value (`...`: none), reported difference, and effect.
CHANGES: list[tuple[str, Any, str, Effect]] = [
    ("mode", "Plan", "mode", Effect.LIVE),
    ("runPolicy.suspend", True, "runPolicy.suspend", Effect.LIVE),
    ("runPolicy.backoffLimit", 9, "runPolicy.backoffLimit", Effect.LIVE),
    ("runPolicy.failurePolicy.rules", [{"action": "Ignore", "exitCodes": [1]}], "runPolicy.failurePolicy.rules",
     Effect.LIVE),
    ("runPolicy.hangTimeoutSeconds", 60, "runPolicy.hangTimeoutSeconds", Effect.RESTART),
    ("objective.minSamplesPerSecond", 500, "objective.minSamplesPerSecond", Effect.LIVE),
    ("objective.maxCostPerHour", "3", "objective.maxCostPerHour", Effect.REPLAN),
    ("scheduling.method", "greedy", "scheduling.method", Effect.REPLAN),
    ("scheduling.timeoutSeconds", 9, "scheduling.timeoutSeconds", Effect.LIVE),
    ("scheduling.stages", [{"pool": "cpu", "lastLayer": "x"}], "scheduling.stages", Effect.REPLAN),
    ("pools.0.maxUnits", 5, "pools[cpu].maxUnits", Effect.LIVE),
    ("pools.0.maxUnits", 3, "pools[cpu].maxUnits", Effect.REPLAN),
    ("pools.0.maxUnits", ..., "pools[cpu].maxUnits", Effect.LIVE),
    ("pools.1.maxUnits", 5, "pools[v100].maxUnits", Effect.REPLAN),
    ("pools", [{"name": "cpu", "maxUnits": 4}], "pools[v100]", Effect.REPLAN),
    ("pools.1.podTemplate", {"spec": {"hostNetwork": True}}, "pools[v100].podTemplate", Effect.RESTART),
    ("balancing.policy", "equal", "balancing.policy", Effect.LIVE),
    ("elasticity.workers", 5, "elasticity.workers", Effect.LIVE),
    ("parameterServer.replicas", 5, "parameterServer.replicas", Effect.REPLAN),
    ("parameterServer.memoryLimit", "5Gi", "parameterServer.memoryLimit", Effect.RESTART),
    ("encryption", "Required", "encryption", Effect.RESTART),
    ("image", "example.com/new:2", "image", Effect.RESTART),
    ("podTemplates.all", {"spec": {"hostNetwork": True}}, "podTemplates.all.spec.hostNetwork", Effect.RESTART),
    ("checkpoint.everySteps", 5, "checkpoint.everySteps", Effect.RESTART),
    ("checkpoint.path", "elsewhere", "checkpoint.path", Effect.REFUSED),
    ("model.arguments", {"a": 1}, "model.arguments.a", Effect.REFUSED),
    ("data.label", "early", "data.label", Effect.REFUSED),
    ("data.cache.maxBytes", "1Gi", "data.cache.maxBytes", Effect.REFUSED),
    ("training.epochs", 3, "training.epochs", Effect.REFUSED),
    ("training.microBatches", 2, "training.microBatches", Effect.REFUSED),
    ("managedBy", "example.com/other", "managedBy", Effect.REFUSED),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "path", "effect"), CHANGES)
def test_a_change_has_its_effect(field: str, value: Any, path: str, effect: Effect) -> None:
    new = changed(OLD, f"spec.{field}", value)
    change = spec_change(OLD, new)
    assert change.fields == (FieldChange(path, effect),)
    assert change.effect == effect
    assert f"spec.{path}" in change.describe()


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, v, _, effect in CHANGES if effect == Effect.REFUSED])
def test_what_is_refused_here_is_refused_by_the_schema(field: str, value: Any) -> None:
    before = KIND.with_defaults(parsed(JOB))
    after = KIND.with_defaults(changed(parsed(JOB), f"spec.{field}", value))
    assert [fault for fault in KIND.faults(after, before) if "cannot be changed" in fault.message]


def test_no_other_change_of_the_table_is_refused_by_the_schema() -> None:
    suspended = changed(OLD, "spec.runPolicy.suspend", True)
    for field, value, _, effect in CHANGES:
        if effect != Effect.REFUSED:
            assert KIND.faults(KIND.with_defaults(changed(suspended, f"spec.{field}", value)), suspended) == [], field


def test_the_same_spec_is_no_change() -> None:
    change = spec_change(OLD, changed(OLD, "metadata.labels", {"a": "b"}))
    assert (change.fields, change.effect, change.describe()) == ((), Effect.NONE, "")


def test_a_list_that_an_earlier_release_does_not_know_is_no_change_while_it_is_empty() -> None:
    new = OLD
    assert new["spec"]["data"]["tensors"] == []
    old = changed(new, "spec.data.tensors", ...)
    assert spec_change(old, new).fields == spec_change(new, old).fields == ()
    images = changed(new, "spec.data.tensors", [{"name": "image", "shape": [4]}])
    assert spec_change(old, images).paths(Effect.REFUSED) == ("data.tensors",)


def test_of_several_changes_the_strongest_effect_counts() -> None:
    new = changed(changed(OLD, "spec.mode", "Plan"), "spec.image", "example.com/new:2")
    assert spec_change(OLD, new).effect == Effect.RESTART
    new = changed(new, "spec.pools", [{"name": "v100"}, {"name": "a100"}])
    change = spec_change(OLD, new)
    assert change.effect == Effect.REPLAN
    assert change.paths(Effect.REPLAN) == ("pools[a100]", "pools[cpu]")
    assert change.describe() == (
        "spec.mode: taken over; spec.image: applied after a restart from a checkpoint; "
        "spec.pools[a100], spec.pools[cpu]: applied after replanning"
    )


def test_the_order_of_pools_is_no_change() -> None:
    assert spec_change(OLD, changed(OLD, "spec.pools", OLD["spec"]["pools"][::-1])).effect == Effect.NONE


def fields(schema: Any, path: str) -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}.{name}" if path else name
        yield from fields(inner, f"{path}.{name}" if path else name)


def test_every_field_of_the_schema_has_an_effect_and_every_entry_is_a_field() -> None:
    every = set(fields(KIND.openapi["properties"]["spec"], ""))
    assert every >= set(EFFECTS)
    for path in every:
        effect_of(path)
    with pytest.raises(KeyError, match=r"spec\.colour has no entry"):
        effect_of("colour")


def test_the_documented_table_is_this_one() -> None:
    rows = [line for line in (DOCS / "changes.md").read_text().splitlines() if line.startswith("| `spec.")]
    documented = {
        cell[1].strip("` ").removeprefix("spec."): cell[2].strip() for row in rows if (cell := row.split("|"))
    }
    assert documented == {path: effect.name for path, effect in EFFECTS.items()}
