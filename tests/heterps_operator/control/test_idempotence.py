"""In any order of events, decisions settle, and every job that is asked to end does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_operator.state.status import FINAL_PHASES, Status
from tests.heterps_operator.helpers.life import Life
from tests.heterps_operator.helpers.world import MEMBERS, PLAN, World

EVENTS = "/api/v1/namespaces/ml/events"
NAMES = ("coordinator", "profile-cpu", "profile-gpu", *MEMBERS)
HAPPENINGS = st.one_of(
    st.tuples(st.just("end"), st.sampled_from(NAMES), st.sampled_from([0, 1, 2, 130, -9, -15])),
    st.tuples(st.just("pass"), st.sampled_from([0.1, 1.0, 5.0, 30.0, 150.0])),
    st.tuples(st.just("phase"), st.sampled_from(["Training", "Evaluating", "Succeeded", "Stopped", "Failed"])),
    st.tuples(st.just("proceed")),
    st.tuples(st.just("silence"), st.booleans()),
    st.tuples(st.just("stop")),
    st.tuples(st.just("infeasible")),
)


def happen(world: World, event: tuple[object, ...]) -> None:
    """Trigger an event, if possible."""
    match event:
        case ("end", str(name), int(code)) if name in world.running():
            world.end(name, code)
        case ("pass", float(seconds)):
            world.time += seconds
        case ("phase", str(phase)) if world.document is not None and world.document["members"]:
            world.set_phase(phase, committedSteps=world.document["committedSteps"] + 5)
        case ("silence", bool(silent)):
            world.answers = not silent
        case ("stop",):
            world.stop_requested = True
        case ("infeasible",) if world.planning:
            world.answer({"feasible": False, "reason": "ThroughputFloorUnreachable", "message": "too slow"})
        case ("proceed",):
            proceed(world)


def proceed(world: World) -> None:
    """Make the progress of a healthy world."""
    if "coordinator" in world.running() and world.document is None:
        world.listen()
    elif world.planning:
        world.answer(PLAN)
    elif world.document is not None:
        for pool in ("cpu", "gpu"):
            if f"profile-{pool}" in world.running() and pool not in world.profiles:
                world.deliver(pool)
                return
        for name in MEMBERS:
            if name in world.running() and world.document["members"]:
                world.join(name)
        if world.document["members"] and all(m["state"] == "ready" for m in world.document["members"]):
            world.set_phase("Training" if world.document["phase"] == "Starting" else world.document["phase"])


def obey(world: World) -> None:
    """End every process that was asked to end, and advance time."""
    for name, process in list(world.processes.items()):
        told = process.stopping or (name == "coordinator" and "shutdown" in world.accepted)
        if process.running and told:
            world.end(name, -15)
    world.time += 20


@settings(max_examples=250, deadline=None)
@given(st.lists(HAPPENINGS, max_size=25))
def test_decisions_come_to_rest_after_every_event_and_a_stop_always_ends(events: list[tuple[object, ...]]) -> None:
    world = World()
    world.settle()  # asserts that another turn does nothing, and that no process is started or ended twice
    for event in events:
        happen(world, event)
        world.settle()
        assert Status.from_json(world.status.to_json()) == world.status
        assert world.status.failures <= world.job.run_policy.backoff_limit + 1
    world.stop_requested = True
    for _ in range(30):
        world.settle()
        obey(world)
    world.settle()
    assert world.status.phase in FINAL_PHASES
    assert world.running() == set()


@settings(max_examples=60, deadline=None)
@given(st.lists(HAPPENINGS, max_size=25))
def test_a_healthy_world_trains_whatever_happened_before(events: list[tuple[object, ...]]) -> None:
    world = World()
    world.settle()
    for event in events:
        if event[0] in ("end", "pass") and event[-1] != 2:
            happen(world, event)
            world.settle()
        proceed(world)
        world.settle()
    for _ in range(40):
        if world.status.failure is not None:
            assert world.status.failure.reason in ("BackoffLimitExceeded", "StartDeadlineExceeded")
            return
        proceed(world)
        world.settle()
        obey(world)
        if world.status.phase == "Running":
            return
    raise AssertionError(f"is still {world.status.phase}")


# --- on a cluster -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_at_no_state_of_a_jobs_life_does_a_second_look_or_another_operator_do_anything(
    seed: int, tmp_path: Path
) -> None:
    """The states are those of real job lives, with deaths, deletions, changes and operator crashes."""
    life, rng, story = Life(tmp_path), np.random.default_rng(seed), ["begin"]
    for step in range(30):
        life.settle()
        reached = life.state()
        life.server.requests.clear()
        life.sent.clear()
        life.operator.turn()
        assert (life.writes(), life.sent) == ([], []), f"a second look acts: {story}"
        if life.coordinator is not None and life.coordinator.silent:
            story.append(life.happen(rng))  # only this operator knows the duration, so another one may decide otherwise
            continue
        life.look_of_another_operator(2)
        # A repeated event has the same name, and is counted.
        made = [(verb, path) for verb, path in life.writes() if verb in ("create", "delete") and path != EVENTS]
        assert made == [], f"another operator acts: {story}"
        assert life.state() == reached, f"another operator changes something: {story}"
        if life.status["phase"] in ("Succeeded", "Failed"):
            return
        # Failures begin at a different point of each life.
        story.append(life.happen(rng) if step >= seed else life.go_on())
