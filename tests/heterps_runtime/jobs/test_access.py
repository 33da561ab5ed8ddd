"""Whole jobs whose ids get a row after some steps and lose it: the same model on any plan, and after deaths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_runtime.checkpoint import Storage, find_latest
from heterps_runtime.checkpoint.survey import count_rows
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_STOP, JobPhase
from heterps_runtime.errors import UserError
from heterps_runtime.ps import shard
from heterps_runtime.worker.model import UserModel
from tests.heterps_runtime.helpers.jobs import Stage, ThreadedJob, configuration, finish, run_job, trained_model
from tests.heterps_runtime.helpers.plain_torch import Again, train
from tests.same_model import TOLERANCE, assert_same_model, difference

STEPS, LAST, ROWS = 60, 10, 4000  # LAST: last layer of models.Flights
TAIL = "embeddings.tail.weight"
RULES: list[dict[str, Any]] = [
    {"name": TAIL, "admission": {"minSteps": 2, "unusedSteps": 9}, "eviction": {"unusedSteps": 16}},
    {"name": "embeddings.*est.weight", "eviction": {"unusedSteps": 5}},
]
ONE: list[Stage] = [("cpu", LAST, 1)]
TWO: list[Stage] = [("cpu", 4, 2), ("cpu", LAST, 1)]


@pytest.fixture(autouse=True)
def increments_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "builds_on", lambda *_: True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access")


def document(work: Path, rules: list[dict[str, Any]] = RULES) -> dict[str, Any]:
    made = configuration(work, rows=ROWS, steps=STEPS)
    made["job"]["spec"]["checkpoint"] |= {"everySteps": 3, "increments": "Enabled"}
    made["job"]["spec"]["model"]["tables"] = rules
    return made


@pytest.fixture(scope="module")
def plain(folder: Path) -> dict[str, Any]:
    """What plain PyTorch trains in one go, with the same rules."""
    return train(RunConfig.from_json(document(folder / "plain")), torch.float64)


@pytest.mark.slow
def test_a_job_trains_what_plain_pytorch_trains_with_the_same_rules(folder: Path, plain: dict[str, Any]) -> None:
    """On any plan; and it says how many rows came and went."""
    plans: list[tuple[list[Stage], int]] = [(ONE, 1), (TWO, 3), ([("cpu", 3, 1), ("card", LAST, 2)], 2)]
    counted = []
    for stages, servers in plans:
        made = document(folder / f"{len(stages)}-{servers}")
        status = run_job(made, stages, servers)
        assert_same_model(trained_model(status), plain)
        counted.append(status["rows"])
        manifest, _ = find_latest(storage := Storage.open(RunConfig.from_json(made).checkpoint_path))
        assert manifest is not None
        assert status["rows"]["stored"] == count_rows(storage, manifest)
    assert min(counted[0]["candidates"], counted[0]["admitted"], counted[0]["evicted"]) > 50
    assert counted[1:] == counted[:1] * 2


@pytest.mark.parametrize("without", [("admission", 0), ("eviction", 0), ("eviction", 1)])
def test_the_comparison_sees_each_rule(without: tuple[str, int], folder: Path, plain: dict[str, Any]) -> None:
    kind, number = without
    rules = [{**rule} for rule in RULES]
    del rules[number][kind]
    made = document(folder / f"without-{kind}-{number}", rules)
    other = train(RunConfig.from_json(made), torch.float64)
    assert max(difference(other[name], plain[name]) for name in plain) > 1e6 * TOLERANCE


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_a_job_goes_on_from_a_checkpoint_with_another_number_of_servers(
    before: int, after: int, folder: Path, plain: dict[str, Any]
) -> None:
    made = document(folder / f"servers-{before}-{after}")
    job = ThreadedJob(made)
    job.start(TWO, before)
    job.wait(lambda status: (status["checkpoint"]["lastStep"] or 0) >= 20)
    job.credentials.request("POST", PATH_STOP)
    stopped = job.wait()
    job.close()
    assert 20 <= stopped["committedSteps"] < STEPS
    status = finish(ThreadedJob(made), ONE, after)
    assert status["resumedFromStep"] == stopped["committedSteps"]
    assert_same_model(trained_model(status), plain)


def test_a_lost_server_comes_back_with_what_it_had_counted(folder: Path, plain: dict[str, Any]) -> None:
    made = document(folder / "lost")
    job = ThreadedJob(made)
    process = job.start(TWO, 3, as_process="ps-1")
    assert process is not None
    job.wait(lambda status: (status["checkpoint"]["lastStep"] or 0) >= 20)
    job.kill(process, "ps-1")
    job.start_server(1)
    status = job.wait()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    assert [event["reason"] for event in status["events"]].count("GenerationFormed") >= 2
    assert_same_model(trained_model(status), plain)
    manifest, _ = find_latest(Storage.open(RunConfig.from_json(made).checkpoint_path))
    assert manifest is not None
    assert {t.name: (t.min_steps, t.unused_steps) for t in manifest.tables if t.period} == {
        TAIL: (2, 16),
        "embeddings.dest.weight": (None, 5),
    }


def test_two_jobs_count_on_as_one_does(folder: Path) -> None:
    """The second begins with the state of the first, on other data: with last steps and candidates."""
    steps = 20  # of a job
    first, second = (document(folder / f"day-{day}") for day in (1, 2))
    for made in (first, second):
        made["job"]["spec"]["training"]["steps"] = steps
    path = str(Path(first["workDirectory"]) / "checkpoints")
    second["job"]["spec"]["model"]["initFrom"] = {"path": path, "optimizerState": "Keep"}
    assert run_job(first, TWO, 2)["phase"] == JobPhase.SUCCEEDED
    status = run_job(second, ONE, 3)
    both = document(folder / "both-days")
    both["job"]["spec"]["training"]["steps"] = 2 * steps
    config = RunConfig.from_json(both)
    assert_same_model(trained_model(status), train(config, torch.float64, Again(config, steps)))


def test_a_job_that_takes_the_values_over_counts_anew(folder: Path) -> None:
    """Its rows are as old as the job; there are no candidates."""
    first, second = (document(folder / f"model-{number}") for number in (1, 2))
    path = str(Path(first["workDirectory"]) / "checkpoints")
    second["job"]["spec"]["model"]["initFrom"] = {"path": path}
    second["job"]["spec"]["training"]["steps"] = 4  # fewer than any rule has
    before = run_job(first, ONE, 1)["rows"]
    after = run_job(second, ONE, 2)["rows"]
    assert after["evicted"] == 0
    assert after["stored"] >= before["stored"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("embeddings.tial.*", "fits no table"),
        ("*.dest.*", "fits only tables that an entry before it has"),
    ],
)
def test_a_name_that_fits_no_table_is_refused_with_the_names_of_tables(name: str, why: str, folder: Path) -> None:
    rules = [*RULES, {"name": name, "eviction": {"unusedSteps": 5}}]
    config = RunConfig.from_json(document(folder / "misspelt", rules))
    with pytest.raises(UserError) as caught:
        UserModel.build(config, None)
    assert str(caught.value).startswith(f"model.tables[2].name: {name!r} {why}; the tables of the model are embeddings")
    assert TAIL in str(caught.value)
