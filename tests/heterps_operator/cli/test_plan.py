"""Options of `heterps plan` beyond one plan: each answer as text and JSON, and each mistake explained."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.__main__ import main
from heterps_operator.cli.plans.search import open_search
from heterps_planner.methods import METHODS
from heterps_planner.plans.task import Found, Task
from tests.heterps_planner.helpers.problems import document

FEW = {name: METHODS[name] for name in ("optimal", "brute-force", "cpu", "gpu", "greedy")}


@pytest.fixture
def problem_file(tmp_path: Path) -> str:
    return write(tmp_path, "ads.json")


def write(folder: Path, name: str, **changes: Any) -> str:
    path = folder / name
    path.write_text(json.dumps(document(**changes)))
    return str(path)


def answer(capsys: Any, *arguments: str, code: int = 0) -> Any:
    assert main(["plan", *arguments, "--output", "json"]) == code
    return json.loads(capsys.readouterr().out)


def table(capsys: Any, *arguments: str, code: int = 0) -> str:
    assert main(["plan", *arguments]) == code
    text: str = capsys.readouterr().out
    return text


def test_the_table_says_how_long_the_slowest_stage_waits(tmp_path: Path, capsys: Any) -> None:
    """Of stage-0, 0.00075 s of computing per sample and a quarter of 0.0005 s for the dense layer."""
    layers = [layer | {"waitsForCommit": True} for layer in document()["layers"]]
    text = table(capsys, "--problem", write(tmp_path, "waits.json", layers=layers, microBatches=4))
    assert "limited by  stage-0 on cpu, by computing (67% of it does not shrink with more units)" in text
    assert "and waiting for other stages (14% of a step)" in text


def faster(share: float) -> dict[str, Any]:
    """The problem with layers that take this share of the time."""
    problem = document()
    for layer in problem["layers"]:
        for times in filter(None, layer["pools"].values()):
            times["computeSeconds"] *= share
    return problem


def test_a_problem_of_several_precisions_is_planned_in_each(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "ads.json"
    file.write_text(json.dumps({"version": 1, "precisions": {"fp32": document(), "bf16": faster(0.5)}}))
    page = tmp_path / "plan.html"
    result = answer(capsys, "--problem", str(file), "--html", str(page))
    alone = {name: tmp_path / f"{name}.json" for name in ("fp32", "bf16")}
    alone["fp32"].write_text(json.dumps(document()))
    alone["bf16"].write_text(json.dumps(faster(0.5)))
    plans = {name: answer(capsys, "--problem", str(path)) for name, path in alone.items()}
    assert plans["bf16"]["cost"] < plans["fp32"]["cost"]
    assert (result["precision"], result["stages"]) == ("bf16", plans["bf16"]["stages"])
    assert [(one["name"], one["cost"]) for one in result["precisions"]] == [
        ("fp32", plans["fp32"]["cost"]), ("bf16", plans["bf16"]["cost"]),
    ]  # fmt: skip
    assert "precision" not in plans["bf16"]
    assert "bf16 is the choice: fp32 costs $" in " ".join(table(capsys, "--problem", str(file)).split())
    assert "bf16 is the choice: fp32 costs $" in page.read_text()
    dearer = ("--problem", str(file), "--what-if", "gpu.pricePerUnitHour=100")
    assert answer(capsys, *dearer)["whatIf"]["precision"] == "bf16"


def test_jobs_that_share_pools_need_a_problem_of_one_precision(problem_file: str, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "several.json"
    file.write_text(json.dumps({"version": 1, "precisions": {"fp32": document()}}))
    assert main(["plan", "--problem", problem_file, "--problem", str(file)]) == 2
    assert "is of several precisions (fp32); plan it alone" in capsys.readouterr().err


def test_a_what_if_shows_both_plans_and_the_saving(problem_file: str, capsys: Any) -> None:
    arguments = ("--problem", problem_file, "--what-if", "gpu.pricePerUnitHour=1", "--what-if", "gpu.maxUnits=9")
    result = answer(capsys, *arguments)
    assert result["whatIf"]["settings"] == ["gpu.pricePerUnitHour=1", "gpu.maxUnits=9"]
    difference = result["whatIf"]["cost"] - result["asIs"]["cost"]
    assert result["difference"]["cost"] == pytest.approx(difference)
    assert difference < 0
    text = table(capsys, *arguments)
    for words in ("as it is", "if gpu.pricePerUnitHour=1, gpu.maxUnits=9", "stage-1", "This would save $"):
        assert words in text


def test_a_what_if_without_a_plan_says_why(problem_file: str, capsys: Any) -> None:
    arguments = ("--problem", problem_file, "--what-if", "minSamplesPerSecond=1e9")
    assert not answer(capsys, *arguments, code=3)["whatIf"]["feasible"]
    text = table(capsys, *arguments, code=3)
    assert "no plan" in text
    assert "the pools allow" in text


def test_a_shadow_price_is_said_per_hour_and_over_the_training(problem_file: str, capsys: Any) -> None:
    arguments = ("--problem", problem_file, "--what-if", "cpu.maxUnits=1", "--what-if", "minSamplesPerSecond=none")
    binding = answer(capsys, *arguments)["whatIf"]
    text = table(capsys, "--problem", problem_file)
    assert "none binds" in text
    tight = json.loads(Path(problem_file).read_text()) | {"minSamplesPerSecond": 0}
    tight["pools"][0]["maxUnits"] = 1
    Path(problem_file).write_text(json.dumps(tight))
    result = answer(capsys, "--problem", problem_file)
    assert result["shadowPrices"] == pytest.approx(binding["shadowPrices"])
    text = table(capsys, "--problem", problem_file)
    for pool in result["bindingLimits"]:
        assert f"one more {pool} is worth $" in text


def test_all_methods_are_compared(problem_file: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps_operator.cli.plans.compare.METHODS", FEW)
    result = answer(capsys, "--problem", problem_file, "--compare")
    by_name = {one["method"]: one for one in result["methods"]}
    assert list(by_name) == list(FEW)
    assert by_name["optimal"]["gap"] == by_name["brute-force"]["gap"] == 0
    assert not by_name["gpu"]["feasible"]
    assert "gpu" in by_name["gpu"]["message"]
    text = table(capsys, "--problem", problem_file, "--compare", "--timeout", "5")
    assert "at most 5 s per method" in text
    assert text.index("optimal") < text.index("\ngpu")


def test_a_comparison_without_any_plan_ends_with_code_3(
    problem_file: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterps_operator.cli.plans.compare.METHODS", {"gpu": METHODS["gpu"]})
    assert answer(capsys, "--problem", problem_file, "--compare", code=3)["methods"][0]["cost"] is None


def test_jobs_share_pools(problem_file: str, tmp_path: Path, capsys: Any) -> None:
    other = write(tmp_path, "feed.json", minSamplesPerSecond=500)
    result = answer(capsys, "--problem", problem_file, "--problem", other)
    assert set(result["plans"]) == {"ads", "feed"}
    assert result["cost"] == pytest.approx(sum(plan["cost"] for plan in result["plans"].values()))
    text = table(capsys, "--problem", problem_file, "--problem", other)
    for words in ("ads", "feed", "one by one", "optimal (gap 0)", "of 10 cpu"):
        assert words in text


def test_jobs_that_do_not_fit_end_with_code_3(problem_file: str, tmp_path: Path, capsys: Any) -> None:
    same = [write(tmp_path, f"{i}.json", minSamplesPerSecond=1500) for i in range(4)]
    arguments = [word for name in same for word in ("--problem", name)]
    assert answer(capsys, *arguments, code=3)["reason"] == "PoolsTooSmall"


def test_a_wrong_job_among_several_is_named(problem_file: str, tmp_path: Path, capsys: Any) -> None:
    wrong = write(tmp_path, "feed.json", batchSize=0)
    assert main(["plan", "--problem", problem_file, "--problem", wrong]) == 2
    assert "feed.json: problem.batchSize: must be >= 1, is 0" in capsys.readouterr().err


def test_a_line_of_jobs_is_planned_as_far_as_it_fits(problem_file: str, tmp_path: Path, capsys: Any) -> None:
    problem = json.loads(Path(problem_file).read_text())
    limits = {pool["name"]: pool["maxUnits"] for pool in problem["pools"]}
    wrong = {**problem, "batchSize": 0}
    jobs = [{"name": "ml/a", "problem": problem}, {"name": "ml/b", "problem": wrong}]
    file = tmp_path / "line.json"
    file.write_text(json.dumps({"version": 1, "limits": limits, "jobs": jobs}))
    result = answer(capsys, "--line", str(file))
    assert set(result["plans"]) == {"ml/a"}
    assert result["refused"] == {"ml/b": "problem.batchSize: must be >= 1, is 0"}
    assert main(["plan", "--line", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "waits: problem.batchSize: must be >= 1, is 0" in " ".join(shown.split())
    file.write_text(json.dumps({"version": 1, "limits": dict.fromkeys(limits, 0), "jobs": jobs[:1]}))
    assert main(["plan", "--line", str(file), "--output", "json"]) == 3
    capsys.readouterr()
    for more in (["--problem", problem_file], ["--method", "cpu"], ["job.yaml"]):
        assert main(["plan", "--line", str(file), *more]) == 2
        assert "--line" in capsys.readouterr().err


def test_a_price_series_is_followed(problem_file: str, tmp_path: Path, capsys: Any) -> None:
    series = tmp_path / "prices.csv"
    series.write_text("seconds,gpu.pricePerUnitHour,gpu.maxUnits\n0,2,4\n600,20,\n1200,,0\n1800,1,4\n")
    picture = tmp_path / "market.png"
    arguments = ("--problem", problem_file, "--prices", str(series))
    result = answer(capsys, *arguments, "--draw", str(picture), "--pod-start-seconds", "0")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert result["following"]["interruptions"] == 1
    assert [step["decision"] for step in result["staying"]["steps"]] == ["start", "stay", "wait", "start"]
    text = table(capsys, *arguments)
    for words in ("no plan possible (interrupted)", "following", "staying", "worth", "ms per tick"):
        assert words in text


def test_a_margin_says_what_it_buys_and_costs(tmp_path: Path, capsys: Any) -> None:
    name = write(tmp_path, "ads.json", minSamplesPerSecond=800)
    percent = answer(capsys, "--problem", name, "--robust", "10%")
    fraction = answer(capsys, "--problem", name, "--robust", "0.1")
    assert percent["stages"] == fraction["stages"]
    assert percent["robust"]["error"] == 0.1
    assert percent["robust"]["costWithoutMargin"] <= percent["cost"]
    text = " ".join(table(capsys, "--problem", name, "--robust", "10%").split())
    assert "even if each measured time is off by 10%, the floor is kept with a probability of more than 99%" in text


def test_the_frontier_as_csv_has_every_plan(problem_file: str, tmp_path: Path, capsys: Any) -> None:
    target, picture = tmp_path / "frontier.csv", tmp_path / "frontier.svg"
    table(capsys, "--problem", problem_file, "--frontier", str(target), "--frontier", str(picture))
    rows = list(csv.DictReader(target.read_text().splitlines()))
    prices = [float(row["costPerHour"]) for row in rows]
    assert prices == sorted(prices)
    assert rows[0]["cpu units"] == "1"
    assert "embedding..dense on 1 cpu" in rows[0]["stages"]
    assert picture.read_text().startswith("<?xml")


def test_a_page_is_written_beside_the_table_and_replaced(problem_file: str, tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "plan.html"
    target.write_text("an earlier one")
    assert "share of cost" in table(capsys, "--problem", problem_file, "--html", str(target))
    text = target.read_text()
    for words in ("<h1>ads</h1>", "What speed costs", "Why this plan", "embedding"):
        assert words in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ads.json", "plan.html"]


def test_a_page_of_a_plan_with_a_margin_has_no_frontier(problem_file: str, tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "plan.html"
    table(capsys, "--problem", problem_file, "--robust", "10%", "--html", str(target))
    assert "What speed costs" not in target.read_text()


def test_without_a_plan_there_is_no_page(tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "plan.html"
    name = write(tmp_path, "ads.json", minSamplesPerSecond=1e9)
    assert main(["plan", "--problem", name, "--html", str(target)]) == 3
    assert not target.exists()


def test_a_page_that_cannot_be_written_is_named(problem_file: str, tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "plan.html"
    target.mkdir()
    assert main(["plan", "--problem", problem_file, "--html", str(target)]) == 2
    assert f"--html {target}: cannot be written (Is a directory)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--what-if", "gpuu.maxUnits=1"), "gpuu.maxUnits: unknown pool 'gpuu'; did you mean 'gpu'?"),
        (("--what-if", "gpu.maxUnits"), "must be NAME=VALUE"),
        (("--what-if", "gpu.maxUnits=1", "--frontier", "a.png"), "--frontier: cannot be combined with --what-if"),
        (("--what-if", "gpu.maxUnits=1", "--html", "a.html"), "--html: cannot be combined with --what-if"),
        (("--html", "a.pdf"), "--html a.pdf: must end in .html or .htm"),
        (("--html", "none/a.html"), "--html none/a.html: its folder does not exist"),
        (("--problem", "b.json", "--html", "a.html"), "--html: is for one problem, --problem is given 2 times"),
        (("--compare", "--method", "cpu"), "--method: cannot be combined with --compare; leave one of them out"),
        (("--prices", "none.csv"), "--prices none.csv: cannot be read"),
        (("--prices", "none.csv", "--robust", "5%"), "--robust: cannot be combined with --prices"),
        (("--restart-seconds", "5"), "--restart-seconds: is for --prices FILE only"),
        (("--draw", "a.png"), "--draw: is for --prices FILE only"),
        (("--prices", "a.csv", "--draw", "a.doc"), "--draw a.doc: must end in .png, .svg or .pdf"),
        (("--robust", "5%", "--stages", "s.json"), "--stages: cannot be combined with --robust"),
        (("--problem", "b.json", "--compare"), "--compare: is for one problem, --problem is given 2 times"),
        (("--method", "geneticc"), "unknown method 'geneticc'; did you mean 'genetic'?"),
    ],
)
def test_options_that_do_not_fit_are_explained(
    problem_file: str, arguments: tuple[str, ...], words: str, capsys: Any
) -> None:
    assert main(["plan", "--problem", problem_file, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--robust", "ten"),
        ("--robust", "0"),
        ("--robust", "110%"),
        ("--robust", "nan"),
        ("--seed", "-1"),
        ("--seed", "1.5"),
        ("--timeout", "0"),
        ("--horizon-seconds", "0"),
        ("--restart-seconds", "-1"),
        ("--pod-start-seconds", "inf"),
    ],
)
def test_values_of_the_wrong_kind_are_shown(problem_file: str, option: str, value: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        main(["plan", "--problem", problem_file, f"{option}={value}"])
    assert end.value.code == 2
    assert f"argument {option}: must be" in (message := capsys.readouterr().err)
    assert repr(value) in message


def interrupting(inner: Callable[[Task], Found]) -> Callable[[Task], Found]:
    """A method that is interrupted by Ctrl-C."""

    def find(task: Task) -> Found:
        os.kill(os.getpid(), signal.SIGINT)
        assert task.should_stop()
        return inner(task)

    return find


def test_ctrl_c_gives_the_best_plan_so_far(problem_file: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    best = METHODS["optimal"]

    def found_before(task: Task) -> Found:
        found = best(Task(task.problem, task.segments))
        os.kill(os.getpid(), signal.SIGINT)
        return Found(found.choice)

    monkeypatch.setitem(METHODS, "gpu", found_before)
    assert main(["plan", "--problem", problem_file, "--method", "gpu", "--output", "json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["feasible"]
    assert "interrupted: what follows is the best plan so far" in err
    assert main(["plan", "--problem", problem_file, "--method", "gpu"]) == 0
    out = capsys.readouterr().out
    assert "not all examined: the search was stopped" in out
    assert "some are left out: the search was stopped" in out
    assert main(["plan", "--problem", problem_file, "--method", "gpu", "--frontier", "none.csv"]) == 0
    out, err = capsys.readouterr()
    assert "the frontier is left out" in err
    assert "not all examined" in out


@pytest.mark.parametrize(("arguments", "limit"), [((), 120.0), (("--timeout", "7"), 7.0)])
def test_a_problem_has_a_time_limit(
    problem_file: str, arguments: tuple[str, ...], limit: float, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float | None] = []

    def opened(console: Any, seconds: float | None) -> Any:
        limits.append(seconds)
        return open_search(console, seconds)

    monkeypatch.setattr("heterps_operator.cli.plan.open_search", opened)
    assert main(["plan", "--problem", problem_file, *arguments]) == 0
    assert limits == [limit]


def test_ctrl_c_before_any_plan_ends_with_130(problem_file: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "optimal", interrupting(METHODS["optimal"]))
    assert main(["plan", "--problem", problem_file, "--output", "json"]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert "interrupted before any plan was found" in err


def test_ctrl_c_leaves_out_the_methods_that_are_left(
    problem_file: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = {"optimal": METHODS["optimal"], "brute-force": METHODS["brute-force"], "gpu": METHODS["gpu"]}
    monkeypatch.setattr("heterps_operator.cli.plans.compare.METHODS", methods)
    monkeypatch.setitem(METHODS, "brute-force", interrupting(METHODS["brute-force"]))
    result = answer(capsys, "--problem", problem_file, "--compare")
    assert result["leftOut"] == ["gpu"]
    assert [one["stopped"] for one in result["methods"]] == [False, True]


def test_a_second_ctrl_c_ends_the_command() -> None:
    before = signal.getsignal(signal.SIGINT)  # background jobs of a shell ignore it
    with open_search(None, None) as search:
        os.kill(os.getpid(), signal.SIGINT)
        assert search.interrupted
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_what_interruptions_cost_is_part_of_the_cost_and_of_the_text(tmp_path: Path, capsys: Any) -> None:
    pools = document()["pools"]
    pools[1] |= {"interruptionsPerUnitHour": 2.0}
    path = write(tmp_path, "spot.json", pools=pools, interruption={"workerSeconds": 36})
    before, after = answer(capsys, "--problem", write(tmp_path, "plain.json")), answer(capsys, "--problem", path)
    [card] = [stage for stage in after["stages"] if stage["pool"] == "gpu"]
    lost = 2.0 * card["units"] * 36 / 3600
    assert after["lostTime"] == pytest.approx(lost)
    assert after["cost"] == pytest.approx(before["cost"] * (1 + lost))
    assert after["optimal"]
    money = after["cost"] - before["cost"]
    text = " ".join(table(capsys, "--problem", path).split())
    assert f"interruptions 2 per hour are expected to cost 2.00% of the time and ${money:.2f}" in text
    assert "interruptions" not in table(capsys, "--problem", str(tmp_path / "plain.json"))
    other = answer(capsys, "--problem", path, "--what-if", "gpu.interruptionsPerUnitHour=0")
    assert other["whatIf"]["cost"] == pytest.approx(before["cost"])
