"""A limited number of planners at a time, in FIFO order."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from heterps_operator.control.problem import build_problem
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.jobs.session import Site
from heterps_operator.controller.planners import FairSemaphore, QueuedPlanner
from heterps_operator.local import planner as planner_module
from heterps_operator.local.children import ForkServer
from heterps_operator.local.planner import planner_server
from tests.heterps_operator.helpers.given_program import Given
from tests.heterps_operator.helpers.world import PROFILE, make_job


def test_a_place_goes_to_who_has_waited_longest_and_tells_so() -> None:
    places, told = FairSemaphore(2), list[str]()
    assert [places.ask(who, who, lambda who=who: told.append(who)) for who in "abcd"] == [True, True, False, False]  # type: ignore[misc]
    assert places.ask("a", "a", lambda: None), "who has one keeps it"
    places.leave("b")
    assert told == ["c"]
    assert not places.ask("e", "e", lambda: told.append("e")), "it has gone to c already"
    assert places.ask("c", "c", lambda: None)
    places.leave("d")  # no longer wants it
    places.leave("a")
    assert told == ["c", "e"]
    for who in "ce":
        places.leave(who)
        places.leave(who)  # leaving twice has no further effect
    assert [places.ask(who, who, lambda: None) for who in "xyz"] == [True, True, False]


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
            granted = places.ask(who, str(who), lambda who=who: given(who))  # type: ignore[misc]
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


def test_no_namespace_has_all_places_and_the_one_with_the_fewest_is_next() -> None:
    places, told = FairSemaphore(3), list[str]()

    def ask(who: str) -> bool:
        return places.ask(who, who[0], lambda: told.append(who))

    assert [ask(who) for who in ("a1", "a2", "a3", "a4")] == [True, True, False, False]
    assert ask("b1"), "the last place is for others"
    assert not ask("c1")
    places.leave("a1")
    assert told == ["c1"], "it has no place yet, and a3, which came before, is of a namespace with one"
    places.leave("b1")
    assert told == ["c1", "a3"]
    places.leave("a2")
    places.leave("a3")
    assert told == ["c1", "a3", "a4"]
    single = FairSemaphore(1)
    assert single.ask("a1", "a", lambda: None), "with one place, a namespace has it"


def test_planners_wait_for_their_place_and_get_it_when_a_process_has_ended(tmp_path: Path) -> None:
    problem = build_problem(make_job(), {"cpu": PROFILE, "gpu": PROFILE})
    places, events = FairSemaphore(1), [threading.Event(), threading.Event()]
    first, second = (
        QueuedPlanner(places, "ml", tmp_path / str(number), "optimal", 20, on_end=event.set)
        for number, event in enumerate(events)
    )
    first.start(problem)
    second.start(problem, 7)
    assert first.running
    assert second.running
    assert events[1].wait(60), "told of its place when the first process has ended, though its answer was not read"
    assert events[0].wait(60)
    outcome = first.poll()
    assert outcome is not None
    assert outcome.plan is not None
    events[1].clear()
    assert second.poll() is None  # starts
    assert events[1].wait(60)
    outcome = second.poll()
    assert outcome is not None
    assert outcome.revision == 7
    third = QueuedPlanner(places, "ml", tmp_path / "third", "optimal", 20)
    third.start(problem)
    third.close()
    assert places.ask("anybody", "ml", lambda: None), "who is closed keeps no place"


def test_a_planner_that_hangs_loses_its_place_without_a_turn_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_module, "_MARGIN_SECONDS", 0.1)
    places, ended = FairSemaphore(1), threading.Event()
    program = Given("import signal; signal.pause()")
    hangs = QueuedPlanner(
        places, "ml", tmp_path, "optimal", 0.1, time_limit="a setting", program=program, on_end=ended.set
    )
    hangs.start({})
    assert ended.wait(60)
    assert places.ask("another", "other", lambda: None)
    outcome = hangs.poll()
    assert outcome is not None
    assert outcome.error == "no plan within 0.1 s (a setting); raise it, or use method optimal"


@pytest.mark.parametrize(
    ("wanted", "limit", "name"),
    [(86_400.0, 600.0, "--max-planner-seconds of the operator"), (20.0, 20.0, "scheduling.timeoutSeconds")],
)
def test_no_job_plans_with_more_time_or_memory_than_the_operator_allows(
    tmp_path: Path, wanted: float, limit: float, name: str
) -> None:
    made = list[tuple[float, str, int]]()

    def make(places: object, namespace: str, folder: Path, method: str, seconds: float, **options: Any) -> None:
        made.append((seconds, options["time_limit"], options["memory_bytes"]))

    cluster: Any = OperatorContext(cast("Any", None), tmp_path, planner_memory_bytes=64 << 20)
    cluster.make_planner = make
    nothing = cast("Any", None)
    Site(cluster, ("ml", "flights"), nothing, nothing, nothing).planner(
        make_job(planner_timeout_seconds=wanted), "plan"
    )
    assert made == [(limit, name, 64 << 20)]


def test_a_planner_that_takes_too_much_memory_fails_with_the_way_out(tmp_path: Path) -> None:
    ended = threading.Event()
    places, program = FairSemaphore(1), Given("bytearray(1 << 29)")
    greedy = QueuedPlanner(
        places, "ml", tmp_path, "optimal", 60, memory_bytes=256 << 20, program=program, on_end=ended.set
    )
    greedy.start({})
    assert ended.wait(60)
    outcome = greedy.poll()
    assert outcome is not None
    assert "needs more than 256 MiB of memory" in outcome.error
    assert "--planner-memory-mib" in outcome.error


@pytest.fixture(scope="module")
def forked() -> Iterator[ForkServer]:
    """The planner, as the operator runs it."""
    with closing(planner_server()) as server:
        yield server


def test_the_default_memory_is_enough_for_every_method(tmp_path: Path, forked: ForkServer) -> None:
    problem = build_problem(make_job(), {"cpu": PROFILE, "gpu": PROFILE})
    for method in ("optimal", "rl-lstm", "genetic"):
        ended = threading.Event()
        memory = OperatorContext.planner_memory_bytes
        places, folder = FairSemaphore(1), tmp_path / method
        planner = QueuedPlanner(places, "ml", folder, method, 20, memory_bytes=memory, program=forked, on_end=ended.set)
        planner.start(problem)
        assert ended.wait(60)
        outcome = planner.poll()
        assert outcome is not None
        assert outcome.plan is not None, (method, outcome.error)


def test_a_line_is_planned_in_a_process_within_the_default_memory_and_a_place(
    tmp_path: Path, forked: ForkServer
) -> None:
    problem = build_problem(make_job(), {"cpu": PROFILE, "gpu": PROFILE})
    jobs = [{"name": f"ml/{number}", "problem": problem, "first": False} for number in range(8)]
    places, ended = FairSemaphore(1), threading.Event()
    planner = QueuedPlanner(
        places,
        "",
        tmp_path,
        "optimal",
        20,
        memory_bytes=OperatorContext.planner_memory_bytes,
        program=forked,
        on_end=ended.set,
    )
    assert places.ask("another", "ml", lambda: None)
    planner.start_line({"version": 1, "limits": {"cpu": 8, "gpu": 2}, "jobs": jobs})
    assert planner.take() is None, "no place is free"
    places.leave("another")
    assert ended.wait(60)
    ended.clear()
    assert planner.take() is None  # starts
    assert ended.wait(60)
    answer = planner.take()
    assert answer is not None
    assert answer.error == ""
    admitted = answer.document["plans"]
    assert "ml/0" in admitted
    assert set(admitted) | set(answer.document["refused"]) == {job["name"] for job in jobs}
