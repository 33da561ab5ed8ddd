"""A worker's micro-batches follow from the allocations, and a schedule that is in use never changes."""

from __future__ import annotations

from heterps_runtime.partition.allocation import Allocation
from heterps_runtime.partition.batches import Batches
from heterps_runtime.worker.steps.schedule import Schedule

FIRST = Allocation(0, ((6, 2),))


def schedule(rank: int) -> Schedule:
    return Schedule(Batches(20, 8), (FIRST,), stage=0, rank=rank, per_worker=2)


def intervals(of: Schedule, step: int) -> list[tuple[int, int]]:
    return [(m.start, m.stop) for m in of.mine(step)]


def test_workers_share_a_step_in_proportion_also_the_short_one_at_the_end_of_an_epoch() -> None:
    assert [intervals(schedule(rank), 0) for rank in (0, 1)] == [[(0, 6)], [(6, 8)]]
    assert [intervals(schedule(rank), 2) for rank in (0, 1)] == [[(0, 3)], [(3, 4)]]
    assert intervals(schedule(0), 3) == [(0, 6)], "the next epoch begins with a whole batch"


def test_a_new_allocation_counts_from_its_step_on_and_leaves_the_schedule_before_as_it_was() -> None:
    before = schedule(0)
    after = before.adding(Allocation(4, ((1, 7),)))
    assert [intervals(after, step) for step in (3, 4)] == [[(0, 6)], [(0, 1)]]
    assert intervals(before, 4) == [(0, 6)]
    assert (before.knows(4), after.knows(4)) == (False, True)


def test_evaluation_divides_its_own_data_as_the_last_step_was() -> None:
    training = schedule(1).adding(Allocation(4, ((4, 4),)))
    evaluation = training.evaluating(10)
    assert evaluation.batches.per_epoch == 2
    assert [intervals(evaluation, step) for step in (0, 1)] == [[(4, 8)], [(1, 2)]]
    assert (training.training, evaluation.training) == (True, False)
