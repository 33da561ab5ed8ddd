"""The coordinator's decisions, message by message: changes of batch sizes."""

from __future__ import annotations

from typing import Any

import pytest

from heterps_runtime.partition.allocation import Allocation
from heterps_runtime.wire.messages import Generation, NewAllocation
from tests.heterps_runtime.helpers.coordinator_world import EVERY, ONE_CPU, World


@pytest.mark.parametrize(("consistency", "staleness"), [("sync", 0), ("hybrid", 4)])
def test_new_batch_sizes_are_announced_for_a_step_that_nobody_has_begun(consistency: str, staleness: int) -> None:
    world = World(ONE_CPU, consistency=consistency, max_staleness=staleness).begin()
    world.step(3)
    first = world.core.set_allocation([[10, 22]])
    assert first == 3 + staleness + 2
    assert world.last(NewAllocation) == NewAllocation(1, Allocation(first, ((10, 22),)))
    assert sorted(world.told(NewAllocation)) == world.workers
    world.step(first - 3 - 1)
    assert world.core.steps.allocation is not None
    assert world.core.steps.allocation.batches == ((16, 16),)
    world.step()
    assert world.core.steps.allocation.batches == ((10, 22),)
    assert world.core.membership.roster is not None
    assert world.core.membership.roster.present["worker-0-1"].batch_size == 22


def test_two_changes_in_a_row_begin_at_different_steps() -> None:
    world = World(ONE_CPU).begin()
    first = world.core.set_allocation([[10, 22]])
    second = world.core.set_allocation([[0, 32]])
    assert second > first
    world.step(first)
    assert world.core.steps.allocation is not None
    assert world.core.steps.allocation.batches == ((10, 22),), "as workers know it, who were told both"
    world.step(second - first)
    assert world.core.steps.allocation.batches == ((0, 32),)


def test_a_change_that_is_decided_again_is_not_put_off() -> None:
    world = World(ONE_CPU).begin()
    first = world.core.set_allocation([[10, 22]])
    told = len(world.told(NewAllocation))
    world.step(first - 1)
    assert world.core.set_allocation([[10, 22]]) == first
    assert len(world.told(NewAllocation)) == told
    world.step()
    assert world.core.steps.allocation is not None
    assert world.core.steps.allocation.batches == ((10, 22),)


def test_batch_sizes_changed_while_members_set_up_reach_them() -> None:
    world = World(ONE_CPU)
    world.join()
    step = world.core.set_allocation([[1, 31]])
    assert sorted(world.told(NewAllocation)) == world.workers
    world.ready()
    world.step(step)
    assert world.core.steps.allocation is not None
    assert world.core.steps.allocation.batches == ((1, 31),)


def test_batch_sizes_outlive_the_replacement_of_a_worker() -> None:
    world = World([("cpu", 0, 1), ("cpu", 1, 2)]).begin()
    world.core.set_allocation([[32], [5, 27]])
    world.core.member_lost("worker-0-0", "gone")
    world.join("worker-0-0")
    assert world.last(Generation).allocation.batches == ((32,), (5, 27))
    assert world.last(Generation).allocation.from_step == 0


@pytest.mark.parametrize(
    ("batches", "complaint"),
    [
        ([[32]], "needs .* batch sizes"),
        ([[16, 16], [32]], "needs .* batch sizes"),
        ([[16, 17]], "add up to training.globalBatchSize 32"),
        ([[-1, 33]], "whole numbers >= 0"),
        ([[16.5, 15.5]], "whole numbers >= 0"),
        ([[True, 31]], "whole numbers >= 0"),
    ],
)
def test_impossible_batch_sizes_are_refused(batches: Any, complaint: str) -> None:
    world = World(ONE_CPU).begin()
    with pytest.raises(ValueError, match=complaint):
        world.core.set_allocation(batches)
    assert not world.told(NewAllocation)


def test_batch_sizes_are_refused_where_there_is_nothing_to_divide() -> None:
    world = World(ONE_CPU)
    with pytest.raises(ValueError, match="Starting"):
        world.core.set_allocation([[16, 16]])
    world.begin(evaluation=50)
    world.step(EVERY)
    world.save()
    world.step(EVERY)
    world.save()
    world.step(4)
    world.save()
    with pytest.raises(ValueError, match="Evaluating"):
        world.core.set_allocation([[16, 16]])
