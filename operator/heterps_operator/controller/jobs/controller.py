"""The controller of one HeterPSJob.

A turn is level-based: it depends on the HeterPSJob, its pools, its pods and its state, not on the event that caused it.
Pure functions decide: `control.reconcile` about the job's processes, `control.transition` about a changed spec,
`control.termination` about what follows the end. This module takes the snapshot and carries the decisions out.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import replace

from heterps_operator.api.job import JobSpec
from heterps_operator.api.manifest import Manifest
from heterps_operator.control.changes import Effect, SpecChange, spec_change
from heterps_operator.control.queueing.quota import WAITING_FOR_CAPACITY
from heterps_operator.control.termination import after_end
from heterps_operator.control.transition import Step, Trial, needs_trial, next_step
from heterps_operator.controller.capacity.ledger import job_key
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.jobs.owned_objects import (
    InvalidJobError,
    NewerVersionError,
    NotReadyError,
    OwnedObjects,
)
from heterps_operator.controller.jobs.pacing import FIRST_PAUSE_SECONDS, Pacing
from heterps_operator.controller.jobs.publisher import Publisher
from heterps_operator.controller.jobs.session import CapacityTakenError, JobSession, Site
from heterps_operator.controller.jobs.wanted import Wanted
from heterps_operator.controller.stores.objects import Key
from heterps_operator.documents import Json
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.names import job_path, pod_name
from heterps_operator.kubernetes.reading.claims import has_ended
from heterps_operator.kubernetes.reading.processes import process_of
from heterps_operator.kubernetes.state import JobState, NewerStateError, NotOwnedError, StoredState
from heterps_operator.state.bill import Bill
from heterps_operator.state.status import Event, Phase, Status
from heterps_operator.state.turn import Turn

__all__ = ["JobController"]

MANAGED_BY = "heterps.io/operator"
_RETRY_SECONDS = 10.0  # for changes that no watch reports
_ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED})


class JobController:
    """Controls the job of one name; a new job of the same name, with another uid, starts afresh.

    Args:
        cluster: the context that all jobs share.
        key: namespace and name of the job.
        wake: gives the job another turn soon.
    """

    def __init__(self, cluster: OperatorContext, key: Key, wake: Callable[[], None]) -> None:
        self._cluster = cluster
        self._key = key
        self._wake = wake
        self._owned = OwnedObjects(cluster, key)
        self._uid = ""
        self._reset()

    def _reset(self) -> None:
        self._session: JobSession | None = None
        self._publisher: Publisher | None = None
        self._known = StoredState(Status(), Bill())  # reported while the job has no session
        self._hindrance: NotReadyError | None = None  # why a changed spec is not applied
        self._nothing_earlier = False  # the state was read, and has no spec to go on with while this one is refused
        self._heeds_pools = True
        self._pacing = Pacing()

    def turn(self) -> float | None:
        """Reconcile the job once.

        Returns:
            Seconds until the next turn; None: no turn before something changes.

        Raises:
            StateTaken: another operator has the job.
            ApiError: the API server does not answer.
        """
        job = self._cluster.jobs.get(*self._key)
        if job is None or job["metadata"].get("deletionTimestamp"):
            if job is not None:
                self._owned.end_pods(job)
            self.close()
            return None
        self._heeds_pools = True  # before the pools are read: what changes from now on wakes the job
        if job["spec"].get("managedBy", MANAGED_BY) != MANAGED_BY:
            self._heeds_pools = False
            return None
        if self._uid != job["metadata"]["uid"]:
            self.close()
            self._uid = str(job["metadata"]["uid"])
        publisher = self._publisher = self._publisher or Publisher(self._cluster, job)
        try:
            session = self._current_session(job, publisher)
            turn = session.turn()
        except CapacityTakenError:
            return FIRST_PAUSE_SECONDS
        except NewerVersionError as error:
            self._cluster.metrics.refuse(*self._key, error.reason, self._known.bill.cost)
            publisher.leave_alone(error.reason, str(error), _generation(job))
            return error.seconds
        except NotReadyError as error:
            known = self._known if self._session is None else self._session
            self._cluster.metrics.refuse(*self._key, error.reason, known.bill.cost)
            publisher.refuse(known.status, known.bill, error.reason, str(error), _generation(job))
            self._heeds_pools = not isinstance(error, InvalidJobError)
            return error.seconds
        self._pacing.observe(turn)
        self._cluster.metrics.update(*self._key, turn)
        told = None if turn.status.phase in _ENDED else self._hindrance
        publisher.publish(turn, _generation(job), None if told is None else (told.reason, str(told)))
        if turn.status.final:
            return self._after_end(session, turn)
        return self._pacing.seconds(self._cluster.longest_pause(turn.status.phase))

    def close(self) -> None:
        """Forget a deleted job, and release its reserved units."""
        self.abandon()
        self._cluster.metrics.forget(*self._key)
        self._cluster.ledger.release(self._holder)  # units that its pods occupy are free when the pods are gone

    def abandon(self) -> None:
        """Stop controlling a job; its pods keep running, and it keeps its units."""
        if self._session is not None:
            self._session.close()
        self._cluster.line.leave(self._holder)
        self._reset()
        shutil.rmtree(self._cluster.folder / self._key[0] / self._key[1], ignore_errors=True)

    @property
    def heeds_pools(self) -> bool:
        """Whether pools matter to the job. They do not if it is refused whatever its pools are, or not managed here."""
        return self._heeds_pools

    @property
    def waits_for_room(self) -> bool:
        """Whether the job may wait for units of other jobs."""
        if self._session is None:
            return self._heeds_pools
        return any(condition.reason == WAITING_FOR_CAPACITY for condition in self._session.status.conditions)

    @property
    def _holder(self) -> str:
        return job_key(*self._key)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _current_session(self, job: Json, publisher: Publisher) -> JobSession:
        """Return a session for the current spec, or for the previous one while the current one cannot be carried out.

        Raises:
            NotReadyError: neither can be carried out.
        """
        wanted, session = Wanted.read(job, self._cluster.pools, self._cluster.pool_file), self._session
        if session is not None:
            if session.adopted == wanted.versions and not session.may_go_on:
                return session
            if session.status.phase in _ENDED and not wanted.complete:
                return session  # an ended job needs no pools
        state = None if session is not None else JobState(self._cluster.api, job)
        manifest: Manifest | None = None
        refusal: NotReadyError | None = None
        try:
            manifest = wanted.manifest()
        except NotReadyError as error:
            refusal = error
        if state is not None and not (self._nothing_earlier and isinstance(refusal, InvalidJobError)):
            self._known = self._load(state, job)
        if refusal is not None:
            manifest = self._known.manifest(job) if session is None else session.manifest(job)
        self._nothing_earlier = session is None and manifest is None
        if refusal is not None and (manifest is None or (session is not None and session.may_go_on)):
            raise refusal
        assert manifest is not None
        self._hindrance = refusal
        spec = JobSpec.from_manifests(manifest.job, manifest.pools)
        if session is None:
            assert state is not None
            session, change = self._take_up(job, state, manifest, spec)
            self._session = session
        else:
            change = spec_change({"spec": session.spec}, manifest.job)
        session = self._change(session, change, publisher, job, manifest, spec)
        if not session.is_trying:
            session.adopted = wanted.versions
        return session

    def _load(self, state: JobState, job: Json) -> StoredState:
        """Return the stored state of a job, or that of a new job.

        Raises:
            NotReadyError: the state cannot be read, or its name is taken.
        """
        what = f"HeterPSJobState {self._key[1]}"
        try:
            return state.load() or StoredState(Status(incarnation=self._next_incarnation(job)), Bill())
        except NewerStateError as error:
            raise NewerVersionError(f"{what}: {error}") from error
        except NotOwnedError as error:
            raise NotReadyError.taken(what, error.found) from error
        except ValueError as error:
            fix = f"delete the {what}, and the job resumes from its last checkpoint"
            raise NotReadyError("DamagedState", f"{error}; {fix}", _RETRY_SECONDS) from error

    def _take_up(self, job: Json, state: JobState, manifest: Manifest, spec: JobSpec) -> tuple[JobSession, SpecChange]:
        """Open the first session of this operator, for a new job or for one of an earlier operator.

        Returns:
            The session, and the change of the spec since its state was written.
        """
        stored = self._known
        plan, holder = stored.status.plan, self._holder
        # A job with running pods holds all units of its plan; a job without pods may have lost them to others.
        begun = bool(self._cluster.ledger.held_by(holder)) or self._has_pods_with_units(job, stored)
        if plan is not None and stored.status.outcome is None and begun:
            self._cluster.ledger.restore(holder, plan.units)
        change = SpecChange() if stored.spec is None else spec_change({"spec": stored.spec}, manifest.job)
        stored = replace(stored, spec=stored.spec or manifest.job["spec"])
        # Until the changed spec is applied, the pods run with the previous one.
        if change.effect >= Effect.RESTART and (kept := self._known.manifest(job)) is not None:
            manifest, spec = kept, JobSpec.from_manifests(kept.job, kept.pools)
        site = Site(self._cluster, self._key, self._owned, state, self._wake)
        return JobSession(site, job, manifest, spec, stored), change

    def _has_pods_with_units(self, job: Json, stored: StoredState) -> bool:
        """Whether a pod exists that was started with units, though its pool is gone, or its annotation was edited."""
        started = {pod_name(self._key[1], view.spec) for view in stored.processes if view.running and view.spec.units}
        return any(pod["metadata"]["name"] in started and not has_ended(pod) for pod in self._cluster.pods.of_job(job))

    def _next_incarnation(self, job: Json) -> int:
        """Return an incarnation that no pod of this job has: its state may have been deleted."""
        seen = [0]
        for pod in self._cluster.pods.of_job(job):
            with contextlib.suppress(ValueError):
                seen.append(process_of(pod).incarnation)
        return max(seen) + 1

    def _change(
        self,
        session: JobSession,
        change: SpecChange,
        publisher: Publisher,
        job: Json,
        manifest: Manifest,
        spec: JobSpec,
    ) -> JobSession:
        """Take the next step from the session's spec to the wanted one.

        Returns:
            The session to continue with.
        """
        trial, plan = Trial.NOT_NEEDED, None
        if needs_trial(session.status, change, session.stopping, spec):
            trial, outcome = session.try_plan(manifest, spec)
            if trial == Trial.INFEASIBLE and outcome is not None:
                text = f"no plan meets the changed spec, the job keeps its current plan: {outcome.message}"
                self._hindrance = NotReadyError(outcome.reason, text)
            plan = None if outcome is None else outcome.plan
            if trial == Trial.FEASIBLE and plan is not None and not change.paths(Effect.RESTART):
                trial = session.judge(spec, plan)
        else:
            session.end_trial()
        step = next_step(session.status, change, session.stopping, trial)
        if step == Step.KEEP:
            return session
        if change.effect != Effect.NONE and session.stopping == Effect.NONE:
            publisher.record(Event("Normal", "SpecChanged", change.describe(), self._cluster.clock()))
        if step == Step.STOP:
            session.stop(change.effect)
            return session
        if step == Step.ADOPT:
            session.adopt(manifest, spec)
            return session
        if step == Step.CHANGE:
            assert plan is not None
            session.change(manifest, spec, plan)
            return session
        status = session.status
        if step == Step.REPLAN:
            status = status.without_plan("the spec has changed")
        elif status.plan is None:
            status = status.without_questions()
        session.close()
        self._session = None  # in case the next one cannot be opened
        self._known = session.state_for(manifest.job["spec"], status)
        self._session = JobSession(session.site, job, manifest, spec, self._known)
        if session.status.final:  # otherwise a process of the previous spec may still start with its code
            self._owned.drop_code(job, session.spec, self._session.spec)
        return self._session

    # --- after the end ------------------------------------------------------------------------------------------------

    def _after_end(self, session: JobSession, turn: Turn) -> float | None:
        """Clean up after an ended job, and delete it after its time to live."""
        if session.may_go_on:
            return 0.0
        what = after_end(turn.job, turn.status, self._cluster.clock())
        if what.begins_again:
            self._known, self._session = session.state_for(session.spec, session.status), None
            session.close()
        if what.deletes_pods:
            session.delete_pods(running_only=what.running_only)
        if what.deletes_job:
            with contextlib.suppress(ApiError):
                self._cluster.api.delete(job_path(*self._key), uid=self._uid)
        return what.seconds


def _generation(job: Json) -> int:
    return int(job["metadata"].get("generation") or 0)
