"""A worker's micro-batches follow from the allocations, and a schedule that is in use never changes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest

from heterps_runtime.partition import allocation
from heterps_runtime.partition.allocation import Allocation, MicroBatch, micro_batches
from heterps_runtime.partition.batches import Batches
from heterps_runtime.worker.steps import schedule as steps_schedule
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


def test_a_division_is_computed_once_for_all_steps_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    divisions: list[int] = []

    def counting(allocation: Allocation, batch_size: int, per_worker: int) -> tuple[MicroBatch, ...]:
        divisions.append(batch_size)
        return micro_batches(allocation, batch_size, per_worker)

    monkeypatch.setattr(steps_schedule, "_divide", lru_cache(counting))
    steps_schedule._share.cache_clear()
    one = Schedule(Batches(2 * 333 + 21, 333), (Allocation.even(333, [111, 37]),), stage=1, rank=5, per_worker=2)
    for step in range(30):
        assert one.mine(step) is one.mine(step), "found among those of all workers once"
        assert set(one.mine(step)) <= set(steps_schedule._divide(one.allocation(step), one.batches.size(step), 2))
    assert divisions == [333, 21]


def test_a_path_is_found_without_going_through_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the segments would otherwise look at each worker."""
    looks = [0]

    class Counting(list[int]):
        def __getitem__(self, index: Any) -> Any:
            looks[0] += 1
            return super().__getitem__(index)

        def __iter__(self) -> Iterator[int]:
            for value in super().__iter__():
                looks[0] += 1
                yield value

    monkeypatch.setattr(allocation, "list", Counting, raising=False)
    workers = 256
    pieces = micro_batches(Allocation.even(10 * workers, [workers, workers]), 10 * workers, 1)
    assert [piece.path for piece in pieces] == [(w, w) for w in range(workers)]
    assert 0 < looks[0] <= 2 * workers * 12, "twice the ends, and a bisection of each for each segment"
