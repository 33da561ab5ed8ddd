"""Units settle: a job beside a changing load changes its units a few times, not forever.

Without a memory of trials, most of these jobs change their units about once a minute, and spend most of the time below
their floor.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.heterps_operator.helpers.elastic_world import ElasticWorld, Load, drift, square, steady, telegraph

pytestmark = pytest.mark.slow

HOUR = 3600.0
END = HOUR  # end of the load
LENGTH = 2 * HOUR
SHARED = {"slowdown": 0.5, "believed": 0.7}  # the load also slows down the shared work
AT_ONCE = {"max_scale_down_percent": 100}
# Load, other settings, seed, and the maximum number of changes: every number of workers fails a few times at doubling
# intervals.
CASES: dict[str, tuple[Load, dict[str, Any], int, int]] = {
    "no load, no noise": (steady(0.0, END), {"noise": 0.0}, 0, 10),
    "no load": (steady(0.0, END), {}, 0, 10),
    "steady": (steady(1.0, END), {}, 0, 16),
    "much noise": (steady(1.0, END), {"noise": 0.15}, 0, 16),
    "ten minutes on and off": (square(1200, 600, END), {}, 1, 18),
    "half an hour on and off": (square(3600, 1800, END), {}, 0, 16),
    "ten minutes on and off, of what workers share": (square(1200, 600, END), SHARED, 0, 12),
    "a minute on and off at random": (telegraph(3, 60, END), {}, 0, 16),
    "five minutes on and off at random": (telegraph(1, 300, END), {}, 1, 16),
    "slowly more": (drift(HOUR, END), {}, 0, 14),
    "slowly more of what workers share": (drift(HOUR, END), {**SHARED, "slowdown": 0.8}, 0, 6),
    "few at a time": (square(1200, 600, END), {"elasticity": {}, "workers": 8}, 1, 20),
    "short pauses": (telegraph(5, 300, END), {"elasticity": {**AT_ONCE, "cooldown_seconds": 2.0}}, 0, 22),
}


def usual_workers(world: ElasticWorld) -> float:
    """The most frequent number in the last quarter of an hour."""
    return float(np.median([workers for now, workers, _, _ in world.seen if now > world.seen[-1][0] - 900]))


@pytest.mark.parametrize("case", CASES)
def test_units_change_a_few_times_meet_the_floor_and_are_given_back_when_the_load_is_gone(case: str) -> None:
    load, truth, seed, most = CASES[case]
    world = ElasticWorld(load, seed=seed, **truth).run(LENGTH)
    assert 1 <= len(world.changes) <= most, world.changes
    assert world.missed_share() < 0.1
    assert usual_workers(world) == world.needed(0.0) == 2


def test_what_was_tried_survives_a_restart_of_the_operator() -> None:
    load = square(1200, 600, END)
    worlds = [ElasticWorld(load, restart_every=seconds).run(HOUR) for seconds in (None, 10.0)]
    assert worlds[0].changes == worlds[1].changes
    assert worlds[1].status.trials


def test_a_number_that_fails_is_tried_less_and_less_often() -> None:
    world = ElasticWorld(noise=0.0).run(5.5 * HOUR)
    tries = [now for now, workers in world.changes if workers == 1]
    gaps = [round((later - sooner) / 60) for sooner, later in pairwise(tries)]
    assert [gap // 10 * 10 for gap in gaps] == [10, 20, 40, 80, 160], "minutes"
    [told] = {e.message for e in world.events if e.reason == "TriedBefore" and e.time - world.began < 600}
    assert told.startswith("1 workers of stage-0 on cpu gave 8,359 samples/s at 1970-01-01T")
    assert ", the floor is 11,000; this is tried again at 1970-01-01T" in told


def test_units_that_bring_nothing_are_given_back_and_not_added_again_at_once() -> None:
    world = ElasticWorld(work=0.1, overhead=(0.6, 0.0), believed=0.9).run(2 * HOUR)
    assert world.needed(0.0) == 0, "no number of workers is enough"
    assert [workers for _, workers in world.changes[1::2]] == [2] * 4
    added = [now for now, workers in world.changes if workers > 2]
    assert len(added) == 4
    assert all(later - sooner > 600 for sooner, later in pairwise(added))
    condition = world.status.condition("Rescaled")
    assert (condition.status, condition.reason) == ("False", "AddedInVain")
    assert condition.message.startswith("stage-0 on cpu: 2 -> ")
    assert ", the floor is 11,000; they are released; more are tried again at 1970-01-01T" in condition.message


def test_a_lower_floor_makes_what_failed_worth_a_try() -> None:
    world = ElasticWorld(noise=0.0).run(600)
    assert world.changes[-1][1] == 2
    world.set_floor(7_000.0)
    world.run(300)
    assert world.changes[-1][1] == 1
    assert len(world.changes) == 3


def test_a_higher_floor_that_the_number_before_did_not_reach_is_the_planners_business() -> None:
    world = ElasticWorld(noise=0.0, floor=7_000.0, believed=0.6, overhead=(0.03, 0.0)).run(240)
    assert [workers for _, workers in world.changes] == [1]
    world.set_floor(18_500.0)  # two workers reached 17,400
    world.run(240)
    assert [workers for _, workers in world.changes] == [1, 7], "in one step"


@pytest.mark.parametrize("what", ["elasticity", "pools"])
def test_other_settings_or_pools_make_what_failed_worth_a_try(what: str) -> None:
    world = ElasticWorld(noise=0.0).run(400)
    assert [workers for _, workers in world.changes] == [1, 2]
    [pool] = world.job.pools
    changed: Any = {
        "elasticity": replace(world.job.elasticity, cooldown_seconds=61.0),
        "pools": (replace(pool, max_units=10),),
    }[what]
    world.job = replace(world.job, **{what: changed})
    world.run(180)
    assert [workers for _, workers in world.changes[:3]] == [1, 2, 1]


def test_workers_that_are_clearly_faster_than_when_it_failed_halve_the_wait() -> None:
    waits = []
    for end in (380.0, END):  # until then, others use much of the machine
        truth: dict[str, Any] = {"overhead": (0.03, 0.14), "noise": 0.005, "workers": 3, "believed": 0.4}
        world = ElasticWorld(steady(1.0, end), floor=11_400.0, **truth).run(1200)
        assert [workers for _, workers in world.changes[:3]] == [2, 3, 2], world.changes
        waits.append(world.changes[2][0] - world.changes[1][0])
    assert 300 <= waits[0] < 400
    assert 600 <= waits[1] < 700
