"""Schedules of jobs on a cluster are valid, cover everything, and depend on nothing but their arguments."""

from __future__ import annotations

from itertools import pairwise

from tests.chaos.cluster.schedule import CONTROLLERS_LEASE_SECONDS, draw
from tests.chaos.faults.kinds import KINDS, ON_CLUSTER
from tests.chaos.faults.schedule import CONSISTENCIES, TOPOLOGIES, Run
from tests.heterps_operator.helpers.real_job import BATCH, ROWS


def drawn(seed: int) -> Run:
    return draw(seed, 6, ON_CLUSTER, CONSISTENCIES)


RUNS = [drawn(seed) for seed in range(100)]


def test_a_seed_gives_one_schedule() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_all_kinds_moments_consistencies_topologies_and_models_are_drawn() -> None:
    faults = [fault for run in RUNS for fault in run.faults]
    assert {fault.kind for fault in faults} == set(ON_CLUSTER)
    assert {fault.op for fault in faults} == {"start", "step", "checkpoint", "restart"}
    assert {run.consistency for run in RUNS} == set(CONSISTENCIES)
    assert {run.topology for run in RUNS} == set(TOPOLOGIES)
    assert {run.model for run in RUNS} == {"counting", "small"}


def test_a_schedule_fits_its_job() -> None:
    for run in RUNS:
        assert run.steps % (ROWS // BATCH) == 0, "whole epochs"
        processes = {*run.topology.processes(), "api", "operator", "job"}
        assert {fault.target for fault in run.faults} <= processes
        steps = [fault.step for fault in run.faults if fault.step >= 0]
        assert steps == sorted(steps)
        assert max(steps, default=0) + 10 < run.steps, "a checkpoint follows the last fault"
        assert run.model == "counting" or run.consistency == "sync", "only sync gives the same model"
        cores = (3 if len(run.topology.stages) > 1 else 5) - run.topology.servers
        assert all(1 <= fault.amount <= cores for fault in run.faults if fault.kind == "resize"), "it has room"


def test_a_fault_waits_only_for_what_is_certain_to_come() -> None:
    for run in RUNS:
        assert not run.faults[0].soon
        assert all(fault.op != "start" for fault in run.faults[1:])
        for before, fault in pairwise(run.faults):
            assert fault.soon == (fault.op == "restart")
            assert not fault.soon or KINDS[before.kind].ends_generation


def test_durations_are_limited_and_a_stopped_operator_loses_its_lease() -> None:
    for seed in range(50):
        for fault in draw(seed, 6, ON_CLUSTER, CONSISTENCIES, longest=2.0).faults:
            if fault.kind == "operator-stop":
                assert fault.seconds > CONTROLLERS_LEASE_SECONDS
            else:
                assert fault.seconds <= 2.0
            assert bool(fault.seconds) == KINDS[fault.kind].lasting
