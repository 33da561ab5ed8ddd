"""A job's life on a cluster in memory: the real controller and API client's calls, played pods, coordinator, planner.

Nothing happens by itself. Each step of `Life` is something that can happen to a job; between two of them the controller
looks at it until there is nothing left to do.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps_operator.controller import session as session_module
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.job import JobController
from heterps_operator.kubernetes.names import COORDINATOR_PORT
from heterps_operator.kubernetes.reading.processes import process_of
from heterps_operator.loop import control_loop as loop
from heterps_operator.loop.coordinator_client import CoordinatorError
from heterps_operator.measure.measurement import Figures
from heterps_operator.state.values import (
    Action,
    FailJob,
    PlanOutcome,
    ReportLost,
    RequestStop,
    Shutdown,
    SubmitAllocation,
    SubmitPlan,
)
from tests.controller.test_job_controller import PODS, Server, World
from tests.controller.world import PLAN, PROFILE
from tests.controller.world import World as Values

Json = dict[str, Any]

CREATED = "2023-11-14T22:13:20Z"
_ENDED = ("Succeeded", "Failed")
_LEAVES = ("Succeeded", "Failed", "Stopped")


def _plan() -> Json:
    plan = copy.deepcopy(PLAN)
    plan["stages"][1]["pool"] = "accelerator"
    return plan


@dataclass
class Coordinator:
    """What a coordinator knows."""

    phase: str = "Profiling"
    members: list[Json] = field(default_factory=list)
    profiles: Json = field(default_factory=dict)
    step: int = 0
    error: Json | None = None
    ends: bool = False  # it was asked to
    silent: bool = False
    batches: tuple[tuple[int, ...], ...] = ()

    def document(self) -> Json:
        """Its status."""
        return copy.deepcopy(
            {"phase": self.phase, "members": self.members, "committedSteps": self.step, "totalSteps": 100,
             "generation": 1, "samplesPerSecond": 50_000.0 if self.step else 0.0, "error": self.error}
        )  # fmt: skip

    def take(self, action: Action) -> None:
        """Carry a request out; the same one again changes nothing."""
        match action:
            case SubmitPlan(plan, _):
                known = {member["name"]: member for member in self.members}
                self.members = [known.get(m["name"], m) for m in Values.make_members(plan)]
                self.phase = "Starting" if self.phase == "Profiling" else self.phase
            case SubmitAllocation(batches):
                self.batches = batches
            case ReportLost(name, _):
                next(m for m in self.members if m["name"] == name)["state"] = "lost"
            case RequestStop() if self.phase not in _LEAVES:
                self.phase = "Stopped"
            case FailJob(reason, message) if self.phase not in _LEAVES:
                self.phase, self.error = "Failed", {"reason": reason, "message": message}
            case Shutdown():
                self.ends = True


class _Server(Server):
    """Pods are gone when their node says so, and events are not part of what a job is."""

    def delete(self, path: str, *arguments: Any, **options: Any) -> None:
        self._request("delete", path)
        if path.startswith(PODS):
            if path in self.objects:
                self.objects[path]["metadata"].setdefault("deletionTimestamp", CREATED)
        else:
            self.objects.pop(path, None)

    def create(self, path: str, body: Json, *, strict: bool = False) -> Json:
        made = super().create(path, body, strict=strict)
        if path == PODS:
            made["metadata"]["creationTimestamp"] = CREATED
            self.objects[f"{path}/{made['metadata']['name']}"]["metadata"]["creationTimestamp"] = CREATED
        return made


class Life(World):
    """One job and what happens to it.

    Args:
        folder: for what planners write, which is nothing here.
        monkeypatch: puts the played coordinator and planner in place.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.coordinators: dict[str, Coordinator] = {}
        self.sent: list[Action] = []
        self.asked = 0  # times that the coordinator was asked for its status
        self.patience = 0.0  # seconds that are waited for one that is silent
        super().__init__(folder)
        life = self

        class Client:
            def __init__(self, address: str, token: str) -> None:
                self.address = address

            def _coordinator(self) -> Coordinator:
                found = life.coordinators[self.address]
                if found.silent:
                    life.now += life.patience
                    raise CoordinatorError("no answer")
                return found

            def status(self) -> Json:
                life.asked += 1
                return self._coordinator().document()

            def profiles(self) -> Json:
                return copy.deepcopy(self._coordinator().profiles)

            def send(self, action: Action) -> None:
                coordinator = self._coordinator()
                life.sent.append(action)
                coordinator.take(action)

        class Planner:
            """Answers at the next look."""

            def __init__(self, *_: Any, **__: Any) -> None:
                self._answer: PlanOutcome | None = None

            @property
            def running(self) -> bool:
                return self._answer is not None

            def start(self, problem: Json, revision: int = 1, stages: Any = ()) -> None:
                self._answer = PlanOutcome(_plan(), revision=revision)

            def poll(self) -> PlanOutcome | None:
                answer, self._answer = self._answer, None
                return answer

            def close(self) -> None:
                self._answer = None

        monkeypatch.setattr(loop, "CoordinatorClient", Client)
        monkeypatch.setattr(session_module, "QueuedPlanner", Planner)
        for pool in self.pools:
            pool["spec"]["maxUnits"] = 8
        self.server = _Server()
        self.cluster = self.make_cluster()
        self.operator = self.controller()

    def make_cluster(self) -> OperatorContext:
        made = super().make_cluster()
        made.measurement = lambda namespace, name: _Nothing()
        return made

    # --- looking ------------------------------------------------------------------------------------------------------

    def settle(self, controller: JobController | None = None) -> None:
        """Let the controller look until it has nothing to do."""
        for _ in range(30):
            before = self.state()
            (controller or self.operator).turn()
            if self.state() == before:
                return
        raise AssertionError(f"does not come to rest, phase {self.status.get('phase')}")

    def state(self) -> str:
        """Everything that a controller can change, but for versions and events."""
        objects = {}
        for path, item in self.server.objects.items():
            if "/events/" not in path:
                metadata = {key: value for key, value in item["metadata"].items() if key != "resourceVersion"}
                objects[path] = {**item, "metadata": metadata}
        return json.dumps([objects, {place: asdict(known) for place, known in self.coordinators.items()}], indent=1)

    def look_of_another_operator(self, looks: int) -> None:
        """Let another operator look that sees the same cluster and has seen nothing before; then it never was."""
        before = dict(self.server.objects)
        other = self.controller(self.make_cluster())
        for _ in range(looks):
            other.turn()
        other.abandon()
        self.server.objects = before

    def pods(self) -> dict[str, Json]:
        """Pods by the name of their process, those that exist and have not ended."""
        found = {}
        for path, item in self.server.objects.items():
            if path.startswith(PODS) and (item.get("status") or {}).get("phase") not in _ENDED:
                found[process_of(item).name] = item
        return found

    @property
    def coordinator(self) -> Coordinator | None:
        """That of the running coordinator's pod."""
        pod = self.pods().get("coordinator")
        address = ((pod or {}).get("status") or {}).get("podIP")
        return self.coordinators[f"http://{address}:{COORDINATOR_PORT}"] if address else None

    # --- what happens -------------------------------------------------------------------------------------------------

    def nodes_act(self) -> None:
        """Pods that were created run, those that were deleted are gone."""
        for path, item in list(self.server.objects.items()):
            if not path.startswith(PODS):
                continue
            if item["metadata"].get("deletionTimestamp"):
                del self.server.objects[path]
                self.cluster.pods.remove(item)
            elif "status" not in item:
                ip = f"10.0.{len(self.coordinators)}.{len(self.server.objects)}"
                if process_of(item).role == "coordinator":
                    self.coordinators[f"http://{ip}:{COORDINATOR_PORT}"] = Coordinator()
                conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": CREATED}]
                self._set(path, {"phase": "Running", "podIP": ip, "conditions": conditions})

    def end(self, name: str, code: int) -> None:
        """A container ends."""
        for path, item in list(self.server.objects.items()):
            if item is self.pods().get(name):
                over = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "finishedAt": CREATED}
                status = {
                    **(item.get("status") or {}),
                    "phase": "Failed" if code else "Succeeded",
                    "conditions": [],
                    "containerStatuses": [{"name": "heterps", "state": {"terminated": over}}],
                }
                self._set(path, status)

    def train(self) -> Coordinator:
        """Live until the job trains; returns its coordinator."""
        for _ in range(20):
            self.settle()
            if self.coordinator is not None and self.coordinator.phase == "Training":
                return self.coordinator
            self.go_on()
        raise AssertionError(f"is still {self.status['phase']}")

    def remove(self, name: str) -> None:
        """Somebody deletes a pod, and it is gone at once."""
        for path, item in list(self.server.objects.items()):
            if item is self.pods().get(name):
                del self.server.objects[path]
                self.cluster.pods.remove(item)

    def proceed(self) -> None:
        """What a healthy job does next."""
        coordinator, pods = self.coordinator, self.pods()
        if coordinator is None:
            return
        if coordinator.ends:
            self.end("coordinator", 0)
        elif coordinator.phase in _LEAVES:
            for name in pods.keys() - {"coordinator"}:
                self.end(name, 0 if coordinator.phase == "Succeeded" else 130)
        elif coordinator.phase == "Profiling":
            for name in pods:
                if name.startswith("profile-"):
                    coordinator.profiles[name.removeprefix("profile-")] = copy.deepcopy(PROFILE)
                    self.end(name, 0)
        for member in coordinator.members:
            if "status" in pods.get(member["name"], {}):
                member["state"] = "ready"
        ready = bool(coordinator.members) and all(m["state"] == "ready" for m in coordinator.members)
        if coordinator.phase == "Starting" and ready:
            coordinator.phase = "Training"
        elif coordinator.phase == "Training" and ready:
            coordinator.step += 5

    def replace_operator(self) -> None:
        """The operator dies, and another one begins."""
        self.operator.abandon()
        self.cluster = self.make_cluster()
        self.operator = self.controller()

    def happen(self, rng: np.random.Generator) -> str:
        """Let something happen; says what."""
        names = sorted(self.pods())
        name = str(rng.choice(names)) if names else ""
        kind = str(
            rng.choice(
                ["proceed", "proceed", "end", "remove", "pass", "suspend", "floor", "image", "silence", "finish",
                 "replace", "pause"],
                p=[0.3, 0.25, 0.09, 0.06, 0.08, 0.06, 0.03, 0.02, 0.03, 0.02, 0.04, 0.02],
            )
        )  # fmt: skip
        coordinator, spec = self.coordinator, self.job["spec"]
        match kind:
            case "end" if name:
                self.end(name, int(rng.choice([0, 1, 2, 137, 143])))
            case "remove" if name:
                self.remove(name)
            case "pass":
                self.now += float(rng.choice([0.5, 5.0, 30.0, 200.0]))
            case "suspend":
                suspended = not spec["runPolicy"].get("suspend")
                self.edit(lambda job: job["spec"]["runPolicy"].__setitem__("suspend", suspended))
            case "floor":
                self.edit(lambda job: job["spec"]["objective"].__setitem__("minSamplesPerSecond", 10_000))
            case "image":
                self.edit(lambda job: job["spec"].__setitem__("image", f"example.com/model:{int(rng.integers(3))}"))
            case "pause":
                paused = bool(rng.choice([True, False]))
                self.edit(lambda job: job["spec"].__setitem__("paused", paused))
            case "silence" if coordinator is not None:
                coordinator.silent = not coordinator.silent
            case "finish" if coordinator is not None and coordinator.phase == "Training":
                coordinator.phase = "Succeeded"
            case "replace":
                self.replace_operator()
            case _:
                return self.go_on()
        self.now += 0.5
        return f"{kind} {name}".strip()

    def go_on(self) -> str:
        """Let nothing but what should happen do so."""
        self.nodes_act()
        self.proceed()
        self.now += 0.5
        return "go on"

    def _set(self, path: str, status: Mapping[str, Any]) -> None:
        item = {**self.server.objects[path], "status": dict(status)}
        self.server.objects[path] = item
        self.cluster.pods.put(copy.deepcopy(item))


class _Nothing:
    """A job that is not measured."""

    pause_seconds = 1.0

    def read(self, address: str) -> Figures:
        return Figures(measured=1.0, generation=1)
