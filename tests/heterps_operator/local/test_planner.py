"""The planner's process: every way in which it ends gives an outcome, and says why there is no plan."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.local.planner import PlannerProcess
from heterps_operator.state.plan import PlanOutcome
from heterps_runtime.contract import EXIT_INFEASIBLE, MOST_PROCESSES
from tests.heterps_operator.helpers.given_program import Given


def document(workers: int = 2) -> dict[str, Any]:
    """Return a plan of one stage, as `heterps plan --output json` writes it."""
    stage = {"name": "stage-0", "pool": "cpu", "firstLayer": 0, "lastLayer": 1, "layers": ["tables", "output"]}
    stage |= {"pods": workers, "units": workers}
    servers = {"pool": "cpu", "replicas": 1, "units": 1}
    return {"stages": [stage], "parameterServer": servers, "costPerHour": 0.12, "throughput": 1000.0}


def outcome_of(program: str, folder: Path, **options: Any) -> PlanOutcome:
    """Return the outcome of a program in place of the planner."""
    planner = PlannerProcess(folder, "optimal", 60.0, program=Given(program), **options)
    planner.start({"layers": []}, revision=3)
    assert planner._child is not None
    planner._child.wait(60)
    outcome = planner.poll()
    assert outcome is not None
    assert outcome.revision == 3
    assert not planner.running
    return outcome


def test_a_plan_is_read(tmp_path: Path) -> None:
    outcome = outcome_of(f"print({json.dumps(json.dumps(document()))})", tmp_path)
    assert outcome.plan is not None
    assert outcome.plan.pods == (2,)


def test_a_refusal_has_the_planner_s_reason(tmp_path: Path) -> None:
    refusal = json.dumps({"feasible": False, "reason": "FloorTooHigh", "message": "at most 900 samples/s"})
    outcome = outcome_of(f"print({refusal!r}); raise SystemExit({EXIT_INFEASIBLE})", tmp_path)
    assert (outcome.reason, outcome.message) == ("FloorTooHigh", "at most 900 samples/s")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import sys; sys.exit('heterps: layers: must not be empty')", "layers: must not be empty"),
        ("raise SystemExit(7)", "the planner ended with exit code 7 and no message"),
        ("print('{')", "the planner's answer cannot be used: Expecting property name"),
        ("print('[]')", "the planner's answer cannot be used: plan: must be an object"),
        (
            f"print({json.dumps(json.dumps(document(MOST_PROCESSES)))})",
            f"the planner's answer cannot be used: plan: must have at most {MOST_PROCESSES} processes, "
            f"has {MOST_PROCESSES + 1}; lower objective.minSamplesPerSecond, or maxUnits of the pools",
        ),
    ],
)
def test_anything_else_is_an_error_with_its_cause(program: str, message: str, tmp_path: Path) -> None:
    outcome = outcome_of(program, tmp_path)
    assert (outcome.plan, outcome.reason) == (None, "PlannerFailed")
    assert outcome.message.startswith(message)


def test_a_planner_without_memory_says_what_to_raise(tmp_path: Path) -> None:
    outcome = outcome_of("bytes(1 << 40)", tmp_path, memory_bytes=1 << 30)
    assert outcome.message.startswith("the planner needs more than 1024 MiB of memory")
    assert "--planner-memory-mib" in outcome.message


def test_a_planner_that_hangs_is_killed(tmp_path: Path) -> None:
    now = 0.0
    planner = PlannerProcess(
        tmp_path, "optimal", 5.0, program=Given("import time; time.sleep(3600)"), clock=lambda: now
    )
    with closing(planner):
        planner.start({"layers": []})
        assert planner.poll() is None
        now = planner.longest_seconds + 1
        outcome = planner.poll()
        assert outcome is not None
        assert outcome.error.startswith("no plan within 5 s (scheduling.timeoutSeconds)")
        assert not planner.running
