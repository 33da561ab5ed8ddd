"""The job's status document and Prometheus metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from heterps_runtime import contract
from heterps_runtime.config import RunConfig
from heterps_runtime.coordinator.core import CoordinatorCore

__all__ = ["JobMetrics", "describe_job"]

_STAGE_LABELS = ("stage", "pool")
_WORKER_LABELS = ("stage", "pool", "worker")
_MOST_ROWS = 2**63 - 1
_SUMS = frozenset({"step", "compute", "wait"})  # of the other activities


@dataclass(frozen=True)
class _Selection:
    """Some metric families, as a collector."""

    families: tuple[Metric, ...]

    def collect(self) -> Iterator[Metric]:
        return iter(self.families)


def _stages(core: CoordinatorCore) -> list[dict[str, Any]]:
    """The throughput of each stage alone, and the fraction of time it computes."""
    roster = core.membership.roster
    if roster is None:
        return []
    stages = []
    for i, stage in enumerate(roster.plan.stages):
        workers = roster.workers(i)
        times = [w.figures.get("compute", 0.0) for w in workers]
        steps = [w.figures.get("step", 0.0) for w in workers]
        slowest, step = max(times, default=0.0), max(steps, default=0.0)
        batch = sum(w.batch_size for w in workers)
        stages.append(
            {
                "name": stage.name,
                "pool": stage.pool,
                "workers": len(workers),
                "samplesPerSecond": batch / slowest if slowest else 0.0,
                "busyFraction": min(1.0, slowest / step) if step else 0.0,
            }
        )
    return stages


def _rows(core: CoordinatorCore) -> dict[str, int]:
    """Rows of all servers, and how they came and went since these have started."""
    servers = core.membership.roster.servers() if core.membership.roster else []
    keys = ("rows", "candidates", "admitted", "evicted")
    return {
        "stored" if key == "rows" else key: min(int(sum(s.totals.get(key, 0.0) for s in servers)), _MOST_ROWS)
        for key in keys
    }


def describe_job(core: CoordinatorCore, config: RunConfig, time: float) -> dict[str, Any]:
    """The status document (docs/runtime.md) of this time in Unix seconds, by the clock that dates events."""
    progress, membership, now = core.progress, core.membership, core.clock()
    allocation = core.steps.allocation
    expected = membership.roster.all_expected if membership.roster else ()
    members = []
    for name in expected:
        member = membership.member(name)
        absent = {"name": name, "state": contract.MemberState.ABSENT, "message": membership.notes.get(name, "")}
        entry = absent if member is None else member.describe()
        members.append({**entry, "silentSeconds": core.liveness.silent_seconds(name)})
    return {
        "phase": core.phase,
        "time": time,
        "generation": membership.generation,
        "running": membership.running,
        "committedSteps": progress.committed,
        "totalSteps": progress.total_steps,
        "epoch": progress.epoch,
        "epochs": config.epochs,
        "globalBatchSize": config.global_batch_size,
        "numRows": progress.num_rows,
        "samples": progress.samples,
        "resumedFromStep": core.resumed_from,
        "loss": progress.loss,
        "lastLoss": progress.last_loss,
        "lossScale": progress.scale,
        "skippedSteps": progress.loss_scale.skipped_steps,
        "samplesPerSecond": progress.samples_per_second,
        "meanSamplesPerSecond": progress.mean_samples_per_second(now),
        "secondsTraining": progress.seconds_training(now),
        "expectedMembers": list(expected),
        "members": members,
        "notes": dict(membership.notes),
        "stages": _stages(core),
        "allocation": [list(s) for s in allocation.batches] if allocation else None,
        "checkpoint": {
            "lastStep": core.checkpoints.latest.step if core.checkpoints.latest else None,
            "lastTime": core.checkpoints.time,
            "path": config.checkpoint_path,
            "failures": core.checkpoints.failures,
            "lastError": core.checkpoints.error,
        },
        "rows": _rows(core),
        "evaluation": core.evaluation.results,
        "model": core.model_path,
        "events": core.journal.events(),
        "error": core.error,
    }


class JobMetrics:
    """Prometheus metrics of one job (docs/metrics.md), read from the core at each scrape.

    Each series has the job's name as `job_name`, since Prometheus sets `job` for the target. The plan bounds the
    labels: there are no series of former members.

    Args:
        core: the job.
        config: has the job's name.
        clock: Unix seconds.
    """

    def __init__(self, core: CoordinatorCore, config: RunConfig, clock: Callable[[], float]) -> None:
        self._core = core
        self._config = config
        self._clock = clock

    def render(self, names: Collection[str] = ()) -> bytes:
        """The text of a scrape.

        Args:
            names: series to include (Prometheus' `name[]`); empty: all.
        """
        return generate_latest(_Selection(tuple(f for f in self.collect() if not names or f.name in names)))

    def collect(self) -> Iterator[Metric]:
        """The current metrics."""
        core, progress = self._core, self._core.progress
        training = "heterps_training"
        yield self._gauge(contract.METRIC_MEASURED, "Unix time at which these figures were taken", self._clock())
        yield self._gauge(contract.METRIC_GENERATION, "Generation of members in force", core.membership.generation)
        yield self._gauge(
            contract.METRIC_THROUGHPUT, "Throughput over the last ten seconds", progress.samples_per_second
        )
        yield self._gauge(f"{training}_committed_steps", "Steps that are part of the model", progress.committed)
        yield self._gauge(f"{training}_total_steps", "Steps of the whole job, once known", progress.total_steps)
        yield self._gauge(f"{training}_epoch", "Epoch of the next step, from 0", progress.epoch)
        yield self._gauge(f"{training}_samples", "Samples that are part of the model", progress.samples)
        yield self._gauge(f"{training}_loss", "Mean training loss, smoothed over steps", progress.loss)
        text = "Factor of the loss before backward; 1 unless the job computes in float16"
        yield self._gauge(f"{training}_loss_scale", text, progress.scale or 1.0)
        text = "Steps that changed nothing, as their gradients were not finite in float16"
        yield self._gauge(f"{training}_skipped_steps", text, progress.loss_scale.skipped_steps)
        text = "Commits by which parameters may be older than the step that reads them"
        yield self._gauge(f"{training}_max_staleness_steps", text, self._config.max_staleness)
        seconds = progress.seconds_training(core.clock())
        yield self._gauge(f"{training}_duration_seconds", "Time spent training in this run, pauses left out", seconds)
        step = core.checkpoints.latest.step if core.checkpoints.latest else None
        yield self._gauge(f"{training}_checkpoint_step", "Step of the newest valid checkpoint", step)
        text = "Unix time at which this run wrote the newest valid checkpoint"
        yield self._gauge(f"{training}_checkpoint_timestamp_seconds", text, core.checkpoints.time)
        failures = core.checkpoints.failures
        yield self._gauge(f"{training}_checkpoint_failures", "Checkpoints that could not be written", failures)
        phase = [((core.phase,), 1.0)]
        yield self._family(f"{training}_phase", "1 for the phase that the coordinator is in", ("phase",), phase)
        yield from self._members()
        yield from self._stages()

    def _stages(self) -> Iterator[Metric]:
        """Metrics of stages, and of workers by stage, pool and index."""
        stages = [((str(i), stage["pool"]), stage) for i, stage in enumerate(_stages(self._core))]
        rates = [(labels, float(stage["samplesPerSecond"])) for labels, stage in stages]
        busy = [(labels, float(stage["busyFraction"])) for labels, stage in stages]
        text = "Throughput that the slowest worker of the stage could have alone"
        yield self._family(contract.METRIC_STAGE_THROUGHPUT, text, _STAGE_LABELS, rates)
        yield self._family("heterps_stage_busy_ratio", "Part of a step that it computes", _STAGE_LABELS, busy)
        roster = self._core.membership.roster
        workers = roster.all_workers() if roster else []
        named = [((str(w.stage), w.pool, str(w.index)), w) for w in workers]
        batches = [(labels, float(w.batch_size)) for labels, w in named]
        yield self._family(
            contract.METRIC_BATCH_SIZE, "Samples of each step that are its share", _WORKER_LABELS, batches
        )
        times = [((*labels, activity), s) for labels, w in named for activity, s in w.figures.items()]
        sums, parts = ([t for t in times if (t[0][-1] in _SUMS) == whole] for whole in (True, False))
        text = "Mean time of a step, computing and waiting"
        yield self._family(contract.METRIC_STEP_SECONDS, text, (*_WORKER_LABELS, "activity"), sums)
        text = "Mean time per step by what it is spent on"
        yield self._family("heterps_worker_activity_step_seconds", text, (*_WORKER_LABELS, "activity"), parts)
        samples = [(labels, w.totals.get("samples", 0.0)) for labels, w in named]
        text = "Samples computed since the process started"
        yield self._family("heterps_worker_computed_samples", text, _WORKER_LABELS, samples)
        speeds = [(labels, w.operations_per_second) for labels, w in named if w.operations_per_second]
        text = "Floating-point operations per second of computing, forward and backward"
        yield self._family(contract.METRIC_OPERATIONS, text, _WORKER_LABELS, speeds)
        for name, text, key in (
            (contract.METRIC_MEMORY, "Resident memory of its process", "memory"),
            (contract.METRIC_ROUND_TRIP, "From its gradients to the answers of all servers, smoothed", "round-trip"),
        ):
            said = [(labels, w.totals[key]) for labels, w in named if key in w.totals]
            yield self._family(name, text, _WORKER_LABELS, said)

    def _members(self) -> Iterator[Metric]:
        """Numbers of members by state, and the contents of servers."""
        roster = self._core.membership.roster
        counts: Counter[tuple[str, ...]] = Counter()
        servers = roster.servers() if roster else []
        for name in roster.expected if roster else ():
            assert roster is not None
            member = roster.present.get(name)
            role = contract.Role.PS if name in roster.server_names else contract.Role.WORKER
            counts[(role, contract.MemberState.ABSENT if member is None else member.state)] += 1
        members = [(labels, float(number)) for labels, number in sorted(counts.items())]
        yield self._family("heterps_training_members", "Members of the plan by state", ("role", "state"), members)
        for name, text, key in (
            ("heterps_server_rows", "Rows that a parameter server stores", "rows"),
            ("heterps_server_memory_bytes", "Memory of its rows, state and dense parameters", "bytes"),
            ("heterps_server_candidates", "Ids that have no row yet", "candidates"),
            ("heterps_server_admitted_rows", "Rows that ids got after some steps since it started", "admitted"),
            ("heterps_server_evicted_rows", "Rows that no step used any more since it started", "evicted"),
        ):
            rows = [((str(s.index), s.pool), s.totals.get(key, 0.0)) for s in servers]
            yield self._family(name, text, ("server", "pool"), rows)

    def _gauge(self, name: str, text: str, value: float | None) -> Metric:
        """A series without further labels; it has no sample while its value is unknown."""
        return self._family(name, text, (), [] if value is None else [((), float(value))])

    def _family(
        self, name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]
    ) -> Metric:
        family = GaugeMetricFamily(name, text, labels=("namespace", "job_name", *labels))
        for values, value in samples:
            family.add_metric((self._config.namespace, self._config.name, *values), value)
        return family
