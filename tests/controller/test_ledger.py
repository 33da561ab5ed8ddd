"""Jobs together never hold more of a pool than it has."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from heterps_operator.kubernetes.names import process_text
from heterps_operator.kubernetes.pools import Ledger, job_key, occupied_units
from heterps_operator.values import ProcessSpec

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


def test_a_job_plans_with_what_it_holds_and_what_nobody_does() -> None:
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


def make_pod(job: str, process: ProcessSpec | None, phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    annotations = {} if process is None else {"heterps.io/process": process_text(process)}
    labels = {"heterps.io/job": job}
    return {
        "metadata": {"namespace": "default", "labels": labels, "annotations": annotations, **metadata},
        "status": {"phase": phase},
    }


def test_pods_tell_a_restarted_operator_who_holds_what() -> None:
    worker = ProcessSpec("worker-0-0", "worker", pool="cpu", units=2)
    damaged = make_pod("b", worker)
    damaged["metadata"]["annotations"]["heterps.io/process"] = "{}"
    pods = [
        make_pod("a", worker),
        make_pod("a", replace(worker, name="worker-0-1"), "Pending"),
        make_pod("a", replace(worker, name="worker-0-2"), "Succeeded"),
        make_pod(
            "a", replace(worker, name="worker-1-0", pool="gpu", units=1), deletionTimestamp="2026-01-01T00:00:00Z"
        ),
        make_pod("a", ProcessSpec("coordinator", "coordinator")),
        make_pod("b", worker),
        make_pod("b", replace(worker, units=-5)),
        make_pod("b", worker, "Failed"),
        make_pod("c", None),
        damaged,
    ]
    occupied = occupied_units(pods)
    assert occupied == {"default/a": {"cpu": 4, "gpu": 1}, "default/b": {"cpu": 2}}
    ledger = make_ledger(cpu=8, gpu=2)
    for job, held in occupied.items():
        ledger.occupy(job, held)
    ledger.restore("default/b", {"cpu": 4})  # its plan; two pods were not made yet
    assert ledger.free("cpu") == 0
    assert not ledger.reserve("default/c", {"cpu": 1}).granted


class Cluster(RuleBasedStateMachine):
    """Jobs come, shrink, grow and end in any order; pods are made only within what was granted."""

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
