"""Messages about a plan that needs more cores than this machine has."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from heterps_operator.__main__ import main
from heterps_operator.cli.session import Programs
from heterps_operator.control.machine import describe_cores, describe_shortage
from heterps_operator.state.bill import Bill
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.turn import Turn
from heterps_operator.terminal.panels import live_view
from heterps_planner.plans.plan import Machine
from tests.heterps_operator.helpers.world import PLAN, World
from tests.heterps_planner.helpers.problems import document
from tests.heterps_planner.plans.test_machine import measured_document

SMALL = Machine(cores=2.0, busy_cores=6.32, throughput_on_pools=140_103.0)
SHORT = {**PLAN, "throughput": 26_091.0, "machine": SMALL.to_json()}
LARGE = Machine(cores=4.0, busy_cores=1.5, throughput_on_pools=PLAN["throughput"])
ENOUGH = {**PLAN, "machine": LARGE.to_json()}
SENTENCE = (
    "this machine has 2 cores; the plan keeps 6.3 busy: expect about 26,000 samples/s here instead of 140,000; "
    "plan fewer units (maxUnits of its pools), or run the job on a cluster (heterps submit)"
)


def test_a_shortage_is_said_in_one_sentence_with_what_to_do() -> None:
    assert describe_shortage(SMALL, 26_091.0, 0.0) == SENTENCE
    assert describe_shortage(SMALL, 26_091.0, 20_000.0) == SENTENCE
    below = describe_shortage(SMALL, 26_091.0, 30_000.0)
    assert "of 140,000, which is below the floor of 30,000 samples/s (objective.minSamplesPerSecond); plan" in below


def test_nothing_is_said_where_the_cores_suffice_or_nobody_counted_them() -> None:
    assert describe_shortage(LARGE, PLAN["throughput"], 1e9) == ""
    assert describe_cores(LARGE) == "this machine has 4 cores; the plan keeps 1.5 busy"
    assert describe_shortage(None, PLAN["throughput"], 1e9) == ""
    assert describe_cores(Machine(1.0, 0.5, 1.0)).startswith("this machine has 1 core;")


def test_a_plan_that_is_too_large_is_warned_of_once_before_training() -> None:
    world = World().profiled()
    world.answer(SHORT)
    world.settle()
    told = [e for e in world.events if e.reason == "MachineTooSmall"]
    assert [(e.type, e.message) for e in told] == [("Warning", SENTENCE)]
    assert world.status.phase == "Starting"
    world.join("ps-0", "worker-0-0", "worker-0-1", "worker-1-0")
    world.set_phase("Training", committedSteps=1, samplesPerSecond=26_000.0)
    world.settle()
    assert [e.reason for e in world.events].count("MachineTooSmall") == 1


def test_a_plan_that_fits_is_not_warned_of() -> None:
    world = World().profiled()
    world.answer(ENOUGH)
    world.settle()
    assert world.status.phase == "Starting"
    assert "MachineTooSmall" not in [e.reason for e in world.events]


# --- heterps plan -----------------------------------------------------------------------------------------------------


@pytest.fixture
def problem_file(tmp_path: Path) -> str:
    path = tmp_path / "ads.json"
    path.write_text(json.dumps(measured_document()))
    stages = [{"pool": "cpu", "lastLayer": "embedding", "units": 3}, {"pool": "gpu", "units": 2}]
    (tmp_path / "stages.json").write_text(json.dumps({"stages": stages}))
    return str(path)


def plan(capsys: Any, *arguments: str, programs: Programs | None = None, output: str = "json") -> Any:
    assert main(["plan", *arguments, "--output", output], programs) == 0
    out = capsys.readouterr().out
    return json.loads(out) if output == "json" else " ".join(out.split())


def test_a_problem_is_planned_for_a_cluster_unless_cores_are_named(problem_file: str, capsys: Any) -> None:
    stages = ("--stages", str(Path(problem_file).with_name("stages.json")))
    programs = Programs(cores=lambda: 1.0)
    free = plan(capsys, "--problem", problem_file, *stages, programs=programs)
    assert "machine" not in free
    assert plan(capsys, "--problem", problem_file, *stages, "--cores", "0")["throughput"] == free["throughput"]
    here = plan(capsys, "--problem", problem_file, *stages, "--cores", "1")
    assert here["throughput"] == pytest.approx(100 / 0.42)
    assert here["machine"]["throughputOnPools"] == free["throughput"]
    assert here["explanation"]["bottleneck"] == "machine"
    text = plan(capsys, "--problem", problem_file, *stages, "--cores", "1", output="table")
    busy = f"{here['machine']['busyCores']:.1f}"
    assert f"this machine has 1 core; the plan keeps {busy} busy: expect about 240 samples/s here instead of" in text
    assert "limited by the cores of this machine" in text
    assert "sharing this machine's cores makes this one more expensive" in text
    assert f"this machine has 64 cores; the plan keeps {busy} busy" in plan(
        capsys, "--problem", problem_file, *stages, "--cores", "64", output="table"
    )


def test_both_plans_of_a_what_if_are_for_the_machine(problem_file: str, capsys: Any) -> None:
    result = plan(capsys, "--problem", problem_file, "--what-if", "gpu.maxUnits=1", "--cores", "0.5")
    assert result["asIs"]["machine"]["cores"] == result["whatIf"]["machine"]["cores"] == 0.5


def test_cores_need_processor_times_and_one_problem(problem_file: str, tmp_path: Path, capsys: Any) -> None:
    by_hand = tmp_path / "hand.json"
    by_hand.write_text(json.dumps(document()))
    for arguments, words in (
        (("--problem", str(by_hand), "--cores", "2"), "--cores: the problem does not say what its layers cost"),
        (("--problem", problem_file, "--cores", "2", "--compare"), "--cores: cannot be combined with --compare"),
        (("--problem", problem_file, "--problem", str(by_hand), "--cores", "2"), "--cores: is for one problem"),
    ):
        assert main(["plan", *arguments]) == 2
        assert words in capsys.readouterr().err
    for wrong in ("-1", "many", "nan"):
        with pytest.raises(SystemExit):
            main(["plan", "--problem", problem_file, "--cores", wrong])
        assert "must be a number of cores, 0 to 1e6" in capsys.readouterr().err


# --- jobs on this machine ---------------------------------------------------------------------------------------------


def test_the_live_view_says_it_too() -> None:
    world = World().training()
    world.status = replace(world.status, plan=JobPlan.from_json(SHORT))
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(live_view(Turn(world.job, world.observed(), world.status, Bill(), ()), (), ()))
    assert isinstance(console.file, io.StringIO)
    assert "expect about 26,000 samples/s here instead of 140,000" in console.file.getvalue()


@pytest.fixture
def small(programs: Programs, job_file: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """A machine with one core, a fake runtime, and the real planner."""
    monkeypatch.chdir(job_file.parent)
    monkeypatch.setenv("FAKE_SCENARIO", json.dumps({"totalSteps": 600}))
    return replace(Programs(cores=lambda: 1.0), runtime=programs.runtime)


def test_a_job_is_planned_for_the_cores_of_this_machine(small: Programs, capsys: Any) -> None:
    here = plan(capsys, "job.yaml", programs=small)
    assert here["machine"]["cores"] == 1.0
    assert here["machine"]["busyCores"] > 1.0
    assert here["throughput"] < here["machine"]["throughputOnPools"]
    elsewhere = plan(capsys, "job.yaml", "--cores", "0", programs=small)
    assert elsewhere["throughput"] == here["machine"]["throughputOnPools"]


def test_a_run_warns_before_training_and_reports_what_the_machine_gives(small: Programs, capsys: Any) -> None:
    assert main(["run", "job.yaml", "--output", "json"], small) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    here = report["plan"]
    assert report["throughput"]["predictedSamplesPerSecond"] == here["throughput"]
    assert here["throughput"] < here["machine"]["throughputOnPools"]
    assert report["predictedCost"] == here["cost"]
    sentence = "this machine has 1 core; the plan keeps"
    warning = err.index(f"warning: MachineTooSmall: {sentence}")
    assert warning < err.index("Training: tiny") < err.index(f"machine            {sentence}")
    assert "below the floor of 20,000 samples/s (objective.minSamplesPerSecond)" in err
