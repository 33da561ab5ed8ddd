"""An operator dates jobs by the API server's clock, whatever its own machine's says."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import cast

import pytest

from heterps_operator.controller.capacity.line import Line
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.time_of_day import follow_api_server
from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.profiles import ConfigMapProfileCache
from heterps_operator.kubernetes.substrate import KubernetesSubstrate
from heterps_operator.local.processes import ProcessSubstrate
from heterps_operator.loop.control_loop import ControlLoop
from heterps_operator.measure.measurement import Meter
from heterps_operator.measure.metrics import OperatorMetrics
from heterps_runtime.clock import SteadyClock, steady_time

NOW = 1_700_000_000.0
HOUR = 3_600.0


class Server:
    def __init__(self, now: float | None) -> None:
        self.now = now

    def server_time(self) -> float:
        if self.now is None:
            raise ApiError(0, "NoAnswer", "the API server does not answer")
        return self.now


def follow(now: float | None, here: float) -> float:
    clock = SteadyClock(lambda: here, lambda: 0.0)
    follow_api_server(cast("KubernetesApi", Server(now)), clock)
    return clock()


@pytest.mark.parametrize(("ahead", "words"), [(HOUR, "1 h 00 min ahead of"), (-30 * HOUR, "30 h 00 min behind")])
def test_a_clock_that_differs_is_not_used(ahead: float, words: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "heterps.operator"):
        assert follow(NOW, NOW + 0.5 + ahead) == NOW + 0.5
    assert words in caplog.text


def test_whole_seconds_of_the_server_do_not_shift_a_clock_that_agrees() -> None:
    for here in (NOW - 1.0, NOW, NOW + 0.999, NOW + 2.0):
        assert follow(NOW, here) == here


def test_without_the_servers_time_the_machines_own_stays() -> None:
    assert follow(None, NOW) == NOW


@pytest.mark.parametrize(
    "part",
    [
        ControlLoop,
        KubernetesSubstrate,
        ProcessSubstrate,
        Line,
        OperatorContext,
        Meter,
        OperatorMetrics,
        ConfigMapProfileCache,
    ],
)
def test_whatever_dates_processes_and_decisions_has_this_clock(part: Callable[..., object]) -> None:
    assert inspect.signature(part).parameters["clock"].default is steady_time
