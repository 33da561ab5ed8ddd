"""The words in which a generation and its batch sizes are announced to the members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heterps_runtime.allocation import Allocation
from heterps_runtime.coordinator.members import Roster
from heterps_runtime.coordinator.progress import Progress

__all__ = ["allocate", "announce_generation", "check_batches", "describe_allocation"]


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
    restore: dict[str, Any] | None,
) -> dict[str, Any]:
    """Everything a member needs to set itself up.

    Args:
        roster: who takes part.
        progress: where work goes on.
        generation: its number.
        lineage: of the state that its members hold.
        allocation: batch sizes at its start.
        restore: the checkpoint that everybody goes back to, None if members keep what they have.
    """
    return {
        "generation": generation,
        "lineage": lineage,
        "committed": progress.committed,
        "total": progress.total_steps,
        "numRows": progress.num_rows,
        "plan": roster.plan.to_json(),
        "stages": [
            [{"name": m.name, "address": m.address, "store": m.store_address} for m in roster.workers(i)]
            for i in range(len(roster.stage_names))
        ],
        "servers": [{"name": m.name, "address": m.address} for m in roster.servers()],
        "allocation": describe_allocation(allocation, generation),
        "restore": restore,
    }


def describe_allocation(allocation: Allocation, generation: int) -> dict[str, Any]:
    """An allocation as a message."""
    return {
        "generation": generation,
        "fromStep": allocation.from_step,
        "batches": [list(stage) for stage in allocation.batches],
    }


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
