"""The job's figures: the status document, and Prometheus metrics for the one target that a job has."""

from __future__ import annotations

import math
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from heterps_runtime.config import RunConfig
from heterps_runtime.coordinator.core import CoordinatorCore

__all__ = ["JobMetrics", "describe_job"]


def _stages(core: CoordinatorCore) -> list[dict[str, Any]]:
    """What each stage could do by itself, and how much of the time it computes."""
    if core.roster is None:
        return []
    stages = []
    for i, stage in enumerate(core.roster.plan.stages):
        workers = core.roster.workers(i)
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


def describe_job(core: CoordinatorCore, config: RunConfig, now: float) -> dict[str, Any]:
    """The status document (docs/runtime.md)."""
    progress = core.progress
    members = []
    if core.roster is not None:
        for name in core.roster.expected:
            member = core.roster.present.get(name)
            if member is not None:
                members.append(member.describe())
            else:
                members.append({"name": name, "state": "absent", "message": core.notes.get(name, "")})
    return {
        "phase": core.phase,
        "generation": core.generation,
        "running": core.running,
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
        "samplesPerSecond": progress.samples_per_second,
        "meanSamplesPerSecond": progress.mean_samples_per_second(now),
        "secondsTraining": progress.seconds_training(now),
        "expectedMembers": list(core.roster.expected) if core.roster else [],
        "members": members,
        "notes": dict(core.notes),
        "stages": _stages(core),
        "allocation": [list(s) for s in core.allocation.batches] if core.allocation else None,
        "checkpoint": {
            "lastStep": core.latest.step if core.latest else None,
            "path": config.checkpoint_path,
            "failures": core.checkpoint_failures,
            "lastError": core.checkpoint_error,
        },
        "evaluation": core.evaluation,
        "model": core.model_path,
        "events": core.journal.events(),
        "error": core.error,
    }


class JobMetrics:
    """Prometheus metrics of one job, refreshed when they are scraped."""

    def __init__(self, core: CoordinatorCore) -> None:
        self._core = core
        self.registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"heterps_{name}", text, labels, registry=self.registry)

        self._steps = gauge("job_committed_steps", "Steps that are part of the model")
        self._samples = gauge("job_samples", "Samples that are part of the model")
        self._loss = gauge("job_loss", "Mean training loss, smoothed over steps")
        self._rate = gauge("job_samples_per_second", "Throughput over the last ten seconds")
        self._generation = gauge("job_generation", "Generation of members in force")
        self._checkpoint = gauge("job_checkpoint_step", "Step of the newest valid checkpoint")
        self._failures = gauge("job_checkpoint_failures", "Checkpoints that could not be written")
        self._phase = gauge("job_phase", "1 for the phase the job is in", "phase")
        self._batch = gauge("worker_batch_size", "Samples per step", "stage", "pool", "worker")
        self._seconds = gauge(
            "worker_step_seconds", "Mean time per step by activity", "stage", "pool", "worker", "activity"
        )
        self._rows = gauge("ps_rows", "Rows stored", "server")
        self._bytes = gauge("ps_memory_bytes", "Memory of rows and state", "server")

    def refresh(self, now: float) -> None:
        """Take the core's present figures."""
        core, progress = self._core, self._core.progress
        self._steps.set(progress.committed)
        self._samples.set(progress.samples)
        self._loss.set(progress.loss if progress.loss is not None else math.nan)
        self._rate.set(progress.samples_per_second)
        self._generation.set(core.generation)
        self._checkpoint.set(core.latest.step if core.latest else 0)
        self._failures.set(core.checkpoint_failures)
        for labelled in (self._phase, self._batch, self._seconds, self._rows, self._bytes):
            labelled.clear()  # members that have left must not linger
        self._phase.labels(core.phase).set(1)
        for member in core.roster.present.values() if core.roster else ():
            if member.role == "ps":
                self._rows.labels(member.name).set(member.totals.get("rows", 0.0))
                self._bytes.labels(member.name).set(member.totals.get("bytes", 0.0))
                continue
            labels = (str(member.stage), member.pool, str(member.index))
            self._batch.labels(*labels).set(member.batch_size)
            for activity, seconds in member.figures.items():
                self._seconds.labels(*labels, activity).set(seconds)
