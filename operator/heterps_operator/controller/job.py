"""One job on the cluster: from what the watches have seen to one turn of its control loop.

A turn is level-based: it looks at the HeterPSJob, its pools, its pods and the job's state, and nothing depends on
which event has caused it. What it decides is written to the job's state before it is done.
"""

from __future__ import annotations

import contextlib
import difflib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from heterps_operator.api.admission import cluster_problems, pod_configuration
from heterps_operator.api.job import JobSpec
from heterps_operator.api.manifest import Manifest, read_objects
from heterps_operator.control.changes import Effect, spec_change
from heterps_operator.control.members import units_by_pool
from heterps_operator.control.reconcile import WAITING_FOR_CAPACITY
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.owned_objects import NotReadyError, OwnedObjects
from heterps_operator.controller.planners import QueuedPlanner
from heterps_operator.controller.publisher import Publisher
from heterps_operator.controller.store import Key
from heterps_operator.controller.trial import PlanTrial
from heterps_operator.documents import Json
from heterps_operator.errors import ManifestError
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.building import objects
from heterps_operator.kubernetes.names import job_path, state_name
from heterps_operator.kubernetes.profiles import ConfigMapProfileCache
from heterps_operator.kubernetes.reading.pools import job_key
from heterps_operator.kubernetes.reading.processes import process_of
from heterps_operator.kubernetes.state import JobState, NotOwnedError, StoredState
from heterps_operator.kubernetes.substrate import KubernetesSubstrate
from heterps_operator.loop.control_loop import ControlLoop
from heterps_operator.state.bill import Bill
from heterps_operator.state.status import Event, Status
from heterps_operator.state.turn import Turn
from heterps_runtime.contract import PlanDocument

__all__ = ["CapacityTakenError", "JobController"]

MANAGED_BY = "heterps.io/operator"
PAUSED_ANNOTATION = "heterps.io/paused"
_QUIET = 1.5  # each look that finds nothing new makes the pause before the next one longer
_FIRST_PAUSE_SECONDS = 0.25
_LOOK_SECONDS = 10.0  # for what no watch reports
_BEGINS_AGAIN = frozenset({"Suspended", "Planned"})
_ENDED = frozenset({"Succeeded", "Failed"})


class CapacityTakenError(Exception):
    """Another job was granted the units between planning and reserving; the next turn plans with what is left."""


class JobController:
    """The life of one HeterPSJob, under one uid.

    Args:
        cluster: what all jobs share.
        key: namespace and name of the job.
        wake: gives the job another turn soon.
    """

    def __init__(self, cluster: OperatorContext, key: Key, wake: Callable[[], None]) -> None:
        self._cluster = cluster
        self._key = key
        self._name = job_key(*key)
        self._wake = wake
        self._folder = cluster.folder / key[0] / key[1]
        self._owned = OwnedObjects(cluster, key)
        self._uid = ""
        self._taken_up: tuple[Any, ...] = ()
        self._reset()

    def _reset(self) -> None:
        self._loop: ControlLoop | None = None
        self._planner: QueuedPlanner | None = None
        self._substrate: KubernetesSubstrate | None = None
        self._state: JobState | None = None
        self._publisher: Publisher | None = None
        self._memory: StoredState | None = None
        self._turn: Turn | None = None  # the present one
        self._seen: Status | None = None
        self._hindrance: NotReadyError | None = None  # why it goes on as it was, and not as it is wanted now
        self._restart = Effect.NONE  # why the job is being stopped, to go on with another spec
        self._trial: PlanTrial | None = None  # of a spec that asks for another plan
        self._kept = (0, 0)  # revision and incarnation whose objects were written
        self._quiet = 0
        self._taken_up = ()

    # --- from outside -------------------------------------------------------------------------------------------------

    def turn(self) -> float | None:
        """Look at the job once, and do what is to be done.

        Returns:
            Seconds until the next look; None: only when something changes.

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
        if job["spec"].get("managedBy", MANAGED_BY) != MANAGED_BY:
            return None
        if self._uid != job["metadata"]["uid"]:
            self.close()
            self._uid = str(job["metadata"]["uid"])
        publisher = self._publisher = self._publisher or Publisher(self._cluster, job)
        try:
            self._take_up(job)
            assert self._loop is not None
            assert self._substrate is not None
            ledger, pools = self._cluster.ledger, self._substrate.pools
            self._loop.free_units = ledger.free_units(self._name, pools)
            self._loop.room = {pool: ledger.free(pool, excluding=self._name) for pool in pools}
            trains = self._loop.status.phase == "Running"  # it waits for nobody: hundreds need not be looked through
            self._loop.holders = {} if trains else {pool: ledger.holders(pool, excluding=self._name) for pool in pools}
            self._loop.save_seconds = self._cluster.save_seconds
            self._loop.turn()
        except CapacityTakenError:
            return _FIRST_PAUSE_SECONDS
        except NotReadyError as error:
            memory = self._memory or StoredState(Status(), Bill())
            status = self._loop.status if self._loop is not None else memory.status
            publisher.refuse(status, memory.bill, error.reason, str(error), _generation(job))
            return error.seconds
        turn, self._turn = self._turn, None  # a coordinator's whole answer is not kept until the next one
        assert turn is not None
        self._cluster.metrics.update(*self._key, turn)
        told = None if turn.status.phase in _ENDED else self._hindrance
        publisher.publish(turn, _generation(job), None if told is None else (told.reason, str(told)))
        if turn.status.final:
            return self._after_the_end(job, turn)
        return self._pause(turn)

    def close(self) -> None:
        """Let go of a job that is gone, with all that it held."""
        self.abandon()
        self._cluster.metrics.forget(*self._key)
        self._cluster.ledger.release(self._name)  # what its pods occupy is free when they are gone

    def abandon(self) -> None:
        """Let go of a job that goes on; its pods are not touched, and it holds its units."""
        if self._planner is not None:
            self._planner.close()
        self._end_trial()
        self._reset()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def waits_for_room(self) -> bool:
        """Whether units that others give up may be all it waits for."""
        loop = self._loop
        if loop is None:
            return True
        return any(condition.reason == WAITING_FOR_CAPACITY for condition in loop.status.conditions)

    def on_turn(self, turn: Turn) -> None:
        """Keep what the loop has seen and decided (`loop.Listener`)."""
        before, self._seen, self._turn = self._seen, turn.status, turn
        same = before is not None and not turn.events and _lasting(before) == _lasting(turn.status)
        self._quiet = self._quiet + 1 if same else 0

    # --- taking up ----------------------------------------------------------------------------------------------------

    def _take_up(self, job: Json) -> None:
        """Have a control loop for the job as it is wanted now.

        Raises:
            NotReadyError: it cannot be carried out as it is.
        """
        names = [str(pool["name"]) for pool in job["spec"]["pools"]]
        pools = [self._cluster.pools.get("", name) for name in names]
        paused = (job["metadata"].get("annotations") or {}).get(PAUSED_ANNOTATION) == "true"
        # A pool that was deleted and made anew begins with generation 1 again.
        versions = tuple(pool and (pool["metadata"].get("uid"), pool["metadata"].get("generation")) for pool in pools)
        seen = (job["metadata"].get("generation"), paused, versions)
        if self._loop is not None and seen == self._taken_up and not self._stopped_for_change():
            return
        if self._loop is not None and self._loop.status.phase in _ENDED and None in versions:
            return  # what it has reached needs no pools any more
        manifest: Manifest | None
        try:
            manifest, self._hindrance = self._wanted(job, pools), None
        except NotReadyError as error:
            # What has begun goes on as it was: nobody else would look after its pods.
            manifest = self._owned.kept(job)
            if manifest is None or self._stopped_for_change():
                raise
            self._hindrance = error
        spec = JobSpec.from_manifests(manifest.job, manifest.pools)
        spec = replace(spec, paused=spec.paused or paused)
        if self._loop is None:
            self._begin(job, manifest, spec)
        else:
            self._change(job, manifest, spec)
        if self._trial is None:
            self._taken_up = seen

    def _wanted(self, job: Json, pools: Sequence[Json | None]) -> Manifest:
        """The job as it is wanted now, with its pools.

        Raises:
            NotReadyError: it cannot be carried out.
        """
        try:
            manifest = read_objects({**job}, self._all_there(job, pools))
        except ManifestError as error:
            raise NotReadyError("InvalidSpec", str(error)) from error
        if problems := cluster_problems(manifest.job):
            raise NotReadyError("InvalidSpec", "; ".join(map(str, problems)))
        return manifest

    def _all_there(self, job: Json, pools: Sequence[Json | None]) -> list[dict[str, Any]]:
        missing = [str(entry["name"]) for entry, pool in zip(job["spec"]["pools"], pools, strict=True) if pool is None]
        if missing:
            known = sorted(str(pool["metadata"]["name"]) for pool in self._cluster.pools.all())
            hint = difflib.get_close_matches(missing[0], known, 1)
            have = f"the cluster has {', '.join(known)}" if known else "the cluster has none"
            text = f"spec.pools: there is no DevicePool {missing[0]}; create it, or correct the name ({have})"
            raise NotReadyError("PoolNotFound", text + (f"; did you mean {hint[0]}?" if hint else ""))
        return [dict(pool) for pool in pools if pool is not None]

    def _begin(self, job: Json, manifest: Manifest, spec: JobSpec) -> None:
        """Take the job up: for the first time, or after an operator that is gone."""
        self._state = JobState(self._cluster.api, job)
        try:
            memory = self._state.load()
        except NotOwnedError as error:
            raise NotReadyError.taken(f"ConfigMap {error}", error.found) from error
        except ValueError as error:
            fix = f"delete the ConfigMap {state_name(self._key[1])}, and the job resumes from its last checkpoint"
            raise NotReadyError("DamagedState", f"{error}; {fix}", _LOOK_SECONDS) from error
        self._memory = memory or StoredState(Status(incarnation=self._next_incarnation(job)), Bill())
        status = self._memory.status
        # A job whose pods have begun holds the rest of its plan as well; others may have taken what it gave back.
        if status.plan is not None and status.outcome is None and self._cluster.ledger.held_by(self._name):
            self._cluster.ledger.restore(self._name, units_by_pool(PlanDocument.from_json(dict(status.plan))))
        change = self._effect(manifest)
        self._memory = replace(self._memory, spec=self._memory.spec or manifest.job["spec"])
        # Until it is over to what is wanted now, its pods are those of what they were told.
        kept = self._owned.kept(job) if change >= Effect.RESTART else None
        self._start_loop(job, kept or manifest, JobSpec.from_manifests(kept.job, kept.pools) if kept else spec)
        if change != Effect.NONE:
            self._change(job, manifest, spec)

    def _start_loop(self, job: Json, manifest: Manifest, spec: JobSpec) -> None:
        """Make what the job's pods need, and the loop that starts them."""
        assert self._memory is not None
        cluster = self._cluster
        configuration = pod_configuration(manifest)
        token = self._owned.token(job)
        self._owned.apply(
            job,
            objects.service(job),
            objects.run_config(job, configuration),
            objects.network_policy(job, cluster.namespace),
        )
        status = self._memory.status
        if status.phase in _BEGINS_AGAIN and not spec.run_policy.suspend and spec.goal == "train":
            status = status.begin_again(cluster.clock())
        pools = {str(pool["metadata"]["name"]): pool for pool in manifest.pools}
        substrate = KubernetesSubstrate(
            cluster.api,
            cluster.pods,
            {**job, "spec": manifest.job["spec"]},
            pools,
            known=self._memory.processes,
            clock=cluster.clock,
            on_wake=self._wake,
            hears_of=cluster.hears_of,
            on_pod=cluster.metrics.on_pod,
        )
        substrate.plan_revision, substrate.gang = status.plan_revision, frozenset(status.gang)
        cache = ConfigMapProfileCache(cluster.api, self._key[0], configuration)
        if self._planner is not None:  # of the spec before: it must not keep its place
            self._planner.close()
        self._planner = self._make_planner(spec, "plan")
        self._substrate = substrate
        self._loop = ControlLoop(
            spec,
            substrate,
            self._planner,
            cache,
            token=token,
            save=self._save,
            listener=self,
            known_profiles=cache.load([pool.name for pool in spec.pools]),
            status=status,
            bill=self._memory.bill,
            measurement=cluster.measurement(*self._key),
            clock=cluster.clock,
            monotonic=cluster.monotonic,
        )

    def _make_planner(self, spec: JobSpec, folder: str) -> QueuedPlanner:
        return QueuedPlanner(
            self._cluster.planner_slots,
            self._folder / folder,
            spec.method,
            spec.planner_timeout_seconds,
            stages=spec.stages_by_hand,
            on_end=self._wake,
        )

    def _next_incarnation(self, job: Json) -> int:
        """One that no pod of this job is of, whose state is lost."""
        seen = [0]
        for pod in self._cluster.pods.of_job(job):
            with contextlib.suppress(ValueError):
                seen.append(process_of(pod).incarnation)
        return max(seen) + 1

    # --- changes ------------------------------------------------------------------------------------------------------

    def _effect(self, manifest: Manifest) -> Effect:
        """What the difference between the spec that is carried out and the one that is wanted asks for."""
        assert self._memory is not None
        if self._memory.spec is None:
            return Effect.NONE
        return spec_change({"spec": self._memory.spec}, manifest.job).effect

    def _change(self, job: Json, manifest: Manifest, spec: JobSpec) -> None:
        """Go over to another spec, at once or by an orderly stop and a new start."""
        assert self._loop is not None
        assert self._memory is not None
        if self._stopped_for_change():
            status = self._loop.status.begin_again(self._cluster.clock())
            if self._restart >= Effect.REPLAN:
                status = _without_plan(status)
            self._memory = replace(self._memory, status=status, bill=self._loop.bill, spec=manifest.job["spec"])
            self._restart = Effect.NONE
            self._start_loop(job, manifest, spec)
            return
        if self._restart != Effect.NONE:  # on its way; what is wanted is read when it has stopped
            return
        assert self._publisher is not None
        change = spec_change({"spec": self._memory.spec}, manifest.job)
        running = self._loop.status.plan is not None and not self._loop.status.final
        if not (running and change.effect == Effect.REPLAN and _trains(spec)):
            self._end_trial()
        elif not self._has_plan(manifest, spec):
            return
        if change.effect != Effect.NONE:
            self._publisher.record(Event("Normal", "SpecChanged", change.describe(), self._cluster.clock()))
        if running and change.effect in (Effect.RESTART, Effect.REPLAN):
            self._restart = change.effect
            self._loop.request_stop()
            return
        self._memory = replace(self._memory, spec=manifest.job["spec"])
        final = self._loop.status.final
        if change.effect == Effect.NONE or (change.effect == Effect.LIVE and not final):
            self._loop.job = spec
            return
        status = self._loop.status
        if change.effect >= Effect.REPLAN and status.phase in _BEGINS_AGAIN:
            status = _without_plan(status)
        self._memory = replace(self._memory, status=status, bill=self._loop.bill)
        self._start_loop(job, manifest, spec)

    def _has_plan(self, manifest: Manifest, spec: JobSpec) -> bool:
        """Whether it is known that the planner finds a plan: a job that trains is not stopped for one that has none."""
        if self._trial is None or self._trial.job != spec:
            self._end_trial()
            cache = ConfigMapProfileCache(self._cluster.api, self._key[0], pod_configuration(manifest))
            profiles = cache.load([pool.name for pool in spec.pools])
            if len(profiles) < len(spec.pools):  # it is measured first, for which it has to stop
                return True
            try:
                self._trial = PlanTrial(spec, self._make_planner(spec, "trial"), profiles)
            except ValueError:  # they are measured again
                return True
        outcome = self._trial.poll()
        if outcome is None:
            return False
        self._end_trial()
        if not outcome.feasible:
            found = outcome.document or {"reason": "PlannerFailed", "message": outcome.error}
            text = f"no plan meets the changed spec, the job keeps its current plan: {found.get('message')}"
            self._hindrance = NotReadyError(str(found.get("reason")), text)
        return outcome.feasible

    def _end_trial(self) -> None:
        if self._trial is not None:
            self._trial.close()
            self._trial = None

    def _stopped_for_change(self) -> bool:
        return self._restart != Effect.NONE and self._loop is not None and self._loop.status.phase == "Suspended"

    # --- keeping and telling ------------------------------------------------------------------------------------------

    def _save(self, status: Status, bill: Bill) -> None:
        """Reserve what the job is going to use, and keep what was decided: before anything is done.

        Raises:
            CapacityTakenError: others hold the units.
            StateTaken: another operator has the job.
        """
        assert self._loop is not None
        assert self._state is not None
        assert self._memory is not None
        assert self._substrate is not None
        plan = None if status.plan is None else PlanDocument.from_json(dict(status.plan))
        grant = self._cluster.ledger.reserve(self._name, self._needed(status, plan))
        if not grant.granted:
            raise CapacityTakenError("; ".join(map(str, grant.shortfalls)))
        revisions, place = self._memory.plans, (status.plan_revision, status.incarnation)
        new = plan is not None and self._kept != place
        if new:
            revisions = (*(r for r in revisions if r != status.plan_revision), status.plan_revision)
        self._substrate.plan_revision, self._substrate.gang = status.plan_revision, frozenset(status.gang)
        generation = _generation(self._cluster.jobs.get(*self._key) or {"metadata": {}})
        known = self._substrate.known()
        self._memory = replace(
            self._memory, status=status, bill=bill, processes=known, plans=revisions, generation=generation
        )
        try:
            self._state.save(self._memory)
        except ApiError as error:
            raise NotReadyError.of(f"ConfigMap {state_name(self._key[1])}", error) from error
        if plan is not None and new:  # not before it is this operator's to decide
            job, pools = self._substrate.job, self._substrate.pools
            revisions = self._owned.keep_plan(job, pools, status, plan, revisions)
            self._memory = replace(self._memory, plans=revisions)
            self._kept = place

    def _needed(self, status: Status, plan: PlanDocument | None) -> dict[str, int]:
        """Units that the job's pods are going to occupy: of its plan, or of the next profiler."""
        assert self._loop is not None
        if status.outcome is not None:
            return {}
        if plan is not None:
            return units_by_pool(plan)
        for pool in self._loop.job.pools if status.phase == "Profiling" else ():
            if pool.name not in self._loop.profiles:
                return {pool.name: pool.units_per_pod}
        return {}

    # --- when to look again -------------------------------------------------------------------------------------------

    def _pause(self, turn: Turn) -> float:
        longest = self._cluster.longest_pause(turn.status.phase)
        return min(_FIRST_PAUSE_SECONDS * _QUIET ** min(self._quiet, 20), longest)

    def _after_the_end(self, job: Json, turn: Turn) -> float | None:
        """Clear away what the job asks for, and delete the job itself when its time is over."""
        assert self._substrate is not None
        status, policy = turn.status, turn.job.run_policy
        if self._stopped_for_change():
            return 0.0
        if status.phase in _BEGINS_AGAIN and not turn.job.run_policy.suspend and turn.job.goal == "train":
            self._taken_up = ()
            self._loop = None
            return 0.0
        if policy.clean_pod_policy != "None" and status.phase in ("Succeeded", "Failed", "Suspended"):
            everything = policy.clean_pod_policy == "All"
            self._substrate.delete_pods(running_only=not everything)
        if policy.ttl_seconds_after_finished is None or status.phase not in ("Succeeded", "Failed"):
            return None
        left = (status.finished or 0.0) + policy.ttl_seconds_after_finished - self._cluster.clock()
        if left > 0:
            return left
        with contextlib.suppress(ApiError):
            self._cluster.api.delete(job_path(*self._key), uid=str(job["metadata"]["uid"]))
        return None


def _lasting(status: Status) -> tuple[Any, ...]:
    """What of a status is worth another look soon; the figures of a job that trains change at every look."""
    said = tuple((c.type, c.status, c.reason) for c in status.conditions)
    return status.phase, status.incarnation, status.plan_revision, status.attempts, status.outcome, said


def _trains(spec: JobSpec) -> bool:
    return spec.goal == "train" and not spec.paused and not spec.run_policy.suspend


def _generation(job: Json) -> int:
    return int(job["metadata"].get("generation") or 0)


def _without_plan(status: Status) -> Status:
    """The status of a job that is to be planned anew."""
    status = replace(status, plan=None)
    return status.with_condition("Planned", None, "Replanning", "the spec has changed", status.phase_since)
