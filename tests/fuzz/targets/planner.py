"""Files that the planner reads."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from heterps_planner.errors import ProblemError
from heterps_planner.model.problem import Problem
from heterps_planner.scenarios.market import read_ticks
from heterps_planner.scenarios.what_if import change, read_setting
from tests.fuzz.target import Form, Target
from tests.heterps_planner.helpers.problems import random_problem

_PROBLEM: dict[str, Any] = random_problem(
    np.random.default_rng(1), 3, 2, pods=True, stage_overhead=True, server="own"
).to_json()


def _read_problem(data: bytes) -> None:
    problem = Problem.from_json(json.loads(data))
    Problem.from_json(problem.to_json())


def _read_prices(data: bytes) -> None:
    read_ticks(data.decode())


def _change_problem(data: bytes) -> None:
    change(Problem.from_json(_PROBLEM), [read_setting(data.decode())])


TARGETS = [
    Target(
        "planner.problem",
        _read_problem,
        (ProblemError, json.JSONDecodeError, UnicodeDecodeError),
        lambda: [json.dumps(_PROBLEM).encode()],
        Form.JSON,
    ),
    Target(
        "planner.prices",
        _read_prices,
        (ProblemError, UnicodeDecodeError),
        lambda: [
            b"seconds,cpu.pricePerUnitHour,gpu.maxUnits\n0,0.04,8\n60,,4\n120,0.05,\n",
            b'[{"seconds": 0, "cpu.pricePerUnitHour": 0.04}, {"seconds": 60, "gpu.maxUnits": 4}]',
        ],
        Form.TEXT,
    ),
    Target(
        "planner.setting",
        _change_problem,
        (ProblemError, UnicodeDecodeError),
        lambda: [b"pool1.maxUnits=16", b"minSamplesPerSecond=none", b"pool0.pricePerUnitHour=0.5"],
        Form.TEXT,
        longest=256,
    ),
]
