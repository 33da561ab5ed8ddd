"""Obstacles to starting or changing a job, and what continues in spite of them, with an in-memory API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.kubernetes.api import ApiError
from tests.heterps_operator.helpers.job_world import PODS, STATE, World, events

Json = dict[str, Any]

SECRET = "/api/v1/namespaces/ml/secrets/flights-token"
POD = f"{PODS}/flights-coordinator-1-1"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def without_pool(world: World, name: str = "accelerator") -> None:
    world.pools = [pool for pool in world.pools if pool["metadata"]["name"] != name]
    world.cluster.pools.remove({"metadata": {"name": name}})


def end_coordinator(world: World) -> None:
    world.server.objects[POD]["status"] = {"phase": "Failed"}
    world.cluster.pods.put(world.server.objects[POD])


@pytest.mark.parametrize(
    ("path", "kind"), [(SECRET, "Secret flights-token"), (STATE, "HeterPSJobState flights")], ids=["token", "state"]
)
def test_an_object_of_somebody_else_is_left_as_it_is(world: World, path: str, kind: str) -> None:
    theirs = world.server.put(path, apiVersion="v1", kind=kind.split()[0], data={"mine": "bXk="})
    world.controller().turn()
    assert world.condition("Planned")["reason"] == "NameTaken"
    assert f"{kind} already exists and does not belong to this job" in world.status["message"]
    assert world.server.objects[path] == theirs
    assert world.names(PODS) == set()


def test_what_an_earlier_job_of_the_name_has_left_is_waited_for(world: World) -> None:
    owner = {"kind": "HeterPSJob", "name": "flights", "uid": "uid-0"}
    world.server.put(SECRET, apiVersion="v1", kind="Secret", data={}, metadata={"ownerReferences": [owner]})
    controller = world.controller()
    assert (controller.turn() or 60) < 5
    assert world.condition("Planned")["reason"] == "NameNotFree"
    del world.server.objects[SECRET]
    controller.turn()
    assert world.names(PODS) == {"flights-coordinator-1-1"}
    assert world.condition("Planned")["status"] == "Unknown"


def test_a_damaged_token_is_told(world: World) -> None:
    world.controller().turn()
    world.server.objects[SECRET]["data"] = {"token": "!"}
    world.controller(world.make_cluster()).turn()
    assert world.condition("Planned")["reason"] == "DamagedState"
    assert "delete it" in world.status["message"]


@pytest.mark.parametrize("damage", ["", "[]", '{"phase": 3}', "null"])
def test_a_damaged_state_is_told_and_a_lost_one_is_made_good(world: World, damage: str) -> None:
    world.controller().turn()
    world.server.objects[STATE]["data"]["status.json"] = damage
    world.controller(world.make_cluster()).turn()
    assert world.condition("Planned")["reason"] == "DamagedState"
    assert "delete the HeterPSJobState flights" in world.status["message"]
    del world.server.objects[STATE]
    cluster = world.make_cluster()
    world.controller(cluster).turn()
    # Earlier decisions are unknown: everything restarts, with distinct pod names.
    state = json.loads(world.server.objects[STATE]["data"]["status.json"])
    assert state["incarnation"] == 2


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (
            ApiError(422, "Invalid", "[]: Too long: may not be more than 1048576 bytes"),
            "TooLarge",
            "ConfigMaps of at most 1 MiB",
        ),
        (
            ApiError(413, "TooLarge", "Request entity too large: limit is 3145728"),
            "TooLarge",
            "ConfigMaps of at most 1 MiB",
        ),
        (ApiError(403, "Forbidden", "exceeded quota: few"), "QuotaExceeded", "raise the ResourceQuota"),
        (ApiError(403, "Forbidden", "ns is being terminated"), "NamespaceTerminating", "another namespace"),
    ],
)
def test_an_object_that_the_api_server_refuses_is_told(world: World, error: ApiError, reason: str, words: str) -> None:
    world.server.refusals["apply"] = [error]
    controller = world.controller()
    assert controller.turn() is not None
    assert world.condition("Planned")["reason"] == reason
    assert "Service flights is refused" in world.status["message"]
    assert words in world.status["message"]
    controller.turn()
    assert world.names(PODS) == {"flights-coordinator-1-1"}


@pytest.mark.parametrize(
    ("verb", "error", "reason", "words"),
    [
        ("apply", ApiError(404, "NotFound", "404 page not found"), "NoDeviceApi", "does not serve resource.k8s.io/v1"),
        (
            "get",
            ApiError(403, "Forbidden", 'User "a" cannot get resource "resourceclaimtemplates" in API group "x"'),
            "Forbidden",
            "dynamicResourceAllocation.enabled=true",
        ),
    ],
)
def test_a_job_that_cannot_claim_devices_says_what_is_missing(
    world: World, monkeypatch: pytest.MonkeyPatch, verb: str, error: ApiError, reason: str, words: str
) -> None:
    pool = next(pool for pool in world.pools if pool["spec"]["deviceType"] == "GPU")
    del pool["spec"]["resourceName"]
    pool["spec"]["deviceClassName"] = "gpu.example.com"
    world.cluster = world.make_cluster()
    asked = getattr(world.server, verb)

    def refusing(path: str, *arguments: Any, **options: Any) -> Any:
        if "/resourceclaimtemplates/" in path:
            raise error
        return asked(path, *arguments, **options)

    monkeypatch.setattr(world.server, verb, refusing)
    controller = world.controller()
    controller.turn()
    assert world.condition("Planned")["reason"] == reason
    assert words in world.status["message"]
    assert world.names(PODS) == set()
    monkeypatch.undo()
    world.now += 60
    controller.turn()
    assert world.names(PODS) == {"flights-coordinator-1-1"}


def test_a_job_whose_pool_is_deleted_goes_on_and_says_so(world: World) -> None:
    controller = world.controller()
    controller.turn()
    without_pool(world)
    controller.turn()
    assert world.status["phase"] == "Profiling"
    assert world.condition("Planned")["reason"] == "PoolNotFound"
    since = world.condition("Planned")["lastTransitionTime"]
    end_coordinator(world)
    world.now += 60
    controller.turn()
    assert "flights-coordinator-2-1" in world.names(PODS), "it is still reconciled"
    assert world.condition("Planned")["lastTransitionTime"] == since
    assert [reason for reason, _ in events(world)].count("PoolNotFound") == 1
    # A later operator does not know the pool either, only what the pods were started with.
    later = world.controller(world.make_cluster())
    later.turn()
    assert (world.status["phase"], world.condition("Planned")["reason"]) == ("Profiling", "PoolNotFound")


def test_a_spec_that_cannot_be_carried_out_does_not_stop_what_runs(world: World) -> None:
    controller = world.controller()
    controller.turn()
    good = world.job["spec"]["image"]
    world.edit(lambda job: job["spec"].pop("image"))
    controller.turn()
    assert world.condition("Planned")["reason"] == "InvalidSpec"
    assert "spec.image" in world.status["message"]
    assert world.status["phase"] == "Profiling"
    world.edit(lambda job: job["spec"].__setitem__("image", good))
    controller.turn()
    assert world.condition("Planned")["status"] == "Unknown"
    assert world.status["observedGeneration"] == world.job["metadata"]["generation"]


def test_a_job_that_has_ended_needs_no_pool(world: World) -> None:
    world.edit(lambda job: job["spec"]["runPolicy"].__setitem__("backoffLimit", 0))
    controller = world.controller()
    controller.turn()
    end_coordinator(world)
    controller.turn()
    controller.turn()
    assert world.status["phase"] == "Failed"
    told = world.status["message"]
    without_pool(world)
    for someone in (controller, world.controller(world.make_cluster())):
        someone.turn()
        assert (world.status["phase"], world.status["message"]) == ("Failed", told)
    assert "PoolNotFound" not in [reason for reason, _ in events(world)]


@pytest.mark.parametrize(("finalizer", "left"), [("example.com/hold", set()), ("orphan", {"flights-coordinator-1-1"})])
def test_pods_of_a_deleted_job_that_somebody_holds_on_to_end(world: World, finalizer: str, left: set[str]) -> None:
    controller = world.controller()
    controller.turn()
    metadata = world.job["metadata"]
    world.job["metadata"] = {**metadata, "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [finalizer]}
    world.cluster.jobs.put(world.job)
    assert controller.turn() is None
    assert world.names(PODS) == left
    assert world.cluster.ledger.held("cpu") == 0
