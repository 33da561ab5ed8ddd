"""A job's life on an in-memory cluster: the real controller and API calls, fake pods, coordinator and planner.

Nothing happens by itself. Each step of `Life` is a possible event; between two events the controller runs until it has
nothing left to do.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.jobs.controller import JobController
from heterps_operator.kubernetes.names import COORDINATOR_PORT
from heterps_operator.kubernetes.reading.processes import process_of
from heterps_operator.loop.coordinator_client import CoordinatorError
from heterps_operator.measure.measurement import Figures
from heterps_operator.state.plan import PlanOutcome
from heterps_operator.state.values import (
    Action,
    FailJob,
    ReportLost,
    RequestStop,
    Shutdown,
    SubmitAllocation,
    SubmitPlan,
)
from tests.heterps_operator.helpers.fake_server import copied
from tests.heterps_operator.helpers.job_world import PODS, Server, World
from tests.heterps_operator.helpers.world import PLAN, PROFILE
from tests.heterps_operator.helpers.world import World as Values

Json = dict[str, Any]

CREATED = "2023-11-14T22:13:20Z"
_ENDED = ("Succeeded", "Failed")
_LEAVES = ("Succeeded", "Failed", "Stopped")


def _plan() -> Json:
    plan = copy.deepcopy(PLAN)
    plan["stages"][1]["pool"] = "accelerator"
    return plan


def cores_only() -> Json:
    """The plan without the card."""
    first = {**PLAN["stages"][0], "lastLayer": 2, "layers": ["embedding", "mlp", "head"], "units": 4, "pods": 4}
    return {**PLAN, "stages": [first], "throughput": 50_000.0, "costPerHour": 0.2}


@dataclass
class Coordinator:
    """State of a fake coordinator."""

    phase: str = "Profiling"
    members: list[Json] = field(default_factory=list)
    profiles: Json = field(default_factory=dict)
    step: int = 0
    total: int = 100  # steps of the job
    error: Json | None = None
    ends: bool = False  # it was asked to stop
    silent: bool = False
    batches: tuple[tuple[int, ...], ...] = ()

    def document(self) -> Json:
        """Return its status document."""
        return copy.deepcopy(
            {"phase": self.phase, "members": self.members, "committedSteps": self.step, "totalSteps": self.total,
             "generation": 1, "samplesPerSecond": 50_000.0 if self.step else 0.0, "error": self.error}
        )  # fmt: skip

    def take(self, action: Action) -> None:
        """Execute a request; repeating it has no effect."""
        match action:
            case SubmitPlan(plan):
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
    """Pods are gone when their node reports it; events are not stored."""

    def delete(self, path: str, *arguments: Any, **options: Any) -> None:
        self._record("delete", path)
        if path.startswith(PODS):
            if path in self.objects:
                self.objects[path]["metadata"].setdefault("deletionTimestamp", CREATED)
        else:
            self.objects.pop(path, None)

    def create(self, path: str, body: Mapping[str, Any], *, strict: bool = False) -> Json:
        made = super().create(path, body, strict=strict)
        if path == PODS:
            made["metadata"]["creationTimestamp"] = CREATED
            self.objects[f"{path}/{made['metadata']['name']}"]["metadata"]["creationTimestamp"] = CREATED
        return made


class Life(World):
    """One job and the events in its life.

    Args:
        folder: folder of the planners, which write nothing here.
    """

    def __init__(self, folder: Path) -> None:
        self.coordinators: dict[str, Coordinator] = {}
        self.sent: list[Action] = []
        self.asked = 0  # number of status requests to the coordinator
        self.follows_prices = False  # the planner has another plan for a dear card
        self.plan: Json | None = None  # that the planner finds; None: the usual one
        self.stages: Any = ()  # by hand, of the last planner that was made for a session
        self.patience = 0.0  # seconds of waiting for a silent coordinator
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
            """Answers at the next turn."""

            def __init__(self, slots: Any, namespace: str, folder: Path, *_: Any, stages: Any, **__: Any) -> None:
                if folder.name == "plan":
                    life.stages = stages
                self._answer: PlanOutcome | None = None

            @property
            def running(self) -> bool:
                return self._answer is not None

            def start(self, problem: Mapping[str, Any], revision: int = 1, stages: Any = ()) -> None:
                # Four cores are the cheaper plan while a card costs more than one of them.
                prices = {pool["name"]: pool["pricePerUnitHour"] for pool in problem["pools"]}
                plan = _plan() if prices.get("accelerator", 0) <= 1 or not life.follows_prices else cores_only()
                self._answer = PlanOutcome.from_json(life.plan or plan, revision)

            def poll(self) -> PlanOutcome | None:
                answer, self._answer = self._answer, None
                return answer

            def close(self) -> None:
                self._answer = None

        self._connect, self._make_planner = Client, Planner
        super().__init__(folder)
        for pool in self.pools:
            pool["spec"]["maxUnits"] = 8
        self.server = _Server()
        self.cluster = self.make_cluster()
        self.operator = self.controller()

    def make_cluster(self) -> OperatorContext:
        made = super().make_cluster()
        made.measurement = lambda namespace, name: _Nothing()
        made.connect, made.make_planner = self._connect, self._make_planner
        return made

    # --- looking ------------------------------------------------------------------------------------------------------

    def settle(self, controller: JobController | None = None) -> None:
        """Run the controller until it has nothing to do."""
        for _ in range(30):
            before = self.state()
            (controller or self.operator).turn()
            if self.state() == before:
                return
        raise AssertionError(f"does not come to rest, phase {self.status.get('phase')}")

    def state(self) -> Json:
        """Return a copy of everything that a controller can change, except versions and events."""
        objects = {}
        for path, item in self.server.objects.items():
            if "/events/" not in path:
                metadata = {key: value for key, value in item["metadata"].items() if key != "resourceVersion"}
                objects[path] = {**item, "metadata": metadata}
        coordinators = {place: vars(known) for place, known in self.coordinators.items()}
        copied: Json = json.loads(json.dumps({"objects": objects, "coordinators": coordinators}))
        return copied

    def look_of_another_operator(self, looks: int) -> None:
        """Run a turn of another operator that sees the same cluster for the first time, then remove that operator."""
        before = dict(self.server.objects)
        other = self.controller(self.make_cluster())
        for _ in range(looks):
            other.turn()
        other.abandon()
        self.server.objects = before

    def pods(self) -> dict[str, Json]:
        """Return pods that exist and have not ended, by process name."""
        found = {}
        for path, item in self.server.objects.items():
            if path.startswith(PODS) and (item.get("status") or {}).get("phase") not in _ENDED:
                found[process_of(item).name] = item
        return found

    @property
    def coordinator(self) -> Coordinator | None:
        """Return the coordinator of the running coordinator pod."""
        pod = self.pods().get("coordinator")
        address = ((pod or {}).get("status") or {}).get("podIP")
        return self.coordinators[f"http://{address}:{COORDINATOR_PORT}"] if address else None

    # --- what happens -------------------------------------------------------------------------------------------------

    def nodes_act(self) -> None:
        """Start created pods, and remove deleted ones."""
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
        """End a container."""
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
        """Run until the job trains; return its coordinator."""
        for _ in range(20):
            self.settle()
            if self.coordinator is not None and self.coordinator.phase == "Training":
                return self.coordinator
            self.go_on()
        raise AssertionError(f"is still {self.status['phase']}")

    def remove(self, name: str) -> None:
        """Delete a pod as another client, with immediate effect."""
        for path, item in list(self.server.objects.items()):
            if item is self.pods().get(name):
                del self.server.objects[path]
                self.cluster.pods.remove(item)

    def proceed(self) -> None:
        """Make the progress of a healthy job."""
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
        """Stop the operator and start a new one."""
        self.operator.abandon()
        self.cluster = self.make_cluster()
        self.operator = self.controller()

    def happen(self, rng: np.random.Generator) -> str:
        """Trigger an event; return its description."""
        names = sorted(self.pods())
        name = str(rng.choice(names)) if names else ""
        kind = str(
            rng.choice(
                ["proceed", "proceed", "end", "remove", "pass", "suspend", "floor", "image", "silence", "finish",
                 "replace", "pause", "servers"],
                p=[0.28, 0.25, 0.09, 0.06, 0.08, 0.06, 0.03, 0.02, 0.03, 0.02, 0.04, 0.02, 0.02],
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
            case "servers" if coordinator is not None and coordinator.phase == "Training":
                number = int(rng.choice([1, 2]))
                self.plan = {**_plan(), "parameterServer": {"pool": "cpu", "replicas": number, "units": number}}
                self.edit(lambda job: job["spec"]["parameterServer"].__setitem__("replicas", number))
            case "pause":
                paused = bool(rng.choice([True, False]))
                self.edit(lambda job: job["spec"].__setitem__("paused", paused))
            case "silence" if coordinator is not None:
                coordinator.silent = not coordinator.silent
                self.now += 1.0  # until it is asked again
            case "finish" if coordinator is not None and coordinator.phase == "Training":
                coordinator.phase = "Succeeded"
            case "replace":
                self.replace_operator()
            case _:
                return self.go_on()
        self.now += 0.5
        return f"{kind} {name}".strip()

    def go_on(self) -> str:
        """Continue with only the expected events."""
        self.nodes_act()
        self.proceed()
        self.now += 0.5
        return "go on"

    def _set(self, path: str, status: Mapping[str, Any]) -> None:
        item = {**self.server.objects[path], "status": dict(status)}
        self.server.objects[path] = item
        self.cluster.pods.put(copied(item))


class _Nothing:
    """A source without measurements."""

    pause_seconds = 1.0

    def read(self) -> Figures:
        return Figures(measured=1.0, generation=1)
