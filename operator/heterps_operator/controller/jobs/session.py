"""A session: the control loop of a job on a cluster, for one spec.

Decisions are written to the job's state before they are carried out, so another operator can continue at any time. For
a changed spec, the controller opens a new session with the state of the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heterps_operator.api.admission import pod_configuration
from heterps_operator.api.job import JobSpec
from heterps_operator.api.manifest import Manifest
from heterps_operator.control.changes import Effect
from heterps_operator.control.choices import as_chosen, as_claimed
from heterps_operator.control.measuring import pools_to_measure
from heterps_operator.control.problem import build_problem
from heterps_operator.control.queueing.waiting import needs_units, waiting_job
from heterps_operator.control.transition import BEGINS_AGAIN, Trial, is_stopped, judge_plan, resumes
from heterps_operator.controller.capacity.ledger import job_key
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.jobs.owned_objects import NotReadyError, OwnedObjects
from heterps_operator.controller.jobs.trial import PlanTrial
from heterps_operator.controller.jobs.wanted import profiles_in_use
from heterps_operator.controller.stores.objects import Key
from heterps_operator.documents import Json
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.building import objects
from heterps_operator.kubernetes.building.pods import scheduling_policy
from heterps_operator.kubernetes.profiles import ConfigMapProfileCache
from heterps_operator.kubernetes.queue import KueueQueue
from heterps_operator.kubernetes.reading.images import moved_images
from heterps_operator.kubernetes.reading.pools import pools_apart
from heterps_operator.kubernetes.state import JobState, StoredState
from heterps_operator.kubernetes.substrate import KubernetesSubstrate
from heterps_operator.loop.control_loop import ControlLoop
from heterps_operator.loop.substrate import Planner
from heterps_operator.state.bill import Bill
from heterps_operator.state.plan import JobPlan, PlanOutcome
from heterps_operator.state.status import Event, Phase, Status
from heterps_operator.state.turn import Turn
from heterps_operator.state.values import PoolCapacity
from heterps_runtime.contract import Role

__all__ = ["CapacityTakenError", "JobSession", "Site"]


class CapacityTakenError(Exception):
    """Another job reserved the units after this one was planned; the next turn plans with the remaining ones."""


@dataclass(frozen=True)
class Site:
    """The parts that all sessions of one job share."""

    cluster: OperatorContext
    key: Key  # namespace and name of the job
    owned: OwnedObjects
    state: JobState
    wake: Callable[[], None]  # gives the job another turn soon

    @property
    def folder(self) -> Path:
        """Folder of the job's planners."""
        return self.cluster.folder / self.key[0] / self.key[1]

    @property
    def holder(self) -> str:
        """The job's name in the ledger."""
        return job_key(*self.key)

    def planner(self, spec: JobSpec, folder: str) -> Planner:
        """Return a planner for a spec; it waits for a free place among the planners of all jobs."""
        cluster, seconds = self.cluster, spec.planner_timeout_seconds
        name = "scheduling.timeoutSeconds"
        if seconds > cluster.longest_planning:
            seconds, name = cluster.longest_planning, "--max-planner-seconds of the operator"
        return cluster.make_planner(
            cluster.planner_slots,
            self.key[0],
            self.folder / folder,
            spec.method,
            seconds,
            time_limit=name,
            memory_bytes=cluster.planner_memory_bytes,
            stages=spec.stages_by_hand,
            on_end=self.wake,
        )

    def profiles(self, manifest: Manifest, image_of: Callable[[str], str] = lambda pool: "") -> ConfigMapProfileCache:
        """Return the stored profiles of the manifest's model on its pools.

        Args:
            manifest: the job and its pools.
            image_of: returns the image with which a pool is measured now.
        """
        cluster, namespace = self.cluster, self.key[0]
        return ConfigMapProfileCache(
            cluster.api,
            namespace,
            pod_configuration(manifest),
            clock=cluster.clock,
            in_use=lambda: profiles_in_use(cluster, namespace),
            image_of=image_of,
        )


class JobSession:
    """Runs one spec of a job.

    Args:
        site: the parts shared with the job's other sessions.
        job: the HeterPSJob.
        manifest: the job to carry out, with its pools.
        spec: the same, typed.
        stored: the job's state, with the manifest's spec.

    Raises:
        NotReadyError: an object that the pods need cannot be written.
    """

    def __init__(self, site: Site, job: Json, manifest: Manifest, spec: JobSpec, stored: StoredState) -> None:
        cluster, status = site.cluster, stored.status
        self.stopping = Effect.NONE  # effect of the changed spec for which the job is being stopped
        self.adopted: tuple[Any, ...] = ()  # versions of job and pools that this session has taken into account
        self.site = site
        self._stored = replace(stored, pools=tuple(manifest.pools))
        self._written = (0, 0, "", "")  # revision and incarnation of the last written plan, and what its budgets follow
        self._trial: PlanTrial | None = None
        self._before: tuple[StoredState, JobSpec] | None = None  # of a change that is not stored yet
        token = site.owned.token(job)
        job = {**job, "spec": manifest.job["spec"]}  # a newer spec may wait for its turn
        site.owned.apply(
            job,
            objects.service(job),
            objects.run_config(job, pod_configuration(manifest)),
            objects.network_policy(job, cluster.namespace, cluster.scrapers),
            *objects.claim_templates(job, manifest.pools),
        )
        if status.phase in BEGINS_AGAIN and resumes(spec):
            status = status.begin_again(cluster.clock())
        pools = {str(pool["metadata"]["name"]): pool for pool in manifest.pools}
        self._apart = pools_apart(pools)
        self._queued = scheduling_policy(job).get("gang") == "Kueue"
        self._priority_class = scheduling_policy(job).get("priorityClassName")
        self._substrate = KubernetesSubstrate(
            cluster.api,
            cluster.pods,
            job,
            pools,
            known=stored.processes,
            clock=cluster.clock,
            on_wake=site.wake,
            hears_of=cluster.hears_of,
            leaves=cluster.departure,
            on_pod=cluster.metrics.on_pod,
        )
        self._substrate.follow(status)
        self._planner = site.planner(spec, "plan")
        cache = self._cache = site.profiles(manifest, self._image_of)
        self._loop = ControlLoop(
            spec,
            self._substrate,
            self._planner,
            cache,
            token=token,
            save=self._save,
            known_profiles=cache.load([pool.name for pool in spec.pools], outdated=status.plan is not None),
            status=status,
            bill=stored.bill,
            connect=cluster.connect,
            measurement=cluster.measurement(*site.key),
            queue=KueueQueue(cluster.api, job, pools, monotonic=cluster.monotonic) if self._queued else None,
            save_seconds=lambda: cluster.save_seconds,
            clock=cluster.clock,
            monotonic=cluster.monotonic,
        )

    @property
    def status(self) -> Status:
        """Status after the last decision."""
        return self._loop.status

    @property
    def bill(self) -> Bill:
        """Costs so far."""
        return self._loop.bill

    @property
    def spec(self) -> Json:
        """The spec that is carried out, with its defaults."""
        assert self._stored.spec is not None
        return self._stored.spec

    def manifest(self, job: Json) -> Manifest | None:
        """Return the manifest that is carried out; None if this version refuses it."""
        return self._stored.manifest(job)

    @property
    def may_go_on(self) -> bool:
        """Whether the job has stopped to continue with a changed spec."""
        return is_stopped(self.status, self.stopping)

    @property
    def is_trying(self) -> bool:
        """Whether a planner is working on a changed spec."""
        return self._trial is not None

    def turn(self) -> Turn:
        """Reconcile the job once.

        Raises:
            ApiError: the API server does not answer.
            CapacityTakenError: other jobs hold the units.
            NotReadyError: the state cannot be written.
            StateTaken: another operator has the job.
        """
        self._stand_in_line()
        pools = self._substrate.pools
        try:
            turn = self._loop.turn(self._capacity(), self.site.cluster.prices.histories(pools))
        finally:
            self._end_change()
        self._stand_in_line()
        return replace(turn, events=(*turn.events, *self._outdate_profiles()))

    def _end_change(self) -> None:
        """Return to the spec before a change whose plan could not be stored; the change is judged again."""
        if self._before is not None and self._loop.changing:
            (self._stored, job), self.adopted = self._before, ()
            self._loop.change(job, self._planner_for(job))
        self._before = None

    def _capacity(self) -> PoolCapacity:
        """Return what the ledger and the line of waiting jobs leave for this job."""
        ledger, line = self.site.cluster.ledger, self.site.cluster.line
        pools, holder = self._substrate.pools, self.site.holder
        capacity = PoolCapacity(
            free_units=(line if self._in_order else ledger).free_units(holder, pools),
            most_units=ledger.most_units(holder, pools),
            room={pool: ledger.free(pool, excluding=holder) for pool in pools},
            namespace_limits={
                pool: limit for pool in pools if (limit := ledger.namespace_limit(pool, holder)) is not None
            },
            place=line.place(holder),
            apart=self._apart,
        )
        plan = self.status.plan
        if self.status.phase != Phase.RUNNING and (plan is None or not capacity.fits(plan.units)):
            # Only a job that may have to wait tells for whom: listing 500 jobs takes 0.4 ms, a quarter of a turn.
            capacity = replace(capacity, holders={pool: ledger.holders(pool, excluding=holder) for pool in pools})
        return capacity

    def _image_of(self, pool: str) -> str:
        """Return the image with which a pool is measured now; empty: not known."""
        found = {known.pool: known.image for known in self._substrate.images(Role.PROFILE, ended=True)}
        return found.get(pool, "")

    def _outdate_profiles(self) -> Iterator[Event]:
        """Have pools measured again, by later jobs, whose workers run another image than the measured one."""
        known = self._cache.images
        for pool, found in moved_images(known, self._substrate.images(Role.WORKER) if known else ()).items():
            before = known[pool]
            try:
                self._cache.outdate(pool)
            except ApiError:
                continue  # the next turn finds it again
            text = f"pool {pool} was measured with the image {before}, {found.process} runs {found.image} under the"
            text = f"{text} same name: this job goes on with its plan, and the next one measures the pool again"
            text = f"{text}; name images by digest to keep their profiles"
            yield Event("Warning", "ImageMoved", text, self.site.cluster.clock())

    @property
    def _in_order(self) -> bool:
        """Whether the line decides when the job gets units: a queue has an order of its own, a mere plan needs none."""
        return not self._queued and self._loop.job.goal == "train"

    def _stand_in_line(self) -> None:
        """Join the line of waiting jobs, renew the job's entry there, or leave it."""
        cluster, holder, job = self.site.cluster, self.site.holder, self._loop.job
        profiles, held = self._loop.profiles, cluster.ledger.held_by(holder)
        if not self._in_order or not needs_units(job, self.status, profiles, held):
            cluster.line.leave(holder)
            return
        entry = waiting_job(
            holder,
            job,
            self.status,
            measured=profiles,
            most=cluster.ledger.most_units(holder, self._substrate.pools),
            priority=cluster.priorities.value(self._priority_class),
        )
        histories = cluster.prices.histories(self._substrate.pools)
        priced = as_claimed(job, self.status).priced({pool: history[-1].price for pool, history in histories.items()})
        cluster.line.stand(entry, lambda units: build_problem(priced.limited(units), profiles))

    def adopt(self, manifest: Manifest, job: JobSpec) -> None:
        """Use a changed spec from the next turn on."""
        self._stored = replace(self._stored, spec=manifest.job["spec"], pools=tuple(manifest.pools))
        self._loop.change(job, self._planner_for(job))

    def _planner_for(self, job: JobSpec) -> Planner:
        """Return the present planner, or another one if the spec plans otherwise than the present spec."""
        before, names = self._loop.job, ("method", "planner_timeout_seconds", "stages_by_hand")
        if any(getattr(job, name) != getattr(before, name) for name in names):
            self._planner.close()
            self._planner = self.site.planner(job, "plan")
        return self._planner

    def judge(self, job: JobSpec, plan: JobPlan) -> Trial:
        """Judge a plan of a changed spec, all of whose changed fields are read by the controller alone."""
        observed = self._loop.observed
        assert observed is not None, "a trial ends after the first turn"
        return judge_plan(self._loop.job, job, observed, self.status, plan)

    def change(self, manifest: Manifest, job: JobSpec, plan: JobPlan) -> None:
        """Use a changed spec and its plan from the next turn on, while the job trains."""
        self._before = (self._stored, self._loop.job)
        self.adopt(manifest, job)
        self._loop.change(job, self._planner, plan)

    def stop(self, effect: Effect) -> None:
        """Stop the processes in order, to continue with a changed spec of this effect."""
        self.stopping = effect
        self._loop.request_stop()

    def state_for(self, spec: Json, status: Status) -> StoredState:
        """Return the state for the next session, with its spec."""
        return replace(self._stored, status=status, bill=self.bill, spec=spec)

    def try_plan(self, manifest: Manifest, spec: JobSpec) -> tuple[Trial, PlanOutcome | None]:
        """Plan a changed spec without applying it; the answer comes with a later call."""
        spec = as_chosen(spec, self.status)
        if self._trial is None or self._trial.job != spec:
            self.end_trial()
            profiles = self.site.profiles(manifest).load([pool.name for pool in spec.pools])
            if len(profiles) < len(spec.pools):
                return Trial.UNMEASURED, None
            try:
                self._trial = PlanTrial(spec, self.site.planner(spec, "trial"), profiles)
            except ValueError:  # of different layers
                return Trial.UNMEASURED, None
        outcome = None if self._loop.observed is None else self._trial.poll()  # it is judged by what is observed
        if outcome is None:
            return Trial.PENDING, None
        self.end_trial()
        return (Trial.INFEASIBLE if outcome.plan is None else Trial.FEASIBLE), outcome

    def end_trial(self) -> None:
        """End the planner of a changed spec."""
        if self._trial is not None:
            self._trial.close()
            self._trial = None

    def delete_pods(self, *, running_only: bool) -> None:
        """Delete the job's pods."""
        self._substrate.delete_pods(running_only=running_only)

    def close(self) -> None:
        """End the planners; pods keep running."""
        self._planner.close()
        self.end_trial()

    def _save(self, status: Status, bill: Bill) -> None:
        """Reserve the units of a decision and write the state, before the decision is carried out."""
        ledger, holder = self.site.cluster.ledger, self.site.holder
        plan = status.plan
        grant = ledger.reserve(holder, self._units(status))
        if not grant.granted:
            raise CapacityTakenError("; ".join(map(str, grant.shortfalls)))
        policy = self._loop.job.run_policy
        revisions = self._stored.plans
        place = (status.plan_revision, status.incarnation, policy.cordon_policy, policy.disruption_budgets)
        new = plan is not None and self._written != place
        if new:
            revisions = (*(r for r in revisions if r != status.plan_revision), status.plan_revision)
        self._substrate.follow(status)
        known = self._substrate.known()
        self._stored = replace(self._stored, status=status, bill=bill, processes=known, plans=revisions)
        try:
            self.site.state.save(self._stored)
        except ApiError as error:
            raise NotReadyError.of(f"HeterPSJobState {self.site.key[1]}", error) from error
        if plan is not None and new:  # after the state: now no other operator has the job
            job, pools = self._substrate.job, self._substrate.pools
            revisions = self.site.owned.keep_plan(job, pools, status, plan, revisions, policy=policy)
            self._stored = replace(self._stored, plans=revisions)
            self._written = place

    def _units(self, status: Status) -> dict[str, int]:
        """Return the units that the job needs, by pool: those of its plan, or of its profilers."""
        if status.outcome is not None:
            return {}
        if status.queued and status.phase == Phase.PENDING:
            return {}  # others may use them while the job waits for quota
        if status.plan is not None:
            return status.plan.units
        if status.phase != Phase.PROFILING:
            return {}
        job, measured = self._loop.job, self._loop.profiles
        found = pools_to_measure(job, measured, self._substrate.processes(), self._capacity())
        first = [pool for pool in job.pools if pool.name not in measured][:1]  # may wait for one that ends
        return {pool.name: pool.units_per_pod for pool in (*first, *found)}
