"""Names of a job's objects: deterministic, distinct, valid in Kubernetes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_operator.kubernetes import names
from heterps_operator.state.values import ProcessSpec
from heterps_runtime.contract import Role

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_processes = st.from_regex(r"\A(worker-[0-9]{1,4}-[0-9]{1,4}|profile-[a-z0-9]([-a-z0-9.]{0,60}[a-z0-9])?)\Z")
_jobs = st.from_regex(r"\A[a-z]([-a-z0-9]{0,38}[a-z0-9])?\Z")


def test_a_pod_is_named_after_job_process_incarnation_and_attempt() -> None:
    spec = ProcessSpec("worker-0-1", Role.WORKER, incarnation=1, attempt=2)
    assert names.pod_name("flights", spec) == "flights-worker-0-1-1-2"
    assert names.host_name("worker-0-1") == "worker-0-1"


@settings(max_examples=30)
@given(_jobs, _processes, st.integers(1, 9999), st.integers(1, 9999))
def test_names_are_dns_labels_of_at_most_63_characters(job: str, process: str, incarnation: int, attempt: int) -> None:
    spec = ProcessSpec(process, Role.WORKER, incarnation=incarnation, attempt=attempt)
    for name in (names.pod_name(job, spec), names.host_name(process), names.profile_config_name(process, "0" * 16)):
        assert len(name) <= 63
        assert _LABEL.fullmatch(name), name


@settings(max_examples=30)
@given(_jobs, st.lists(_processes, min_size=2, max_size=2, unique=True))
def test_different_processes_have_different_names(job: str, processes: list[str]) -> None:
    one, other = (ProcessSpec(process, Role.PROFILE) for process in processes)
    assert names.pod_name(job, one) != names.pod_name(job, other)
    assert names.host_name(one.name) != names.host_name(other.name)
    assert names.pod_name(job, one) != names.pod_name(job, replace(one, attempt=2))


def test_a_long_process_is_cut_and_told_apart_by_its_digest() -> None:
    name = names.pod_name("j" * 40, ProcessSpec("profile-a-pool-with-a-long-name", Role.PROFILE))
    assert re.fullmatch(r"j{40}-profile-a-p-[0-9a-f]{6}-1-1", name), name


def test_labels_tell_role_place_and_pool() -> None:
    spec = ProcessSpec("worker-1-0", Role.WORKER, "v100", 1, stage=1, index=0)
    labels = names.pod_labels("flights", spec)
    assert labels["app.kubernetes.io/instance"] == "flights"
    assert labels["app.kubernetes.io/component"] == "worker"
    assert {key: labels[f"heterps.io/{key}"] for key in ("job", "role", "process", "pool", "stage", "index")} == {
        "job": "flights", "role": "worker", "process": "worker-1-0", "pool": "v100", "stage": "1", "index": "0",
    }  # fmt: skip
    coordinator = names.pod_labels("flights", ProcessSpec("coordinator", Role.COORDINATOR))
    assert not {"heterps.io/pool", "heterps.io/stage", "heterps.io/index"} & coordinator.keys()


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ({"apiVersion": "v1", "kind": "Service"}, "/api/v1/namespaces/ml/services/x"),
        (
            {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"},
            "/apis/policy/v1/namespaces/ml/poddisruptionbudgets/x",
        ),
    ],
)
def test_paths_follow_from_the_object(item: dict[str, str], path: str) -> None:
    assert names.object_path({**item, "metadata": {"name": "x", "namespace": "ml"}}) == path


def test_an_address_of_ipv6_is_bracketed() -> None:
    job: dict[str, Any] = {"spec": {}}
    assert names.coordinator_address(job, "10.0.0.7") == "http://10.0.0.7:7400"
    assert names.coordinator_address(job, "fd00::7") == "http://[fd00::7]:7400"


def test_a_coordinator_that_encrypts_is_asked_over_tls() -> None:
    for encryption, scheme in (("Disabled", "http"), ("Required", "https")):
        job = {"spec": {"encryption": encryption}}
        assert names.coordinator_address(job, "10.0.0.7") == f"{scheme}://10.0.0.7:7400"


def test_only_what_belongs_to_this_very_job_is_owned() -> None:
    job = {"metadata": {"name": "flights", "uid": "u-2"}}
    assert names.is_owned({"metadata": {"ownerReferences": [names.owner_reference(job)]}}, job)
    assert not names.is_owned({"metadata": {"ownerReferences": [{"uid": "u-1"}]}}, job)
    assert not names.is_owned({"metadata": {}}, job)
    reference = names.owner_reference(job)
    for change in ({"controller": False}, {"kind": "Job"}, {"apiVersion": "batch/v1"}, {"uid": "u-1"}):
        assert not names.is_owned({"metadata": {"ownerReferences": [{**reference, **change}]}}, job), change
    labelled = {"metadata": {"labels": names.job_labels("flights")}}
    assert names.job_owner(labelled) is None, "a label is no evidence"
    assert not names.is_of_name(labelled, "flights")
