"""Which pools are measured at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heterps_operator.control.measuring import pools_to_measure
from heterps_operator.control.members import profiler
from heterps_operator.state.values import PoolCapacity, ProcessView
from tests.heterps_operator.helpers.world import make_job

JOB = make_job()
NAMES = [pool.name for pool in JOB.pools]
APART = {name: frozenset(NAMES) - {name} for name in NAMES}


def chosen(*, measured: set[str], busy: set[str], capacity: PoolCapacity) -> list[str]:
    processes = [ProcessView(profiler(JOB, name), started=1.0) for name in sorted(busy)]
    return [pool.name for pool in pools_to_measure(JOB, measured, processes, capacity)]


@given(measured=st.sets(st.sampled_from(NAMES)), busy=st.sets(st.sampled_from(NAMES)), free=st.integers(0, 4))
def test_a_pool_is_chosen_once_and_only_while_it_has_no_profile(measured: set[str], busy: set[str], free: int) -> None:
    capacity = PoolCapacity(dict.fromkeys(NAMES, free), apart=APART)
    found = chosen(measured=measured, busy=busy, capacity=capacity)
    assert len(found) == len(set(found))
    assert set(found).isdisjoint(measured)
    assert set(found) >= busy - measured, "a profiler at work goes on"


def test_without_knowledge_of_nodes_one_is_measured_at_a_time() -> None:
    assert chosen(measured=set(), busy=set(), capacity=PoolCapacity()) == NAMES[:1]
    assert chosen(measured=set(), busy={NAMES[1]}, capacity=PoolCapacity()) == [NAMES[1]]
    assert chosen(measured={NAMES[0]}, busy={NAMES[0]}, capacity=PoolCapacity()) == [], "it is about to end"


def test_all_that_are_apart_and_have_room_are_measured_together() -> None:
    assert chosen(measured=set(), busy=set(), capacity=PoolCapacity(apart=APART)) == NAMES
    assert chosen(measured=set(), busy=set(), capacity=PoolCapacity({NAMES[1]: 0}, apart=APART)) == NAMES[:1]
