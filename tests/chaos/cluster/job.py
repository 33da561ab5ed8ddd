"""The job under test, observed from outside even while the API server does not answer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.loop.coordinator_client import CoordinatorClient, CoordinatorError
from tests.chaos.cluster.bill import Existence
from tests.chaos.cluster.moments import Sight
from tests.chaos.faults.schedule import Run
from tests.chaos.job import COMPARED
from tests.cluster.cluster import ACCELERATOR, POOL_LABEL
from tests.cluster.errors import ClusterError
from tests.cluster.faults import HELD, counting_job, small_job
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import Kubectl

__all__ = ["NAME", "Job"]

Json = dict[str, Any]

NAME = "chaos"
_LAYERS = ("tables", "linear", "output")
_CHECKPOINT_STEPS = 10
_HANG_SECONDS = 120
_MAX_UNITS = 6
_TOLERATED_SECONDS = 5  # for which pods stay on a node that is not heard of
_LIST_SECONDS = 0.5  # between two lists of the pods
_ANSWER_SECONDS = 2.0


class Job:
    """A job of the campaign.

    Args:
        kubectl: in a new namespace.
        api: API server of the cluster, not through the gate.
        folder: a new folder for data, checkpoints and model.
        run: plan of the run.

    Attributes:
        last_pods: its pods as they were listed last.
        existence: when each pod has existed.
        phase: of the job, as it was read last.
    """

    def __init__(self, kubectl: Kubectl, api: KubernetesApi, folder: Path, run: Run) -> None:
        assert kubectl.namespace is not None
        self.name, self.namespace = NAME, kubectl.namespace
        self.api = api.impatient(_ANSWER_SECONDS)
        self._run = run
        self.real = _cluster_job(kubectl, self.api, folder, run)
        self.last_pods: list[Json] = []
        self.existence = Existence()
        self.phase = ""
        self._coordinator: CoordinatorClient | None = None
        self._pods: frozenset[str] = frozenset()
        self._checkpoints: frozenset[str] = frozenset()
        self._listed = 0.0

    @property
    def stages(self) -> list[Json]:
        """`spec.scheduling.stages` as it was submitted."""
        stages: list[Json] = self.real.job["spec"]["scheduling"]["stages"]
        return stages

    def observe(self) -> Sight:
        """Look at the job."""
        if time.monotonic() >= self._listed + _LIST_SECONDS:
            self._listed = time.monotonic()
            with contextlib.suppress(ApiError, ClusterError):  # faults of the API server
                self._list()
        return Sight(self._status(), self._pods, self._look_for_checkpoints())

    def hold(self, held: bool) -> None:
        """Make training slow, and slower with time, or as fast as before: see `small_model.Held`."""
        file = self.real.folder / HELD
        if held and not file.exists():
            file.touch()
        elif not held:
            file.unlink(missing_ok=True)

    def pod(self, process: str) -> Json | None:
        """Return the newest pod of a process that has not ended, as it was listed last."""
        pods = [
            pod
            for pod in self.last_pods
            if pod["metadata"]["labels"]["heterps.io/process"] == process
            and (pod.get("status") or {}).get("phase") in ("Pending", "Running")
        ]
        return max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _list(self) -> None:
        pods, status = self.real.pods(), self.real.status()
        self.last_pods = pods
        self._pods |= {str(pod["metadata"]["uid"]) for pod in pods}
        self.existence.listed(pods, time.time())
        self.phase = str(status.get("phase") or "")
        coordinator = self.pod("coordinator")
        if coordinator is not None and coordinator["status"].get("podIP"):
            self._coordinator = self.real.coordinator_in(coordinator)

    def _status(self) -> Mapping[str, Any] | None:
        if self._coordinator is None:
            return None
        try:
            status = self._coordinator.status()
        except CoordinatorError:
            return None
        return status if "committedSteps" in status else None

    def _look_for_checkpoints(self) -> frozenset[str]:
        folder = self.real.folder / NAME
        if folder.exists():
            self._checkpoints |= {path.name for path in folder.iterdir() if path.name.startswith("step-")}
        return self._checkpoints


def _cluster_job(kubectl: Kubectl, api: KubernetesApi, folder: Path, run: Run) -> ClusterJob:
    """Return the job of a run, not submitted yet."""
    stages = run.topology.stages

    def make(name: str, spec: Mapping[str, Any], pool: Mapping[str, Any]) -> ClusterJob:
        return ClusterJob(kubectl, api, folder, name, spec, pool)

    spec: Json = {
        "training.steps": run.steps,
        "parameterServer": {"replicas": run.topology.servers, "replication": run.topology.copies},
        "checkpoint.everySteps": _CHECKPOINT_STEPS,
        "runPolicy.backoffLimit": run.backoff_limit,
        "runPolicy.disruptionBudgets": "Disabled",  # evictions are faults
        "runPolicy.hangTimeoutSeconds": _HANG_SECONDS,
    }
    if run.model == "counting":
        job = counting_job(make, NAME, run.consistency, spec=spec)
    else:
        compared = {path.replace("__", "."): value for path, value in COMPARED.items()}
        job = small_job(make, NAME, spec={**compared, "training.consistency": run.consistency, **spec})
    job.pool["spec"]["maxUnits"] = _MAX_UNITS
    pools = {"cpu": job.pool_name}
    if any(pool == "card" for pool, _ in stages):
        pools["card"] = job.add_pool(
            "card", deviceType="GPU", resourceName=ACCELERATOR, nodeSelector={POOL_LABEL: "accelerator"}
        )
    job.job["spec"]["scheduling"]["stages"] = [
        {"pool": pools[pool], "lastLayer": _LAYERS[-1] if i == len(stages) - 1 else _LAYERS[i], "units": workers}
        for i, (pool, workers) in enumerate(stages)
    ]
    lost = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    template = job.job["spec"]["podTemplates"]["all"]["spec"]
    template["tolerations"] = [{**lost, "tolerationSeconds": _TOLERATED_SECONDS}]
    return job
