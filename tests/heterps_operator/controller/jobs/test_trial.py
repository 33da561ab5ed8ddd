"""A changed spec of a running job that requires another plan: the job stops only for a feasible plan."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.api.admission import pod_configuration
from heterps_operator.api.manifest import read_objects
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.jobs.controller import JobController
from heterps_operator.kubernetes.profiles import ConfigMapProfileCache
from tests.heterps_operator.helpers import world as values
from tests.heterps_operator.helpers.job_world import CONFIGS, KEY, World, events, planned

Json = dict[str, Any]

SPLIT = [
    {"pool": "cpu", "lastLayer": "mlp", "units": 1},
    {"pool": "accelerator", "lastLayer": "head", "units": 1},
]


class Running:
    """A job that runs by a plan, and whose operator knows its profiles."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        manifest = read_objects(copy.deepcopy(self.world.job), copy.deepcopy(self.world.pools))
        cache = ConfigMapProfileCache(self.world.cluster.api, KEY[0], pod_configuration(manifest))
        for pool in self.world.pools:
            cache.save(pool["metadata"]["name"], values.PROFILE)
        planned(self.world)
        self._woken = threading.Event()
        self.controller = self.take_up(self.world.cluster)
        self.controller.turn()
        assert self.phase == "Starting"

    def take_up(self, cluster: OperatorContext) -> JobController:
        """Let a new operator take over."""
        cluster.ledger.set_limits({pool["metadata"]["name"]: 8 for pool in self.world.pools})
        return JobController(cluster, KEY, self._woken.set)

    @property
    def phase(self) -> str:
        return str(self.world.status["phase"])

    def turn_until(self, said: Callable[[], bool]) -> None:
        """Run turns whenever the job is woken."""
        for _ in range(20):
            self._woken.clear()
            self.controller.turn()
            if said():
                return
            assert self._woken.wait(60)
        raise AssertionError(self.world.status)

    def ask_for(self, field: str, value: Any) -> None:
        """Change the spec as a user."""
        group, _, name = field.partition(".")
        self.world.edit(lambda job: job["spec"].setdefault(group, {}).__setitem__(name, value))

    def told(self, reason: str) -> list[str]:
        return [message for found, message in events(self.world) if found == reason]


@pytest.fixture
def job(tmp_path: Path) -> Running:
    return Running(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "reason", "words"),
    [
        (
            "scheduling.stages",
            [{"pool": "cpu", "lastLayer": "mlp"}, {"pool": "cpu", "lastLayer": "head"}],
            "PlannerFailed",
            "scheduling.stages[1].pool: the stage before is on 'cpu' too",
        ),
        ("scheduling.stages", [{"pool": "cpu", "lastLayer": "nowhere"}], "PlannerFailed", "'nowhere'"),
        ("objective.maxCostPerHour", "0.01", "CostCeilingExceeded", "maxCostPerHour"),
    ],
    ids=["neighbours", "layer", "ceiling"],
)
def test_a_job_is_not_stopped_for_a_plan_that_there_is_not(
    job: Running, field: str, value: Any, reason: str, words: str
) -> None:
    job.ask_for(field, value)
    job.controller.turn()
    assert job.world.condition("Planned")["status"] != "False", "nothing is known yet"
    job.turn_until(lambda: job.world.condition("Planned")["reason"] == reason)
    assert job.phase == "Starting"
    assert words in job.world.condition("Planned")["message"]
    assert "the job keeps its current plan" in job.world.status["message"]
    job.controller.turn()
    assert job.phase == "Starting"
    assert (len(job.told(reason)), job.told("SpecChanged")) == (1, [])
    # A later operator finds the same.
    job.controller = job.take_up(job.world.make_cluster())
    job.turn_until(lambda: job.world.condition("Planned")["reason"] == reason)
    assert job.phase == "Starting"
    run = str(job.world.server.objects[f"{CONFIGS}/flights-run"]["data"])
    assert str(value) not in run, "its pods are still told what they were told"


def test_a_job_is_stopped_for_a_plan_that_there_is(job: Running) -> None:
    job.ask_for("scheduling.stages", SPLIT)
    job.turn_until(lambda: job.phase == "Stopping")
    assert job.told("SpecChanged") == ["spec.scheduling.stages: applied after replanning"]


def test_a_change_that_is_taken_back_in_time_changes_nothing(job: Running) -> None:
    job.ask_for("scheduling.stages", SPLIT)
    job.controller.turn()
    job.ask_for("scheduling.stages", [])
    for _ in range(3):
        job.controller.turn()
    assert job.phase == "Starting"
    assert job.told("SpecChanged") == []
    assert job.world.cluster.planner_slots.ask("another", "a", lambda: None)
    assert job.world.cluster.planner_slots.ask("yet another", "b", lambda: None)
    assert job.world.cluster.planner_slots.ask("a third", "c", lambda: None), "the planner has left its place"


def test_the_last_of_two_changes_counts(job: Running) -> None:
    job.ask_for("objective.maxCostPerHour", "0.01")
    job.controller.turn()
    job.ask_for("objective.maxCostPerHour", "90")
    job.turn_until(lambda: job.phase == "Stopping")
    assert job.told("CostCeilingExceeded") == []


def test_a_job_that_is_to_be_suspended_is_not_asked_for_another_plan_first(job: Running) -> None:
    job.ask_for("scheduling.stages", [{"pool": "cpu", "lastLayer": "nowhere"}])
    job.ask_for("runPolicy.suspend", True)
    job.controller.turn()
    job.controller.turn()
    assert job.phase == "Stopping"
