"""The all-reduce of a step's dense gradients in buckets, which begins while backward still computes the others.

Backward computes the gradients of the last parameters first. So buckets are consecutive parts of the flat gradient,
from its end on, and a bucket is summed over the workers as soon as the last micro-batch has added to all of its
gradients. Which parameters a bucket has depends on their sizes alone: all workers sum the same buckets in the same
order, so a run can be repeated to the bit.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from heterps_runtime.worker.exchange.parameters import Replication
from heterps_runtime.worker.exchange.replica import Leaves

__all__ = ["Reduction"]

#: Called from the group's thread when all buckets are summed, or with the error of one of them.
Done = Callable[[Exception | None], None]


@dataclass
class Reduction:
    """The gradients of one step on their way.

    Args:
        replication: the replica and its group.
        step: of the gradients.
        changes: of the statistics, summed over this worker's samples; read with the first bucket, so complete once the
            last micro-batch is forwarded.
        unscale: factor of the gradients.
        done: see `Done`.

    Attributes:
        flat: gradients and changes (`Replica.empty_gradient`); summed over the workers once `done` was called.
        finite: whether what this worker has added is, as far as it has been sent.
    """

    replication: Replication
    step: int
    changes: Mapping[str, torch.Tensor]
    unscale: float | None
    done: Done

    def __post_init__(self) -> None:
        replica = self.replication.replica
        self.flat = replica.empty_gradient()
        self.finite = True
        self._buckets = replica.buckets
        self._missing = [set(bucket.names) for bucket in self._buckets]
        self._bucket_of = {name: i for i, bucket in enumerate(self._buckets) for name in bucket.names}
        self._sent = 0  # buckets

    def follow(self, leaves: Leaves) -> None:
        """Send each bucket when the coming backward, the last one of the step, has computed its gradients."""
        # The step owns both, and a hook that owned the reduction would keep them alive: Python's garbage collection
        # does not see what a tensor's hooks refer to.
        weak = weakref.ref(self)
        for name, leaf in leaves.items():
            leaf.register_post_accumulate_grad_hook(_note(weak, name))  # type: ignore[no-untyped-call]

    def take(self, name: str, gradient: torch.Tensor) -> None:
        """Add a parameter's gradient, and send the buckets that it completes."""
        self._take(name, gradient)
        while self._sent < len(self._buckets) and not self._missing[self._sent]:
            self._send()

    def finish(self, gradients: Leaves) -> None:
        """Send the rest; gradients that are missing are zero."""
        for name in [name for missing in self._missing for name in missing]:
            self._take(name, gradients.get(name))
        while self._sent < len(self._buckets):
            self._send()

    def _take(self, name: str, gradient: torch.Tensor | None) -> None:
        part = self.replication.replica.part(self.flat, name)
        if gradient is None:
            part.zero_()
        elif self.unscale is None:
            part.copy_(gradient)
        else:
            torch.mul(gradient, self.unscale, out=part)
        self._missing[self._bucket_of[name]].discard(name)

    def _send(self) -> None:
        replica, number = self.replication.replica, self._sent
        if not number:
            replica.fill_changes(self.flat, self.changes)
        bucket = self._buckets[number]
        tensor = self.flat[bucket.begin : bucket.end]
        self.finite = self.finite and bool(torch.isfinite(tensor.sum()))
        self._sent += 1
        is_last = self._sent == len(self._buckets)

        def done(error: Exception | None) -> None:
            if error is not None or is_last:
                self.done(error)

        self.replication.group.all_reduce(self.step * len(self._buckets) + number, tensor, done)


def _note(reduction: weakref.ref[Reduction], name: str) -> Callable[[torch.Tensor], None]:
    """A hook that adds the gradient of a parameter to a reduction."""

    def note(leaf: torch.Tensor) -> None:
        alive = reduction()
        assert alive is not None
        assert leaf.grad is not None
        alive.take(name, leaf.grad)

    return note
