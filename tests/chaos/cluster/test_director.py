"""The director of the campaign on a cluster, with a clock and a job that the tests control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.chaos.cluster.director import Director, Effect
from tests.chaos.cluster.moments import Sight
from tests.chaos.faults.schedule import TOPOLOGIES, Fault, Run

MEMBERS = ("ps-0", "worker-0-0")


class Recorder:
    """Records faults, and their ends while they can end."""

    def __init__(self) -> None:
        self.injected: list[str] = []
        self.ended: list[str] = []
        self.repeated: list[str] = []
        self.can_end = True

    def inject(self, fault: Fault) -> Effect:
        self.injected.append(fault.kind)
        if not fault.seconds:
            return Effect("it")

        def end() -> bool:
            if self.can_end:
                self.ended.append(fault.kind)
            return self.can_end

        return Effect("it", end, lambda: self.repeated.append(fault.kind))


class Scene:
    def __init__(self, *faults: Fault) -> None:
        self.recorder = Recorder()
        self.now = 100.0
        run = Run(1, "sync", "counting", TOPOLOGIES[0], 320, faults)
        self.director = Director(run, self.recorder, lambda: self.now)

    def see(
        self,
        committed: int | None,
        ready: Sequence[str] = MEMBERS,
        pods: Sequence[str] = ("a",),
        checkpoints: Sequence[str] = (),
    ) -> list[str]:
        """Let a second pass, and return the faults so far."""
        self.now += 1
        status: dict[str, Any] | None = None
        if committed is not None:
            members = [{"name": name, "state": "ready"} for name in ready]
            status = {"committedSteps": committed, "running": True, "phase": "Training", "members": members,
                      "expectedMembers": list(MEMBERS)}  # fmt: skip
        self.director.observed(Sight(status, frozenset(pods), frozenset(checkpoints)))
        return self.recorder.injected


def test_a_fault_waits_for_its_step() -> None:
    scene = Scene(Fault("pod-kill", "ps-0", "step", 5))
    assert scene.see(None) == []
    assert scene.see(4) == []
    assert scene.see(6) == ["pod-kill"]
    assert not scene.director.pending


def test_a_fault_at_the_start_needs_a_pod_and_no_step() -> None:
    scene = Scene(Fault("operator-kill", "operator", "start", -1))
    assert scene.see(None, pods=()) == []
    assert scene.see(1) == []
    scene = Scene(Fault("operator-kill", "operator", "start", -1))
    assert scene.see(None) == ["operator-kill"]


def test_a_fault_at_a_checkpoint_waits_for_a_new_one() -> None:
    scene = Scene(Fault("pod-kill", "ps-0", "checkpoint", 15))
    assert scene.see(12, checkpoints=("step-10",)) == []
    assert scene.see(19, checkpoints=("step-10",)) == []
    assert scene.see(20, checkpoints=("step-10", "step-20")) == ["pod-kill"]


def test_the_next_fault_waits_for_steps_for_all_members_and_for_the_end_of_the_previous_one() -> None:
    scene = Scene(Fault("api-down", "api", "step", 5, seconds=20.0), Fault("floor", "job", "step", 7))
    scene.see(5)
    scene.see(7)
    scene.see(9)
    assert scene.director.incidents[0].recovery.ended is not None
    assert scene.director.holds, "training must not end meanwhile"
    assert scene.see(20) == ["api-down"]
    scene.now += 20
    scene.recorder.can_end = False
    assert scene.see(21) == ["api-down"]
    assert scene.director.lasts
    scene.recorder.can_end = True
    assert scene.see(22, ready=["ps-0"]) == ["api-down"], "a member is missing"
    assert scene.recorder.ended == ["api-down"]
    assert scene.director.holds
    assert scene.see(23) == ["api-down", "floor"]


def test_a_fault_during_the_recovery_waits_for_a_new_pod() -> None:
    scene = Scene(Fault("pod-delete", "ps-0", "step", 5), Fault("watch-drop", "api", "restart", -1, soon=True))
    scene.see(5)
    assert scene.see(5) == ["pod-delete"]
    assert scene.see(None, pods=("a", "b")) == ["pod-delete", "watch-drop"]


def test_the_end_of_a_job_ends_all_faults() -> None:
    scene = Scene(Fault("node-silent", "ps-0", "step", 5, seconds=60.0))
    scene.see(5)
    scene.recorder.can_end = False
    scene.director.finish()
    assert scene.director.lasts
    scene.recorder.can_end = True
    scene.director.finish()
    assert scene.recorder.ended == ["node-silent"]
    assert not scene.director.lasts


def test_what_a_fault_repeats_is_repeated_until_its_end() -> None:
    scene = Scene(Fault("node-drain", "worker-0-0", "step", 5, seconds=2.0))
    for step in (5, 6, 7, 8):
        scene.see(step)
    assert (scene.recorder.repeated, scene.recorder.ended) == (["node-drain"], ["node-drain"])
