"""Status and events of a job."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from heterps_operator.controller.context import OperatorContext
from heterps_operator.documents import Json
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.events import EventRecorder, reference_to
from heterps_operator.kubernetes.names import job_status_path, plan_config_name
from heterps_operator.kubernetes.reading.readable import JOB
from heterps_operator.kubernetes.status import FIGURES, MEASURED, job_status, lasting_facts
from heterps_operator.state.bill import Bill
from heterps_operator.state.status import Event, Status
from heterps_operator.state.turn import Turn
from heterps_runtime.contract import API_VERSION

__all__ = ["Publisher"]

_DETAILS = ("message", "workers", "parameterServers")  # that change with each pod of a job that starts


class Publisher:
    """Writes the status and the events of one job when they change.

    Args:
        cluster: the shared context.
        job: the HeterPSJob.
    """

    def __init__(self, cluster: OperatorContext, job: Json) -> None:
        self._cluster = cluster
        self._namespace, self._name = str(job["metadata"]["namespace"]), str(job["metadata"]["name"])
        self._recorder = EventRecorder(cluster.api, reference_to(JOB, job))
        self._written: dict[str, Any] = {}
        self._written_at = 0.0
        self._lasting_facts: tuple[Any, ...] | None = None  # from which the lasting part of the written status follows
        self._hindrance: tuple[str, str] | None = None
        self._hindered_since = 0.0

    def record(self, event: Event) -> None:
        """Write an event, or increase its count."""
        self._recorder.record(event)

    def publish(self, turn: Turn, generation: int, hindrance: tuple[str, str] | None = None) -> None:
        """Write the status and the events of a turn.

        Args:
            turn: turn of the job's control loop.
            generation: generation of the HeterPSJob.
            hindrance: reason and message if the job continues with the previous spec instead of the current one.
        """
        for event in turn.events:
            self.record(event)
        planned = turn.status.plan is not None
        status = turn.status if hindrance is None else self._hindered(turn.status, *hindrance)
        self._hindrance = hindrance
        facts = lasting_facts(status, turn.observed.processes, generation)
        since = self._cluster.clock() - self._written_at
        if facts == self._lasting_facts and since < self._cluster.progress_seconds:
            return
        document = job_status(
            turn.job.name,
            status,
            turn.bill,
            turn.observed.processes,
            generation=generation,
            floor=turn.job.min_samples_per_second,
            plan_config=plan_config_name(self._name, turn.status.plan_revision) if planned else "",
            measured=turn.measured,
        )
        lasts = _lasting(document) == _lasting(self._written)
        if document != self._written and since >= self._pause(turn, document, lasts=lasts):
            self._write(document)
            lasts = True
        self._lasting_facts = facts if lasts else None

    def _pause(self, turn: Turn, document: dict[str, Any], *, lasts: bool) -> float:
        """Return the seconds between the last status and this one: the less has changed, the longer they are."""
        if lasts:
            return self._cluster.progress_seconds
        # A job in a final phase may have no further turn.
        if not turn.status.final and _milestones(document) == _milestones(self._written):
            return self._cluster.detail_seconds
        return 0.0

    def refuse(self, known: Status, bill: Bill, reason: str, message: str, generation: int) -> None:
        """Write why the job cannot be started.

        Args:
            known: last known status of the job.
            bill: costs so far.
            reason: CamelCase, for programs.
            message: for users, with a solution.
            generation: generation of the HeterPSJob.
        """
        status = self._hindered(known, reason, message)
        self._hindrance = (reason, message)
        document = job_status(self._name, status, bill, (), generation=generation)
        if document != self._written:
            self._write(document)
            self._lasting_facts = None

    def leave_alone(self, reason: str, message: str, generation: int) -> None:
        """Write why this operator does nothing for the job; the rest of its status stays as it is.

        Args:
            reason: CamelCase, for programs.
            message: for users, with a solution.
            generation: generation of the HeterPSJob.
        """
        if self._hindrance == (reason, message):
            return
        status = self._hindered(Status(), reason, message)
        self._hindrance = (reason, message)
        [condition] = [c for c in job_status(self._name, status, Bill(), (), generation=generation)["conditions"]
                       if c["type"] == "Planned"]  # fmt: skip
        self._apply({"conditions": [condition]}, "heterps-hindrance")

    def _hindered(self, status: Status, reason: str, message: str) -> Status:
        """Return the status with the condition for a hindrance, and write an event when the hindrance changes."""
        now = self._cluster.clock()
        if self._hindrance != (reason, message):
            self.record(Event("Warning", reason, message, now))
        if self._hindrance is None:
            self._hindered_since = now
        return status.with_condition("Planned", False, reason, message, self._hindered_since)

    def _write(self, document: dict[str, Any]) -> None:
        self._apply(document)
        self._written, self._written_at = document, self._cluster.clock()

    def _apply(self, status: dict[str, Any], field_manager: str = "heterps") -> None:
        head = {"name": self._name, "namespace": self._namespace}
        body = {"apiVersion": API_VERSION, "kind": "HeterPSJob", "metadata": head, "status": status}
        try:
            self._cluster.api.apply(job_status_path(self._namespace, self._name), body, field_manager)
        except ApiError as error:
            if error.code != HTTPStatus.NOT_FOUND:  # the job was deleted in the meantime
                raise


def _lasting(document: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a status whose changes are written at once."""
    lasting = {key: value for key, value in document.items() if key not in FIGURES}
    lasting["conditions"] = [
        {key: value for key, value in c.items() if key != "message" or c["type"] != MEASURED}
        for c in document.get("conditions") or ()
    ]
    return lasting


def _milestones(document: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a status whose changes people wait for."""
    told = {key: value for key, value in document.items() if key not in (*FIGURES, *_DETAILS)}
    told["conditions"] = [(c["type"], c["status"], c["reason"]) for c in document.get("conditions") or ()]
    return told
