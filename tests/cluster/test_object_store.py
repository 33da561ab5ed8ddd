"""A job that has everything in an object store: code, data, checkpoints and model. Its pods share no folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.numpy import load_file

from heterps_operator.client.code import bring_code
from tests.cluster.addresses import IPV4
from tests.cluster.building import ROOT, VERSITYGW, path_of
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import unbuilt
from tests.cluster.faults import COMPARED, kill_pod, only_pod, wait_for_successor
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import Kubectl
from tests.cluster.object_store import ObjectStore
from tests.same_model import assert_same_model

Make = Callable[..., ClusterJob]
Json = dict[str, Any]

pytestmark = pytest.mark.timeout(600)

MODULE = "brought_along"
BUCKET = "team-a"
SECRET = "object-store"  # a name


@pytest.fixture
def store(own_cluster: Cluster, tmp_path: Path) -> Iterator[ObjectStore]:
    """A store that pods reach, as they reach their node."""
    if not path_of(VERSITYGW).exists():
        unbuilt("the object store is")
    folder = tmp_path / "store"
    folder.mkdir()
    with ObjectStore(folder, f"{IPV4.host}:7070") as running:
        yield running


def stored_job(make: Make, store: ObjectStore, name: str, **changes: Any) -> ClusterJob:
    """Create a job without a shared folder, whose addresses are of the store, and whose pods keep their logs."""
    job = make(name, spec={**COMPARED, "model.entrypoint": f"{MODULE}:build_held", "data.train": f"s3://{BUCKET}/data",
                           "checkpoint.path": f"s3://{BUCKET}/runs/{name}",
                           "credentials": [{"secretName": SECRET}], "runPolicy.cleanPodPolicy": "None",
                           **changes})  # fmt: skip
    template = job.job["spec"]["podTemplates"]["all"]["spec"]
    [container] = template["containers"]
    template["volumes"] = [volume for volume in template["volumes"] if volume["name"] != "shared"]
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "shared"]
    container["env"] = [item for item in container["env"] if item["name"] != "PYTHONPATH"]
    [data] = (job.folder / "data").iterdir()
    (store.bucket(BUCKET) / "data").mkdir(exist_ok=True)
    (store.bucket(BUCKET) / "data" / data.name).write_bytes(data.read_bytes())
    return job


def test_code_data_checkpoints_and_model_may_all_be_in_an_object_store(
    store: ObjectStore, make: Make, kubectl: Kubectl, tmp_path: Path, expected_model: Json
) -> None:
    job = stored_job(make, store, "stored")
    bucket = store.bucket(BUCKET)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": store.variables}
    kubectl.apply(secret, job.pool)
    code = tmp_path / "code"
    code.mkdir()
    source = ROOT / "tests" / "heterps_operator" / "helpers" / "small_model.py"
    (code / f"{MODULE}.py").write_bytes(source.read_bytes())
    (code / "vocabulary.bin").write_bytes(os.urandom(2 << 20))  # more than a ConfigMap may hold
    brought = bring_code(code, job.job["spec"]["checkpoint"]["path"])
    assert brought.packed is not None
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump_all([job.pool, job.job]))
    job.job["spec"]["code"] = brought.spec
    job.keep_profile()

    command = [sys.executable, "-m", "heterps_operator", "submit", str(manifest), "--code", str(code)]
    ran = subprocess.run(
        [*command, f"--kubeconfig={kubectl.kubeconfig}"],
        capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | store.variables,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    archive = bucket / "runs" / "stored" / "code" / f"{brought.packed.sha256}.zip"
    assert archive.read_bytes() == brought.packed.data

    # After the first checkpoint, a server dies: the job goes back to what is in the store.
    job.wait_for_step(25)
    victim = only_pod(job, "ps")
    kill_pod(victim)
    wait_for_successor(job, "ps", victim)
    status = job.wait_for_phase("Succeeded")
    assert status["restarts"] == 1
    worker = job.pods("worker")[0]["metadata"]["name"]
    assert f"s3://{BUCKET}/runs/stored/code/" in kubectl("logs", worker, "--container=heterps-code")
    assert_same_model(load_file(bucket / "runs" / "stored" / "model" / "model.safetensors"), expected_model)
    kept = [path.parent.name for path in bucket.glob("runs/stored/step-*/manifest.json")]
    assert len(kept) == job.job["spec"]["checkpoint"]["keep"]
    assert not list(bucket.rglob("*.partial-*"))

    # Another job begins with this one's model, and reads the data while it trains.
    begun = stored_job(make, store, "begun", **{"model.initFrom": {"path": job.job["spec"]["checkpoint"]["path"]},
                                                "data.access": "Streamed", "data.windowRows": 128})  # fmt: skip
    begun.job["spec"]["code"] = brought.spec
    begun.submit()
    begun.wait_for_phase("Succeeded")
    assert (bucket / "runs" / "begun" / "model" / "model.safetensors").exists()
    [server] = begun.pods("ps")
    assert "restoring step-000000000." in kubectl("logs", server["metadata"]["name"])
