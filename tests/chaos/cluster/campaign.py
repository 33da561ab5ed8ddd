"""The cluster of a campaign, and a run from its start to its judgement."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from heterps_operator.kubernetes.api import ApiError, connect
from tests.chaos.campaign import Outcome
from tests.chaos.cluster.director import Director
from tests.chaos.cluster.gate import Gate
from tests.chaos.cluster.injection import Injection
from tests.chaos.cluster.job import Job
from tests.chaos.cluster.judgement import bill_problems, left_behind, result_problems
from tests.chaos.cluster.operators import Operators
from tests.chaos.faults.schedule import Run
from tests.chaos.results.judgement import Judge
from tests.cluster.building import ROOT
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.helm import Helm, grant, kubeconfig_of
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.operators import NAMESPACE

__all__ = ["Campaign", "on", "started"]

_TURN_SECONDS = 0.05
_READY_SECONDS = 300.0  # after which a cluster must work again
_FINAL = ("Succeeded", "Failed")


class Campaign:
    """Runs jobs under faults, one after the other, on one cluster.

    Args:
        cluster: a cluster with the custom resources; the calling thread is in its network.
        gate: between operators and the API server.
        operators: run, with the gate's kubeconfig.
        folder: for data, checkpoints and models.
        say: takes lines for people.
    """

    def __init__(
        self, cluster: Cluster, gate: Gate, operators: Operators, folder: Path, say: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._gate = gate
        self._operators = operators
        self._folder = folder
        self._say = say
        self._api = connect(str(cluster.place.kubeconfig))
        self._judge = Judge(folder)

    def carry_out(self, run: Run) -> Outcome:
        """Run a job under its faults, judge it, and delete it."""
        admin = self._cluster.kubectl
        namespace = f"chaos-{run.seed}"
        admin("create", "namespace", namespace)
        kubectl = Kubectl(admin.kubeconfig, admin.cache, namespace)
        wait_until("pods can be created", lambda: not kubectl.try_to("get", "serviceaccount", "default").code, 60)
        folder = self._folder / str(run.seed)
        job = Job(kubectl, self._api, folder, run)
        folder.chmod(0o777)
        director = Director(run, Injection(self._cluster, self._gate, self._operators, job))
        tracebacks = self._operators.tracebacks()
        job.real.submit()
        began = time.monotonic()
        told = _Told(director, lambda line: self._say(f"  {time.monotonic() - began:6.1f} s  {line}"))
        try:
            while job.phase not in _FINAL and time.monotonic() < began + run.limit_seconds:
                director.observed(job.observe())
                job.hold(director.holds)
                self._operators.restart()
                told.tell()
                time.sleep(_TURN_SECONDS)
            seconds = time.monotonic() - began
        finally:
            director.finish()
            self._recover(director)
        told.tell()
        problems = result_problems(job, run, self._judge)
        problems += [f"there was no opportunity for: {fault}" for fault in director.pending]
        if tracebacks != self._operators.tracebacks():
            problems.append("an operator has logged a traceback")
        logs = f"{job.real.story()}\n{self._operators.stories()}" if problems else ""
        if job.phase == "Succeeded":
            found = bill_problems(job, self._api)
            logs = logs or (f"{job.real.story()}\n{self._operators.stories()}" if found else "")
            problems += found
        problems += left_behind(job, self._api)
        self._clean(job, admin, namespace)
        return Outcome(run, tuple(director.incidents), tuple(problems), seconds, logs)

    def _recover(self, director: Director) -> None:
        """Wait until the cluster and an operator work again."""

        def works() -> bool:
            director.finish()
            self._operators.restart()
            ready = not self._cluster.kubectl.try_to("get", "--raw=/readyz").code
            return ready and not director.lasts and self._nodes_work() and self._operators.active() is not None

        wait_until("the cluster works again", works, _READY_SECONDS, more=self._operators.stories)

    def _nodes_work(self) -> bool:
        with contextlib.suppress(ClusterError, ApiError):
            nodes = self._cluster.kubectl.items("nodes")
            return all(
                not node["spec"].get("taints") and not node["spec"].get("unschedulable")
                and any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"])
                for node in nodes
            )  # fmt: skip
        return False

    def _clean(self, job: Job, admin: Kubectl, namespace: str) -> None:
        pools = [pool["metadata"]["name"] for pool in (job.real.pool, *job.real.more_pools)]
        admin.try_to("delete", "devicepools", *pools, "--ignore-not-found", "--wait=false")
        admin.try_to("delete", "namespace", namespace, "--wait=false")
        shutil.rmtree(job.real.folder, ignore_errors=True)


class _Told:
    """Says what is new about the faults of a run."""

    def __init__(self, director: Director, say: Callable[[str], None]) -> None:
        self._director = director
        self._say = say
        self._told = self._recovered = 0

    def tell(self) -> None:
        incidents = self._director.incidents
        while self._told < len(incidents):
            incident = incidents[self._told]
            self._say(f"{incident.fault}: {incident.done or 'there was none'}")
            self._told += 1
        while self._recovered < len(incidents) and incidents[self._recovered].recovery.ended is not None:
            incident = incidents[self._recovered]
            self._say(f"steps are committed again {incident.recovery.seconds:.1f} s after {incident.fault.kind}")
            self._recovered += 1


@contextlib.contextmanager
def on(cluster: Cluster, kubeconfig: Path, folder: Path, say: Callable[[str], None]) -> Iterator[Campaign]:
    """Start the campaign's operators on a cluster.

    Args:
        cluster: with the custom resources and the namespace of operators.
        kubeconfig: credentials of operators.
        folder: for all files.
        say: takes lines for people.
    """
    logs = folder / "operators"
    logs.mkdir()
    with Gate(kubeconfig) as gate:
        path = gate.write_kubeconfig(folder / "gate.kubeconfig")
        with Operators(path, logs) as operators:
            yield Campaign(cluster, gate, operators, folder, say)


@contextlib.contextmanager
def started(folder: Path, say: Callable[[str], None]) -> Iterator[Campaign]:
    """Start a cluster, and the campaign's operators with the rights of the chart."""
    with Cluster(say=say) as cluster, cluster.entered():
        admin = cluster.kubectl
        admin("apply", "--server-side", f"--filename={ROOT / 'crds'}")
        admin("wait", "--for=condition=Established", f"--filename={ROOT / 'crds'}", "--timeout=60s")
        admin("create", "namespace", NAMESPACE)
        account = grant(Helm(folder / "helm"), admin, "chaos", NAMESPACE)
        with on(cluster, kubeconfig_of(admin, folder, account, NAMESPACE), folder, say) as campaign:
            yield campaign
