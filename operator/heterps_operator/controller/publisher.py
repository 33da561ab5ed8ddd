"""What people see of a job: its status and its events."""

from __future__ import annotations

from typing import Any

from heterps_operator.bill import Bill
from heterps_operator.controller.cluster import Cluster
from heterps_operator.job import JobSpec
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.events import EventRecorder
from heterps_operator.kubernetes.names import job_status_path, plan_config_name
from heterps_operator.kubernetes.status import job_status
from heterps_operator.loop import Turn
from heterps_operator.status import Event, Status
from heterps_operator.values import Json
from heterps_runtime.contract import API_VERSION

__all__ = ["Publisher"]

_PROGRESS_SECONDS = 10.0  # between two updates of the status that only tell of progress
_NOT_FOUND = 404
_FIGURES = ("progress", "throughput", "cost")  # that change all the time
_MEASURED = "ThroughputMet"  # the condition whose message does, too


class Publisher:
    """Writes status and events of one job, and only what is new.

    Args:
        cluster: where.
        job: the HeterPSJob.
    """

    def __init__(self, cluster: Cluster, job: Json) -> None:
        self._cluster = cluster
        self._namespace, self._name = str(job["metadata"]["namespace"]), str(job["metadata"]["name"])
        self._recorder = EventRecorder(cluster.api, job)
        self._written: dict[str, Any] = {}
        self._written_at = 0.0

    def record(self, event: Event) -> None:
        """Write an event, or count it."""
        self._recorder.record(event)

    def publish(self, turn: Turn, generation: int) -> None:
        """Tell what a turn has seen and decided.

        Args:
            turn: of the job's control loop.
            generation: of the spec that it worked on.
        """
        for event in turn.events:
            self.record(event)
        planned = turn.status.plan is not None
        document = job_status(
            turn.job,
            turn.status,
            turn.bill,
            turn.observed.processes,
            generation=generation,
            plan_config=plan_config_name(self._name, turn.status.plan_revision) if planned else "",
        )
        recent = self._cluster.clock() - self._written_at < _PROGRESS_SECONDS
        if document != self._written and not (recent and _lasting(document) == _lasting(self._written)):
            self._write(document)

    def refuse(self, known: Status, reason: str, message: str, generation: int) -> None:
        """Tell why the job is not taken up.

        Args:
            known: what is remembered of the job.
            reason: CamelCase, for programs.
            message: for people, with the way out.
            generation: of the spec that is at fault.
        """
        now = self._cluster.clock()
        status = known.with_condition("Planned", False, reason, message, now)
        document = job_status(JobSpec(self._name, (), 1, 1), status, Bill(), (), generation=generation)
        if document.get("message") != self._written.get("message"):
            self._write(document)
            self.record(Event("Warning", reason, message, now))

    def _write(self, document: dict[str, Any]) -> None:
        head = {"name": self._name, "namespace": self._namespace}
        body = {"apiVersion": API_VERSION, "kind": "HeterPSJob", "metadata": head, "status": document}
        try:
            self._cluster.api.apply(job_status_path(self._namespace, self._name), body)
        except ApiError as error:
            if error.code != _NOT_FOUND:  # it was deleted meanwhile
                raise
        self._written, self._written_at = document, self._cluster.clock()


def _lasting(document: dict[str, Any]) -> dict[str, Any]:
    """What of a status is worth an update at once."""
    lasting = {key: value for key, value in document.items() if key not in _FIGURES}
    lasting["conditions"] = [
        {key: value for key, value in c.items() if key != "message" or c["type"] != _MEASURED}
        for c in document.get("conditions") or ()
    ]
    return lasting
