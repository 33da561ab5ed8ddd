"""The role of a dead process decides the reaction; the number of deaths decides when the job fails."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from heterps_operator.control.disruptions.failures import backoff_seconds, describe_exit
from heterps_operator.control.reconcile import reconcile
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.values import Action, FailJob, ReportLost, StartProcess, StopProcess
from heterps_runtime.contract import EXIT_INTERRUPTED
from tests.heterps_operator.helpers.world import MEMBERS, World, make_job


def started(actions: list[Action]) -> list[str]:
    return [action.spec.name for action in actions if isinstance(action, StartProcess)]


def kill_worker(world: World, name: str = "worker-0-1", code: int = -9) -> None:
    """Kill a worker, replace it, and let the replacement join."""
    world.end(name, code)
    world.settle()
    world.time += 100
    world.settle()
    world.join(name)
    world.settle()


def test_a_worker_that_dies_is_replaced_and_nobody_else_is_touched() -> None:
    world = World().training()
    before = dict(world.processes)
    kill_worker(world)
    assert world.processes["worker-0-1"].spec.attempt == 2
    assert {n: p for n, p in world.processes.items() if n != "worker-0-1"} == {
        n: p for n, p in before.items() if n != "worker-0-1"
    }
    assert world.status.failures == 1
    assert world.status.restarts == {"worker-0-1": 1}


def test_the_first_replacement_starts_at_once_the_next_one_waits() -> None:
    world = World().training()
    world.end("worker-0-0", 1)
    actions = world.settle()
    assert actions[0] == ReportLost("worker-0-0", "exit code 1")
    assert started(actions) == ["worker-0-0"]
    world.join("worker-0-0")
    world.settle()
    world.end("worker-0-0", 1)
    assert world.settle() == [ReportLost("worker-0-0", "exit code 1")]
    world.time += 0.5
    assert world.settle() == []
    world.time += 0.6
    assert started(world.settle()) == ["worker-0-0"]
    assert [e.message.rpartition(": ")[2] for e in world.events if e.reason == "ProcessRestarts"] == [
        "it restarts now",
        "it restarts in 1 s",
    ]


def test_pauses_double_up_to_a_minute() -> None:
    assert [backoff_seconds(n) for n in (1, 2, 3, 4, 7, 8, 50)] == [0, 1, 2, 4, 32, 60, 60]


def test_pauses_start_over_once_training_has_passed_the_step_at_which_it_failed() -> None:
    world = World(make_job(run_policy={"backoff_limit": 100})).training()
    pauses = []
    for step in (10, 10, 4, 10, 11, 11):
        world.set_phase("Training", committedSteps=step, samplesPerSecond=50_000.0)
        world.settle()
        world.end("worker-0-1", 1)
        world.settle()
        pauses.append(max(0.0, world.status.not_before["worker-0-1"] - world.time))
        world.time += 100
        world.settle()
        world.join("worker-0-1")
        world.settle()
    assert pauses == [0, 1, 2, 4, 0, 1]
    assert world.status.failures == 6, "each one counts to the limit"


def test_one_death_more_than_the_limit_fails_the_job_with_the_last_words() -> None:
    world = World().training()
    kill_worker(world)
    kill_worker(world)
    world.end("worker-0-1", -11, last_lines=("loading", "Fatal Python error: Segmentation fault"))
    world.settle()
    failure = world.status.failure
    assert failure is not None
    assert (failure.reason, failure.member, failure.exit_code) == ("BackoffLimitExceeded", "worker-0-1", -11)
    assert failure.last_lines[-1] == "Fatal Python error: Segmentation fault"
    assert "killed by SIGSEGV" in failure.message
    assert "limit of 2 restarts" in failure.message


def test_after_a_failure_everything_ends_the_coordinator_last() -> None:
    world = World(make_job(run_policy={"backoff_limit": 0})).training()
    world.end("worker-0-1", 1)
    actions = world.settle()
    assert [type(action) for action in actions] == [FailJob, StopProcess, StopProcess, StopProcess]
    assert world.status.phase == "Stopping"
    for name in world.running() - {"coordinator"}:
        world.end(name, -15)
    world.settle()
    world.end("coordinator", 0)
    world.settle()
    assert world.status.phase == "Failed"
    assert world.status.condition("Failed").reason == "BackoffLimitExceeded"


def test_bad_input_fails_the_job_at_once() -> None:
    world = World().training()
    world.end("worker-0-0", 2, last_lines=("spec.data.label: must be 0 or 1, row 17 is 3",))
    world.settle()
    failure = world.status.failure
    assert failure is not None
    assert (failure.reason, failure.message) == ("BadInput", "spec.data.label: must be 0 or 1, row 17 is 3")
    assert world.status.failures == 0


def test_bad_input_explains_the_deaths_beside_it() -> None:
    world = World().training()
    world.end("ps-0", 1)
    world.time += 1
    world.end("worker-0-0", 2, last_lines=("the cause",))
    world.settle()
    assert world.status.failure is not None
    assert world.status.failure.member == "worker-0-0"


def test_a_server_that_dies_is_replaced_and_nobody_else_is_touched() -> None:
    world = World().training()
    others = {n: p for n, p in world.processes.items() if n != "ps-0"}
    world.end("ps-0", -9)
    actions = world.settle()
    assert [type(a) for a in actions] == [ReportLost, StartProcess]
    assert started(actions) == ["ps-0"]
    assert {n: p for n, p in world.processes.items() if n != "ps-0"} == others
    assert (world.status.failures, world.status.restarts) == (1, {"ps-0": 1})
    told = next(event.message for event in world.events if event.reason == "ProcessRestarts")
    assert told.startswith("ps-0 ended (killed by SIGKILL")


def test_a_coordinator_that_dies_sends_everything_back_to_the_checkpoint() -> None:
    world = World().training()
    world.end("coordinator", -9)
    actions = world.settle()
    assert {a.name for a in actions if isinstance(a, StopProcess)} == set(MEMBERS)
    assert started(actions) == []
    assert world.status.phase == "Restarting"
    for other in world.running():
        world.end(other, -15)
    assert started(world.settle()) == ["coordinator"]
    world.listen()
    assert started(world.settle()) == list(MEMBERS)
    assert {world.processes[n].spec.incarnation for n in world.running()} == {2}
    assert world.status.failures == 1


def test_deaths_beside_that_of_the_coordinator_are_not_counted() -> None:
    world = World().training()
    for name in ("worker-0-0", "ps-0", "coordinator"):
        world.end(name, 1)
    world.settle()
    assert world.status.failures == 1
    assert world.status.restarts == {"coordinator": 1}


def test_a_server_that_keeps_dying_fails_the_job() -> None:
    world = World(make_job(run_policy={"backoff_limit": 0})).training()
    world.end("ps-0", -9)
    world.settle()
    assert world.status.failure is not None
    assert world.status.failure.member == "ps-0"


def test_what_an_old_coordinator_says_is_of_no_interest() -> None:
    world = World().training()
    world.set_phase("Failed", error=HANG)
    world.settle()
    assert world.status.phase == "Restarting"
    world.set_phase("Failed", error={"reason": "NaNLoss", "message": "step 17"})
    world.settle()
    assert world.status.outcome is None


def test_a_coordinator_that_is_silent_for_too_long_is_ended_and_everything_restarts() -> None:
    world = World().training()
    world.answers = False
    world.time += 119
    assert world.settle() == []
    world.time += 2
    assert world.settle() == [StopProcess("coordinator", 5.0)]
    world.end("coordinator", -9)
    world.settle()
    assert world.status.incarnation == 2


def test_a_coordinator_that_answers_its_node_and_not_the_controller_trains_on() -> None:
    world = World().training()
    world.answers = False
    world.processes["coordinator"] = replace(world.processes["coordinator"], ready=True)
    world.time += 121
    assert world.settle() == []
    said = world.status.condition("PodsReady")
    assert (said.status, said.reason) == ("False", "CoordinatorUnreachable")
    assert "GET /v1/status: no answer" in said.message
    assert [event.reason for event in world.events].count("CoordinatorUnreachable") == 1
    world.time += 3600
    assert world.settle() == []
    assert world.status.phase == "Running"
    world.answers = True
    world.settle()
    assert world.status.condition("PodsReady").reason == "AllReady"
    assert (world.status.incarnation, world.status.failures) == (1, 0)

    world.answers = False
    world.processes["coordinator"] = replace(world.processes["coordinator"], ready=False)
    world.time += 121
    assert world.settle() == [StopProcess("coordinator", 5.0)], "its node finds it silent, too"


def test_a_coordinator_that_cannot_start_does_not_hang() -> None:
    world = World()
    world.settle()
    begun = replace(world.processes["coordinator"], begun=None)
    world.processes["coordinator"] = begun
    world.time += 2 * world.job.run_policy.hang_timeout_seconds
    assert world.settle() == []  # startDeadlineSeconds limits the duration
    world.processes["coordinator"] = replace(begun, begun=world.time)
    world.time += 0.9 * world.job.run_policy.hang_timeout_seconds
    assert world.settle() == []
    world.time += 0.2 * world.job.run_policy.hang_timeout_seconds
    assert [type(action).__name__ for action in world.settle()] == ["StopProcess"]


def test_a_failure_that_the_coordinator_found_is_reported_with_its_words() -> None:
    world = World().training()
    world.set_phase("Failed", error={"reason": "NaNLoss", "message": "step 17; last good checkpoint: step 10"})
    for name in MEMBERS:
        world.end(name, 0)
    world.settle()
    world.end("coordinator", 0)
    world.settle()
    assert world.status.phase == "Failed"
    assert world.status.failure is not None
    assert world.status.failure.reason == "NaNLoss"
    assert world.status.failure.member == ""


def test_a_failure_that_the_coordinator_found_has_the_log_of_the_process_that_failed() -> None:
    world = World().training()
    world.end("worker-0-0", 1, last_lines=("Traceback", "ZeroDivisionError"))
    world.set_phase("Failed", error={"reason": "WorkerError", "message": "worker-0-0 failed"})
    world.settle()
    assert world.status.failure is not None
    assert world.status.failure.last_lines == ("Traceback", "ZeroDivisionError")


def test_a_profiler_that_dies_is_started_again() -> None:
    world = World()
    world.settle()
    world.listen()
    world.settle()
    world.end("profile-cpu", 1)
    assert started(world.settle()) == ["profile-cpu"]


def test_a_profiler_that_ends_without_a_result_counts_as_dead() -> None:
    world = World()
    world.settle()
    world.listen()
    world.settle()
    world.end("profile-cpu", 0)
    world.settle()
    assert world.status.failures == 1


def test_deaths_during_an_orderly_stop_do_not_restart_anything() -> None:
    world = World().training()
    world.stop_requested = True
    world.settle()
    world.end("worker-0-0", -9)
    assert world.settle() == []
    world.end("coordinator", -9)
    actions = world.settle()
    assert started(actions) == []
    for name in world.running():
        world.end(name, -15)
    world.settle()
    assert world.status.phase == "Suspended"


def test_exits_are_told_in_words() -> None:
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-15) == "killed by SIGTERM"
    assert "memory" in describe_exit(-9)
    assert describe_exit(-200) == "killed by signal 200"
    assert describe_exit(None) == "no exit code is known"


HANG = {"reason": "Hang", "message": "step 2 waits for worker-0-1 for 121 s (runPolicy.hangTimeoutSeconds)"}


def restart(world: World) -> World:
    """Let the processes of an earlier incarnation end, and the job train again."""
    for name in world.running():
        world.end(name, -15)
    world.time += 60
    world.settle()
    world.listen()
    world.settle()
    return world.train()


def test_a_hang_restarts_everything_from_the_checkpoint_and_counts() -> None:
    world = World().training()
    for number in (1, 2):
        world.set_phase("Failed", error=HANG)
        actions = world.settle()
        assert {a.name for a in actions if isinstance(a, StopProcess)} == {*MEMBERS, "coordinator"}
        assert (world.status.phase, world.status.failures, world.status.incarnation) == (
            "Restarting",
            number,
            number + 1,
        )
        assert world.events[-1].reason == "JobRestarts"
        assert "step 2 waits for worker-0-1" in world.events[-1].message
        assert restart(world).status.phase == "Running"
    world.set_phase("Failed", error=HANG)
    world.settle()
    failure = world.status.failure
    assert failure is not None
    assert (failure.reason, failure.member) == ("BackoffLimitExceeded", "coordinator")
    assert failure.message == f"{HANG['message']}; the limit of 2 restarts (runPolicy.backoffLimit) is exhausted"


def test_a_job_that_others_end_in_order_starts_over_and_counts_nothing() -> None:
    world = World().training()
    world.set_phase("Stopped", committedSteps=17, resumedFromStep=3)
    actions = world.settle()
    assert {a.name for a in actions if isinstance(a, StopProcess)} == {*MEMBERS, "coordinator"}
    assert (world.status.phase, world.status.failures, world.status.incarnation) == ("Restarting", 0, 2)
    event = world.events[-1]
    assert (event.type, event.reason) == ("Normal", "JobMoves")
    assert event.message.startswith("a process was told to end: the job has saved a checkpoint, and continues from it")
    assert "Resumed" not in [each.reason for each in world.events], "the next coordinator says from where"
    assert restart(world).status.phase == "Running"


def test_a_job_that_is_suspended_while_others_end_it_stays_suspended() -> None:
    world = World().training()
    world.stop_requested = True
    world.set_phase("Stopped")
    world.settle()
    assert world.status.outcome == "Suspended"


def test_another_failure_of_the_coordinator_is_final() -> None:
    world = World().training()
    world.set_phase("Failed", error={"reason": "CheckpointFailed", "message": "the disk is full"})
    world.settle()
    assert world.status.failure is not None
    assert world.status.failure.reason == "CheckpointFailed"


def test_what_takes_thousands_of_workers_at_once_is_told_in_a_few_events() -> None:
    world = World(make_job(run_policy={"backoff_limit": 100})).training()
    assert world.status.plan is not None
    plan = json.loads(json.dumps(world.status.plan.document))
    plan["stages"][0] |= {"pods": 3_000, "units": 3_000}
    world.status = replace(world.status, plan=JobPlan.from_json(plan))
    for index in range(2, 3_000):
        name = f"worker-0-{index}"
        spec = replace(world.processes["worker-0-0"].spec, name=name, index=index)
        world.processes[name] = replace(world.processes["worker-0-0"], spec=spec, ended=world.time, reason="NodeLost")
    before = len(world.events)
    decision = reconcile(world.job, world.observed())
    told = [event.message for event in decision.events if event.reason == "ProcessRestarts"]
    assert len(told) == 17
    assert told[-1] == "2,982 more processes ended in the same turn of the operator, and restart"
    assert len(decision.status.restarts) == len(decision.status.attempts) == 2_998
    assert len(world.events) == before
    members = [{"name": f"worker-0-{n}", "role": "worker", "state": "absent"} for n in range(3_000)]
    world.document = {"phase": "Starting", "members": members}
    condition = reconcile(world.job, world.observed()).status.condition("PodsReady")
    assert condition.message.startswith("0 of 3000 members are ready; worker-0-0 absent, ")
    assert condition.message.endswith("worker-0-15 absent and 2,984 more")


@pytest.mark.parametrize(("phase", "replaced"), [("Evaluating", True), ("Exporting", False)])
def test_a_worker_that_was_told_to_end_is_replaced_as_long_as_it_is_needed(phase: str, *, replaced: bool) -> None:
    """An evaluation takes a worker of each stage; the coordinator alone writes the model."""
    world = World().training()
    world.set_phase(phase)
    world.settle()
    world.end("worker-1-0", EXIT_INTERRUPTED)
    actions = world.settle()
    world.time += 100
    actions += world.settle()
    assert ("worker-1-0" in started(actions)) == replaced
    assert world.status.failures == 0, "it was told to"
