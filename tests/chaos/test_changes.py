"""Changes of the plan between and during faults: drawn, waited for, carried out and judged."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.control.tuning import elasticity
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.values import ComputePlan, StartProcess, SubmitPlan
from tests.chaos import replanning
from tests.chaos.__main__ import options_of, replay_command
from tests.chaos.faults import director as directing
from tests.chaos.faults.changes import STAGES, draw_changing, in_place
from tests.chaos.faults.director import Director, Pace
from tests.chaos.faults.incident import Incident
from tests.chaos.faults.kinds import CHANGES, JOB, KINDS, ON_MACHINE
from tests.chaos.faults.moments import Sighting
from tests.chaos.faults.schedule import (
    CONSISTENCIES,
    IN_COPYING,
    IN_SETUP,
    REPLICATED,
    STEPS_PER_EPOCH,
    Fault,
    Run,
    Topology,
    draw,
)
from tests.chaos.results.judgement import wrong_bill, wrong_plan
from tests.chaos.results.recovery import Recovery
from tests.chaos.results.rollbacks import Rollbacks
from tests.heterps_operator.helpers.world import PLAN, World, make_job

ONE, TWO = Topology((("cpu", 1),), 1), Topology((("cpu", 1),), 2)
COPIED = replace(TWO, copies=2)


def drawn(seed: int, *, replicated: bool = False) -> Run:
    return draw_changing(seed, 4, 3, list(ON_MACHINE), CONSISTENCIES, replicated=replicated)


# --- schedules --------------------------------------------------------------------------------------------------------


def test_a_seed_gives_one_schedule() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_all_plans_and_kinds_are_drawn_in_both_directions() -> None:
    runs = [drawn(seed) for seed in range(100)]
    changes = [
        (run.plans[number], change)
        for run in runs
        for number, change in enumerate(fault for fault in run.faults if fault.plan is not None)
    ]
    assert len(changes) == 300
    assert {change.kind for _, change in changes} == set(CHANGES)
    assert {fault.kind for run in runs for fault in run.faults} == {*ON_MACHINE, *CHANGES}
    assert {plan.stages for run in runs for plan in run.plans} == set(STAGES)
    assert {(before.servers, change.plan.servers) for before, change in changes if change.plan} == {
        (before, after) for before in (1, 2, 3) for after in (1, 2, 3)
    }
    assert {run.consistency for run in runs} == set(CONSISTENCIES)


@pytest.mark.parametrize("replicated", [False, True])
def test_a_change_can_be_seen_and_is_followed_by_a_fault(*, replicated: bool) -> None:
    for run in (drawn(seed, replicated=replicated) for seed in range(100)):
        assert run.steps % STEPS_PER_EPOCH == 0, "whole epochs"
        assert run.faults[-1].plan is None
        assert max(fault.step for fault in run.faults) + 10 < run.steps, "a checkpoint follows"
        for before, plan in zip(run.plans, run.plans[1:], strict=False):
            assert before.members() != plan.members()
        assert {plan.copies for plan in run.plans} == {2 if replicated else 1}
        assert min(plan.servers for plan in run.plans) >= (2 if replicated else 1)


def test_a_fault_during_a_change_waits_only_for_what_is_certain_to_come() -> None:
    moments = set()
    for run in map(drawn, range(200)):
        plan = run.topology
        for item, fault in zip(run.faults, run.faults[1:], strict=False):
            if item.plan is None:
                continue
            before, plan = plan, item.plan
            if not fault.soon:
                continue
            moments.add(fault.op)
            moves = item.kind == "replan" and in_place(before, plan)
            if fault.op in IN_COPYING:
                assert moves
                assert before.servers != plan.servers, "no rows are copied otherwise"
                if ">" in fault.target:
                    asking, asked = fault.target.split(">")
                    assert asking in plan.parameter_servers()
                    assert asked in before.parameter_servers()
            if fault.op == "join" and moves:
                assert plan.members() - before.members(), "no other process joins"
    assert moments == {*IN_SETUP, *IN_COPYING}


def test_jobs_with_copies_are_drawn_and_faults_happen_while_they_copy() -> None:
    runs = [draw(seed, 6, ["kill"], CONSISTENCIES, replicated=True) for seed in range(100)]
    assert {run.topology for run in runs} == set(REPLICATED)
    found = set()
    for run in runs:
        for before, fault in zip(run.faults, run.faults[1:], strict=False):
            if fault.op in IN_COPYING:
                assert before.target.startswith("ps-")
                assert before.step >= 0, "the job has rows"
                assert fault.soon
                found.add(fault.op)
    assert found == set(IN_COPYING)


def test_a_run_is_repeated_with_its_options() -> None:
    options = options_of(["--seed=1", "--faults=3", "--changes=2", "--replication"])
    assert "--faults 3 --replication --changes 2" in replay_command(options, 1)
    for wrong in (["--changes=4", "--faults=3"], ["--changes=1", "--on=cluster"], ["--replication", "--on=cluster"]):
        with pytest.raises(SystemExit):
            options_of(["--seed=1", *wrong])


# --- the director -----------------------------------------------------------------------------------------------------


class Planned:
    """A job that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Topology]] = []

    def replan(self, plan: Topology) -> None:
        self.told.append(("replan", plan))

    def edit(self, plan: Topology) -> None:
        self.told.append(("edit", plan))


def _status(plan: Topology, committed: int) -> dict[str, Any]:
    names = sorted(plan.members())
    members = [{"name": name, "state": "ready"} for name in names]
    job = {"committedSteps": committed, "running": True, "phase": "Training", "events": []}
    return {**job, "members": members, "expectedMembers": names}


def _sight(op: str, step: int) -> Sighting:
    return Sighting("worker-0-0", "ps-0", True, op, step)


def _director(monkeypatch: pytest.MonkeyPatch, *faults: Fault) -> tuple[Director, Planned, list[tuple[int, int]]]:
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr(directing, "processes", lambda: {"ps-0": 7, "heterps": 9})
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append((pid, number)))
    director, job = Director(Run(1, "sync", "counting", ONE, 64, faults), clock=lambda: 0.0), Planned()
    nothing: Any = object()
    director.use(nothing, nothing, nothing, job)
    return director, job, signals


def test_what_follows_a_change_waits_until_it_is_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    change, kill = Fault("replan", JOB, "push", 5, plan=TWO), Fault("kill", "ps-0", "push", 6)
    director, job, signals = _director(monkeypatch, change, kill)
    director.observed(_status(ONE, 4))
    assert director.pace() == Pace.FULL
    director.sighted(_sight("push", 5))
    assert job.told == [("replan", TWO)]
    for committed in (6, 8):  # with the plan of before
        director.observed(_status(ONE, committed))
        assert director.pace() == Pace.HELD, "else training could end before"
        assert director.incidents[0].recovery.ended is None
    director.sighted(_sight("push", 8))
    assert signals == []
    for committed in (9, 11):
        director.observed(_status(TWO, committed))
        assert director.pace() == Pace.FULL
    assert director.incidents[0].recovery.ended is not None
    director.sighted(_sight("push", 11))
    assert signals == [(7, signal.SIGKILL)]


def test_a_fault_may_happen_before_a_change_is_in_force_and_the_next_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    change, kill = Fault("replan", JOB, "push", 5, plan=TWO), Fault("kill", "ps-0", "copy-rows", -1, soon=True)
    director, _, signals = _director(monkeypatch, change, kill, Fault("kill", "ps-0", "push", 6))
    director.sighted(_sight("push", 5))
    director.sighted(_sight("copy-rows", 5))
    assert signals == [(7, signal.SIGKILL)]
    for committed in (5, 7):  # it has recovered, with the plan of before
        director.observed(_status(ONE, committed))
    director.sighted(_sight("push", 8))
    assert len(signals) == 1
    director.observed(_status(TWO, 9))
    director.sighted(_sight("push", 9))
    assert len(signals) == 2


def test_a_change_of_the_manifest_starts_the_controller_again(monkeypatch: pytest.MonkeyPatch) -> None:
    director, job, signals = _director(monkeypatch, Fault("edit", JOB, "push", 5, plan=TWO))
    director.sighted(_sight("push", 5))
    assert job.told == [("edit", TWO)]
    assert signals == [(9, signal.SIGTERM)]
    assert director.must_start_again()


# --- the control loop that changes to a wished plan -------------------------------------------------------------------


def _stages(*units: int) -> list[dict[str, Any]]:
    layers = ["head"] if len(units) == 1 else ["embedding", "head"]
    return [{"pool": "cpu", "lastLayer": layer, "units": n} for layer, n in zip(layers, units, strict=True)]


ON_CPU = {
    **PLAN,
    "stages": [{**PLAN["stages"][0], "lastLayer": 2, "layers": ["embedding", "mlp", "head"]}],
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A job that trains with two workers and a server, whose plan changes by wishes."""
    monkeypatch.setenv("HETERPS_TEST_FOLDER", str(tmp_path))
    monkeypatch.setattr(elasticity, "review", replanning.review)
    made = World(make_job(stages_by_hand=tuple(_stages(2)))).profiled()
    made.answer(ON_CPU)
    made.settle()
    made.join("ps-0", "worker-0-0", "worker-0-1")
    made.set_phase("Training", committedSteps=50)
    assert made.settle() == [], "without a wish nothing changes"
    return made


def test_the_control_loop_changes_to_a_wished_plan_while_the_job_trains(world: World, tmp_path: Path) -> None:
    replanning.write_wish(tmp_path, _stages(2), 2)
    [question] = world.turn().actions
    assert isinstance(question, ComputePlan)
    assert question.problem["parameterServer"]["units"] == 2
    assert list(question.stages) == _stages(2)
    world.answer({**ON_CPU, "parameterServer": {"pool": "cpu", "replicas": 2, "units": 2}})
    actions = world.settle()
    assert [action.spec.name for action in actions if isinstance(action, StartProcess)] == ["ps-1"]
    assert [action.plan.servers.replicas for action in actions if isinstance(action, SubmitPlan)] == [2]
    assert world.status.incarnation == 1, "without a restart"
    assert not any(isinstance(action, ComputePlan) for action in actions), "the job has what was wished"
    replanning.write_wish(tmp_path, (), 0)
    assert world.settle() == []


def test_a_question_that_a_killed_controller_has_asked_is_asked_again(world: World, tmp_path: Path) -> None:
    replanning.write_wish(tmp_path, _stages(2), 2)
    world.turn()
    world.planning, world.outcome = False, None
    assert world.turn().actions == ()
    assert isinstance(world.turn().actions[0], ComputePlan)


# --- judgement --------------------------------------------------------------------------------------------------------


def test_a_job_that_ends_with_another_plan_is_noticed() -> None:
    run = Run(1, "sync", "counting", ONE, 64, (Fault("replan", JOB, "push", 5, plan=TWO),))

    def ended(servers: int) -> dict[str, Any]:
        plan = {"stages": [{"pool": "cpu", "pods": 1}], "parameterServer": {"replicas": servers}}
        document: dict[str, Any] = json.loads(json.dumps({"status": {"plan": plan}}))
        return document

    assert wrong_plan(ended(2), run) == []
    assert wrong_plan(ended(1), run) == [
        "it ended with workers 1 on cpu, 1 servers instead of workers 1 on cpu, 2 servers"
    ]


def test_a_bill_may_have_the_processes_of_two_plans() -> None:
    other = Topology((("cpu", 1), ("spare", 1)), 1)
    run = Run(1, "sync", "counting", TWO, 64, (Fault("replan", JOB, "push", 5, plan=other),))
    assert run.most_units == 4
    for charged, right in ((239.0, True), (241.0, False)):
        state = {"bill": {"pools": [{"unitMicroseconds": charged * 1e6}]}}
        assert (wrong_bill(state, run, 60.0) == []) == right


def _incident(kind: str, target: str, *, ended: float | None = None, plan: Topology | None = None) -> Incident:
    fault = Fault(kind, target, "push", 20, plan=plan)
    return Incident(fault, _sight("push", 20), Recovery(10.0, 1, ended))


ROLLED_BACK = {"events": [{"time": 1.0, "reason": "RolledBack", "message": "from step 17 to 10 (checkpoint)"}]}
CARDS = Topology((("cpu", 1), ("card", 1)), 2, copies=2)


@pytest.mark.parametrize(
    ("topology", "incidents", "right"),
    [
        (COPIED, [_incident("kill", "ps-0")], False),
        (COPIED, [_incident("kill", "ps-1", ended=11.0)], False),
        (COPIED, [_incident("stop", "ps-1")], False),
        (COPIED, [_incident("reset", "worker-0-0>ps-1")], False),
        (COPIED, [_incident("kill", "ps-0", ended=11.0), _incident("kill", "worker-0-0")], False),
        (COPIED, [_incident("kill", "ps-0"), _incident("kill", "ps-1")], True),  # both copies are lost
        (COPIED, [_incident("reset", "ps-0>ps-1")], True),
        (COPIED, [_incident("kill", "coordinator")], True),
        (COPIED, [_incident("disk-full", "disk")], True),
        (TWO, [_incident("kill", "ps-0")], True),  # it alone had its rows
        (TWO, [_incident("kill", "worker-0-0")], False),
        (CARDS, [_incident("kill", "worker-1-0")], True),  # it alone had its dense parameters
        (CARDS, [_incident("kill", "worker-0-0")], False),
        (TWO, [_incident("replan", JOB, plan=ONE)], False),  # the state is in memory
        (TWO, [_incident("replan", JOB, plan=ONE), _incident("kill", "ps-1")], True),
        (COPIED, [_incident("replan", JOB, plan=replace(COPIED, servers=3)), _incident("kill", "ps-1")], False),
        (COPIED, [], True),
    ],
)  # fmt: skip
def test_a_return_to_a_checkpoint_must_have_a_reason(
    topology: Topology, incidents: list[Incident], *, right: bool
) -> None:
    rollbacks = Rollbacks(topology)
    rollbacks.observe({"events": []}, incidents)
    assert rollbacks.problems == []
    for _ in range(2):  # each event is in many statuses
        rollbacks.observe(ROLLED_BACK, incidents)
    assert len(rollbacks.problems) == (0 if right else 1)
    assert all("from step 17 to 10" in problem for problem in rollbacks.problems)


def test_changes_are_no_faults_to_draw() -> None:
    assert not set(CHANGES) & set(ON_MACHINE)
    assert all(KINDS[kind].ends_generation for kind in CHANGES)
    assert JobPlan.from_json(ON_CPU).members == ("worker-0-0", "worker-0-1", "ps-0")
