"""Every rule of the CRDs, from both sides."""

from __future__ import annotations

from typing import Any

import pytest

from heterps_operator.api import cel, schema
from heterps_operator.api.schema import load_schemas
from heterps_operator.errors import MISSING
from tests.heterps_operator.api.samples import CPU, GPU, JOB, changed, parsed

JOB_VALUE, CPU_VALUE = parsed(JOB), parsed(CPU)
GPU_VALUE = changed(parsed(GPU), "spec.torchDevice", "cuda")
XPU_VALUE = changed(changed(GPU_VALUE, "spec.deviceType", "XPU"), "spec.torchDevice", ...)
XPU_VALUE = changed(XPU_VALUE, "spec.resourceName", "gpu.intel.com/i915")

OPTIMIZER = "spec.training.optimizer"
INIT, TABLES = "spec.model.embeddingInit", "spec.model.tables"
UNIFORM = {"distribution": "uniform", "low": "-1", "high": "1"}
RULES, GANG = "spec.runPolicy.failurePolicy.rules", "spec.runPolicy.schedulingPolicy"
BY_MAP, BY_GIT = (
    {"configMap": {"name": "c", "sha256": "0" * 64}},
    {"git": {"repository": "https://h/r", "revision": "0" * 40}},
)
STORED = {"uri": "s3://b/c.zip", "sha256": "0" * 64}
KEEP_OUT = {"key": "pool", "effect": "NoExecute"}

# Object, field, allowed value, refused value, and the message.
CREATE: list[tuple[dict[str, Any], str, Any, Any, str]] = [
    (JOB_VALUE, "metadata.name", "a" * 40, "a" * 41, "metadata.name: a job's name must have at most 40 characters"),
    (JOB_VALUE, "metadata.name", "f-1", "1-f", "metadata.name: a job's name must start with a letter"),
    (JOB_VALUE, "spec.scheduling.stages", [{"pool": "cpu", "lastLayer": "x"}], [{"pool": "tpu", "lastLayer": "x"}],
     "spec.scheduling.stages: every stage's pool must be one of spec.pools"),
    (JOB_VALUE, "spec.checkpoint.path", "ckpt", "data/train",
     'spec.checkpoint.path: checkpoints must not go where the training data is (found "data/train")'),
    (changed(JOB_VALUE, "spec.data.evaluation", "data/test"), "spec.checkpoint.path", "ckpt", "data/test",
     "spec.checkpoint.path: checkpoints must not go where the evaluation data is"),
    (JOB_VALUE, "spec.checkpoint.path", "abfs://container@account.dfs.core.windows.net/c", "s3://KEY:SECRET@bucket/c",
     'spec.checkpoint.path: an address must not contain a user\'s credentials (found "s3://***@bucket/c"); remove'),
    (JOB_VALUE, "spec.data.train", "hdfs://namenode:8020/train", "hdfs://user:pass@namenode:8020/train",
     "spec.data.train: an address must not contain a user's credentials"),
    (JOB_VALUE, "spec.data.evaluation", "gs://anonymous@bucket/test", "s3://KEY:SEC/RET@bucket/test",
     'spec.data.evaluation: an address must not contain a user\'s credentials (found "s3://***@bucket/test")'),
    (JOB_VALUE, "spec.code", BY_MAP, {}, "spec.code: code must have exactly one of configMap, archive and git"),
    (JOB_VALUE, "spec.code", BY_GIT, {**BY_MAP, **BY_GIT}, "spec.code: code must have exactly one of configMap"),
    (JOB_VALUE, "spec.code", {"archive": STORED}, {"archive": {**STORED, "uri": "s3://KEY:SECRET@b/c.zip"}},
     "spec.code.archive.uri: an address must not contain a user's credentials"),
    (JOB_VALUE, INIT, {"mean": "1", "std": "0.1"}, {**UNIFORM, "mean": "1"},
     "mean and std describe the normal distribution only"),
    (JOB_VALUE, INIT, UNIFORM, {"low": "0"}, "low and high describe the uniform distribution only"),
    (JOB_VALUE, INIT, UNIFORM, {"distribution": "uniform", "low": "0"}, "the uniform distribution needs both low and"),
    (JOB_VALUE, INIT, UNIFORM, {**UNIFORM, "low": "1"}, 'low must be less than high (found "1")'),
    (JOB_VALUE, TABLES, [{"name": "*", "eviction": {"unusedSteps": 1}}], [{"name": "*"}],
     "spec.model.tables[0]: the entry says nothing about its tables; give admission or eviction, or remove it"),
    (JOB_VALUE, TABLES, [{"name": "*", "admission": {"minSteps": 2, "unusedSteps": 9}, "eviction": {"unusedSteps": 9}}],
     [{"name": "*", "admission": {"minSteps": 2, "unusedSteps": 10}, "eviction": {"unusedSteps": 9}}],
     "spec.model.tables[0].admission: unusedSteps must not be greater than that of eviction; lower it, or leave it"),
    (JOB_VALUE, f"{INIT}.std", "1e-3", "0", 'spec.model.embeddingInit.std: must be greater than 0, is "0"; give'),
    (changed(JOB_VALUE, "spec.data.dense", []), "spec.data.sparse", ["a"], [], "the model needs at least one feature"),
    (JOB_VALUE, "spec.data.label", "y_", "carrier", 'spec.data.label: the label must not be a feature too (found "car'),
    (JOB_VALUE, "spec.data.label", "y_", "distance", "spec.data.label: the label must not be a feature too"),
    (JOB_VALUE, "spec.data.sparse", ["dense_"], ["dense"], "spec.data.sparse: 'dense' is the name of the tensor of"),
    (JOB_VALUE, "spec.data.tensors", [{"name": "image", "shape": [4]}], [{"name": "carrier", "shape": [4]}],
     "spec.data.tensors: a tensor must not be the label, be listed in sparse too, or be named dense"),
    (changed(JOB_VALUE, "spec.data.tensors", [{"name": "image", "shape": [4]}]), "spec.data.format", "arrow", "csv",
     "spec.data.tensors: tensors are lists, which only parquet and arrow have"),
    (JOB_VALUE, "spec.data.tensors", [{"name": "image", "shape": [4], "scale": "-1e-3"}],
     [{"name": "image", "shape": [4], "scale": "0.0"}], "spec.data.tensors[0].scale: must not be 0"),
    (JOB_VALUE, "spec.data.evaluation", "data/test", "data/train", "evaluation must not be the training data"),
    (JOB_VALUE, "spec.data.cache.maxBytes", "1Ki", "0Gi", "spec.data.cache.maxBytes: must be greater than 0, is"),
    (JOB_VALUE, "spec.data.cache.maxBytes", 4096, "-1Gi", 'must be greater than 0, is "-1Gi"; give a quantity such'),
    (changed(JOB_VALUE, "spec.training.epochs", 2), "spec.training.steps", ..., 3, "epochs and steps must not both"),
    (changed(JOB_VALUE, "spec.training.globalBatchSize", 8), "spec.training.microBatches", 8, 9,
     "microBatches must not be greater than globalBatchSize (found 9)"),
    (changed(JOB_VALUE, "spec.training.consistency", "sync"), "spec.training.maxStaleness", 0, 1,
     "maxStaleness has no meaning with consistency sync (found 1)"),
    (changed(JOB_VALUE, "spec.training.allowedPrecisions", ["fp32"]), "spec.training.precision", "Auto", "fp32",
     "spec.training.allowedPrecisions: allowedPrecisions has a meaning with precision Auto only"),
    (changed(changed(JOB_VALUE, "spec.training.precision", "Auto"), "spec.training.allowedPrecisions", ["fp32"]),
     "spec.training.allowedPrecisions", ["fp32", "bf16"], ...,
     "precision Auto needs the precisions that the planner may choose from"),
    (JOB_VALUE, f"{OPTIMIZER}.dense", {"name": "sgd", "momentum": "0.9"}, {"momentum": "0.9"}, "option of sgd only"),
    (JOB_VALUE, f"{OPTIMIZER}.dense", {"beta1": "0.5"}, {"name": "sgd", "beta1": "0.5"}, "beta1 is an option of adam"),
    (JOB_VALUE, f"{OPTIMIZER}.dense", {"beta2": "0.5"}, {"name": "sgd", "beta2": "0.5"}, "beta2 is an option of adam"),
    (JOB_VALUE, f"{OPTIMIZER}.dense", {"epsilon": "1e-6"}, {"name": "sgd", "epsilon": "1e-6"},
     "epsilon is an option of adam and adagrad only"),
    (JOB_VALUE, f"{OPTIMIZER}.dense", {"name": "adagrad", "initialAccumulator": "1"}, {"initialAccumulator": "1"},
     "initialAccumulator is an option of adagrad only"),
    (JOB_VALUE, f"{OPTIMIZER}.sparse", {"name": "adam", "beta1": "0"}, {"beta1": "0.5"}, "beta1 is an option of adam"),
    (JOB_VALUE, f"{OPTIMIZER}.sparse", {"name": "adam", "beta2": "0"}, {"beta2": "0.5"}, "beta2 is an option of adam"),
    (JOB_VALUE, f"{OPTIMIZER}.sparse", {"epsilon": "1"}, {"name": "ftrl", "epsilon": "1"},
     "epsilon is an option of rowwise-adagrad, adagrad and adam only"),
    (JOB_VALUE, f"{OPTIMIZER}.sparse", {"initialAccumulator": "1"}, {"name": "sgd", "initialAccumulator": "1"},
     "initialAccumulator is an option of rowwise-adagrad, adagrad and ftrl only"),
    (JOB_VALUE, f"{OPTIMIZER}.sparse", {"name": "ftrl", "l1": "1"}, {"l1": "1"}, "l1 is an option of ftrl only"),
    (JOB_VALUE, f"{OPTIMIZER}.sparse", {"name": "ftrl", "l2": "1"}, {"l2": "1"}, "l2 is an option of ftrl only"),
    (JOB_VALUE, f"{OPTIMIZER}.sparse", {"name": "ftrl", "learningRatePower": "-1"}, {"learningRatePower": "-1"},
     "learningRatePower is an option of ftrl only"),
    (JOB_VALUE, f"{OPTIMIZER}.sparse", {"name": "ftrl", "learningRatePower": "0"},
     {"name": "ftrl", "learningRatePower": "0.5"}, 'learningRatePower: must be 0 or less, is "0.5"'),
    (JOB_VALUE, f"{OPTIMIZER}.dense.learningRate", "1e-9", "0.0", 'learningRate: must be greater than 0, is "0.0"'),
    (JOB_VALUE, f"{OPTIMIZER}.sparse.learningRate", "1.5", "-1", 'learningRate: must be greater than 0, is "-1"'),
    (JOB_VALUE, f"{OPTIMIZER}.dense.beta1", "0", "1", 'beta1: must be at least 0 and less than 1, is "1"'),
    (JOB_VALUE, f"{OPTIMIZER}.dense.beta2", "0.9999", "-0.1", "beta2: must be at least 0 and less than 1"),
    (JOB_VALUE, f"{OPTIMIZER}.dense.epsilon", "1e-99", "0", "epsilon: must be greater than 0"),
    (JOB_VALUE, f"{OPTIMIZER}.dense.weightDecay", "0", "-0.1", 'weightDecay: must be 0 or more, is "-0.1"'),
    (JOB_VALUE, "spec.objective.minSamplesPerSecond", "20000.5", "-0.5", 'must be 0 or more, is "-0.5"; give the samp'),
    (JOB_VALUE, "spec.objective.maxCostPerHour", "0.01", "0", 'maxCostPerHour: must be greater than 0, is "0"; raise'),
    (JOB_VALUE, "spec.parameterServer.memoryLimit", "8Gi", "0", "memoryLimit: must be greater than 0"),
    (JOB_VALUE, "spec.parameterServer.spill", {"memory": 1}, {"memory": "0"}, "memory: must be greater than 0"),
    (JOB_VALUE, "spec.parameterServer.spill", {"memory": 1, "maxBytes": "9Gi"}, {"memory": 1, "maxBytes": "0Gi"},
     "maxBytes: must be greater than 0"),
    (JOB_VALUE, "spec.parameterServer", {"memoryLimit": 5_000_000_001, "spill": {"memory": "5G"}},
     {"memoryLimit": "5G", "spill": {"memory": "5G"}}, "spill.memory: spill.memory must be less than memoryLimit"),
    (JOB_VALUE, "spec.parameterServer", {"replicas": 2, "replication": 2}, {"replicas": 1, "replication": 2},
     "replication must not be greater than replicas"),
    (JOB_VALUE, "spec.elasticity", {"workers": 3}, {"workers": 3, "mode": "Disabled"}, "workers has no effect with"),
    (changed(JOB_VALUE, "spec.scheduling.stages", [{"pool": "cpu", "lastLayer": "x"}]),
     "spec.elasticity", {"workers": 0}, {"workers": 3},
     "spec.elasticity.workers: workers has no effect with stages given by hand (found 3); set the stages' units"),
    (JOB_VALUE, RULES, [{"action": "Ignore", "exitCodes": [1]}], [{"action": "Ignore"}], "either exitCodes or reasons"),
    (JOB_VALUE, RULES, [{"action": "FailJob", "reasons": ["Evicted"]}],
     [{"action": "Ignore", "reasons": ["Evicted"], "exitCodes": [1]}], "a rule must have either exitCodes or reasons"),
    (JOB_VALUE, RULES, [{"action": "RestartPod", "role": "Worker", "exitCodes": [1]}],
     [{"action": "RestartPod", "role": "Coordinator", "exitCodes": [1]}],
     'rules[0].action: a coordinator cannot be restarted alone (found "RestartPod")'),
    (JOB_VALUE, GANG, {"gang": "Kueue", "queue": "a"}, {"gang": "Kueue"}, "queue: gang Kueue needs a queue; name a"),
    (JOB_VALUE, GANG, {"gang": "Volcano", "queue": "a"}, {"gang": "Coscheduling", "queue": "a"},
     'queue: queue is used only with gang Kueue or Volcano (found "a")'),
    (CPU_VALUE, "spec.spot", {"interruptionsPerUnitHour": "0"}, {"interruptionsPerUnitHour": "-0.1"},
     'interruptionsPerUnitHour: must be 0 to 1000 interruptions per unit and hour, is "-0.1"; give the mean of the'),
    (CPU_VALUE, "metadata.name", "a" * 63, "a" * 64, "metadata.name: a pool's name must have at most 63 characters"),
    (CPU_VALUE, "spec.resourceName", "cpu", "nvidia.com/gpu", "a CPU pool's resourceName must be cpu"),
    (GPU_VALUE, "spec.resourceName", "amd.com/gpu", "cpu", "a GPU or XPU pool's resourceName must not be cpu"),
    (XPU_VALUE, "spec.resourceName", "x.y/z", ..., "an XPU pool must have a resourceName or a deviceClassName; name"),
    (changed(changed(XPU_VALUE, "spec.resourceName", ...), "spec.deviceClassName", "xpu.example.com"),
     "spec.deviceClassName", "x", ..., "an XPU pool must have a resourceName or a deviceClassName; name"),
    (changed(GPU_VALUE, "spec.resourceName", "amd.com/gpu"), "spec.deviceClassName", ..., "gpu.example.com",
     'spec.deviceClassName: a pool must not have both a resourceName and a deviceClassName (found "gpu.example.com")'),
    (CPU_VALUE, "spec.deviceClassName", ..., "gpu.example.com",
     'a CPU pool must not have a deviceClassName (found "gpu.example.com"); remove it, or set deviceType to GPU or'),
    (CPU_VALUE, "spec.torchDevice", "cpu", "auto", 'a CPU pool\'s torchDevice must be cpu (found "auto")'),
    (GPU_VALUE, "spec.unitsPerPod", 1, 2, "a GPU or XPU pod has one card"),
    (GPU_VALUE, "spec.torchDevice", "auto", "xpu", "a GPU pool's torchDevice must not be xpu"),
    (XPU_VALUE, "spec.torchDevice", "xpu", "cuda", "an XPU pool's torchDevice must not be cuda"),
    (CPU_VALUE, "spec.unitsPerPod", 8, 9, "unitsPerPod must not be greater than maxUnits (found 9)"),
    (changed(CPU_VALUE, "spec.unitsPerPod", 2), "spec.namespaces", [{"name": "a"}, {"name": "b", "maxUnits": 2}],
     [{"name": "a"}, {"name": "b", "maxUnits": 1}], "maxUnits of a namespace must hold one pod"),
    (CPU_VALUE, "spec.pricePerUnitHour", "0.0000001", "0.00", 'pricePerUnitHour: must be greater than 0, is "0.00"'),
    (CPU_VALUE, "spec.tolerations", [{**KEEP_OUT, "value": "a"}], [{"key": "a", "operator": "Exists", "value": "a"}],
     "spec.tolerations[0].value: value is used only with operator Equal"),
    (CPU_VALUE, "spec.tolerations", [{"operator": "Exists"}], [{"effect": "NoExecute"}],
     "spec.tolerations[0]: a toleration without a key needs operator Exists"),
    (CPU_VALUE, "spec.tolerations", [{**KEEP_OUT, "tolerationSeconds": 3}], [{"key": "a", "tolerationSeconds": 3}],
     "tolerationSeconds is used only with effect NoExecute"),
]  # fmt: skip

# Previous object, field, allowed new value, refused new value, and the message.
UPDATE: list[tuple[dict[str, Any], str, Any, Any, str]] = [
    (JOB_VALUE, "spec.model.arguments", {}, {"width": 3}, "spec.model: the model of a job cannot be changed; create"),
    (JOB_VALUE, "spec.data.format", "parquet", "csv", "spec.data: the data of a job cannot be changed"),
    (JOB_VALUE, "spec.training.globalBatchSize", 4096, 4097, "spec.training: the training of a job cannot be changed"),
    (JOB_VALUE, f"{OPTIMIZER}.dense.learningRate", "0.001", "0.01", "the training of a job cannot be changed"),
    (changed(JOB_VALUE, "spec.training.epochs", 2), "spec.training.epochs", 2, ..., "spec.training: the training of"),
    (JOB_VALUE, "spec.managedBy", "heterps.io/operator", "a.b/c", 'managedBy cannot be changed (found "a.b/c")'),
    (JOB_VALUE, GANG, {"gang": "None"}, {"gang": "Volcano"}, "schedulingPolicy must not be changed while the job runs"),
    (changed(JOB_VALUE, "spec.checkpoint.path", "a"), "spec.checkpoint.path", "a", "b", "path cannot be changed"),
    (JOB_VALUE, "spec.checkpoint", {"keep": 9}, {"path": "a"}, "checkpoint.path cannot be changed"),
    (changed(CPU_VALUE, "spec.unitsPerPod", 1), "spec.deviceType", "CPU", "GPU",
     'deviceType cannot be changed (found "GPU"); create another pool'),
]  # fmt: skip


def said(value: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    kind = load_schemas()[value["kind"]]
    before: Any = MISSING if old is None else kind.with_defaults(old)
    return [str(fault.problem()) for fault in kind.faults(kind.with_defaults(value), before)]


@pytest.mark.parametrize(("manifest", "field", "good", "bad", "words"), CREATE)
def test_a_rule_for_new_objects(manifest: dict[str, Any], field: str, good: Any, bad: Any, words: str) -> None:
    assert said(changed(manifest, field, good) if good is not ... else manifest) == []
    assert [line for line in said(changed(manifest, field, bad)) if words in line] != []


@pytest.mark.parametrize(("manifest", "field", "good", "bad", "words"), UPDATE)
def test_a_rule_for_changes(manifest: dict[str, Any], field: str, good: Any, bad: Any, words: str) -> None:
    assert said(changed(manifest, field, good), manifest) == []
    [line] = said(changed(manifest, field, bad), manifest)
    assert words in line
    assert said(changed(manifest, field, bad)) == []


@pytest.mark.parametrize(
    ("part", "good", "bad"),
    [
        ("repository", "http://127.0.0.1:3000/team/models.git", "https://token@git.example.com/team/models"),
        ("repository", "file:///repositories/models", "ext::sh -c id"),
        ("repository", "https://git.example.com/a b", "--upload-pack=id"),
        ("revision", "0" * 64, "main"),
        ("revision", "a" * 40, "a" * 41),
        ("path", "training/models.v2", "../models"),
        ("path", "", "/models"),
        ("path", "a", "a/.git"),
    ],
)
def test_a_repository_is_named_so_that_git_cannot_take_it_for_something_else(part: str, good: str, bad: str) -> None:
    job = changed(JOB_VALUE, "spec.code", BY_GIT)
    assert said(changed(job, f"spec.code.git.{part}", good)) == []
    lines = said(changed(job, f"spec.code.git.{part}", bad))
    assert lines
    assert all(line.startswith(f"spec.code.git.{part}: must ") for line in lines)


def test_what_may_be_changed_may_be_changed() -> None:
    new = changed(JOB_VALUE, "spec.mode", "Plan")
    new = changed(new, "spec.objective.minSamplesPerSecond", 100)
    new = changed(new, "spec.runPolicy.suspend", True)
    new = changed(new, "spec.pools.0.maxUnits", 3)
    assert said(new, JOB_VALUE) == []
    assert said(changed(new, GANG, {"gang": "Volcano"}), new) == []  # it is suspended


def test_every_rule_is_seen_to_pass_and_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[str, bool]] = set()
    evaluate = cel.holds

    def recording(rule: str, value: Any, old: Any = MISSING, known: bytes | None = None) -> bool:
        result = evaluate(rule, value, old, known)
        seen.add((rule, result))
        return result

    monkeypatch.setattr(cel, "holds", recording)
    for manifest, field, good, bad, _ in CREATE:
        said(changed(manifest, field, good) if good is not ... else manifest)
        said(changed(manifest, field, bad))
    for manifest, field, good, bad, _ in UPDATE:
        said(changed(manifest, field, good), manifest)
        said(changed(manifest, field, bad), manifest)

    def rules(node: Any) -> set[str]:
        if isinstance(node, list):
            return {rule for item in node for rule in rules(item)}
        if not isinstance(node, dict):
            return set()
        own = {rule["rule"] for rule in node.get("x-kubernetes-validations", ())}
        return own | {rule for item in node.values() for rule in rules(item)}

    every = {rule for kind in load_schemas().values() for rule in rules(dict(kind.openapi))}
    assert len(every) >= 40
    assert {rule for rule, result in seen if result} == every
    assert {rule for rule, result in seen if not result} == every


def test_rules_of_items_find_the_item_that_was_there_before() -> None:
    item = {"type": "object", "properties": {"name": {"type": "string"}, "size": {"type": "integer"}}}
    rule = {"rule": "self.size >= oldSelf.size", "message": "must not shrink; enlarge it"}
    items = {**item, "x-kubernetes-validations": [rule]}
    keyed = {"type": "array", "items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    kind = schema.Schema("Test", keyed)
    old = [{"name": "a", "size": 3}, {"name": "b", "size": 1}]
    assert kind.faults([{"name": "b", "size": 2}, {"name": "c", "size": 0}], old) == []
    [fault] = kind.faults([{"name": "b", "size": 2}, {"name": "a", "size": 2}], old)
    assert (fault.path, fault.message) == ((1, "size"), "must not shrink")
    atomic = schema.Schema("Test", {**keyed, "x-kubernetes-list-type": "atomic", "x-kubernetes-list-map-keys": []})
    assert atomic.faults([{"name": "a", "size": 2}], old) == []


def test_quantities_are_compared_as_kubernetes_compares_them() -> None:
    assert cel.holds("quantity(self).isGreaterThan(quantity('1Gi'))", "1025Mi")
    assert not cel.holds("quantity(self).isLessThan(quantity('1k'))", "1Ki")
    assert cel.holds("isQuantity(self) && !isQuantity('ten')", "10")
    assert cel.holds("!self.matches('^a$') && self.contains('b')", "\ud800b"), "half of a surrogate pair"
    with pytest.raises(cel.RuleError, match=r"self\.isGreaterThan"):
        cel.holds("self.isGreaterThan(quantity('1'))", "2")


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1, True), (1, 1.0, True), (1, 2, False), (1, "1", False), (1, True, False), (True, True, True),
        ("a", "a", True), ("a", None, False), (None, None, True), ({}, [], False), ({}, None, False),
        ({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}, True), ({"a": 1}, {"a": "1"}, False),
        ({"a": 1}, {"b": 1}, False), ([1, 2], [1], False), ([1], ["1"], False), ([None], [0], False),
    ],
)  # fmt: skip
def test_values_of_any_types_can_be_compared(one: Any, other: Any, equal: bool) -> None:
    assert cel.holds("self == oldSelf", {"x": one}, {"x": other}) is equal
    assert cel.holds("self != oldSelf", one, other) is not equal
    assert cel.holds("self.x == oldSelf.x", {"x": one}, {"x": other}) is equal
    assert cel.holds("type(self) == int", 1)
    assert cel.holds("type(self) != int", "1")
    assert not cel.holds("self.missing == 1 && false", {})


def test_a_result_that_is_remembered_is_that_of_the_very_value() -> None:
    rule = "type(self) == int"
    values = (1, True, "1", [1], {"x": 1})
    for _ in range(2):
        assert [cel.holds(rule, value) for value in values] == [True, False, False, False, False]
    assert not cel.holds("self == oldSelf", 1, 2)
    assert cel.holds("self == oldSelf", 1, 1)
