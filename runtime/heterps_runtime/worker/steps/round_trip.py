"""The time between a worker's gradients and the answers of the servers: its distance over the network.

Every step has this exchange, so nothing is sent to measure it: a `Push` to each server, and its `Ack`. The time is that
until the last answer. It contains the transmission of the gradients, so a slow link shows as well as a long one, and
the work of the servers, which is the same for all workers.

A worker that computes takes answers only after the micro-batch, so a step counts only if the worker was idle.
"""

from __future__ import annotations

from heterps_runtime.worker.steps.runs import Clock

__all__ = ["RoundTrip"]

_SMOOTHING = 0.2  # weight of the newest step
_COMPUTING = ("lookup", "forward", "backward", "lookup-backward")


class RoundTrip:
    """A running mean over steps.

    Args:
        clock: of the worker.

    Attributes:
        seconds: the mean; None: no step was measured.
    """

    def __init__(self, clock: Clock) -> None:
        self.seconds: float | None = None
        self._clock = clock
        self._sent: dict[int, tuple[float, float]] = {}  # step -> seconds of the worker's life, and of computing

    def send(self, step: int) -> None:
        """Note that the gradients of a step are on their way."""
        self._sent[step] = self._now()

    def answered(self, step: int) -> None:
        """Note that all servers have answered."""
        sent = self._sent.pop(step, None)
        if sent is None:
            return
        now, computed = self._now()
        if computed == sent[1]:
            seconds = now - sent[0]
            self.seconds = seconds if self.seconds is None else self.seconds + _SMOOTHING * (seconds - self.seconds)

    def clear(self) -> None:
        """Forget steps that will not be answered."""
        self._sent.clear()

    def _now(self) -> tuple[float, float]:
        spent = self._clock.snapshot()
        return sum(spent.values()), sum(spent.get(activity, 0.0) for activity in _COMPUTING)
