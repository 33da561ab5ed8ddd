"""Steps in progress and their micro-batches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from heterps_runtime.partition.allocation import MicroBatch
from heterps_runtime.worker.exchange.buckets import Reduction
from heterps_runtime.worker.exchange.replica import Leaves
from heterps_runtime.worker.rows.lookups import LookupBlock

__all__ = ["LABEL", "Clock", "Prepared", "StepRun", "Work", "largest_of"]

LABEL = "label"
Array = np.ndarray[Any, Any]


@dataclass
class Prepared:
    """A step of the first stage: this worker's micro-batches, ready to compute."""

    step: int
    micro_batches: tuple[MicroBatch, ...]
    inputs: list[dict[str, torch.Tensor]]
    labels: list[torch.Tensor]
    largest_labels: list[int | None]
    block: LookupBlock


@dataclass
class Work:
    """A micro-batch in this stage, or several that are computed together.

    Attributes:
        position: of this micro-batch in its block.
        sender: of the activation; empty in the first stage.
        gradients: of the outputs, once they have arrived.
        largest_label: if labels are whole numbers.
        parts: the micro-batches, in order, if they are several; their block, position and sender count, not this one's.
    """

    run: StepRun
    micro_batch: MicroBatch
    inputs: dict[str, torch.Tensor]
    label: torch.Tensor
    block: LookupBlock
    position: int
    sender: bytes = b""
    looked_up: list[torch.Tensor] = field(default_factory=list)
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor] | None = None
    largest_label: int | None = None
    parts: tuple[Work, ...] = ()

    @classmethod
    def together(cls, parts: Sequence[Work]) -> Work:
        """One of several micro-batches of a step: its inputs are theirs, one after the other."""
        first = parts[0]
        inputs = {}
        for name, tensor in first.inputs.items():
            inputs[name] = torch.cat([part.inputs[name].detach() for part in parts])
            inputs[name].requires_grad_(tensor.requires_grad)
        return cls(
            first.run,
            replace(first.micro_batch, start=0, stop=sum(part.micro_batch.size for part in parts)),
            inputs,
            torch.cat([part.label for part in parts]),
            first.block,
            first.position,
            first.sender,
            largest_label=max((p.largest_label for p in parts if p.largest_label is not None), default=None),
            parts=tuple(parts),
        )

    @property
    def each(self) -> tuple[Work, ...]:
        """The micro-batches."""
        return self.parts or (self,)

    @property
    def order(self) -> tuple[int, int]:
        """Step and index: the order of micro-batches in all processes."""
        return self.run.step, self.micro_batch.index


@dataclass
class StepRun:
    """A step in progress.

    Attributes:
        dense_version, rows_version: commits that reads must include.
        expected: indices of this worker's micro-batches, in order.
        leaves: dense parameters; None until they have arrived.
        statistics: buffers that training changes, as each micro-batch finds them.
        changes: of the statistics, each times the samples of its micro-batch, summed over this worker's.
        losses: of this worker's micro-batches, each summed over samples, on the device.
        batch_size: samples of the step's global batch.
        loss_scale: by which the mean loss is multiplied before backward, known with the first gradients; None:
            gradients are those of the sum of losses.
    """

    step: int
    training: bool
    dense_version: int
    rows_version: int
    expected: tuple[int, ...]
    batch_size: int
    loss_scale: float | None = None
    leaves: Leaves | None = None
    dense_request: int | None = None
    statistics: dict[str, torch.Tensor] = field(default_factory=dict)
    changes: dict[str, torch.Tensor] = field(default_factory=dict)
    blocks: dict[int, LookupBlock] = field(default_factory=dict)  # by first micro-batch, for a fixed order of gradients
    waiting: list[Work] = field(default_factory=list)  # for forward
    in_flight: dict[int, Work] = field(default_factory=dict)  # forwarded, without gradients
    returned: list[Work] = field(default_factory=list)  # with gradients, for backward
    num_forwarded: int = 0
    num_finished: int = 0
    losses: list[torch.Tensor] = field(default_factory=list)
    finite: bool = True
    reduction: Reduction | None = None  # of a replica's gradients and changes, once it has begun
    reduced: bool = False
    pushed: bool = False
    reported: bool = False

    @property
    def factor(self) -> float | None:
        """By which the loss of a micro-batch, summed over samples, is multiplied before backward; None: it is not."""
        return None if self.loss_scale is None else self.loss_scale / self.batch_size


def largest_of(label: torch.Tensor) -> int | None:
    """The largest label, if labels are whole numbers, and on the host, where looking for it waits for nothing."""
    return None if label.is_floating_point() or not label.numel() else int(label.max())


class Clock:
    """The worker's time: seconds per activity since the process started."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._activity = "start"
        self._since = time.perf_counter()

    def switch(self, activity: str) -> None:
        """Book the time since the last switch, and begin another activity."""
        now = time.perf_counter()
        self.seconds[self._activity] = self.seconds.get(self._activity, 0.0) + now - self._since
        self._activity, self._since = activity, now

    def snapshot(self) -> dict[str, float]:
        """Seconds per activity up to now."""
        self.switch(self._activity)
        return dict(self.seconds)
