"""A job's progress: steps, epochs, samples, loss, throughput."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from heterps_runtime.config import RunConfig
from heterps_runtime.coordinator.effects import CheckpointRecord
from heterps_runtime.coordinator.loss_scale import LossScale
from heterps_runtime.partition.batches import Batches
from heterps_runtime.wire.messages import Commit, Done

__all__ = ["CHECKPOINT", "Progress", "non_finite"]

CHECKPOINT = "the checkpoint"  # as a source of the number of rows; sorts before the names of workers
_CHANGED = (
    "the data must not change during a job: put the files back, and train on new ones in a job of their own, with "
    "spec.data.trainAfter and spec.model.initFrom"
)
_LOSS_SMOOTHING = 0.05
_LARGEST_LOSS = 1e290  # of a worker, so that sums are finite; more is as good as infinite
_RATE_WINDOW_SECONDS = 10.0


class Progress:
    """Committed steps, and the total."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.committed = 0
        # Of other jobs, whose optimizer state this job has gone on with, less the steps that this job has skipped: of
        # both, the optimizers' state knows nothing by this job's count of steps.
        self.earlier_steps = 0
        self.loss_scale = LossScale()
        self.samples = 0
        self.batches: Batches | None = None  # from the checkpoint, or as reported by the first worker
        self._rows_from = ""
        self.layout = ""  # of the training data, see `DataSize`
        self.loss: float | None = None  # smoothed
        self.last_loss: float | None = None
        self._commits: deque[tuple[float, int]] = deque()  # (time, samples so far) of recent commits
        self._started: float | None = None
        self._seconds = 0.0  # training time of this run, without pauses
        self._samples_this_run = 0

    def use(self, config: RunConfig) -> None:
        """Note the job in the precision that was chosen for it."""
        self._config = config

    # --- size of the job ----------------------------------------------------------------------------------------------

    def set_rows(self, rows: int, source: str, layout: str = "") -> str | None:
        """Set the number of training rows.

        Args:
            rows: number of rows.
            source: who says so: `CHECKPOINT` or a worker's name.
            layout: see `DataSize`.

        Returns:
            An error message if the rows differ from the known ones: the same whichever source came first.
        """
        if self.num_rows is not None and self.num_rows != rows:
            (first, one), (second, other) = sorted([(self._rows_from, self.num_rows), (source, rows)])
            return f"data.train: {one} rows according to {first}, but {other} according to {second}; {_CHANGED}"
        if self.num_rows is not None and self.layout != layout:
            first, second = sorted([self._rows_from, source])
            return (
                f"data.train: the files or their row groups according to {first} are others than according to "
                f"{second}; {_CHANGED}"
            )
        self._rows_from, self.layout = source, layout
        self.batches = Batches(rows, self._config.global_batch_size)
        return None

    @property
    def num_rows(self) -> int | None:
        """Rows of the training data, None while unknown."""
        return None if self.batches is None else self.batches.num_rows

    @property
    def total_steps(self) -> int | None:
        """Steps of the job, None while the number of rows is unknown."""
        if self.batches is None:
            return None
        if self._config.steps:
            return self._config.steps
        assert self._config.epochs is not None
        return self._config.epochs * self.batches.per_epoch

    @property
    def finished(self) -> bool:
        """Whether the last step is committed."""
        return self.total_steps is not None and self.committed >= self.total_steps

    @property
    def epoch(self) -> int:
        """Epoch of the next step, from 0."""
        return self.batches.epoch(self.committed) if self.batches else 0

    def batch_size(self, step: int) -> int:
        """Samples of a step."""
        assert self.batches is not None, "a worker of the first stage has reported the number of rows"
        return self.batches.size(step)

    # --- progress -----------------------------------------------------------------------------------------------------

    def may_skip(self) -> bool:
        """Whether a step whose loss or gradients are not finite is skipped, instead of ending the job."""
        return self._config.scales_loss and self.loss_scale.can_shrink

    def commit(self, generation: int, reports: Mapping[str, Done], now: float, *, skipped: bool) -> Commit:
        """Note the commit of a step, or that it is skipped; returns what members are told.

        Args:
            generation: of the members.
            reports: by worker.
            now: monotonic seconds.
            skipped: its loss or gradients are not finite.
        """
        step, size = self.committed, self.batch_size(self.committed)
        self.committed += 1
        self.samples += size
        self._samples_this_run += size
        if self._config.scales_loss:
            used = max(report.loss_scale or 0.0 for report in reports.values())
            self.loss_scale = self.loss_scale.after(used, finite=not skipped)
        if skipped:
            self.earlier_steps -= 1
        else:
            self.last_loss = loss = math.fsum(report.loss_sum for report in reports.values()) / size
            self.loss = loss if self.loss is None else self.loss + _LOSS_SMOOTHING * (loss - self.loss)
        self._commits.append((now, self._samples_this_run))
        while len(self._commits) > 2 and now - self._commits[0][0] > _RATE_WINDOW_SECONDS:
            self._commits.popleft()
        return Commit(generation, step, size, skipped, self.scale)

    @property
    def scale(self) -> float | None:
        """The loss scale in force; None: losses are not scaled."""
        return self.loss_scale.scale if self._config.scales_loss else None

    def resume(self, checkpoint: CheckpointRecord | None) -> None:
        """Start from a checkpoint, or from scratch."""
        self.committed, self.samples = (checkpoint.step, checkpoint.samples) if checkpoint else (0, 0)
        self._take_scale(checkpoint)

    def _take_scale(self, checkpoint: CheckpointRecord | None) -> None:
        self.earlier_steps = checkpoint.earlier_steps if checkpoint else 0
        self.loss_scale = LossScale.from_json(checkpoint.loss_scale if checkpoint else None)

    def rewind(self, step: int, checkpoint: CheckpointRecord | None) -> None:
        """Go back to a step, that of a checkpoint or the first; samples of dropped steps do not count."""
        self._take_scale(checkpoint)
        if self.batches is not None and step < self.committed:
            dropped = sum(self.batch_size(s) for s in range(step, self.committed))
            self.samples -= dropped
            self._samples_this_run = max(0, self._samples_this_run - dropped)
            self._commits.clear()
        self.committed = step

    def start_clock(self, now: float) -> None:
        """Training starts or continues."""
        if self._started is None:
            self._started = now
            self._commits.clear()
            self._commits.append((now, self._samples_this_run))

    def stop_clock(self, now: float) -> None:
        """Training pauses or ends."""
        if self._started is not None:
            self._seconds += now - self._started
            self._started = None

    @property
    def samples_per_second(self) -> float:
        """Throughput over about the last ten seconds."""
        if len(self._commits) < 2:
            return 0.0
        (t0, n0), (t1, n1) = self._commits[0], self._commits[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0

    def seconds_training(self, now: float) -> float:
        """Training time of this run."""
        return self._seconds + (now - self._started if self._started is not None else 0.0)

    def mean_samples_per_second(self, now: float) -> float:
        """Throughput over the training time of this run."""
        seconds = self.seconds_training(now)
        return self._samples_this_run / seconds if seconds > 0 else 0.0

    def describe(self) -> dict[str, Any]:
        """The progress for a checkpoint's manifest."""
        return {
            "step": self.committed,
            "epoch": self.epoch,
            "samples": self.samples,
            "numRows": self.num_rows,
            "layout": self.layout,
            "earlierSteps": self.earlier_steps,
            "lossScale": self.loss_scale.to_json() if self._config.scales_loss else None,
            "loss": self.loss if self.loss is not None and math.isfinite(self.loss) else None,
        }


def non_finite(step: int, reports: Mapping[str, Done], last_good: int | None) -> tuple[str, str] | None:
    """(reason, message) if a loss or gradient of a step is NaN or infinite, else None.

    Args:
        step: reported by all workers.
        reports: by worker.
        last_good: step of the newest checkpoint, if any.
    """
    in_loss = [name for name, r in reports.items() if not abs(r.loss_sum) <= _LARGEST_LOSS]
    in_gradient = [name for name, r in reports.items() if not r.finite]
    if not in_loss and not in_gradient:
        return None
    what, seen_by = ("loss", in_loss) if in_loss else ("gradient", in_gradient)
    kept = "there is no checkpoint yet" if last_good is None else f"the last good checkpoint is step {last_good}"
    return (
        "NaNLoss" if in_loss else "NaNGradient",
        f"the {what} of step {step} is not finite (seen by {', '.join(sorted(seen_by))}); the step was not applied; "
        f"{kept}. Lower training.optimizer.*.learningRate or look for extreme values in data.dense.",
    )
