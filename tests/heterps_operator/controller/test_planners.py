"""A limited number of planners at a time, in FIFO order."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from heterps_operator.control.problem import build_problem
from heterps_operator.controller.planners import FairSemaphore, QueuedPlanner
from tests.heterps_operator.helpers.world import PROFILE, make_job


def test_a_place_goes_to_who_has_waited_longest_and_tells_so() -> None:
    places, told = FairSemaphore(2), list[str]()
    assert [places.ask(who, lambda who=who: told.append(who)) for who in "abcd"] == [True, True, False, False]  # type: ignore[misc]
    assert places.ask("a", lambda: None), "who has one keeps it"
    places.leave("b")
    assert told == ["c"]
    assert not places.ask("e", lambda: told.append("e")), "it has gone to c already"
    assert places.ask("c", lambda: None)
    places.leave("d")  # no longer wants it
    places.leave("a")
    assert told == ["c", "e"]
    for who in "ce":
        places.leave(who)
        places.leave(who)  # leaving twice has no further effect
    assert [places.ask(who, lambda: None) for who in "xyz"] == [True, True, False]


@pytest.mark.parametrize("seed", range(5))
def test_no_place_is_lost_and_none_is_given_twice(seed: int) -> None:
    draw, number = random.Random(seed), 3
    places, have, wait = FairSemaphore(number), set[int](), list[int]()

    def given(who: int) -> None:
        wait.remove(who)
        have.add(who)

    for _ in range(3000):
        who = draw.randrange(12)
        if draw.random() < 0.5:
            granted = places.ask(who, lambda who=who: given(who))  # type: ignore[misc]
            assert granted == (who in have or len(have) < number)
            if granted:
                have.add(who)
            elif who not in wait:
                wait.append(who)
        else:
            have.discard(who)
            if who in wait:
                wait.remove(who)
            first = wait[0] if wait and len(have) < number else None
            places.leave(who)
            assert first is None or first in have, "the first of those who wait"
        assert len(have) <= number
        assert not wait or len(have) == number


def test_planners_wait_for_their_place_and_get_it_unasked(tmp_path: Path) -> None:
    problem = build_problem(make_job(), {"cpu": PROFILE, "gpu": PROFILE})
    places, events = FairSemaphore(1), [threading.Event(), threading.Event()]
    first, second = (
        QueuedPlanner(places, tmp_path / str(number), "optimal", 20, on_end=event.set)
        for number, event in enumerate(events)
    )
    first.start(problem)
    second.start(problem, 7)
    assert first.running
    assert second.running
    assert events[0].wait(60), "its process has ended"
    assert not events[1].is_set()
    outcome = first.poll()
    assert outcome is not None
    assert outcome.plan is not None
    assert events[1].wait(0), "told of its place by who had it before"
    events[1].clear()
    assert second.poll() is None  # starts
    assert events[1].wait(60)
    outcome = second.poll()
    assert outcome is not None
    assert outcome.revision == 7
    third = QueuedPlanner(places, tmp_path / "third", "optimal", 20)
    third.start(problem)
    third.close()
    assert places.ask("anybody", lambda: None), "who is closed keeps no place"
