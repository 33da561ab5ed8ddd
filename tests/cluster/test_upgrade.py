"""Operators of different versions follow each other while jobs train: no job notices, and nothing stored is lost.

There is no earlier release yet. `skewed_operator.py` stores what an earlier or later one would store, and with the
repository's history, the operator of an earlier commit really runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.kubernetes.api import KubernetesApi
from heterps_operator.kubernetes.names import config_maps_path, job_state_path
from tests.cluster.building import ROOT
from tests.cluster.faults import LASTING, assert_every_sample_counted, counting_job, held, hold_anew
from tests.cluster.jobs import PATIENCE_SECONDS, ClusterJob
from tests.cluster.kubectl import wait_until
from tests.cluster.operators import Operator
from tests.cluster.skewed_operator import DOCUMENTS, UNKNOWN

Make = Callable[..., ClusterJob]
MakeOperator = Callable[..., Operator]
Json = dict[str, Any]

pytestmark = pytest.mark.timeout(1800)

# The first commit in which all stored documents have versions, states are HeterPSJobStates, and readers ignore unknown
# fields.
EARLIER = "b1f4d31e0e584f0c6f3e289dedcbf933a22b2ef8"
PRESENT = "present"
STEPS = 800  # of jobs that must train for as long as the others take to wait, or to be measured


class Stored:
    """What is stored of a job, and its pods, at a time."""

    def __init__(self, job: ClusterJob, api: KubernetesApi) -> None:
        namespace = job.kubectl.namespace
        maps, _ = api.list(config_maps_path(namespace))
        self.documents = {
            f"{item['metadata']['name']}/{key}": json.loads(text)
            for item in maps
            for key, text in (item.get("data") or {}).items()
            if key in DOCUMENTS and _concerns(item, job)
        }
        state = api.get(job_state_path(namespace, job.name))
        assert state is not None
        self.state = {key: json.loads(text) for key, text in state["data"].items()}
        self.pods = {
            str(pod["metadata"]["uid"]): sum(c["restartCount"] for c in pod["status"].get("containerStatuses") or ())
            for pod in job.pods()
            if pod["status"].get("phase") == "Running"
        }
        self.step = step_of_newest_checkpoint(job)

    @property
    def unit_microseconds(self) -> int:
        """The bill."""
        return sum(int(line["unitMicroseconds"]) for line in self.state["bill.json"]["pools"])

    @property
    def incarnation(self) -> int:
        """How often all its processes were started."""
        return int(self.state["status.json"]["incarnation"])


def _concerns(item: Json, job: ClusterJob) -> bool:
    name = str(item["metadata"]["name"])
    return name.startswith(("heterps-profile-", f"{job.name}-"))


def step_of_newest_checkpoint(job: ClusterJob) -> int:
    """Return the committed steps in the newest complete checkpoint, 0 if there is none; no request can fail here."""
    folder = job.folder / job.name
    return max(
        (int(path.parent.name.split("-")[1].split(".")[0]) for path in folder.glob("step-*/manifest.json")), default=0
    )


def assert_nothing_happened(before: Stored, after: Stored) -> None:
    """Assert that the pods still run, that the job has gone on, and that nothing stored is lost."""
    assert before.pods.items() <= after.pods.items(), "a pod was restarted or replaced"
    assert not any(after.pods.values())
    assert after.incarnation == before.incarnation
    assert after.step > before.step
    assert after.unit_microseconds >= before.unit_microseconds > 0
    for name, document in before.documents.items():
        assert known(after.documents[name]) == known(document), name


def known(document: Json) -> Json:
    """Return a document without the field that only a later operator writes, and that an earlier one drops."""
    return {key: value for key, value in document.items() if key != UNKNOWN}


@pytest.fixture
def version(make_operator: MakeOperator, tmp_path: Path) -> Callable[[str], Operator]:
    """Operators by version: `present`, a shim of `skewed_operator.py`, or `earlier` (skips without history)."""
    count = 0

    def operator(name: str) -> Operator:
        nonlocal count
        count += 1
        program: Sequence[str] = (sys.executable, "-m", "heterps_operator")
        environment: dict[str, str] = {}
        if name == "earlier":
            tree = earlier_tree(tmp_path / "earlier")
            environment = {"PYTHONPATH": os.pathsep.join(str(tree / folder) for folder in ("operator", "runtime"))}
        elif name != PRESENT:
            program = (sys.executable, "-m", "tests.cluster.skewed_operator", name)
        return make_operator(f"{count}-{name}", *LASTING, program=program, environment=environment)

    return operator


def earlier_tree(folder: Path) -> Path:
    """Return a copy of the sources of an earlier commit."""
    if not folder.exists():
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", EARLIER, "operator", "runtime", "crds"],
                                 capture_output=True, check=False)  # fmt: skip
        if archive.returncode:
            pytest.skip(f"no commit {EARLIER[:10]} here: {archive.stderr.decode(errors='replace').strip()}")
        folder.mkdir()
        subprocess.run(["tar", "--extract", "--directory", str(folder)], input=archive.stdout, check=True)
    return folder


def replace(old: Operator, new: Operator) -> None:
    """Replace an operator as a Deployment does: the next one waits for the Lease, which the old one releases."""
    new.start(standby=True)
    old.stop()
    new.wait_until_active()


@pytest.mark.parametrize(
    "versions",
    [(PRESENT, "newer", PRESENT), ("older", PRESENT, "older"), ("earlier", PRESENT, "earlier")],
    ids=lambda versions: "-".join(versions),
)
def test_jobs_do_not_notice_an_upgrade_and_a_rollback(
    versions: Sequence[str], make_alone: Make, version: Callable[[str], Operator], api: KubernetesApi
) -> None:
    """One job trains, writes a checkpoint in each step, and grows; one is measured, and one waits for units."""
    first, second, third = map(version, versions)
    first.start()
    training = counting_job(
        make_alone, "training", "hybrid", spec={"checkpoint.everySteps": 1, "training.steps": STEPS}
    )
    training.job["spec"]["scheduling"] = {}
    training.job["spec"]["objective"] = {"minSamplesPerSecond": 1}
    training.job["spec"]["elasticity"] = {"workers": 1, "cooldownSeconds": 1}
    for layer in training.profile["layers"]:
        layer["parallelFraction"] = 0.6  # the cheapest plan has one worker
    measured = counting_job(make_alone, "measured", "sync")
    measured.add_pool("unmeasured")
    # The nodes have six units, of which coordinators make two useless, and training takes two or three.
    waiting = counting_job(make_alone, "waiting", "sync", units=3)
    jobs = (training, measured, waiting)
    training.submit().wait_for_step(3)
    with held(*jobs):
        waiting.submit()
        waiting.wait_for_condition("Planned", "False", "WaitingForCapacity", PATIENCE_SECONDS)
        measured.submit(profiled=False)
        measured.wait_for_phase("Profiling")
        hold_anew(*jobs)
        before = Stored(training, api)
        profiler = {pod["metadata"]["uid"] for pod in measured.pods()}
        training.patch({"elasticity": {"workers": 2}})
        replace(first, second)
        between = go_on(before, training, api)
        wait_until("the new worker works", lambda: len(running_workers(training)) == 2, PATIENCE_SECONDS,
                   more=training.story)  # fmt: skip
        assert profiler <= {pod["metadata"]["uid"] for pod in measured.pods()}
        assert waiting.condition("Planned")["reason"] == "WaitingForCapacity"
        replace(second, third)
        go_on(between, training, api)
    for job in jobs:
        assert job.wait_for_phase("Succeeded")["restarts"] == 0
        assert_every_sample_counted(job)
    assert Stored(training, api).incarnation == 1
    assert not [reason for reason in ("JobRestarts", "ProcessRestarts") if training.told(reason)]


def go_on(before: Stored, job: ClusterJob, api: KubernetesApi) -> Stored:
    """Wait until a job has gone on, assert that nothing else happened, and return what is stored."""
    wait_for_checkpoint(job, before.step + 5)
    after = Stored(job, api)
    assert_nothing_happened(before, after)
    return after


def wait_for_checkpoint(job: ClusterJob, step: int) -> None:
    """Wait for a checkpoint of this step or a later one."""
    wait_until(f"checkpoint {step}", lambda: step_of_newest_checkpoint(job) >= step, PATIENCE_SECONDS, more=job.story)


def running_workers(job: ClusterJob) -> list[str]:
    return [pod["metadata"]["name"] for pod in job.pods("worker") if pod["status"].get("phase") == "Running"]


def test_a_state_of_the_next_version_is_left_alone_until_its_operator_is_back(
    make_alone: Make, version: Callable[[str], Operator], api: KubernetesApi
) -> None:
    """A rollback beyond a change of the stored form: training goes on, and the upgrade repeated goes on with it."""
    first, second, third = version("next"), version(PRESENT), version("next")
    first.start()
    job = counting_job(make_alone, "later", "hybrid", spec={"checkpoint.everySteps": 2}, units=2)
    with held(job):
        job.submit().wait_for_step(3)
        hold_anew(job)
        before = Stored(job, api)
        assert before.state["controller.json"]["version"] == 2
        replace(first, second)
        said = job.wait_for_condition("Planned", "False", "NewerVersion", PATIENCE_SECONDS)
        assert "has version 2, this operator knows version 1" in said["message"]
        left = Stored(job, api)  # the first operator wrote the state for the last time when it stopped
        wait_for_checkpoint(job, left.step + 6)
        between = Stored(job, api)
        assert between.state == left.state
        assert between.pods == before.pods
        replace(second, third)
        wait_until("the job is taken up", lambda: job.condition("Planned")["status"] == "True", PATIENCE_SECONDS,
                   more=job.story)  # fmt: skip
    assert job.wait_for_phase("Succeeded")["restarts"] == 0
    after = Stored(job, api)
    assert (after.incarnation, after.state["controller.json"]["version"]) == (1, 2)
    assert after.unit_microseconds > between.unit_microseconds
    assert_every_sample_counted(job)


def test_documents_of_a_later_operator_have_fields_that_this_version_does_not_know(
    make_alone: Make, version: Callable[[str], Operator], api: KubernetesApi
) -> None:
    """Guards the tests above: their later operator really writes them, and the job's processes ignore them."""
    operator = version("newer")
    operator.start()
    job = counting_job(make_alone, "marked", "hybrid").submit()
    job.wait_for_step(1)
    stored = Stored(job, api)
    own = {name: document for name, document in stored.documents.items() if name.startswith("marked-")}
    assert {name.rpartition("/")[2] for name in own} == {"plan.json", "run.json"}
    assert all(UNKNOWN in document for document in own.values())
    assert UNKNOWN in stored.state["status.json"]
    assert all(UNKNOWN in pod["metadata"]["annotations"]["heterps.io/process"] for pod in job.pods())
