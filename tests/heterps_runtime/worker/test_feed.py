"""The feed: steps come in order, a bounded number of them ahead, however many threads prepare them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from heterps_runtime.worker.steps.feed import Feed

PATIENCE_SECONDS = 60


class Kitchen:
    """Prepares a step when the test says so."""

    def __init__(self) -> None:
        self.begun: SimpleQueue[int] = SimpleQueue()
        self.ready = threading.Semaphore(0)
        self._doors: dict[int, threading.Event] = {}

    def door(self, step: int) -> threading.Event:
        return self._doors.setdefault(step, threading.Event())

    def prepare(self, step: int) -> str:
        self.begun.put(step)
        assert self.door(step).wait(PATIENCE_SECONDS)
        if step == 7:
            raise ValueError("step 7 is spoilt")
        return f"step {step}"

    def await_begun(self, number: int) -> set[int]:
        return {self.begun.get(timeout=PATIENCE_SECONDS) for _ in range(number)}

    def await_ready(self) -> None:
        assert self.ready.acquire(timeout=PATIENCE_SECONDS)


@pytest.fixture
def kitchen() -> Kitchen:
    return Kitchen()


@pytest.fixture
def feed(kitchen: Kitchen, request: pytest.FixtureRequest) -> Iterator[Feed[str]]:
    first, stop, threads = request.param
    made = Feed(kitchen.prepare, first, stop, kitchen.ready.release, threads)
    yield made
    for step in range(first, stop):
        kitchen.door(step).set()
    made.close()


@pytest.mark.parametrize("feed", [(3, 6, 2)], indirect=True)
def test_steps_come_in_order_although_a_later_one_is_ready_first(feed: Feed[str], kitchen: Kitchen) -> None:
    assert kitchen.await_begun(2) == {3, 4}
    kitchen.door(4).set()
    kitchen.await_ready()
    assert feed.take() is None
    assert kitchen.await_begun(1) == {5}, "one step more than there are threads"
    kitchen.door(3).set()
    kitchen.await_ready()
    assert [feed.take(), feed.take(), feed.take()] == ["step 3", "step 4", None]
    kitchen.door(5).set()
    kitchen.await_ready()
    assert [feed.take(), feed.take()] == ["step 5", None]


@pytest.mark.parametrize("feed", [(0, 9, 1)], indirect=True)
def test_no_more_steps_are_prepared_than_were_asked_for(feed: Feed[str], kitchen: Kitchen) -> None:
    for step in range(3):
        kitchen.door(step).set()
    for _ in range(2):
        kitchen.await_ready()
    assert kitchen.await_begun(2) == {0, 1}
    assert feed.take() == "step 0"
    assert kitchen.begun.empty(), "taking is not asking"
    feed.prepare_next()
    kitchen.await_ready()
    assert kitchen.await_begun(1) == {2}


@pytest.mark.parametrize("feed", [(6, 9, 2)], indirect=True)
def test_an_error_comes_in_its_turn(feed: Feed[str], kitchen: Kitchen) -> None:
    kitchen.door(7).set()
    kitchen.await_ready()
    assert feed.take() is None
    kitchen.door(6).set()
    kitchen.await_ready()
    assert feed.take() == "step 6"
    with pytest.raises(ValueError, match="step 7 is spoilt"):
        feed.take()


def test_closing_ends_the_threads_and_drops_what_is_ready(kitchen: Kitchen) -> None:
    for step in range(9):
        kitchen.door(step).set()
    before = set(threading.enumerate())
    feed = Feed(kitchen.prepare, 0, 6, kitchen.ready.release, 2)
    for _ in range(3):
        kitchen.await_ready()
    feed.close()
    feed.prepare_next()
    assert feed.take() is None
    assert kitchen.await_begun(3) == {0, 1, 2}
    assert set(threading.enumerate()) <= before
