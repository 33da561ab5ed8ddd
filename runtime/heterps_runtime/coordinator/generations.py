"""How a generation and its batch sizes are announced to the members."""

from __future__ import annotations

from collections.abc import Sequence

from heterps_runtime.allocation import Allocation
from heterps_runtime.coordinator.members import Member, Roster
from heterps_runtime.coordinator.progress import Progress
from heterps_runtime.messages import Generation, Peer, Restore

__all__ = ["allocate", "announce_generation", "check_batches"]


def allocate(kept: Allocation | None, roster: Roster, global_batch_size: int) -> Allocation:
    """Batch sizes for the members that are there: those of before, or even ones if workers came or went."""
    counts = [len(roster.workers(i)) for i in range(len(roster.stage_names))]
    if kept is None or [len(stage) for stage in kept.batches] != counts:
        kept = Allocation.even(global_batch_size, counts)
    return Allocation(0, kept.batches)


def announce_generation(
    roster: Roster,
    progress: Progress,
    generation: int,
    lineage: int,
    allocation: Allocation,
    restore: Restore | None,
) -> Generation:
    """Everything a member needs to set itself up.

    Args:
        roster: who takes part.
        progress: where work goes on; knows the size of the data.
        generation: its number.
        lineage: of the state that its members hold.
        allocation: batch sizes at its start.
        restore: the state that everybody goes back to, None if members keep what they have.
    """
    assert progress.total_steps is not None, "a worker of the first stage is there, and has said how many rows"
    assert progress.num_rows is not None
    return Generation(
        generation=generation,
        lineage=lineage,
        committed=progress.committed,
        total=progress.total_steps,
        num_rows=progress.num_rows,
        plan=roster.plan,
        stages=tuple(tuple(map(_peer, roster.workers(i))) for i in range(len(roster.stage_names))),
        servers=tuple(map(_peer, roster.servers())),
        allocation=allocation,
        restore=restore,
    )


def _peer(member: Member) -> Peer:
    return Peer(member.name, member.address, member.store_address)


def check_batches(batches: Sequence[Sequence[int]], now: Allocation, global_batch_size: int) -> None:
    """Check batch sizes that somebody wants.

    Raises:
        ValueError: wrong number of stages or workers, or sizes that do not add up to the global batch.
    """
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
