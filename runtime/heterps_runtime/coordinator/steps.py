"""Uncommitted steps: the reports of workers, and batch sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heterps_runtime.config import RunConfig
from heterps_runtime.coordinator.membership.members import Member, Roster
from heterps_runtime.errors import ProtocolError
from heterps_runtime.partition.allocation import Allocation
from heterps_runtime.wire.messages import Done

__all__ = ["Steps"]


class Steps:
    """Reports and allocations of the generation in force.

    Args:
        config: the job.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.allocation: Allocation | None = None  # in force; None before the first generation
        self._announced: list[Allocation] = []  # for later steps, in their order
        self._reports: dict[int, dict[str, Done]] = {}  # by step and worker

    # --- batch sizes --------------------------------------------------------------------------------------------------

    def begin_generation(self, roster: Roster) -> Allocation:
        """Drop all reports; returns the batch sizes of the present members.

        These are the latest ones announced, or even ones if the number of workers has changed.
        """
        self._reports.clear()
        kept, self._announced = [self.allocation, *self._announced][-1], []
        counts = [len(workers) for workers in roster.workers_of_stages()]
        if kept is None or [len(stage) for stage in kept.batches] != counts:
            kept = Allocation.even(self._config.global_batch_size, counts)
        self.allocation = Allocation(0, kept.batches)
        self._note_batches(roster)
        return self.allocation

    def change_allocation(self, batches: Sequence[Sequence[int]], committed: int) -> tuple[Allocation, bool]:
        """Change batch sizes from a step that no worker has begun.

        Args:
            batches: samples per stage and worker.
            committed: committed steps.

        Returns:
            The allocation, and whether it is new; otherwise it is announced already, and not in force yet.

        Raises:
            ValueError: the numbers of stages or workers are wrong, or sizes do not add up to the global batch.
        """
        assert self.allocation is not None
        _check_batches(batches, self.allocation, self._config.global_batch_size)
        wanted = tuple(tuple(s) for s in batches)
        if self._announced and self._announced[-1].batches == wanted:
            return self._announced[-1], False  # decided again before it takes effect
        # On each connection, the announcement precedes the next commit, so it arrives in time for this step.
        from_step = self._unbegun(committed)
        if self._announced:
            from_step = max(from_step, self._announced[-1].from_step + 1)  # a step names its allocation
        self._announced.append(Allocation(from_step, wanted))
        return self._announced[-1], True

    def _unbegun(self, committed: int) -> int:
        """The first step that no worker begins before the next commit, even one that has no samples."""
        return committed + self._config.max_staleness + 2

    def _note_batches(self, roster: Roster) -> None:
        assert self.allocation is not None
        for workers, stage in zip(roster.workers_of_stages(), self.allocation.batches, strict=True):
            for member, size in zip(workers, stage, strict=True):
                member.take_batch_size(size)

    # --- reports ------------------------------------------------------------------------------------------------------

    def take(self, member: Member, report: Done, committed: int) -> bool:
        """Take a worker's report; returns False if it is repeated.

        Args:
            member: of the generation in force.
            report: of a step that is not committed.
            committed: committed steps.

        Raises:
            ProtocolError: the member is no worker, or has not begun the step.
        """
        if not member.is_worker or report.step >= self._unbegun(committed):
            raise ProtocolError(f"a {report.op} message for step {report.step}, while step {committed} is the next")
        reports = self._reports.setdefault(report.step, {})
        if member.name in reports:
            return False
        reports[member.name] = report
        member.observe_step(report.figures)
        return True

    def reported(self, step: int) -> Mapping[str, Done]:
        """Reports of a step, by worker."""
        return self._reports.get(step, {})

    def complete(self, step: int, workers: int) -> bool:
        """Whether all workers, of which there are so many, have reported a step."""
        return len(self.reported(step)) == workers

    def committed(self, step: int, roster: Roster) -> None:
        """Note the commit of a step; batch sizes announced for the next one take effect."""
        del self._reports[step]
        if self._announced and step + 1 >= self._announced[0].from_step:
            self.allocation = self._announced.pop(0)
            self._note_batches(roster)


def _check_batches(batches: Sequence[Sequence[int]], now: Allocation, global_batch_size: int) -> None:
    if any(type(size) is not int or size < 0 for stage in batches for size in stage):
        raise ValueError(f"allocation.stages: batch sizes are whole numbers >= 0, are {[list(s) for s in batches]}")
    counts, given = [len(s) for s in now.batches], [len(s) for s in batches]
    if given != counts:
        raise ValueError(f"allocation.stages: needs {counts} batch sizes per stage, has {given}")
    sums = [sum(stage) for stage in batches]
    if any(total != global_batch_size for total in sums):
        raise ValueError(
            f"allocation.stages: each must add up to training.globalBatchSize {global_batch_size}, are {sums}"
        )
