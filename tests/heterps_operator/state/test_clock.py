"""Time passes evenly for bills and deadlines, whatever happens to the time of day."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable

import pytest

from heterps_operator.controller.capacity.line import Line
from heterps_operator.controller.context import OperatorContext
from heterps_operator.kubernetes.substrate import KubernetesSubstrate
from heterps_operator.local.processes import ProcessSubstrate
from heterps_operator.loop.control_loop import ControlLoop
from heterps_operator.state.clock import SteadyClock, steady_time

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


@pytest.mark.parametrize("part", [ControlLoop, KubernetesSubstrate, ProcessSubstrate, Line, OperatorContext])
def test_whatever_dates_processes_and_decisions_has_this_clock(part: Callable[..., object]) -> None:
    assert inspect.signature(part).parameters["clock"].default is steady_time
