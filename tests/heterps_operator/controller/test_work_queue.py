"""Scheduling of turns."""

from __future__ import annotations

import random
import threading

from heterps_operator.controller.work_queue import WorkQueue

A, B = ("space", "a"), ("space", "b")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_jobs_come_in_the_order_in_which_they_were_woken() -> None:
    clock = Clock()
    schedule = WorkQueue(clock=clock)
    schedule.wake(B)
    clock.now += 1
    schedule.wake(A)
    assert [schedule.take(), schedule.take()] == [B, A]


def test_a_job_that_is_woken_twice_gets_one_turn() -> None:
    clock = Clock()
    schedule = WorkQueue(clock=clock)
    schedule.wake(A)
    schedule.wake(A)
    assert schedule.take() == A
    assert schedule.depth() == 0


def test_a_job_that_is_woken_while_it_has_its_turn_gets_another_one() -> None:
    clock = Clock()
    schedule = WorkQueue(least_seconds=0.1, clock=clock)
    schedule.wake(A)
    assert schedule.take() == A
    schedule.wake(A)
    assert schedule.depth() == 0  # never given to two threads at once
    schedule.done(A, None)
    assert schedule.take() == A, "at once: it had rested before"
    schedule.wake(A)
    schedule.done(A, None)
    assert schedule.depth() == 0
    clock.now += 0.1
    assert schedule.take() == A


def test_a_burst_of_events_is_two_turns_and_then_one_per_pause() -> None:
    clock = Clock()
    schedule = WorkQueue(least_seconds=0.5, clock=clock)
    for _ in range(2):
        schedule.wake(A)
        assert schedule.take() == A, "an event soon after another one need not wait"
        schedule.done(A, None)
    turns = 0
    for _ in range(100):  # of 0.05 s
        schedule.wake(A)
        while schedule.depth():
            assert schedule.take() == A
            schedule.done(A, None)
            schedule.wake(A)
            turns += 1
        clock.now += 0.05
    assert turns in (9, 10)
    clock.now += 1.0
    schedule.take()
    schedule.done(A, None)
    schedule.wake(A)
    assert schedule.depth() == 1, "it has rested"


def test_a_job_comes_back_after_the_pause_it_asked_for_or_when_woken_before() -> None:
    clock = Clock()
    schedule = WorkQueue(clock=clock)
    for key in (A, B):
        schedule.wake(key)
        schedule.take()
        schedule.done(key, 30.0)
    clock.now += 10
    schedule.wake(B)
    assert schedule.take() == B
    assert schedule.depth() == 0
    clock.now += 20
    assert schedule.take() == A


def test_a_job_that_asks_for_nothing_waits_until_it_is_woken() -> None:
    clock = Clock()
    schedule = WorkQueue(clock=clock)
    schedule.wake(A)
    schedule.take()
    schedule.done(A, None)
    clock.now += 1e6
    assert schedule.depth() == 0


def test_jobs_that_are_gone_leave_nothing_behind() -> None:
    clock = Clock()
    schedule = WorkQueue(clock=clock)
    for number in range(100):
        key = ("ml", f"job-{number}")
        schedule.wake(key)
        assert schedule.take() == key
        schedule.done(key, None)
        clock.now += 1
    assert len(schedule._rested) <= 1
    assert (schedule.known(), len(schedule._heap)) == (0, 0)


def test_a_waiting_thread_is_woken_by_a_job_and_let_go_by_close() -> None:
    schedule = WorkQueue()
    taken: list[object] = []

    def work() -> None:
        while (key := schedule.take()) is not None:
            taken.append(key)
            schedule.done(key, None)
            done.set()

    done = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    schedule.wake(A)
    assert done.wait(10)
    schedule.close()
    thread.join(10)
    assert not thread.is_alive()
    assert taken == [A]


def test_no_namespace_has_all_threads_and_the_one_with_the_fewest_turns_is_next() -> None:
    clock = [100.0]
    queue = WorkQueue(0.0, lambda: clock[0], most_of_namespace=2)
    for name in ("1", "2", "3", "4"):
        queue.wake(("slow", name))
        clock[0] += 1
    queue.wake(("other", "1"))
    assert queue.take() == ("slow", "1"), "due first"
    assert queue.take() == ("other", "1"), "of the namespace without a turn"
    assert queue.take() == ("slow", "2")
    assert queue.depth() == 2
    queue.wake(("another", "1"))
    assert queue.take() == ("another", "1"), "slow has as many as it may"
    queue.wake(("slow", "3"))  # is ready already
    assert queue.depth() == 2
    assert queue.known() == 6
    queue.done(("slow", "1"), None)
    assert queue.take() == ("slow", "3")
    assert queue.depth() == 1


def test_a_thread_that_waits_gets_the_job_whose_namespace_has_a_turn_less() -> None:
    queue, taken = WorkQueue(0.0, most_of_namespace=1), list[tuple[str, str] | None]()
    for name in ("1", "2"):
        queue.wake(("ml", name))
    first = queue.take()
    assert first is not None
    thread = threading.Thread(target=lambda: taken.append(queue.take()))
    thread.start()
    queue.done(first, None)
    thread.join(30)
    assert taken == [("ml", "2")]


def test_no_thread_misses_a_job_that_is_due_before_the_one_that_is_watched() -> None:
    queue, taken, enough = WorkQueue(0.0), list[object](), threading.Event()
    rng = random.Random(5)

    def work() -> None:
        while (key := queue.take()) is not None:
            taken.append(key)
            if len(taken) >= 600:
                enough.set()
            queue.done(key, rng.choice([0.0, 0.001, 0.002, 3600.0]) if len(taken) < 300 else None)
            if len(taken) >= 300:
                queue.wake(("ml", str(rng.randrange(20))))  # while all others wait for an hour

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(300):
        queue.wake(("ml", str(number)))
    assert enough.wait(60)
    queue.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
