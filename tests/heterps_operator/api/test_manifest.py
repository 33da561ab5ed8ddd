"""Reading a job file: defaults, paths, pools, and the run configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.api.defaults import complete_job
from heterps_operator.api.manifest import Manifest, load_manifest
from heterps_operator.api.schema import load_schemas
from tests.heterps_operator.api.samples import CPU, FILE, GPU, JOB, changed, dumped, parsed

FIXTURES = Path(__file__).parent / "fixtures"
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "flights" / "job.yaml"


def loaded(folder: Path, text: str = FILE) -> Manifest:
    file = folder / "job.yaml"
    file.write_text(text)
    return load_manifest(file)


def with_job(**fields: Any) -> str:
    job = parsed(JOB)
    for path, value in fields.items():
        job = changed(job, path.replace("__", "."), value)
    return dumped(parsed(CPU), parsed(GPU), job)


def test_defaults_are_those_that_kubernetes_fills_in() -> None:
    """The fixture contains the responses of an API server of Kubernetes 1.34 for the same three objects."""
    stored = json.loads((FIXTURES / "defaulted.json").read_text())
    assert [load_schemas()[value["kind"]].with_defaults(value) for value in map(parsed, (CPU, GPU, JOB))] == stored


def test_defaults_that_depend_on_other_fields_are_filled_in_too(tmp_path: Path) -> None:
    spec = loaded(tmp_path).job["spec"]
    assert spec["training"]["epochs"] == 1
    assert "steps" not in spec["training"]
    assert spec["training"]["maxStaleness"] == 4
    assert spec["model"]["embeddingInit"] == {"distribution": "normal", "mean": "0", "std": "1"}
    assert spec["training"]["optimizer"] == {
        "dense": {
            "name": "adam", "learningRate": "0.001", "beta1": "0.9", "beta2": "0.999", "epsilon": "1e-8",
            "weightDecay": "0",
        },
        "sparse": {"name": "rowwise-adagrad", "learningRate": "0.05", "epsilon": "1e-10", "initialAccumulator": "0"},
    }  # fmt: skip


def test_defaults_follow_the_fields_that_are_given(tmp_path: Path) -> None:
    optimizer = {"dense": {"name": "sgd", "momentum": "0.5"}, "sparse": {"name": "ftrl", "l1": "0.1"}}
    training = {"globalBatchSize": 8, "steps": 7, "consistency": "sync", "optimizer": optimizer}
    init = {"distribution": "uniform", "low": "-1", "high": "1"}
    spec = loaded(tmp_path, with_job(spec__training=training, spec__model__embeddingInit=init)).job["spec"]
    assert "epochs" not in spec["training"]
    assert spec["training"]["maxStaleness"] == 0
    assert spec["model"]["embeddingInit"] == init
    assert spec["training"]["optimizer"]["dense"] == {
        "name": "sgd", "learningRate": "0.01", "momentum": "0.5", "weightDecay": "0",
    }  # fmt: skip
    assert spec["training"]["optimizer"]["sparse"] == {
        "name": "ftrl", "learningRate": "0.05", "initialAccumulator": "0", "l1": "0.1", "l2": "0",
        "learningRatePower": "-0.5",
    }  # fmt: skip


def test_pools_know_their_device_and_resource(tmp_path: Path) -> None:
    xpu = changed(changed(parsed(GPU), "spec.deviceType", "XPU"), "spec.resourceName", "intel.com/gpu")
    cpu, gpu = loaded(tmp_path).pools
    assert (cpu["spec"]["torchDevice"], cpu["spec"]["resourceName"]) == ("cpu", "cpu")
    assert (gpu["spec"]["torchDevice"], gpu["spec"]["resourceName"]) == ("cuda", "nvidia.com/gpu")
    assert loaded(tmp_path, dumped(parsed(CPU), xpu, parsed(JOB))).pools[1]["spec"]["torchDevice"] == "xpu"


def test_the_jobs_own_limit_takes_the_place_of_the_pools(tmp_path: Path) -> None:
    manifest = loaded(tmp_path, FILE.replace("[{name: cpu}, {name: v100}]", "[{name: v100, maxUnits: 4}, {name: cpu}]"))
    assert [(pool["metadata"]["name"], pool["spec"]["maxUnits"]) for pool in manifest.pools] == [
        ("v100", 4),
        ("cpu", 8),
    ]


def test_pools_that_the_job_does_not_name_are_left_out(tmp_path: Path) -> None:
    assert [pool["metadata"]["name"] for pool in loaded(tmp_path, FILE.replace(", {name: v100}", "")).pools] == ["cpu"]


def test_relative_paths_are_taken_from_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    text = with_job(
        spec__data__evaluation="../common/test",
        spec__data__cache__directory="cache",
        spec__checkpoint__path="ckpt/",
        spec__parameterServer={"spill": {"memory": "1Gi", "directory": "rows"}},
    )
    (tmp_path / "jobs" / "job.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    manifest = load_manifest("jobs/job.yaml")
    spec = manifest.job["spec"]
    assert manifest.folder == tmp_path / "jobs"
    assert spec["data"]["train"] == str(tmp_path / "jobs/data/train")
    assert spec["data"]["evaluation"] == str(tmp_path / "common/test")
    assert spec["data"]["cache"]["directory"] == str(tmp_path / "jobs/cache")
    assert spec["checkpoint"]["path"] == str(tmp_path / "jobs/ckpt")
    assert spec["parameterServer"]["spill"]["directory"] == str(tmp_path / "jobs/rows")


def test_uris_stay_as_they_are(tmp_path: Path) -> None:
    text = with_job(spec__data__train="s3://bucket/train/", spec__checkpoint__path="gs://b/c")
    spec = loaded(tmp_path, text).job["spec"]
    assert (spec["data"]["train"], spec["checkpoint"]["path"]) == ("s3://bucket/train/", "gs://b/c")


def test_the_run_configuration_holds_all_that_processes_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = loaded(tmp_path)
    monkeypatch.chdir(tmp_path)
    configuration = manifest.run_configuration("work", ["lib", tmp_path])
    assert configuration == {
        "version": 1,
        "job": manifest.job,
        "pools": manifest.pools,
        "workDirectory": str(tmp_path / "work"),
        "pythonPath": [str(tmp_path), str(tmp_path / "lib")],
    }
    assert json.loads(json.dumps(configuration)) == configuration
    configuration["job"]["spec"]["mode"] = "Plan"
    assert manifest.job["spec"]["mode"] == "Train"


def test_a_loaded_manifest_written_out_again_loads_as_the_same(tmp_path: Path) -> None:
    first = loaded(tmp_path, FILE.replace("{name: cpu}, ", "{name: cpu, maxUnits: 3}, "))
    again = loaded(tmp_path, dumped(*first.pools, first.job))
    assert again == first
    assert complete_job(first.job) == first.job


def test_what_kubectl_prints_loads(tmp_path: Path) -> None:
    job = parsed(JOB)
    job["metadata"] |= {"uid": "1-2", "resourceVersion": "7", "generation": 2, "namespace": "ml", "labels": {"a": "b"}}
    job["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{"manager": "kubectl"}]}
    job["status"] = {"phase": "Running", "anything": 1}
    manifest = loaded(tmp_path, dumped(parsed(CPU), parsed(GPU), job))
    assert "status" not in manifest.job
    assert manifest.job["metadata"]["namespace"] == "ml"


def test_arguments_of_the_model_may_be_any_json_value(tmp_path: Path) -> None:
    arguments = {"dims": [400, 400], "dropout": 0.1, "name": "x", "nothing": None, "deep": {"a": None}, "flag": False}
    manifest = loaded(tmp_path, with_job(spec__model__arguments=arguments))
    assert manifest.job["spec"]["model"]["arguments"] == arguments


def test_fields_set_to_null_count_as_not_given(tmp_path: Path) -> None:
    text = FILE.replace("label: late", "label: late, evaluation: , format: null")
    spec = loaded(tmp_path, text).job["spec"]
    assert "evaluation" not in spec["data"]
    assert spec["data"]["format"] == "parquet"


def test_pod_templates_are_taken_as_they_are(tmp_path: Path) -> None:
    template = {"metadata": {"labels": {"team": "ads"}}, "spec": {"containers": [{"name": "x", "resources": {}}]}}
    templates = {"all": template, "worker": template}
    assert loaded(tmp_path, with_job(spec__podTemplates=templates)).job["spec"]["podTemplates"] == templates


def test_a_fixed_plan_that_fits_is_accepted(tmp_path: Path) -> None:
    stages = [{"pool": "cpu", "lastLayer": "concat", "units": 8}, {"pool": "v100", "lastLayer": "out"}]
    assert loaded(tmp_path, with_job(spec__scheduling__stages=stages)).job["spec"]["scheduling"]["stages"] == stages


def test_the_largest_job_is_checked_too(tmp_path: Path) -> None:
    pools = [changed(parsed(CPU), "metadata.name", f"p{i}") for i in range(64)]
    job = changed(parsed(JOB), "spec.pools", [{"name": f"p{i}"} for i in range(64)])
    job = changed(job, "spec.scheduling.stages", [{"pool": f"p{63 - i}", "lastLayer": f"l{i}"} for i in range(64)])
    job = changed(job, "spec.data.sparse", [f"c{i}" for i in range(1024)])
    assert len(loaded(tmp_path, dumped(*pools, job)).pools) == 64


def test_the_example_is_valid() -> None:
    manifest = load_manifest(EXAMPLE)
    assert [pool["metadata"]["name"] for pool in manifest.pools] == ["cpu", "accelerator"]
    assert manifest.job["spec"]["data"]["train"] == str(EXAMPLE.parent / "data" / "train")
