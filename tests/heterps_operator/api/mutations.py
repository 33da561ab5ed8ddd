"""Wrong values for every field of the schemas, generated from the schemas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from heterps_operator.api.schema import load_schemas
from heterps_operator.api.yaml_source import path_text
from tests.heterps_operator.api.samples import changed

Json = dict[str, Any]

_DECIMAL = "0.5"
FULL_POOL: Json = {
    "apiVersion": "heterps.io/v1alpha1",
    "kind": "DevicePool",
    "metadata": {"name": "v100"},
    "spec": {
        "deviceType": "GPU",
        "resourceName": "nvidia.com/gpu",
        "torchDevice": "cuda",
        "unitsPerPod": 1,
        "memoryPerUnit": "80Gi",
        "maxUnits": 8,
        "namespaces": [{"name": "team-a", "maxUnits": 4}],
        "autoscaled": False,
        "pricePerUnitHour": "2.42",
        "priceFrom": {"configMapKeyRef": {"name": "heterps-prices", "key": "v100"}, "staleAfterSeconds": 3600},
        "spot": {"interruptionsPerUnitHour": "0.002"},
        "nodeSelector": {"gpu": "v100"},
        "tolerations": [
            {"key": "gpu", "operator": "Equal", "value": "v100", "effect": "NoExecute", "tolerationSeconds": 3}
        ],
    },
}
FULL_JOB: Json = {
    "apiVersion": "heterps.io/v1alpha1",
    "kind": "HeterPSJob",
    "metadata": {"name": "flights"},
    "spec": {
        "image": "example.com/flights:1",
        "code": {
            "git": {
                "repository": "https://git.example.com/team/models",
                "revision": "2fd4e1c67a2d28fced849ee1bb76e7391b93eb12",
                "path": "training/models",
                "secretName": "git-credentials",
            }
        },
        "credentials": [{"secretName": "s3-credentials"}],
        "model": {
            "entrypoint": "flights.model:build",
            "arguments": {"width": 16},
            "loss": "torch.nn.functional:binary_cross_entropy_with_logits",
            "initFrom": {"path": "/shared/runs/may", "optimizerState": "Keep"},
            "embeddingInit": {"distribution": "normal", "mean": "0", "std": "0.01"},
            "tables": [
                {
                    "name": "embeddings.user.weight",
                    "admission": {"minSteps": 3, "unusedSteps": 20000},
                    "eviction": {"unusedSteps": 100000},
                }
            ],
        },
        "data": {
            "format": "parquet",
            "train": "s3://bucket/train/",
            "trainAfter": "day=2024-05-31",
            "trainThrough": "day=2024-06-30",
            "evaluation": "s3://bucket/test/",
            "label": "late",
            "dense": ["distance"],
            "sparse": ["carrier"],
            "tensors": [
                {"name": "image", "shape": [1, 28, 28], "dtype": "uint8", "scale": _DECIMAL, "offset": _DECIMAL}
            ],
            "classes": 10,
            "access": "Streamed",
            "windowRows": 1000,
            "cache": {"directory": "/cache", "maxBytes": "1Gi"},
        },
        "training": {
            "globalBatchSize": 4096,
            "microBatches": 4,
            "epochs": 1,
            "consistency": "hybrid",
            "maxStaleness": 4,
            "stalenessWarmupSteps": 10,
            "precision": "Auto",
            "allowedPrecisions": ["bf16"],
            "denseExchange": "AllReduce",
            "optimizer": {
                "dense": {"name": "adam", "learningRate": _DECIMAL, "beta1": _DECIMAL, "beta2": _DECIMAL,
                          "epsilon": _DECIMAL, "weightDecay": _DECIMAL},
                "sparse": {"name": "ftrl", "learningRate": _DECIMAL, "initialAccumulator": _DECIMAL, "l1": _DECIMAL,
                           "l2": _DECIMAL, "learningRatePower": "-0.5"},
            },
            "seed": 17,
        },
        "objective": {"minSamplesPerSecond": 20000, "maxCostPerHour": "40.00"},
        "scheduling": {
            "method": "optimal",
            "timeoutSeconds": 60,
            "stages": [{"pool": "v100", "lastLayer": "mlp", "units": 1}],
        },
        "pools": [{"name": "v100", "maxUnits": 4, "podTemplate": {"metadata": {}, "spec": {}}}],
        "balancing": {"policy": "optimal", "intervalSeconds": 10, "minGainPercent": 5},
        "elasticity": {
            "workers": 0,
            "mode": "Auto",
            "pricePolicy": "Move",
            "cooldownSeconds": 60,
            "maxScaleDownPercent": 25,
        },
        "parameterServer": {"replicas": 2, "memoryLimit": "8Gi", "wirePrecision": "fp16", "replication": 2,
            "spill": {"memory": "4Gi", "directory": "/nvme", "maxBytes": "100Gi"}},
        "encryption": "Disabled",
        "podTemplates": {
            role: {"metadata": {}, "spec": {}}
            for role in ("all", "coordinator", "parameterServer", "worker", "profiler")
        },
        "checkpoint": {"path": "s3://bucket/checkpoints", "everySteps": 1000, "keep": 3, "increments": "Enabled"},
        "runPolicy": {
            "suspend": False,
            "backoffLimit": 3,
            "startDeadlineSeconds": 900,
            "cordonPolicy": "Stay",
            "disruptionBudgets": "Disabled",
            "activeDeadlineSeconds": 86400,
            "ttlSecondsAfterFinished": 3600,
            "cleanPodPolicy": "Running",
            "hangTimeoutSeconds": 120,
            "failurePolicy": {
                "rules": [
                    {"role": "Worker", "exitCodes": [137], "action": "Ignore"},
                    {"role": "Worker", "reasons": ["Evicted"], "action": "FailJob"},
                ]
            },
            "schedulingPolicy": {
                "gang": "Volcano",
                "queue": "team-a",
                "priorityClassName": "high",
                "schedulerName": "volcano",
            },
        },
        "mode": "Train",
        "paused": False,
        "managedBy": "heterps.io/operator",
    },
}  # fmt: skip
FULL = (FULL_POOL, FULL_JOB)
# Together these would break a rule; a field of another object below replaces them.
LEFT_OUT = {
    "spec.deviceClassName",
    "spec.code.configMap",
    "spec.code.archive",
    "spec.code.configMap.name",
    "spec.code.configMap.sha256",
    "spec.code.archive.uri",
    "spec.code.archive.sha256",
    "spec.model.embeddingInit.low",
    "spec.model.embeddingInit.high",
    "spec.training.steps",
    "spec.training.optimizer.dense.momentum",
    "spec.training.optimizer.dense.initialAccumulator",
    "spec.training.optimizer.sparse.beta1",
    "spec.training.optimizer.sparse.beta2",
    "spec.training.optimizer.sparse.epsilon",
}


@dataclass(frozen=True)
class Mutation:
    """One wrong value."""

    manifest: Json  # the whole object with it
    field: str  # its path, as in messages
    what: str  # the fault

    def __str__(self) -> str:
        return f"{self.manifest['kind']} {self.field} {self.what}"


def fields(manifest: Json) -> Iterator[tuple[tuple[str | int, ...], Any, Json]]:
    """Every field of an object's spec: path, value, schema."""
    spec = load_schemas()[manifest["kind"]].openapi["properties"]["spec"]
    yield from _fields(("spec",), manifest["spec"], spec)


def mutations(manifest: Json) -> Iterator[Mutation]:
    """Yield every kind of fault that a schema excludes, at every field of an object."""
    for path, value, schema in fields(manifest):
        for what, wrong in _wrong(value, schema):
            yield Mutation(changed(manifest, _dotted(path), wrong), path_text(path), what)
        for name in schema.get("required", ()):
            yield Mutation(changed(manifest, _dotted((*path, name)), ...), path_text((*path, name)), "is missing")
        if _closed(schema):
            unknown = (*path, "nonsense")
            yield Mutation(changed(manifest, _dotted(unknown), 1), path_text(unknown), "is no field")


def boundaries(manifest: Json) -> Iterator[Mutation]:
    """Yield the smallest and largest values that a schema allows, and every name of an enumeration."""
    for path, value, schema in fields(manifest):
        for what, allowed in _allowed(value, schema):
            yield Mutation(changed(manifest, _dotted(path), allowed), path_text(path), what)


def _fields(path: tuple[str | int, ...], value: Any, schema: Json) -> Iterator[tuple[tuple[str | int, ...], Any, Json]]:
    yield path, value, schema
    for name, inner in schema.get("properties", {}).items():
        if isinstance(value, dict) and name in value:
            yield from _fields((*path, name), value[name], inner)
    if "items" in schema:
        for index, item in enumerate(value):
            yield from _fields((*path, index), item, schema["items"])


def _wrong(value: Any, schema: Json) -> Iterator[tuple[str, Any]]:
    if schema.get("x-kubernetes-int-or-string"):
        yield "is true", True
        yield "is a fraction", 1.5
    else:
        match schema["type"]:
            case "string":
                yield "is a number", 17
                yield "is a list", ["x"]
            case "integer":
                yield "is a text", "x"
                yield "is a fraction", 1.5
                yield "is true", True
            case "boolean":
                yield "is a text", "yes"
            case "object":
                yield "is a text", "x"
                yield "is a list", [{}]
            case "array":
                yield "is a text", "x"
                yield "is a mapping", {"a": 1}
    if "enum" in schema:
        yield "is none of the names", "nonsense"
    if "minimum" in schema:
        yield "is too small", schema["minimum"] - 1
    if "maximum" in schema:
        yield "is too large", schema["maximum"] + 1
    if schema.get("minLength"):
        yield "is empty", ""
    if "maxLength" in schema:
        yield "is too long", str(value)[:1] * (schema["maxLength"] + 1)
    if "pattern" in schema:
        yield "is of no such form", "!?"
    if schema.get("minItems"):
        yield "has no items", []
    if "maxItems" in schema:
        yield "has too many items", [_numbered(value[0], n) for n in range(schema["maxItems"] + 1)]
    if schema.get("x-kubernetes-list-type") in ("set", "map"):
        yield "has an item twice", [value[0], value[0]]


def _allowed(value: Any, schema: Json) -> Iterator[tuple[str, Any]]:
    for name in schema.get("enum", ()):
        yield f"is {name}", name
    if schema.get("type") == "integer":
        yield "is as small as can be", schema["minimum"]
        yield "is as large as can be", schema["maximum"]
    if "maxLength" in schema and "pattern" not in schema:
        yield "is as long as can be", "x" * schema["maxLength"]


def _numbered(item: Any, number: int) -> Any:
    """Return an item that differs from others by its number."""
    if isinstance(item, dict):
        return {**item, "name": f"{item['name']}{number}"} if "name" in item else item
    return f"{item}{number}" if isinstance(item, str) else number


def _closed(schema: Json) -> bool:
    """Whether only the listed fields are allowed."""
    open_ended = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    return schema.get("type") == "object" and not open_ended


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))
