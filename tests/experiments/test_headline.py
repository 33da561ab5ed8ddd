"""The last screen of the demo: the cheapest plans by kind of hardware, and that it can be read anywhere."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from experiments.clusters import PAPER_MODELS
from experiments.devices import load_profile
from experiments.headline import cheapest_mixed, headline, screen

from heterps_planner import Infeasible, Plan
from heterps_planner.model.segments import build_segments
from heterps_planner.plans.assignments import Evaluator


def test_the_cheapest_mixed_plan_is_the_cheapest_of_all_schedules_that_use_both() -> None:
    """For NCE the optimum is on cores alone, so that the mixed plan has to be searched for."""
    problem = load_profile("nce")
    segments = build_segments(problem)
    mixed = [schedule for schedule in itertools.product((0, 1), repeat=5) if len(set(schedule)) == 2]
    rates = Evaluator(segments).rates(np.array(mixed))
    found = cheapest_mixed(problem, segments)
    assert found is not None
    assert found.price / found.throughput == pytest.approx(rates.min())


def test_three_models_need_both_kinds_of_hardware_and_one_needs_cores() -> None:
    for model in PAPER_MODELS:
        found = headline(model)
        others = [plan.cost for plan in (found.cores, found.cards) if isinstance(plan, Plan)]
        assert (found.mixed_cost < min(others, default=math.inf)) == (model != "nce")
    assert isinstance(headline("nce").cards, Infeasible)


@pytest.mark.parametrize(("width", "height"), [(80, 46), (120, 38)])
def test_the_screen_fits_its_width_and_a_terminal(width: int, height: int) -> None:
    lines = screen(width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    assert "\N{NO-BREAK SPACE}" not in screen(width)
    for label in ("cores and cards", "cores only", "cards only", "why"):
        assert sum(line.startswith(f"  {label}") for line in lines) == len(PAPER_MODELS)
