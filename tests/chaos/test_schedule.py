"""Schedules are valid, cover everything, and depend on nothing but their arguments."""

from __future__ import annotations

import pytest

from heterps_operator.api.schema import load_schemas
from tests.chaos.faults.kinds import KINDS, ON_MACHINE
from tests.chaos.faults.schedule import CONSISTENCIES, TOPOLOGIES, Run, draw, draw_endless
from tests.heterps_operator.helpers.real_job import BATCH, ROWS


def drawn(seed: int) -> Run:
    return draw(seed, 6, list(ON_MACHINE), CONSISTENCIES)


def test_a_seed_gives_one_schedule() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_all_kinds_consistencies_topologies_and_models_are_drawn() -> None:
    runs = [drawn(seed) for seed in range(100)]
    assert {fault.kind for run in runs for fault in run.faults} == set(ON_MACHINE)
    assert {run.consistency for run in runs} == set(CONSISTENCIES)
    assert {run.topology for run in runs} == set(TOPOLOGIES)
    assert {run.model for run in runs} == {"counting", "small"}


def test_a_schedule_fits_its_job() -> None:
    for run in map(drawn, range(100)):
        assert run.steps % (ROWS // BATCH) == 0, "whole epochs"
        names = {"clock", "disk", "machine", *run.topology.processes(), *run.topology.links()}
        assert {fault.target for fault in run.faults} <= names
        steps = [fault.step for fault in run.faults if fault.step >= 0]
        assert steps == sorted(steps)
        assert max(steps, default=0) + 10 < run.steps, "a checkpoint follows the last fault"
        assert run.model == "counting" or run.consistency == "sync", "only sync gives the same model"


def test_a_fault_waits_only_for_what_is_certain_to_come() -> None:
    for run in map(drawn, range(100)):
        for before, fault in zip((None, *run.faults), run.faults, strict=False):
            if fault.soon:
                assert before is not None
                assert KINDS[before.kind].ends_generation
            at_end = fault.op in ("evaluate", "evaluated", "export")
            assert not at_end or fault is run.faults[-1]
            assert run.model == "counting" or fault.op not in ("evaluate", "evaluated"), "it has no evaluation data"
            if fault.near and fault.target.startswith("worker-1") and run.topology.stages[1][0] == "card":
                assert fault.op in ("done", "commit", "forward", "backward"), "it sends no gradients to servers"


def test_durations_are_limited() -> None:
    runs = [draw(seed, 6, ["stop", "delay"], CONSISTENCIES, longest=2.0) for seed in range(20)]
    assert max(fault.seconds for run in runs for fault in run.faults) == 2.0


def test_the_faults_of_a_soak_happen_at_any_step() -> None:
    run = draw_endless(1, 360, list(ON_MACHINE), "async", 1600, 1.0)
    assert {fault.step for fault in run.faults} == {-1}
    assert len(run.faults) == 360
    outside = {"join", "generation", "ready", "go", "evaluate", "evaluated", "export"}
    assert not {fault.op for fault in run.faults} & outside, "a soak would wait for them"


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
def test_links_connect_processes(topology: object) -> None:
    assert topology in TOPOLOGIES
    for each in TOPOLOGIES:
        assert {name for link in each.links() for name in link.split(">")} <= set(each.processes())


def test_a_job_of_many_faults_stays_within_the_limits_of_the_api() -> None:
    limit = load_schemas()["HeterPSJob"].openapi["properties"]["spec"]["properties"]["runPolicy"]["properties"]
    hour = draw_endless(1, 360, list(ON_MACHINE), "async", 1600, 1.0)
    assert hour.backoff_limit == limit["backoffLimit"]["maximum"]
    assert drawn(7).backoff_limit == 10 + 4 * len(drawn(7).faults)
