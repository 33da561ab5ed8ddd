"""What a change of a HeterPSJob's spec means for a job that runs.

Pure: two specs in, one `SpecChange` out. Every field of the schema falls under one line of `EFFECTS` (a test compares
the two), so no change is applied in part or ignored. docs/changes.md shows the same table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from heterps_operator.documents import Json

__all__ = ["EFFECTS", "Effect", "FieldChange", "SpecChange", "effect_of", "spec_change"]


class Effect(IntEnum):
    """What has to be done, the strongest last."""

    NONE = 0  # nothing has changed
    LIVE = 1  # the controller reads the new value at its next turn; no process notices
    RESTART = 2  # processes read it when they start: stop in order with a checkpoint, go on from that with new ones
    REPLAN = 3  # the plan may be another one: the planner is asked first, and its plan may need a restart
    REFUSED = 4  # what was trained so far would not be a part of the new job; the API server refuses it already


# By the longest path that fits. What decides the trained model is refused, as `heterps run` does (workspace.py).
EFFECTS: Mapping[str, Effect] = {
    "image": Effect.RESTART,
    "code": Effect.RESTART,  # as the image: the author answers for code that goes on with the same parameters
    "credentials": Effect.RESTART,
    "model": Effect.REFUSED,
    "data": Effect.REFUSED,
    "training": Effect.REFUSED,
    "objective": Effect.REPLAN,
    "objective.minSamplesPerSecond": Effect.LIVE,  # units follow the floor while the job runs (elasticity.py)
    "scheduling": Effect.REPLAN,
    "scheduling.timeoutSeconds": Effect.LIVE,
    "pools": Effect.REPLAN,  # but a higher maxUnits is only room for more
    "balancing": Effect.LIVE,
    "elasticity": Effect.LIVE,
    "parameterServer": Effect.RESTART,
    "parameterServer.replicas": Effect.REPLAN,
    "encryption": Effect.RESTART,
    "podTemplates": Effect.RESTART,
    "checkpoint": Effect.RESTART,
    "checkpoint.path": Effect.REFUSED,
    "runPolicy": Effect.LIVE,
    "runPolicy.hangTimeoutSeconds": Effect.RESTART,  # the coordinator reads it
    "mode": Effect.LIVE,
    "paused": Effect.LIVE,
    "managedBy": Effect.REFUSED,
}
_WORDS = {
    Effect.LIVE: "taken over",
    Effect.RESTART: "applied after a restart from a checkpoint",
    Effect.REPLAN: "applied after replanning",
    Effect.REFUSED: "cannot be changed",
}


@dataclass(frozen=True)
class FieldChange:
    """One field that differs."""

    path: str  # below spec: objective.minSamplesPerSecond, pools[cpu].maxUnits
    effect: Effect


@dataclass(frozen=True)
class SpecChange:
    """What differs between two specs of a job."""

    fields: tuple[FieldChange, ...] = ()  # in the order of their paths

    @property
    def effect(self) -> Effect:
        """What has to be done for all of them together."""
        return max((field.effect for field in self.fields), default=Effect.NONE)

    def paths(self, effect: Effect) -> tuple[str, ...]:
        """The fields with this effect."""
        return tuple(field.path for field in self.fields if field.effect == effect)

    def describe(self) -> str:
        """The change in one line, for an event: `objective.maxCostPerHour: applied after replanning`."""
        parts = [
            f"{', '.join(f'spec.{path}' for path in self.paths(effect))}: {words}"
            for effect, words in _WORDS.items()
            if self.paths(effect)
        ]
        return "; ".join(parts)


def spec_change(old_job: Json, new_job: Json) -> SpecChange:
    """Compare two versions of a HeterPSJob.

    Args:
        old_job: the one that is carried out, completed with defaults.
        new_job: the one that is wanted, completed with defaults.
    """
    paths = sorted(_differences(old_job["spec"], new_job["spec"], ""))
    return SpecChange(tuple(FieldChange(path, effect) for path, effect in paths))


def effect_of(path: str) -> Effect:
    """The effect of a field, by the longest entry of `EFFECTS` that its path (below spec, without keys) starts with.

    Raises:
        KeyError: no entry fits.
    """
    steps = path.split(".")
    for length in range(len(steps), 0, -1):
        prefix = ".".join(steps[:length])
        if prefix in EFFECTS:
            return EFFECTS[prefix]
    raise KeyError(f"spec.{path} has no entry in EFFECTS")


def _differences(old: Any, new: Any, path: str) -> Iterator[tuple[str, Effect]]:
    """The paths at which two values differ; objects are compared field by field, pools by name, other lists whole."""
    if old == new or (old, new) in ((None, []), ([], None)):  # a list that is not there is empty
        return
    if path == "pools":
        yield from _pool_differences(old, new)
    elif isinstance(old or new, Mapping) and isinstance(new or old, Mapping):
        before, after = old or {}, new or {}  # an object that is not there has no fields
        for name in sorted({*before, *after}):
            yield from _differences(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    else:
        yield path, effect_of(path)


def _pool_differences(old: list[Any], new: list[Any]) -> Iterator[tuple[str, Effect]]:
    before, after = ({pool["name"]: pool for pool in pools} for pools in (old, new))
    for name in sorted({*before, *after}):
        if (name in before) != (name in after):
            yield f"pools[{name}]", Effect.REPLAN
            continue
        if before[name].get("podTemplate") != after[name].get("podTemplate"):
            yield f"pools[{name}].podTemplate", Effect.RESTART
        was, limit = before[name].get("maxUnits"), after[name].get("maxUnits")
        if was != limit:
            # No limit of the job's own: the pool's, which is not less.
            more = limit is None or (was is not None and limit > was)
            yield f"pools[{name}].maxUnits", Effect.LIVE if more else Effect.REPLAN
