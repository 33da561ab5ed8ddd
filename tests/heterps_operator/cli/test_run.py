"""`heterps run` from beginning to end, with real processes and a fake runtime."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.__main__ import main
from heterps_operator.cli.session import Programs

pytestmark = pytest.mark.slow

HELPERS = Path(__file__).parents[1] / "helpers"


class Runner:
    """Runs command lines of `heterps` in a separate folder."""

    def __init__(self, folder: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        self.folder = folder
        self._programs, self._monkeypatch, self._capsys = programs, monkeypatch, capsys
        monkeypatch.chdir(folder)

    def __call__(self, *arguments: str, **scenario: Any) -> tuple[int, str, str]:
        self._monkeypatch.setenv("FAKE_SCENARIO", json.dumps(scenario))
        code = main(arguments, self._programs)
        out, err = self._capsys.readouterr()
        return code, out, err

    def report(self, *arguments: str, **scenario: Any) -> dict[str, Any]:
        code, out, _ = self("run", "job.yaml", "--output", "json", *arguments, **scenario)
        report: dict[str, Any] = json.loads(out)
        assert report["exitCode"] == code
        return report


@pytest.fixture
def heterps(job_file: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Runner:
    return Runner(job_file.parent, programs, monkeypatch, capsys)


def test_a_job_is_profiled_planned_trained_and_billed(heterps: Runner) -> None:
    report = heterps.report()
    assert (report["phase"], report["exitCode"], report["failure"]) == ("Succeeded", 0, None)
    assert report["evaluation"] == {"auc": 0.71, "logLoss": 0.49, "samples": 600}
    assert report["progress"]["committedSteps"] == 30
    assert report["throughput"] == {
        "measuredSamplesPerSecond": 50_000.0,
        "predictedSamplesPerSecond": 52_000.0,
        "floorSamplesPerSecond": 20_000.0,
    }
    assert {line["pool"] for line in report["bill"]["pools"]} == {"cpu", "accelerator"}
    assert float(report["bill"]["cost"]) > 0
    assert {c["type"]: c["status"] for c in report["conditions"]}["Succeeded"] == "True"


def test_a_finished_job_shows_its_result_and_starts_over_when_asked(heterps: Runner) -> None:
    first = heterps.report()
    code, out, _ = heterps("run", "job.yaml")
    assert code == 0
    assert "tiny is already trained; to start over: heterps run job.yaml --fresh" in out
    assert "0.7100" in out
    assert heterps.report()["bill"] == first["bill"]
    code, out, _ = heterps("run", "job.yaml", "--fresh")
    assert "profile of accelerator, cpu: taken from an earlier run" in out
    assert "resuming" not in out
    assert heterps("run", "job.yaml", "--fresh", "--quiet") == (0, "", "")


def test_a_worker_that_dies_is_replaced_and_the_job_succeeds(heterps: Runner) -> None:
    report = heterps.report(die={"worker-0-1": {"how": "kill", "atStep": 5}}, totalSteps=20)
    assert report["phase"] == "Succeeded"
    assert report["restarts"] == {"worker-0-1": 1}


def test_a_server_that_dies_is_replaced_alone(heterps: Runner) -> None:
    report = heterps.report(die={"ps-0": {"how": "kill", "atStep": 12}}, totalSteps=40)
    assert report["phase"] == "Succeeded"
    assert report["restarts"] == {"ps-0": 1}
    assert report["progress"]["resumedFromStep"] is None, "the coordinator lives on"


def test_a_coordinator_that_dies_sends_the_job_back_to_its_checkpoint(heterps: Runner) -> None:
    report = heterps.report(die={"coordinator": {"how": "kill", "atStep": 12}}, totalSteps=40)
    assert report["phase"] == "Succeeded"
    assert report["progress"]["resumedFromStep"] >= 10


def test_a_worker_that_keeps_dying_fails_the_job_with_its_last_lines(heterps: Runner) -> None:
    manifest = heterps.folder / "job.yaml"
    manifest.write_text(manifest.read_text() + "  runPolicy: {backoffLimit: 0}\n")
    code, out, err = heterps("run", "job.yaml", "--output", "json", die={"worker-0-0": {"how": "kill", "times": 9}})
    assert code == 1
    assert "BackoffLimitExceeded: worker-0-0 ended (killed by SIGKILL" in err
    assert "| worker-0-0: about to end, as the scenario says" in err
    report = json.loads(out)
    failure = report["failure"]
    assert (report["phase"], failure["reason"]) == ("Failed", "BackoffLimitExceeded")
    assert (failure["member"], failure["exitCode"]) == ("worker-0-0", -9)
    assert "the limit of 0 restarts (runPolicy.backoffLimit) is exhausted" in failure["message"]
    assert failure["lastLines"]
    assert Path(failure["log"]).read_text().splitlines()[-1] == failure["lastLines"][-1]


def test_bad_input_found_by_a_worker_ends_the_job_with_code_2(heterps: Runner) -> None:
    report = heterps.report(die={"worker-0-0": {"how": 2}})
    assert (report["exitCode"], report["failure"]["reason"]) == (2, "BadInput")
    assert report["failure"]["member"] == "worker-0-0"


def test_a_failure_that_the_coordinator_finds_is_reported(heterps: Runner) -> None:
    report = heterps.report(error={"reason": "NaNLoss", "message": "step 7; last good: step 0", "atStep": 7})
    assert (report["exitCode"], report["failure"]["reason"]) == (1, "NaNLoss")


def test_an_unreachable_floor_ends_with_code_3(heterps: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PLANNER", "infeasible")
    code, out, _ = heterps("run", "job.yaml")
    assert code == 3
    assert "the best is 31,000" in out


def test_what_the_planner_refuses_is_shown(heterps: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PLANNER", "refuse")
    assert "problem.layers[3].pools.v100.computeSeconds: must be > 0, is -1" in heterps("run", "job.yaml")[1]


def test_a_changed_model_after_training_is_refused_and_a_changed_floor_plans_anew(heterps: Runner) -> None:
    heterps.report()
    manifest = heterps.folder / "job.yaml"
    text = manifest.read_text()
    manifest.write_text(text.replace("globalBatchSize: 512", "globalBatchSize: 1024"))
    code, _, err = heterps("run", "job.yaml")
    assert code == 2
    assert "start over with --fresh" in err


def test_the_real_planner_runs_in_a_child_process(job_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    fake = (sys.executable, "-I", "-S", str(HELPERS / "fake_runtime.py"))
    large = Programs(runtime=fake, cores=lambda: 1000.0)
    report = Runner(job_file.parent, large, monkeypatch, capsys).report()
    assert report["phase"] == "Succeeded"
    assert report["plan"]["optimal"] is True
    assert report["plan"]["explanation"]["alternatives"]


DRIVER = """
import sys
from heterps_operator.__main__ import main
from heterps_operator.cli.session import Programs
runtime, planner = sys.argv[1:3]
base = (sys.executable, "-I", "-S")
sys.exit(main(sys.argv[3:], Programs(runtime=(*base, runtime), planner=(*base, planner))))
"""


def start(folder: Path, *arguments: str, **scenario: Any) -> subprocess.Popen[str]:
    """Start `heterps` in a child process."""
    fakes = [str(HELPERS / "fake_runtime.py"), str(HELPERS / "fake_planner.py")]
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, *fakes, *arguments],
        cwd=folder,
        env={**os.environ, "FAKE_SCENARIO": json.dumps(scenario), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read_until(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return line
    raise AssertionError(f"ended with {process.wait()} before {word!r}")


def test_ctrl_c_ends_in_order_and_the_next_run_goes_on(job_file: Path) -> None:
    process = start(job_file.parent, "run", "job.yaml", totalSteps=100_000)
    read_until(process, "Progress: step")
    process.send_signal(signal.SIGINT)
    rest = process.communicate()[0]
    assert process.returncode == 130
    assert "To go on: heterps run job.yaml" in rest
    state = json.loads((job_file.parent / ".heterps/tiny/state.json").read_text())
    step = state["status"]["result"]["checkpoint"]["lastStep"]
    again = start(job_file.parent, "run", "job.yaml", totalSteps=step + 10)
    assert f"resuming from step {step} of {step + 10}" in read_until(again, "resuming from step")
    again.communicate()
    assert again.returncode == 0


def test_a_second_ctrl_c_ends_at_once(job_file: Path) -> None:
    process = start(job_file.parent, "run", "job.yaml", totalSteps=100_000, ignoreStop=True)
    read_until(process, "Progress: step")
    process.send_signal(signal.SIGINT)
    read_until(process, "Stopping")
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    record = json.loads((job_file.parent / ".heterps/tiny/processes.json").read_text())
    assert record == {"processes": []}


def test_a_controller_that_was_killed_leaves_nothing_behind_and_can_go_on(job_file: Path) -> None:
    process = start(job_file.parent, "run", "job.yaml", totalSteps=100_000)
    read_until(process, "Progress: step")
    process.kill()
    process.communicate()
    again = start(job_file.parent, "run", "job.yaml", "--verbose", totalSteps=60)
    out = again.communicate()[0]
    assert again.returncode == 0, out
    assert "resuming an earlier run" in out
