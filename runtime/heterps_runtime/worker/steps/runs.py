"""What a worker has in hand: steps under way and their micro-batches."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from heterps_runtime.allocation import MicroBatch
from heterps_runtime.worker.exchange.replica import Leaves
from heterps_runtime.worker.rows.lookups import LookupBlock

__all__ = ["LABEL", "Clock", "Prepared", "StepRun", "Work"]

LABEL = "label"
Array = np.ndarray[Any, Any]


@dataclass
class Prepared:
    """A step of the first stage as the feed hands it over: this worker's micro-batches, ready to compute."""

    step: int
    micro_batches: tuple[MicroBatch, ...]
    inputs: list[dict[str, torch.Tensor]]
    labels: list[torch.Tensor]
    block: LookupBlock


@dataclass
class Work:
    """One micro-batch on its way through this stage."""

    run: StepRun
    micro_batch: MicroBatch
    inputs: dict[str, torch.Tensor]
    label: torch.Tensor
    block: LookupBlock
    position: int  # of this micro-batch in its block
    sender: bytes = b""  # to whom the gradient of the inputs goes back
    looked_up: list[torch.Tensor] = field(default_factory=list)
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor] | None = None  # of the outputs, once they have come back

    @property
    def order(self) -> tuple[int, int]:
        """Steps and micro-batches in the order that all processes share."""
        return self.run.step, self.micro_batch.index


@dataclass
class StepRun:
    """A step under way in this worker.

    Attributes:
        dense_version, rows_version: commits that reads must at least have seen.
        expected: indices of this worker's micro-batches, in order.
        leaves: dense parameters to compute with, None until they are there.
    """

    step: int
    training: bool
    dense_version: int
    rows_version: int
    expected: tuple[int, ...]
    leaves: Leaves | None = None
    dense_request: int | None = None
    blocks: dict[int, LookupBlock] = field(default_factory=dict)  # by first micro-batch: gradients are added in order
    waiting: list[Work] = field(default_factory=list)  # not yet forwarded
    in_flight: dict[int, Work] = field(default_factory=dict)  # forwarded, waiting for their gradients
    returned: list[Work] = field(default_factory=list)  # gradients are there
    num_forwarded: int = 0
    num_finished: int = 0
    loss_sum: float = 0.0
    finite: bool = True
    flat_gradient: torch.Tensor | None = None  # of a replica, summed over the stage once `reduced`
    reduced: bool = False
    pushed: bool = False
    reported: bool = False


class Clock:
    """Where the worker's time goes: seconds per activity since the process started."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._activity = "start"
        self._since = time.perf_counter()

    def switch(self, activity: str) -> str:
        """Book the time since the last switch, and begin another activity; returns the one that ended."""
        now = time.perf_counter()
        self.seconds[self._activity] = self.seconds.get(self._activity, 0.0) + now - self._since
        previous, self._activity, self._since = self._activity, activity, now
        return previous

    def snapshot(self) -> dict[str, float]:
        """Seconds per activity up to now."""
        self.switch(self._activity)
        return dict(self.seconds)
