"""Invalid command lines explain the problem and exit with code 2; valid ones print the expected output."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterps_operator.__main__ import main
from heterps_operator.cli.session import Programs
from heterps_operator.control.problem import build_problem
from tests.heterps_operator.helpers.world import PROFILE, make_job


@pytest.fixture
def problem_file(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(build_problem(make_job(), {"cpu": PROFILE, "gpu": PROFILE})))
    return path


def refuse(capsys: Any, *arguments: str) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    message: str = err
    return message


def test_a_job_file_that_is_not_there_is_named(tmp_path: Path, capsys: Any) -> None:
    assert "nowhere.yaml: the file does not exist" in refuse(capsys, "run", str(tmp_path / "nowhere.yaml"))


def test_a_wrong_field_is_named_with_its_value(job_file: Path, capsys: Any) -> None:
    job_file.write_text(job_file.read_text().replace("globalBatchSize: 512", "globalBatchSize: -1"))
    message = refuse(capsys, "run", str(job_file))
    assert "spec.training.globalBatchSize" in message
    assert "-1" in message


def test_a_method_of_a_later_version_is_refused_before_anything_runs(
    job_file: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterps_operator.cli.session.METHODS", {"optimal": None, "cpu": None})
    job_file.write_text(job_file.read_text() + "  scheduling: {method: greedy}\n")
    message = refuse(capsys, "run", str(job_file), "--work-directory", str(job_file.parent / "w"))
    assert "spec.scheduling.method: must be one of optimal, cpu in this version, is 'greedy'" in message
    assert not (job_file.parent / "w").exists()


def test_a_port_that_is_taken_is_said_before_anything_runs(
    job_file: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, programs: Programs
) -> None:
    monkeypatch.chdir(job_file.parent)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert main(["run", "job.yaml", "--port", str(port)], programs) == 2
    assert f"--port {port}: cannot listen on it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan",), "name a job file or --problem FILE"),
        (("plan", "--problem", "none.json"), "--problem none.json: cannot be read"),
        (("plan", "--problem", "none.json", "--frontier", "plan.doc"), "must end in .csv, .png, .svg or .pdf"),
        (("plan", "--problem", "a", "--profile", "b"), "--profile: a --problem already has its layers' times"),
    ],
)
def test_options_that_do_not_fit_are_explained(arguments: tuple[str, ...], words: str, capsys: Any) -> None:
    assert words in refuse(capsys, *arguments)


@pytest.mark.parametrize("arguments", [("run", "j", "--port", "70000"), ("plan", "--timeout", "-1"), ("fly",)])
def test_arguments_of_the_wrong_kind_end_with_code_2(arguments: tuple[str, ...], capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_a_problem_with_a_wrong_number_names_the_field(problem_file: Path, capsys: Any) -> None:
    problem = json.loads(problem_file.read_text())
    problem["layers"][1]["pools"]["gpu"]["computeSeconds"] = -1
    problem_file.write_text(json.dumps(problem))
    message = refuse(capsys, "plan", "--problem", str(problem_file))
    assert "problem.layers[1].pools.gpu.computeSeconds" in message
    assert "-1" in message


def test_an_unknown_method_is_refused(problem_file: Path, capsys: Any) -> None:
    assert "optimal" in refuse(capsys, "plan", "--problem", str(problem_file), "--method", "optimall")


def test_json_and_yaml_are_the_same_plan(problem_file: Path, capsys: Any) -> None:
    plans = []
    for output, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        assert main(["plan", "--problem", str(problem_file), "--output", output]) == 0
        plan = read(capsys.readouterr().out)
        del plan["seconds"]
        plans.append(plan)
    assert plans[0] == plans[1]
    assert plans[0]["gap"] == 0
    assert plans[0]["explanation"]["alternatives"]


def test_the_table_says_what_why_and_what_else(problem_file: Path, capsys: Any) -> None:
    assert main(["plan", "--problem", str(problem_file)]) == 0
    out = capsys.readouterr().out
    for words in ("optimal (gap 0)", "limited by", "only gpu", "without cpu", "the floor is 20,000 samples/s"):
        assert words in out


def test_an_infeasible_problem_ends_with_code_3_and_what_is_reachable(problem_file: Path, capsys: Any) -> None:
    problem = json.loads(problem_file.read_text()) | {"minSamplesPerSecond": 1e9}
    problem_file.write_text(json.dumps(problem))
    assert main(["plan", "--problem", str(problem_file), "--output", "json"]) == 3
    refusal = json.loads(capsys.readouterr().out)
    assert (refusal["feasible"], refusal["reason"]) == (False, "ThroughputFloorUnreachable")
    assert refusal["bestThroughput"] > 0


def test_stages_by_hand_are_priced(problem_file: Path, tmp_path: Path, capsys: Any) -> None:
    stages = tmp_path / "stages.json"
    stages.write_text(json.dumps({"stages": [{"pool": "cpu", "lastLayer": "embedding"}, {"pool": "gpu"}]}))
    assert main(["plan", "--problem", str(problem_file), "--stages", str(stages), "--output", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [stage["pool"] for stage in plan["stages"]] == ["cpu", "gpu"]


def test_the_frontier_is_drawn(problem_file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "frontier.png"
    assert main(["plan", "--problem", str(problem_file), "--frontier", str(picture), "--output", "json"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_profile_writes_a_problem_that_plan_takes(
    job_file: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(job_file.parent)
    assert main(["profile", "job.yaml", "--to", "p.json"], programs) == 0
    out = capsys.readouterr().out
    assert "warning: profile of pool cpu: layer mlp varies by 7 %" in out
    assert "problem written to p.json" in out
    assert main(["plan", "--problem", "p.json"]) == 0
    assert main(["plan", "job.yaml", "--profile", "p.json"]) == 0
    assert main(["plan", "job.yaml"], programs) == 0
    assert "profile of accelerator, cpu: taken from an earlier run" in capsys.readouterr().out


def test_every_allowed_precision_is_measured_shown_and_planned(
    job_file: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(job_file.parent)
    allowed = "globalBatchSize: 512\n    precision: Auto\n    allowedPrecisions: [bf16, fp64]"
    job_file.write_text(job_file.read_text().replace("globalBatchSize: 512", allowed))
    assert main(["profile", "job.yaml", "--to", "p.json"], programs) == 0
    out = capsys.readouterr().out
    assert "warning: profile of pool cpu in bf16: layer mlp varies by 7 %" in out
    assert "bf16: one batch of 512 samples" in out
    assert "fp64: one batch of 512 samples" in out
    assert set(json.loads(Path("p.json").read_text())["precisions"]) == {"fp64", "bf16"}
    for arguments in (("--problem", "p.json"), ("job.yaml", "--profile", "p.json"), ("job.yaml",)):
        assert main(["plan", *arguments, "--output", "json"], programs) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["precision"] == "bf16"
        assert [one["name"] for one in found["precisions"]] == ["fp64", "bf16"]
    assert main(["plan", "--problem", "p.json", "--output", "json"]) == 0
    chosen = json.loads(capsys.readouterr().out)["cost"]
    monkeypatch.setattr("heterps_operator.cli.plans.compare.METHODS", ("optimal", "greedy"))
    assert main(["plan", "--problem", "p.json", "--compare", "--output", "json"]) == 0
    methods = {one["method"]: one["cost"] for one in json.loads(capsys.readouterr().out)["methods"]}
    assert methods["optimal"] == pytest.approx(chosen), "all methods plan the problem of the chosen precision"


def test_the_exchange_of_dense_gradients_is_measured_shown_and_planned(
    job_file: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(job_file.parent)
    left = "globalBatchSize: 512\n    denseExchange: Auto\n    precision: Auto\n    allowedPrecisions: [fp32, bf16]"
    job_file.write_text(job_file.read_text().replace("globalBatchSize: 512", left))
    assert main(["profile", "job.yaml", "--to", "p.json"], programs) == 0
    out = capsys.readouterr().out
    assert "warning: profile of pool cpu in bf16 with AllReduce: layer mlp varies by 7 %" in out
    assert "bf16: AllReduce: one batch of 512 samples" in out
    measured = json.loads(Path("p.json").read_text())["precisions"]
    assert [list(one["denseExchanges"]) for one in measured.values()] == [["ParameterServer", "AllReduce"]] * 2
    for arguments in (("--problem", "p.json"), ("job.yaml", "--profile", "p.json"), ("job.yaml",)):
        assert main(["plan", *arguments, "--output", "json"], programs) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["precision"], found["denseExchange"]) == ("bf16", "AllReduce")
        assert [one["name"] for one in found["denseExchanges"]] == ["ParameterServer", "AllReduce"]
        assert {one["denseExchange"] for one in found["stages"] if one["pool"] == "cpu"} == {"AllReduce"}
    assert main(["plan", "--problem", "p.json"]) == 0
    assert "AllReduce is the choice: ParameterServer costs" in " ".join(capsys.readouterr().out.split())


def test_a_profiler_that_cannot_work_ends_the_command_with_its_words(
    job_file: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(job_file.parent)
    monkeypatch.setenv("FAKE_SCENARIO", json.dumps({"die": {"profile-cpu": {"how": 2}}}))
    assert main(["profile", "job.yaml"], programs) == 2
    assert "profile-cpu: about to end" in capsys.readouterr().err


def test_the_version_is_printed(capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("heterps 0.")
