"""Files that the planner reads."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from heterps_planner.errors import ProblemError
from heterps_planner.model.problem import Problem
from heterps_planner.policy import pretrained
from heterps_planner.scenarios.line import Line
from heterps_planner.scenarios.market import read_ticks
from heterps_planner.scenarios.what_if import change, read_setting
from tests.fuzz.mutation import SEPARATOR
from tests.fuzz.target import Form, Target
from tests.fuzz.targets.documents import NotJsonError, parse
from tests.fuzz.targets.files import memory_file
from tests.heterps_planner.helpers.problems import random_problem

_PROBLEM: dict[str, Any] = random_problem(
    np.random.default_rng(1), 3, 2, pods=True, stage_overhead=True, server="own"
).to_json()
_READ = Problem.from_json(_PROBLEM)


def _read_problem(data: bytes) -> None:
    problem = Problem.from_json(parse(data))
    Problem.from_json(problem.to_json())


def _read_line(data: bytes) -> None:
    Line.from_json(parse(data))


def _read_prices(data: bytes) -> None:
    read_ticks(data.decode())


def _change_problem(data: bytes) -> None:
    change(_READ, [read_setting(data.decode())])


def _load_policy(data: bytes) -> None:
    """Load a learned policy: its header, then its numbers. The length of the header is computed."""
    head, _, numbers = data.partition(SEPARATOR)
    with memory_file(len(head).to_bytes(8, "little") + head + numbers) as path:
        pretrained.load(path)


def _policy() -> list[bytes]:
    """Return the shipped policy with its smallest array alone, as mutations of 10,000 numbers would lead nowhere."""
    content = pretrained.PATH.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    arrays = {name: entry for name, entry in header.items() if name != "__metadata__"}
    name, entry = min(arrays.items(), key=lambda item: item[1]["data_offsets"][1] - item[1]["data_offsets"][0])
    first, last = entry["data_offsets"]
    small = {"__metadata__": header["__metadata__"], name: {**entry, "data_offsets": [0, last - first]}}
    return [json.dumps(small).encode() + SEPARATOR + content[begin + first : begin + last]]


TARGETS = [
    Target("planner.policy", _load_policy, (ValueError,), _policy, Form.JSON),
    Target(
        "planner.problem",
        _read_problem,
        (ProblemError, NotJsonError),
        lambda: [json.dumps(_PROBLEM).encode()],
        Form.JSON,
    ),
    Target(
        "planner.line",
        _read_line,
        (ProblemError, NotJsonError),
        lambda: [
            json.dumps(
                {
                    "version": 1,
                    "limits": {pool["name"]: 4 for pool in _PROBLEM["pools"]},
                    "jobs": [{"name": "a", "problem": _PROBLEM}, {"name": "b", "problem": _PROBLEM, "first": True}],
                }
            ).encode()
        ],
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
