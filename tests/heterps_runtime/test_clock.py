"""Time passes evenly for bills and deadlines, whatever happens to the time of day."""

from __future__ import annotations

import time

import pytest

from heterps_runtime.clock import SteadyClock, steady_time

DAY = 86_400.0


@pytest.mark.parametrize("step", [DAY, -DAY])
def test_a_step_of_the_time_of_day_is_not_followed(step: float) -> None:
    of_day, boot = [1_000.0], [50.0]
    clock = SteadyClock(lambda: of_day[0], lambda: boot[0])
    assert clock() == 1_000.0
    of_day[0] += step
    boot[0] += 5.0
    assert clock() == 1_005.0


def test_the_clock_of_a_process_tells_the_time_of_day_and_does_not_step_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert steady_time() == pytest.approx(time.time(), abs=60)
    before = steady_time()
    monkeypatch.setattr(time, "time", lambda: before + DAY)
    assert steady_time() == pytest.approx(before, abs=60)


def test_a_clock_goes_on_from_another_time() -> None:
    boot = [50.0]
    clock = SteadyClock(lambda: 1_000.0, lambda: boot[0])
    clock.set(5_000.0)
    boot[0] += 3.0
    assert clock() == 5_003.0
