"""What a fault does to pods, nodes, the API server, operators and the job's spec."""

from __future__ import annotations

import http.client
import signal
from collections.abc import Callable
from typing import Any

from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.names import job_path, pod_path
from tests.chaos.cluster.director import Effect
from tests.chaos.cluster.gate import Gate
from tests.chaos.cluster.job import Job
from tests.chaos.cluster.operators import Operators
from tests.chaos.faults.kinds import STEPS
from tests.chaos.faults.schedule import Fault
from tests.cluster.cluster import Cluster
from tests.cluster.faults import kill_processes
from tests.cluster.nodes import RunningNode

__all__ = ["Injection"]

Json = dict[str, Any]

_NO_TARGET = Effect("")


class Injection:
    """Injects faults into one job and its cluster.

    Args:
        cluster: runs the job; the calling thread is in its network.
        gate: between operators and the API server.
        operators: manage the job.
        job: the job under test.
    """

    def __init__(self, cluster: Cluster, gate: Gate, operators: Operators, job: Job) -> None:
        self._cluster = cluster
        self._gate = gate
        self._operators = operators
        self._job = job

    def inject(self, fault: Fault) -> Effect:
        """Carry out a fault; requests that the API server refuses just now are repeated in `Effect.end`."""
        kind = fault.kind
        if kind.startswith("api-") or kind == "watch-drop":
            return self._disturb_server(fault)
        if kind.startswith("operator-"):
            return self._step_clock(fault) if kind in STEPS else self._disturb_operator(kind)
        if kind in ("floor", "resize"):
            return self._change_spec(fault)
        pod = self._job.pod(fault.target)
        if pod is None:
            return _NO_TARGET
        return self._disturb_node(kind, pod) if kind.startswith("node-") else self._end_pod(kind, pod)

    # --- pods and nodes -----------------------------------------------------------------------------------------------

    def _end_pod(self, kind: str, pod: Json) -> Effect:
        name = str(pod["metadata"]["name"])
        match kind:
            case "pod-kill":
                return Effect(f"pod {name}" if kill_processes(pod) else "")
            case "pod-delete":
                path = pod_path(self._job.namespace, name)
                return self._repeated(f"pod {name}", lambda: self._job.api.delete(path, 0, pod["metadata"]["uid"]))
        return self._repeated(f"pod {name}", lambda: self._evict(pod))

    def _evict(self, pod: Json) -> None:
        name = str(pod["metadata"]["name"])
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": self._job.namespace},
            "deleteOptions": {"preconditions": {"uid": pod["metadata"]["uid"]}},
        }
        try:
            self._job.api.create(f"{pod_path(self._job.namespace, name)}/eviction", body)
        except ApiError as error:
            # The pod has ended by itself or was replaced.
            if error.code not in (http.client.NOT_FOUND, http.client.CONFLICT):
                raise

    def _disturb_node(self, kind: str, pod: Json) -> Effect:
        name = _node_of(pod)
        if not name:
            return _NO_TARGET
        if kind == "node-drain":
            return self._drain(name)
        node = self._cluster.nodes[name]
        self._signal_node(node, signal.SIGSTOP)
        if kind == "node-lost":
            for each in self._job.last_pods:
                if _node_of(each) == name:
                    kill_processes(each)

        def end() -> bool:
            self._signal_node(node, signal.SIGCONT)
            return True

        return Effect(f"node {name}", end)

    def _signal_node(self, node: RunningNode, number: signal.Signals) -> None:
        for daemon in (node.kubelet, node.containerd):
            assert daemon is not None
            daemon.send(number)

    def _drain(self, name: str) -> Effect:
        """Cordon a node, and evict the job's workers there one after the other, as `kubectl drain` does."""
        path = f"/api/v1/nodes/{name}"
        workers = [
            pod
            for pod in self._job.last_pods
            if _node_of(pod) == name
            and pod["metadata"]["labels"].get("heterps.io/role") == "worker"
            and (pod.get("status") or {}).get("phase") in ("Pending", "Running")
        ]

        def cordon(unschedulable: bool | None) -> bool:
            return _done(lambda: self._job.api.patch(path, {"spec": {"unschedulable": unschedulable}}))

        def evict() -> bool:
            """Evict the rest; a budget may forbid it until the previous one has been replaced."""
            while workers and _done(lambda: self._evict(workers[0])):
                workers.pop(0)
            return not workers

        def end() -> bool:
            return evict() and cordon(None)

        return Effect(f"node {name}", end, evict) if cordon(True) else _NO_TARGET

    # --- the API server -----------------------------------------------------------------------------------------------

    def _disturb_server(self, fault: Fault) -> Effect:
        daemons, gate = self._cluster.daemons, self._gate
        server = daemons.named("apiserver")

        def end() -> bool:
            match fault.kind:
                case "api-down":
                    daemons.start_again(server)
                case "api-hang":
                    server.send(signal.SIGCONT)
                case "api-slow":
                    gate.late_seconds = 0.0
                case "api-errors":
                    gate.one_in = 0
            return True

        match fault.kind:
            case "watch-drop":
                return Effect(f"{gate.break_watches()} watches")
            case "api-down":
                server.end()
            case "api-hang":
                server.send(signal.SIGSTOP)
            case "api-slow":
                gate.late_seconds = fault.amount
            case "api-errors":
                gate.one_in = int(fault.amount)
        return Effect("the API server", end)

    # --- operators and the spec ---------------------------------------------------------------------------------------

    def _disturb_operator(self, kind: str) -> Effect:
        operators = self._operators
        if kind == "operator-kill":
            return Effect(operators.kill())
        if kind == "operator-twice":
            operators.add_other()

            def remove() -> bool:
                operators.remove_other()
                return True

            return Effect("another operator", remove)
        stopped = operators.stop()
        if stopped is None:
            return _NO_TARGET

        def resume() -> bool:
            stopped.send(signal.SIGCONT)
            return True

        return Effect(stopped.log.stem, resume)

    def _step_clock(self, fault: Fault) -> Effect:
        kills = fault.kind == "operator-clock-kill"
        clocks = self._operators.clocks(all_of_them=kills)
        if not clocks:
            return _NO_TARGET
        for clock in clocks:
            clock.add(fault.amount)

        def step_back() -> bool:
            for clock in clocks:
                clock.add(-fault.amount)
            return True

        killed = self._operators.kill() if kills else ""
        return Effect(f"{killed}, and all clocks" if kills else "the operator's clock", step_back)

    def _change_spec(self, fault: Fault) -> Effect:
        if fault.kind == "floor":
            change: Json = {"objective": {"minSamplesPerSecond": int(fault.amount)}}
        else:
            first, *others = self._job.stages
            change = {"scheduling": {"stages": [{**first, "units": int(fault.amount)}, *others]}}
        path = job_path(self._job.namespace, self._job.name)
        return self._repeated("the spec", lambda: self._job.api.patch(path, {"spec": change}))

    def _repeated(self, done: str, attempt: Callable[[], object]) -> Effect:
        """Carry out a request, and repeat it until it succeeds: a budget may refuse an eviction for a while."""
        return Effect(done) if _done(attempt) else Effect(done, lambda: _done(attempt))


def _node_of(pod: Json) -> str:
    """Return the name of a pod's node; empty if it has none."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _done(attempt: Callable[[], object]) -> bool:
    """Make a request, and return whether the API server has carried it out."""
    try:
        attempt()
    except ApiError:
        return False
    return True
