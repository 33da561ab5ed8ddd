"""Jobs together never hold more units of a pool than it has."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from heterps_operator.controller.capacity.accounting import PodAccounting
from heterps_operator.controller.capacity.ledger import Ledger, job_key
from heterps_operator.controller.stores.pods import PodStore
from heterps_operator.kubernetes.reading.processes import process_text
from heterps_operator.state.values import ProcessSpec
from heterps_runtime.contract import Role
from tests.heterps_operator.helpers.documents import owner

JOBS = ("default/a", "default/b", "other/a")
POOLS = ("cpu", "gpu")
units = st.dictionaries(st.sampled_from(POOLS), st.integers(0, 6))
jobs = st.sampled_from(JOBS)


def make_ledger(**limits: int) -> Ledger:
    ledger = Ledger()
    ledger.set_limits(limits)
    return ledger


def test_a_job_gets_what_is_free_or_learns_who_holds_it() -> None:
    ledger = make_ledger(cpu=8, gpu=2)
    assert ledger.reserve("default/a", {"cpu": 5, "gpu": 1}).granted
    assert ledger.reserve("default/b", {"cpu": 2}).granted
    grant = ledger.reserve("default/c", {"cpu": 3, "gpu": 1})
    assert [str(shortfall) for shortfall in grant.shortfalls] == [
        "pool cpu: 3 units wanted, 1 free; default/a holds 5, default/b holds 2"
    ]
    assert ledger.held_by("default/c") == {}, "all or nothing: the card is not kept either"
    assert (ledger.held("cpu"), ledger.free("cpu"), ledger.free("gpu")) == (7, 1, 1)
    ledger.release("default/b")
    assert ledger.reserve("default/c", {"cpu": 3, "gpu": 1}).granted


def test_a_pool_that_is_not_known_has_nothing_to_give() -> None:
    grant = make_ledger().reserve("default/a", {"cpu": 1})
    assert str(grant.shortfalls[0]) == "pool cpu: 1 units wanted, 0 free; no other job holds any"


def test_a_job_plans_with_what_it_holds_and_what_no_other_job_does() -> None:
    ledger = make_ledger(cpu=8)
    ledger.reserve("default/a", {"cpu": 5})
    assert ledger.free_units("default/a", ["cpu"]) == {"cpu": 8}
    assert ledger.free_units("default/b", ["cpu"]) == {"cpu": 3}
    ledger.set_limits({"cpu": 4})  # a node was lost
    assert ledger.free_units("default/a", ["cpu"]) == {"cpu": 5}, "what runs may go on running"
    assert ledger.free_units("default/b", ["cpu"]) == {"cpu": 0}
    assert ledger.reserve("default/a", {"cpu": 5}).granted
    assert not ledger.reserve("default/a", {"cpu": 6}).granted


def test_a_job_that_shrinks_keeps_its_units_until_the_pods_are_gone() -> None:
    ledger = make_ledger(cpu=8)
    ledger.reserve("default/a", {"cpu": 8})
    ledger.occupy("default/a", {"cpu": 8})
    assert ledger.reserve("default/a", {"cpu": 4}).granted
    assert not ledger.reserve("default/b", {"cpu": 4}).granted
    ledger.occupy("default/a", {"cpu": 4})
    assert ledger.reserve("default/b", {"cpu": 4}).granted
    ledger.release("default/a")
    assert ledger.held_by("default/a") == {"cpu": 4}
    ledger.occupy("default/a", {})
    assert ledger.held_by("default/a") == {}


def test_jobs_of_a_namespace_hold_no_more_than_its_limit_together() -> None:
    ledger = Ledger()
    ledger.set_limits({"cpu": 8}, {"cpu": {"default": 3, "other": None}})
    assert ledger.reserve("default/a", {"cpu": 2}).granted
    assert ledger.free_units("default/b", ["cpu"]) == {"cpu": 1}
    assert not ledger.reserve("default/b", {"cpu": 2}).granted
    assert ledger.namespace_limit("cpu", "default/b") == 3
    assert ledger.reserve("other/a", {"cpu": 6}).granted, "a namespace without a number has the whole pool"
    assert ledger.namespace_limit("cpu", "other/a") is None
    assert not ledger.reserve("third/a", {"cpu": 1}).granted
    ledger.release("default/a")
    assert ledger.reserve("default/b", {"cpu": 2}).granted


def test_pods_of_a_deleted_job_count_against_its_namespace() -> None:
    ledger = Ledger()
    ledger.set_limits({"cpu": 8}, {"cpu": {"default": 3}})
    ledger.occupy("default/a (deleted)", {"cpu": 2})
    assert ledger.free("cpu", "default/b") == 1


def test_a_lowered_limit_takes_nothing_away_and_gives_no_more() -> None:
    ledger = Ledger()
    ledger.set_limits({"cpu": 8})
    assert ledger.reserve("default/a", {"cpu": 5}).granted
    ledger.set_limits({"cpu": 8}, {"cpu": {"default": 2}})
    assert ledger.free_units("default/a", ["cpu"]) == {"cpu": 5}
    assert ledger.reserve("default/a", {"cpu": 5}).granted
    assert not ledger.reserve("default/a", {"cpu": 6}).granted
    assert ledger.free("cpu", "default/b") == 0
    ledger.release("default/a")
    assert ledger.free_units("default/a", ["cpu"]) == {"cpu": 2}, "when it starts again, the new limit holds"


WORKER = ProcessSpec("worker-0-0", Role.WORKER, pool="cpu", units=2)
COORDINATOR = ProcessSpec("coordinator", Role.COORDINATOR)


def make_pod(
    job: str, name: str, process: ProcessSpec | None = WORKER, phase: str = "Running", requests: Any = None, **more: Any
) -> dict[str, Any]:
    """Return a pod of a job, whose uid is its name; it requests the units of its annotation by default."""
    annotations = {} if process is None else {"heterps.io/process": process_text(process)}
    resource = "nvidia.com/gpu" if process is not None and process.pool == "gpu" else "cpu"
    own = {resource: str(process.units if process is not None else 2)} if requests is None else requests
    return {
        "metadata": {"namespace": "default", "name": name, "uid": name, "labels": {"heterps.io/job": job},
                     "annotations": annotations, "ownerReferences": [owner(job)], **more},
        "spec": {"containers": [{"resources": {"requests": own}}]},
        "status": {"phase": phase},
    }  # fmt: skip


def make_job(name: str, uid: str = "") -> dict[str, Any]:
    return {"metadata": {"namespace": "default", "name": name, "uid": uid or name}}


class Books:
    """Accounts with their ledger."""

    def __init__(self, **limits: int) -> None:
        self.ledger, self.pods = make_ledger(**limits), PodStore()
        self.pods.set_resources({"cpu": "cpu", "gpu": "nvidia.com/gpu"})
        self.accounts = PodAccounting(self.pods, self.ledger)

    def see(self, *pods: dict[str, Any]) -> None:
        for pod in pods:
            self.pods.put(pod)
            kept = self.pods.get("default", pod["metadata"]["name"])
            assert kept is not None
            self.accounts.pod_changed(kept)

    def miss(self, pod: dict[str, Any]) -> None:
        kept = self.pods.get("default", pod["metadata"]["name"])
        assert kept is not None
        self.pods.remove(pod)
        self.accounts.pod_changed(kept)


@pytest.mark.parametrize("jobs_first", [True, False])
def test_pods_tell_a_restarted_operator_who_holds_what(jobs_first: bool) -> None:
    damaged = make_pod("b", "damaged")
    damaged["metadata"]["annotations"]["heterps.io/process"] = "{}"
    pods = [
        make_pod("a", "1"),
        make_pod("a", "2", replace(WORKER, name="worker-0-1"), "Pending"),
        make_pod("a", "3", replace(WORKER, name="worker-0-2"), "Succeeded"),
        make_pod("a", "4", replace(WORKER, pool="gpu", units=1), deletionTimestamp="2026-01-01T00:00:00Z"),
        make_pod("a", "5", COORDINATOR, requests={"cpu": "100m"}),
        make_pod("b", "6"),
        make_pod("b", "7", replace(WORKER, units=-5)),
        make_pod("b", "8", phase="Failed"),
        make_pod("c", "9", None),
        make_pod("b", "unowned", ownerReferences=[]),
        damaged,
    ]
    books = Books(cpu=8, gpu=2)
    if not jobs_first:
        books.see(*pods)
    for name in "abc":
        books.accounts.job_seen(make_job(name))
    if jobs_first:
        books.see(*pods)
    ledger = books.ledger
    assert ledger.held_by("default/a") == {"cpu": 4, "gpu": 1}
    assert ledger.held_by("default/b") == {"cpu": 2}
    ledger.restore("default/b", {"cpu": 4})  # its plan; two pods were not created yet
    assert ledger.free("cpu") == 0
    assert not ledger.reserve("default/c", {"cpu": 1}).granted


def test_what_pods_request_counts_and_not_what_they_say() -> None:
    books = Books(cpu=8)
    books.accounts.job_seen(make_job("a"))
    books.see(make_pod("a", "boaster", replace(WORKER, units=1_000_000), requests={"cpu": "1500m"}))
    assert books.ledger.held_by("default/a") == {"cpu": 1}
    books.see(make_pod("a", "modest", replace(WORKER, units=1), requests={"cpu": "3"}))
    assert books.ledger.held_by("default/a") == {"cpu": 4}
    books.see(make_pod("a", "empty", requests={}))
    books.see(make_pod("a", "of another pool", replace(WORKER, pool="gpu"), requests={"cpu": "8"}))
    books.see(make_pod("a", "of no pool there is", replace(WORKER, pool="tpu"), requests={"cpu": "8"}))
    assert books.ledger.held_by("default/a") == {"cpu": 4}


@pytest.mark.parametrize(
    "owners",
    [
        [],
        [owner("a", "an earlier job")],
        [{**owner("a"), "controller": False}],
        [{**owner("a"), "kind": "Job"}],
        [{**owner("a"), "apiVersion": "heterps.example.com/v1"}],
    ],
    ids=["none", "an earlier job", "not its controller", "a Job", "of another group"],
)
def test_a_pod_that_no_known_job_owns_holds_no_units(owners: list[dict[str, Any]]) -> None:
    books = Books(cpu=8)
    books.accounts.job_seen(make_job("a"))
    books.see(make_pod("a", "stranger", replace(WORKER, units=1_000_000), ownerReferences=owners))
    assert (books.ledger.held("cpu"), books.ledger.free("cpu")) == (0, 8)


def test_the_owner_of_another_namespace_is_none() -> None:
    books = Books(cpu=8)
    books.accounts.job_seen({"metadata": {"namespace": "other", "name": "a", "uid": "a"}})
    books.see(make_pod("a", "stranger"))
    assert books.ledger.held("cpu") == 0


def test_pods_of_a_deleted_job_hold_their_units_until_they_have_ended() -> None:
    books, pods = Books(cpu=8), [make_pod("a", "1"), make_pod("a", "2")]
    books.accounts.job_seen(make_job("a"))
    books.ledger.reserve("default/a", {"cpu": 4})
    books.see(*pods)
    books.accounts.job_gone(make_job("a"))
    books.ledger.release("default/a")
    assert books.ledger.holders("cpu") == (("default/a (deleted)", 4),)
    books.accounts.job_seen(make_job("a", "another one"))  # with the same name
    assert books.ledger.reserve("default/a", {"cpu": 4}).granted
    assert books.ledger.free("cpu") == 0, "beside what the earlier one's pods have still"
    books.see({**pods[0], "status": {"phase": "Failed"}})
    books.see({**pods[1], "metadata": {**pods[1]["metadata"], "ownerReferences": []}})  # --cascade=orphan
    assert books.ledger.holders("cpu") == (("default/a", 4), ("default/a (deleted)", 2))
    for pod in pods:
        books.miss(pod)
    assert books.ledger.holders("cpu") == (("default/a", 4),)
    books.see(make_pod("a", "late"))
    assert books.ledger.held("cpu") == 4, "a job that is gone for good has no pods"


def test_a_pool_that_comes_later_or_changes_counts_pods_anew() -> None:
    books = Books(cpu=8)
    books.pods.set_resources({})
    books.accounts.job_seen(make_job("a"))
    books.see(make_pod("a", "1"))
    assert books.ledger.held("cpu") == 0
    for resources, held in (({"cpu": "cpu"}, 2), ({"cpu": "example.com/core"}, 0), ({}, 0)):
        assert books.pods.set_resources(resources)
        books.accounts.count_all()
        assert books.ledger.held("cpu") == held


class Cluster(RuleBasedStateMachine):
    """Jobs come, shrink, grow and end in any order; pods are created only within granted units."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.limits: dict[str, int] = {}
        self.granted: dict[str, dict[str, int]] = {job: {} for job in JOBS}
        self.pods: dict[str, dict[str, int]] = {job: {} for job in JOBS}

    @initialize(cpu=st.integers(0, 10), gpu=st.integers(0, 4))
    def begin(self, cpu: int, gpu: int) -> None:
        self.limits = {"cpu": cpu, "gpu": gpu}
        self.ledger.set_limits(self.limits)

    @rule(job=jobs, wanted=units)
    def plan(self, job: str, wanted: dict[str, int]) -> None:
        fits = all(
            number <= max(self.held(job, pool), self.limits[pool] - sum(self.held(j, pool) for j in JOBS if j != job))
            for pool, number in wanted.items()
        )
        grant = self.ledger.reserve(job, wanted)
        assert grant.granted == fits
        if grant.granted:
            self.granted[job] = wanted

    @rule(job=jobs)
    def make_pods(self, job: str) -> None:
        self.pods[job] = {pool: self.held(job, pool) for pool in POOLS}
        self.ledger.occupy(job, self.pods[job])

    @rule(job=jobs, pool=st.sampled_from(POOLS))
    def lose_a_pod(self, job: str, pool: str) -> None:
        self.pods[job] = self.pods[job] | {pool: max(0, self.pods[job].get(pool, 0) - 1)}
        self.ledger.occupy(job, self.pods[job])

    @rule(job=jobs)
    def end(self, job: str) -> None:
        self.granted[job] = {}
        self.ledger.release(job)

    @rule()
    def restart(self) -> None:
        self.ledger = Ledger()
        self.ledger.set_limits(self.limits)
        for job in JOBS:
            self.ledger.restore(job, self.granted[job])
            self.ledger.occupy(job, self.pods[job])

    def held(self, job: str, pool: str) -> int:
        return max(self.granted[job].get(pool, 0), self.pods[job].get(pool, 0))

    @invariant()
    def no_pool_is_over_its_limit(self) -> None:
        for pool, limit in self.limits.items():
            assert sum(self.pods[job].get(pool, 0) for job in JOBS) <= limit
            assert self.ledger.held(pool) == sum(self.held(job, pool) for job in JOBS) <= limit
            assert self.ledger.free(pool) == limit - self.ledger.held(pool)


Cluster.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None, derandomize=True)
TestCluster = Cluster.TestCase


@given(st.lists(st.tuples(jobs, units), max_size=8), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_whatever_the_order_of_the_jobs_the_limits_hold(wishes: list[tuple[str, dict[str, int]]], random: Any) -> None:
    random.shuffle(wishes)
    ledger = make_ledger(cpu=8, gpu=3)
    for job, wanted in wishes:
        ledger.reserve(job, wanted)
    assert ledger.held("cpu") <= 8
    assert ledger.held("gpu") <= 3


def test_a_job_alone_could_hold_what_both_limits_allow() -> None:
    ledger = make_ledger(cpu=8, gpu=3)
    ledger.set_limits({"cpu": 8, "gpu": 3}, {"gpu": {"a": 1, "b": None}})
    ledger.reserve("a/other", {"cpu": 8, "gpu": 1})
    assert ledger.most_units("a/job", ["cpu", "gpu", "tpu"]) == {"cpu": 8, "gpu": 1, "tpu": 0}
    assert ledger.most_units("b/job", ["gpu"]) == {"gpu": 3}
    assert ledger.most_units("c/job", ["gpu"]) == {"gpu": 0}


def test_two_threads_never_get_the_same_unit() -> None:
    ledger = make_ledger(cpu=40)
    granted: list[str] = []
    barrier = threading.Barrier(8)

    def ask(number: int) -> None:
        barrier.wait()
        for index in range(10):
            job = job_key(f"n{number}", f"j{index}")
            if ledger.reserve(job, {"cpu": 1}).granted:
                granted.append(job)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 40
    assert ledger.free("cpu") == 0
