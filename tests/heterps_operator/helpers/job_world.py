"""A job on an in-memory API server, with its pools and its controllers. The pods run nothing."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from heterps_operator.api.manifest import load_manifest
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.jobs.controller import JobController
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.reading.pools import namespace_limits
from heterps_operator.kubernetes.state import StoredState
from heterps_operator.state.bill import Bill
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Phase, Status
from tests.heterps_operator.helpers.fake_server import FakeServer, copied
from tests.heterps_operator.helpers.world import PLAN

Json = dict[str, Any]

FLIGHTS = Path(__file__).parents[3] / "examples" / "flights" / "job.yaml"
KEY = ("ml", "flights")
JOB = "/apis/heterps.io/v1alpha1/namespaces/ml/heterpsjobs/flights"
PODS = "/api/v1/namespaces/ml/pods"
CONFIGS = "/api/v1/namespaces/ml/configmaps"
STATE = "/apis/heterps.io/v1alpha1/namespaces/ml/heterpsjobstates/flights"
SERVICE = "/api/v1/namespaces/ml/services/flights"
EVENTS = "/api/v1/namespaces/ml/events"


class Server(FakeServer):
    """An in-memory API server with the operator's methods."""

    def create(self, path: str, body: Mapping[str, Any], *, strict: bool = False) -> Json:
        self._record("create", path)
        place = f"{path}/{body['metadata']['name']}"
        if place in self.objects:
            raise ApiError(409, "AlreadyExists", f"{place} already exists")
        return self.put(place, **body)

    def replace(self, path: str, body: Mapping[str, Any]) -> Json:
        self._record("update", path)
        if self.objects[path]["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        return self._store(path, copied(dict(body)))

    def apply(self, path: str, body: Any, *_: Any, **options: Any) -> Json:
        before = self.objects.get(path, {})
        if before.get("immutable") and before.get("data") != body.get("data"):
            raise ApiError(422, "Invalid", "data: Forbidden: field is immutable when `immutable` is set")
        return super().apply(path, body, "heterps-client", True)

    def delete(self, path: str, *_: Any, **options: Any) -> None:
        super().delete(path, uid=options.get("uid"))

    def log_tail(self, namespace: str, pod: str, lines: int, container: str = "") -> tuple[str, ...]:
        return ()


class World:
    """A job, its pools, and its controllers."""

    def __init__(self, folder: Path) -> None:
        manifest = load_manifest(FLIGHTS)
        self.server = Server()
        self.now = 1_700_000_000.0
        self.folder = folder
        self.job: Json = copy.deepcopy(manifest.job)
        self.job["metadata"] |= {"namespace": "ml", "uid": "uid-1", "generation": 1}
        spec = self.job["spec"]
        spec["checkpoint"]["path"] = "/shared/flights"
        spec["data"] |= {"train": "/data/train", "evaluation": "/data/test"}
        self.pools: list[Json] = copy.deepcopy(manifest.pools)
        for pool in self.pools:
            pool["metadata"]["generation"] = 1
        self.cluster = self.make_cluster()

    def make_cluster(self) -> OperatorContext:
        """A new operator's view of the same cluster."""
        made = OperatorContext(self.server, self.folder, clock=lambda: self.now, monotonic=lambda: self.now)
        made.jobs.put(self.job)
        for pool in self.pools:
            made.pools.put(pool)
        self.set_limits(made)
        for path, item in self.server.objects.items():
            if path.startswith(PODS):
                made.pods.put(item)
        return made

    def set_limits(self, cluster: OperatorContext) -> None:
        """Pass the limits of the pools to the ledger, as if nodes had all units."""
        limits = {pool["metadata"]["name"]: pool["spec"]["maxUnits"] for pool in self.pools}
        shares = {pool["metadata"]["name"]: namespace_limits(pool) for pool in self.pools}
        cluster.ledger.set_limits(limits, {name: share for name, share in shares.items() if share is not None})

    def controller(self, cluster: OperatorContext | None = None) -> JobController:
        return JobController(cluster or self.cluster, KEY, lambda: None)

    def edit(self, change: Callable[[Json], None]) -> None:
        """Change the job as a user."""
        self.job = copy.deepcopy(self.job)
        change(self.job)
        self.job["metadata"]["generation"] += 1
        self.cluster.jobs.put(self.job)

    @property
    def status(self) -> Json:
        return self.server.objects[f"{JOB}/status"]["status"]  # type: ignore[no-any-return]

    def condition(self, kind: str) -> Json:
        [found] = [c for c in self.status["conditions"] if c["type"] == kind]
        return cast("Json", found)

    def names(self, prefix: str) -> set[str]:
        return {path.rpartition("/")[2] for path in self.server.objects if path.startswith(prefix)}

    def writes(self) -> list[tuple[str, str]]:
        return [call for call in self.server.requests if call[0] not in ("get", "list")]


def planned(world: World, phase: str = "Starting") -> None:
    """The state of a job that has a plan but no pods yet; the plan's ConfigMap belongs to another state."""
    world.cluster.ledger.set_limits({pool["metadata"]["name"]: 8 for pool in world.pools})
    plan = JobPlan.from_json(json.loads(json.dumps(PLAN).replace('"gpu"', '"accelerator"')))
    status = replace(Status().with_phase(Phase(phase), world.now), plan=plan, plan_revision=1)
    owner = {"apiVersion": "heterps.io/v1alpha1", "kind": "HeterPSJob", "uid": "uid-1", "controller": True}
    memory = StoredState(replace(status, started=world.now), Bill())
    world.server.put(STATE, data=memory.to_data(), metadata={"ownerReferences": [owner]})
    other = {"plan.json": "{}"}
    world.server.put(f"{CONFIGS}/flights-plan-1", immutable=True, data=other, metadata={"ownerReferences": [owner]})


def events(world: World) -> list[tuple[str, str]]:
    found = [item for path, item in world.server.objects.items() if path.startswith(EVENTS)]
    return [(item["reason"], item["message"]) for item in found]
