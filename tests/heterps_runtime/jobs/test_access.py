"""Whole jobs whose ids get a row after some steps and lose it: the same model on any plan, and after deaths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_runtime.checkpoint import Storage, find_latest
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_STOP
from heterps_runtime.errors import UserError
from heterps_runtime.ps import shard
from heterps_runtime.worker.model import UserModel
from tests.heterps_runtime.helpers.jobs import Stage, ThreadedJob, configuration, finish, run_job, trained_model
from tests.heterps_runtime.helpers.plain_torch import train
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


@pytest.mark.parametrize(
    ("stages", "servers"), [(ONE, 1), (TWO, 3), ([("cpu", 3, 1), ("card", LAST, 2)], 2)], ids=["one", "two", "card"]
)
def test_a_job_trains_what_plain_pytorch_trains_with_the_same_rules(
    stages: list[Stage], servers: int, folder: Path, plain: dict[str, Any]
) -> None:
    status = run_job(document(folder / f"{len(stages)}-{servers}"), stages, servers)
    assert_same_model(trained_model(status), plain)


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
