"""A small job as a HeterPSJob: real training in real pods, as fast as possible.

The profile of its pool is stored in the cache, unless a test is about profiling.
"""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from safetensors.numpy import load_file

from heterps_operator.api.admission import pod_configuration
from heterps_operator.api.manifest import read_objects
from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.names import (
    coordinator_address,
    events_path,
    job_path,
    object_path,
    pods_path,
    secret_path,
    token_secret_name,
)
from heterps_operator.kubernetes.profiles import ConfigMapProfileCache
from heterps_operator.loop.coordinator_client import CoordinatorClient, CoordinatorError
from tests.cluster.building import ROOT
from tests.cluster.cluster import POOL_LABEL
from tests.cluster.errors import ClusterError
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.pods import project_template
from tests.heterps_operator.helpers import real_job

Json = dict[str, Any]

SHARED = "/shared"  # mount path of the job's folder in its pods
PATIENCE_SECONDS = 600
FINAL = ("Succeeded", "Failed", "Suspended")


class ClusterJob:
    """One job, from its manifest to its results.

    Args:
        kubectl: in the job's namespace.
        api: API server of the cluster, for the cached profile.
        folder: folder of data, checkpoints and model; all pods mount it.
        name: name of the job and its pools.
        spec: overrides fields of `spec`, by dotted path.
        pool: overrides fields of the pool's `spec`.
    """

    def __init__(
        self,
        kubectl: Kubectl,
        api: KubernetesApi,
        folder: Path,
        name: str = "small",
        spec: Mapping[str, Any] | None = None,
        pool: Mapping[str, Any] | None = None,
    ) -> None:
        assert kubectl.namespace is not None
        self.kubectl, self.name, self.folder = kubectl, name, folder
        self._api, self._namespace = api, kubectl.namespace
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "data").exists():
            (folder / "data").mkdir()
            pq.write_table(pa.table(real_job.columns()), folder / "data" / "part-0.parquet", row_group_size=512)
            shutil.copy(ROOT / "tests" / "heterps_operator" / "helpers" / "small_model.py", folder / "small_model.py")
        documents = list(yaml.safe_load_all(real_job.MANIFEST))
        self.profile = copy.deepcopy(real_job.PROFILE)
        [self.pool] = [d for d in documents if d["kind"] == "DevicePool"]
        [self.job] = [d for d in documents if d["kind"] == "HeterPSJob"]
        self.more_pools: list[Json] = []
        # Pools are cluster-scoped: each namespace's tests have their own.
        self.pool_name = f"cpu-{kubectl.namespace}"[:40].rstrip("-")
        self.pool["metadata"]["name"] = self.pool_name
        self.pool["spec"] |= {"nodeSelector": {POOL_LABEL: "cpu"}, **(pool or {})}
        self.job["metadata"] |= {"name": name, "namespace": kubectl.namespace}
        self.job["spec"] |= {"pools": [{"name": self.pool_name}], "podTemplates": {"all": self._template()}}
        self.job["spec"]["image"] = self.job["spec"]["podTemplates"]["all"]["spec"]["containers"][0].pop("image")
        self.job["spec"]["data"]["train"] = f"{SHARED}/data"
        self.job["spec"]["checkpoint"] |= {"path": f"{SHARED}/{name}"}
        for stage in self.job["spec"]["scheduling"]["stages"]:
            stage["pool"] = self.pool_name
        for path, value in (spec or {}).items():
            place = self.job["spec"]
            *parents, last = path.split(".")
            for key in parents:
                place = place.setdefault(key, {})
            place[last] = value

    def _template(self) -> Json:
        template = project_template()
        [container] = template["spec"]["containers"]
        container["env"].append({"name": "PYTHONPATH", "value": SHARED})
        container["volumeMounts"].append({"name": "shared", "mountPath": SHARED})
        # Twenty processes share two cores here: no pod may require a whole one.
        container["resources"] = {"requests": {"cpu": "10m"}, "limits": {"cpu": "2"}}
        template["spec"]["volumes"].append({"name": "shared", "hostPath": {"path": str(self.folder)}})
        template["spec"]["terminationGracePeriodSeconds"] = 2
        return template

    # --- acting -------------------------------------------------------------------------------------------------------

    def submit(self, *, profiled: bool = True) -> ClusterJob:
        """Create pool and job."""
        self.kubectl.apply(self.pool, *self.more_pools)
        if profiled:
            self.keep_profile()
        self.kubectl.apply(self.job)
        return self

    def keep_profile(self) -> None:
        """Store the pools' profile in the cache of earlier jobs."""
        with_defaults = json.loads(
            self.kubectl("apply", "--server-side", "--dry-run=server", "--filename=-", "--output=json",
                         text=json.dumps(self.job))
        )  # fmt: skip
        pools = (self.pool, *self.more_pools)
        configuration = pod_configuration(read_objects(with_defaults, pools))
        cache = ConfigMapProfileCache(self._api, self._namespace, configuration)
        for pool in pools:
            cache.save(pool["metadata"]["name"], self.profile)

    def add_pool(self, name: str, **spec: Any) -> str:
        """Add a pool that differs from the first one in these fields; return its name."""
        pool = copy.deepcopy(self.pool)
        pool["metadata"]["name"] = f"{name}-{self.kubectl.namespace}"[:40].rstrip("-")
        pool["spec"] |= spec
        self.more_pools.append(pool)
        self.job["spec"]["pools"].append({"name": pool["metadata"]["name"]})
        return str(pool["metadata"]["name"])

    def patch(self, spec: Mapping[str, Any]) -> None:
        """Change fields of the spec."""
        self.kubectl("patch", "heterpsjob", self.name, "--type=merge", f"--patch={json.dumps({'spec': spec})}")

    def delete(self) -> None:
        """Delete the job without waiting."""
        self.kubectl("delete", "heterpsjob", self.name, "--wait=false")

    # --- looking: over and over again while tests wait, for which a kubectl each time would take a whole core ---------

    def status(self) -> Json:
        """The job's status.

        Raises:
            ClusterError: the job does not exist.
        """
        job = self._api.get(job_path(self._namespace, self.name))
        if job is None:
            raise ClusterError(f"there is no HeterPSJob {self._namespace}/{self.name}")
        value: Json = job.get("status") or {}
        return value

    def condition(self, kind: str) -> Json:
        """Return one of its conditions."""
        found = [c for c in self.status().get("conditions") or () if c["type"] == kind]
        return found[0] if found else {"status": "Unknown", "reason": "", "message": ""}

    def pods(self, role: str | None = None) -> list[Json]:
        """Return its pods."""
        selector = f"heterps.io/job={self.name}" + (f",heterps.io/role={role}" if role else "")
        pods, _ = self._api.list(pods_path(self._namespace), selector)
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    def held_units(self) -> int:
        """Return the units of its first pool that jobs hold, from the pool's status, which follows within seconds."""
        found = self._api.get(object_path(self.pool)) or {}
        return int((found.get("status") or {}).get("allocatedUnits", -1))

    def wait_for_phase(self, *phases: str, seconds: float = PATIENCE_SECONDS) -> Json:
        """Wait until the job is in one of these phases; return the status."""

        def reached() -> Json | None:
            status = self.status()
            if status.get("phase") in phases:
                return status
            self._expect_not_over(status)
            return None

        return wait_until(f"{self.name} is {' or '.join(phases)}", reached, seconds, more=self.story)

    def wait_for_condition(self, kind: str, status: str, reason: str | None = None, seconds: float = 60) -> Json:
        """Wait until a condition has a value; return it."""

        def said() -> Json | None:
            found = self.condition(kind)
            return found if found["status"] == status and reason in (None, found["reason"]) else None

        return wait_until(f"{kind} is {status} {reason or ''}", said, seconds, more=self.story)

    def wait_for_step(self, step: int) -> None:
        """Wait until a number of steps is committed."""

        def reached() -> bool:
            status = self.status()
            there = self.step() >= step
            if not there:
                self._expect_not_over(status)
            return there

        wait_until(f"step {step}", reached, PATIENCE_SECONDS, more=self.story)

    def _expect_not_over(self, status: Json) -> None:
        if (phase := status.get("phase")) in ("Succeeded", "Failed"):
            raise AssertionError(f"the job is {phase}: {status.get('message')}\n{self.story()}")

    def coordinator(self) -> CoordinatorClient:
        """Return a client of its coordinator, like the operator's."""
        [pod] = [pod for pod in self.pods("coordinator") if pod["status"].get("phase") == "Running"]
        return self.coordinator_in(pod)

    def coordinator_in(self, pod: Json) -> CoordinatorClient:
        """Return a client of the coordinator in a pod."""
        return CoordinatorClient(coordinator_address(self.job, str(pod["status"]["podIP"])), self.token())

    def token(self) -> str:
        """Return the secret of the job's processes."""
        secret = self._api.get(secret_path(self._namespace, token_secret_name(self.name)))
        if secret is None:
            raise ClusterError(f"job {self.name} has no token")
        return b64decode(secret["data"]["token"]).decode()

    def told(self, reason: str) -> list[str]:
        """Return the messages of its events with this reason, the oldest first."""
        chosen = f"reason={reason},involvedObject.name={self.name}"
        events, _ = self._api.list(events_path(self._namespace), field_selector=chosen)
        return [str(event["message"]) for event in sorted(events, key=_first_time)]

    def step(self) -> int:
        """Return the number of committed steps; the status is updated only every few seconds."""
        with contextlib.suppress(CoordinatorError, ClusterError, ApiError, ValueError):  # none is there, or answers
            return int(self.coordinator().status()["committedSteps"])
        return int((self.status().get("progress") or {}).get("step") or 0)

    def model(self) -> dict[str, Any]:
        """Return the trained model, by parameter."""
        return load_file(self.folder / self.name / "model" / "model.safetensors")

    def story(self) -> str:
        """Return everything that the cluster knows about the job."""
        parts = [self.kubectl.try_to("get", "heterpsjob", self.name, "--output=yaml", "--show-managed-fields=false")]
        parts.append(self.kubectl.try_to("get", "pods", "--output=wide"))
        parts.append(self.kubectl.try_to("get", "events", "--sort-by=.lastTimestamp"))
        for pod in self.pods():
            parts.append(self.kubectl.try_to("logs", pod["metadata"]["name"], "--tail=15"))
        return "\n".join(part.output + part.errors for part in parts)


def _first_time(event: Json) -> str:
    return str(event.get("firstTimestamp") or event.get("eventTime") or "")
