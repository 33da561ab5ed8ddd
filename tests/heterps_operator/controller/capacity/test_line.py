"""Jobs that wait for units of the same pools, with their controllers, real plans and an in-memory API server."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.api.admission import pod_configuration
from heterps_operator.api.manifest import read_objects
from heterps_operator.control.queueing.waiting_line import WaitingJob
from heterps_operator.controller.capacity.ledger import Ledger
from heterps_operator.controller.capacity.line import Line as FormedLine
from heterps_operator.controller.jobs.controller import JobController
from heterps_operator.controller.line_keeper import LineKeeper
from heterps_operator.kubernetes.names import PRIORITY_CLASSES
from heterps_operator.kubernetes.profiles import ConfigMapProfileCache
from heterps_operator.local.planner import PlannerAnswer
from heterps_operator.state.plan import PlanOutcome
from heterps_planner.model.problem import Problem
from heterps_planner.planning import plan
from heterps_planner.scenarios.line import Line, plan_line
from tests.heterps_operator.helpers.job_world import World
from tests.heterps_operator.helpers.world import PROFILE

Json = dict[str, Any]


class Planner:
    """Plans in this process; the answer is there at the next turn."""

    asked = 0
    lines: list[Json]
    error = ""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._answer: PlanOutcome | None = None
        self._line: PlannerAnswer | None = None

    @property
    def running(self) -> bool:
        return self._answer is not None

    def start(self, problem: Mapping[str, Any], revision: int = 1, stages: Sequence[Mapping[str, Any]] = ()) -> None:
        Planner.asked += 1
        found = plan(Problem.from_json(dict(problem)))
        self._answer = PlanOutcome.from_json(found.to_json(), revision)

    def poll(self) -> PlanOutcome | None:
        answer, self._answer = self._answer, None
        return answer

    def start_line(self, line: Mapping[str, Any]) -> None:
        Planner.lines.append(dict(line))
        answer = PlannerAnswer(plan_line(Line.from_json(dict(line))).to_json())
        self._line = PlannerAnswer(error=Planner.error) if Planner.error else answer

    def take(self) -> PlannerAnswer | None:
        answer, self._line = self._line, None
        return answer

    def close(self) -> None:
        self._answer = None


class Jobs(World):
    """Several jobs, and what their operator does with them."""

    def __init__(self, folder: Path, *, cpu: int = 4, accelerator: int = 0) -> None:
        super().__init__(folder)
        Planner.asked, Planner.lines, Planner.error = 0, [], ""
        for pool, units in zip(self.pools, (cpu, accelerator), strict=True):
            pool["spec"] |= {"maxUnits": max(1, units), "pricePerUnitHour": "5" if accelerator else "0.04"}
        if accelerator:
            self.pools[1]["spec"]["pricePerUnitHour"] = "1"
        self.cluster = self.make_cluster()
        self.cluster.make_planner = Planner
        self.cluster.make_line_planner = Planner
        self.cluster.jobs.remove(self.job)
        self.woken: list[tuple[str, str]] = []
        self.keeper = LineKeeper(self.cluster, self.woken.append)
        self.controllers: dict[str, JobController] = {}

    def submit(self, key: str, floor: int, pools: Sequence[str] = ("cpu",), priority: str = "", most: int = 2) -> None:
        namespace, _, name = key.partition("/")
        job = copy.deepcopy(self.job)
        job["metadata"] |= {"namespace": namespace, "name": name, "uid": f"uid-{key}"}
        spec = job["spec"]
        spec["objective"] = {"minSamplesPerSecond": floor}
        spec["scheduling"] = {**spec["scheduling"], "stages": []}
        spec["pools"] = [{"name": pool, "maxUnits": most} for pool in pools]
        if priority:
            spec["runPolicy"]["schedulingPolicy"] = {"priorityClassName": priority}
        manifest = read_objects(copy.deepcopy(job), copy.deepcopy(self.pools))
        cache = ConfigMapProfileCache(self.server, namespace, pod_configuration(manifest))
        for pool in pools:
            cache.save(pool, PROFILE)
        self.cluster.jobs.put(job)
        self.controllers[key] = JobController(self.cluster, (namespace, name), lambda: None)

    def hold(self, **units: int) -> None:
        """Let a job outside the line hold units."""
        assert self.cluster.ledger.reserve("ml/running", units).granted

    def go_on(self, rounds: int = 8) -> None:
        for _ in range(rounds):
            self.keeper.look()
            for controller in self.controllers.values():
                controller.turn()
            self.now += 0.5

    def end(self, key: str) -> None:
        """Delete a job whose pods have never run."""
        namespace, _, name = key.partition("/")
        job = self.cluster.jobs.get(namespace, name)
        assert job is not None
        self.cluster.jobs.remove(job)
        self.controllers.pop(key).turn()

    def held(self) -> dict[str, dict[str, int]]:
        found = {key: self.cluster.ledger.held_by(key) for key in self.controllers}
        return {key: units for key, units in found.items() if units}

    def told(self, key: str) -> str:
        namespace, _, name = key.partition("/")
        path = f"/apis/heterps.io/v1alpha1/namespaces/{namespace}/heterpsjobs/{name}/status"
        [found] = [c for c in self.server.objects[path]["status"]["conditions"] if c["type"] == "Planned"]
        return f"{found['reason']}: {found['message']}"


ONE, THREE = 10_000, 40_000  # floors that take a worker, or three, beside one server


def test_a_waiting_large_job_is_not_starved_by_small_ones_that_come_again_and_again(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, cpu=4)
    for number in (0, 1):
        jobs.submit(f"ml/small-{number}", ONE)
    jobs.go_on()
    jobs.submit("ml/large", THREE, most=4)
    jobs.go_on()
    assert jobs.told("ml/large").startswith("WaitingForCapacity: its plan needs 4 of cpu; 1st in line for pool cpu; ")
    jobs.end("ml/small-0")
    jobs.submit("ml/small-2", ONE)
    jobs.go_on()
    assert "ml/small-2" in jobs.held(), "what the large one cannot use is lent"
    jobs.now += jobs.cluster.backfill_seconds
    jobs.end("ml/small-1")
    jobs.submit("ml/small-3", ONE)
    jobs.go_on()
    assert set(jobs.held()) == {"ml/small-2"}, "what it claims is kept now"
    assert "2nd in line for pool cpu, behind ml/large (priority 0)" in jobs.told("ml/small-3")
    jobs.end("ml/small-2")
    jobs.go_on()
    assert jobs.held() == {"ml/large": {"cpu": 4}}
    assert ("ml", "large") in jobs.woken, "it does not wait for its next regular turn"


def test_units_go_to_the_job_of_the_highest_priority_whoever_has_waited_longest(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, cpu=2)
    jobs.server.put(f"{PRIORITY_CLASSES}/high", value=1000)
    jobs.hold(cpu=2)
    jobs.submit("ml/first", ONE)
    jobs.go_on()
    jobs.submit("ml/urgent", ONE, priority="high")
    jobs.submit("ml/unknown", ONE, priority="no-such-class")
    jobs.go_on()
    assert "2nd in line for pool cpu, behind ml/urgent (priority 1000)" in jobs.told("ml/first")
    jobs.cluster.ledger.release("ml/running")
    jobs.go_on()
    assert set(jobs.held()) == {"ml/urgent"}


def test_two_namespaces_have_equal_parts_of_a_pool(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, cpu=4)
    jobs.hold(cpu=4)
    for name in ("a/x", "a/y", "a/z", "b/x"):
        jobs.submit(name, ONE)
        jobs.go_on()
    jobs.cluster.ledger.release("ml/running")
    jobs.go_on(16)
    assert set(jobs.held()) == {"a/x", "b/x"}


def flexible_and_bound(folder: Path) -> Jobs:
    """A would run on one accelerator, or on cpus for more money; B has only the two accelerators."""
    jobs = Jobs(folder, cpu=4, accelerator=2)
    jobs.hold(cpu=4, accelerator=2)
    jobs.submit("ml/a", ONE, ("cpu", "accelerator"))
    jobs.go_on()
    jobs.submit("ml/b", ONE, ("accelerator",))
    jobs.go_on()
    jobs.cluster.ledger.release("ml/running")
    return jobs


def test_a_job_makes_room_for_one_that_has_no_other_pool(tmp_path: Path) -> None:
    jobs = flexible_and_bound(tmp_path)
    jobs.go_on(16)
    assert jobs.held() == {"ml/a": {"cpu": 2}, "ml/b": {"accelerator": 2}}
    [line] = Planner.lines
    assert [job["name"] for job in line["jobs"]] == ["ml/a", "ml/b"]


@pytest.mark.parametrize("error", ["the planner ended with exit code -9 and no message", ""])
def test_where_planning_together_fails_the_first_in_line_goes_first(error: str, tmp_path: Path) -> None:
    jobs = flexible_and_bound(tmp_path)
    Planner.error = error
    if not error:
        jobs.cluster.make_line_planner = Planner
        jobs.keeper._planner.take = lambda: PlannerAnswer({"plans": {"ml/a": {"stages": 7}}})  # type: ignore[method-assign]
    jobs.go_on(16)
    assert set(jobs.held()) == {"ml/a"}
    assert jobs.held()["ml/a"]["accelerator"] == 2, "as it would plan alone"
    assert "ml/a" in jobs.told("ml/b")


def test_a_job_of_lower_priority_moves_no_higher_one_to_a_dearer_pool(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, cpu=4, accelerator=2)
    jobs.server.put(f"{PRIORITY_CLASSES}/high", value=1000)
    jobs.hold(cpu=4, accelerator=2)
    jobs.submit("ml/a", ONE, ("cpu", "accelerator"), "high")
    jobs.submit("ml/b", ONE, ("accelerator",))
    jobs.go_on()
    jobs.cluster.ledger.release("ml/running")
    jobs.go_on(16)
    assert jobs.held()["ml/a"]["accelerator"] == 2
    assert "ml/b" not in jobs.held()
    assert Planner.lines == []


def test_who_waits_asks_no_planner_and_writes_nothing_until_more_is_free(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, cpu=4)
    jobs.hold(cpu=4)
    for number in range(4):
        jobs.submit(f"ml/job-{number}", THREE, most=4)
    jobs.go_on(12)
    asked, writes = Planner.asked, len(jobs.writes())
    for units in (3, 4):  # what is free for a moment, for the first in line only
        jobs.cluster.ledger.reserve("ml/running", {"cpu": units})
        jobs.go_on(2)
    assert Planner.asked - asked <= 1
    jobs.go_on(5)
    before = len(jobs.writes())
    jobs.go_on(10)
    assert len(jobs.writes()) == before
    assert before - writes < 20


def test_a_job_whose_turns_fail_keeps_units_from_others_for_a_limited_time(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, cpu=4)
    jobs.hold(cpu=3)
    jobs.submit("ml/large", THREE, most=4)
    jobs.go_on()
    del jobs.controllers["ml/large"]
    jobs.now += jobs.cluster.backfill_seconds + 1
    jobs.cluster.ledger.reserve("ml/running", {"cpu": 2})
    jobs.submit("ml/small", ONE)
    jobs.go_on()
    assert set(jobs.held()) == {"ml/small"}


def test_waiting_since_survives_the_operator(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, cpu=4)
    jobs.hold(cpu=2)
    jobs.submit("ml/large", THREE, most=4)
    jobs.go_on()
    jobs.controllers["ml/large"].abandon()
    assert not jobs.cluster.line.stands("ml/large")
    jobs.now += jobs.cluster.backfill_seconds
    jobs.submit("ml/small", ONE)
    jobs.go_on()
    assert jobs.held() == {}, "the large one has waited for long enough"


def test_units_that_a_job_was_refused_with_are_not_offered_to_it_again() -> None:
    ledger = Ledger()
    ledger.set_limits({"cpu": 4})
    line = FormedLine(ledger, 300.0, clock=lambda: 100.0, monotonic=lambda: 100.0)
    most = {"cpu": 4}
    entry = WaitingJob("ml/a", ("cpu",), most, since=90.0, claim={"cpu": 2}, refused=({"cpu": 2},))
    other = WaitingJob("ml/b", ("cpu",), most, since=91.0, claim={"cpu": 2}, refused=({"cpu": 1},))
    for job in (entry, other):
        line.stand(job, lambda units: {})
    contest = line.state().contest
    assert contest is not None
    assert contest.fits
    line.offer({job.key: job.claim for job in contest.jobs}, {})
    assert line.free_units("ml/b", ["cpu"]) == {"cpu": 2}
    assert line.free_units("ml/a", ["cpu"]) == {"cpu": 0}, "the other two are of no use to it"
    assert line.state().contest is None
    line.leave("ml/b")
    assert line.free_units("ml/a", ["cpu"]) == {"cpu": 4}, "a try of its own, with all that is free"
