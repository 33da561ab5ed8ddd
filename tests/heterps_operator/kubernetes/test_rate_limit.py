"""The limit on requests, on a clock of the tests' own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_operator.kubernetes.rate_limit import RateLimiter


class Clock:
    """A clock that stands still between sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    clock = Clock()
    limiter = RateLimiter(10, 3, clock=clock.read, sleep=clock.sleep)
    sent = []
    for _ in range(6):
        limiter.wait()
        sent.append(clock.now)
    assert sent == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.2, 0.3])
    clock.now = 100.0  # a pause fills the bucket, not more
    sent = []
    for _ in range(5):
        limiter.wait()
        sent.append(clock.now - 100.0)
    assert sent == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.2])


def test_callers_that_wait_at_the_same_time_go_one_after_the_other() -> None:
    pauses: list[float] = []
    limiter = RateLimiter(10, 1, clock=lambda: 0.0, sleep=pauses.append)
    for _ in range(4):
        limiter.wait()
    assert pauses == pytest.approx([0.1, 0.2, 0.3])


@given(st.lists(st.floats(0.0, 2.0), max_size=60), st.integers(1, 20), st.integers(1, 10))
def test_no_interval_has_more_than_the_burst_and_the_rate(idle: list[float], rate: int, burst: int) -> None:
    clock = Clock()
    limiter = RateLimiter(rate, burst, clock=clock.read, sleep=clock.sleep)
    sent = []
    for seconds in idle:
        clock.now += seconds
        limiter.wait()
        sent.append(clock.now)
    for first, began in enumerate(sent):
        for last in range(first, len(sent)):
            assert last - first + 1 <= burst + rate * (sent[last] - began) + 1e-6
