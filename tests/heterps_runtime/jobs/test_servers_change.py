"""Another number of parameter servers while the job runs: rows and dense parameters move, and no step is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_LOST, PATH_PLAN
from heterps_runtime.errors import ProtocolError
from heterps_runtime.ps.recovery import Recovery
from heterps_runtime.store import keyed
from tests.counting import assert_every_sample_counted
from tests.heterps_runtime.helpers.held_copies import HeldCopies
from tests.heterps_runtime.helpers.jobs import (
    PATIENCE_SECONDS,
    Stage,
    ThreadedJob,
    configuration,
    counting_configuration,
    plan_document,
    trained_model,
)
from tests.heterps_runtime.helpers.plain_torch import train
from tests.heterps_runtime.helpers.state_moves import (
    BATCH,
    COUNTING,
    MIXED,
    RULES,
    SAMPLES,
    STEPS,
    TWO,
    ended,
    reasons,
    with_all_state,
)
from tests.same_model import assert_same_model

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move takes many messages."""
    monkeypatch.setattr(keyed, "rows_of_piece", lambda row_nbytes: 64)


def _never_saved(document: dict[str, Any], replication: int = 1) -> dict[str, Any]:
    """A job without a checkpoint to go back to."""
    document["job"]["spec"]["checkpoint"]["everySteps"] = 1000
    document["job"]["spec"]["parameterServer"]["replication"] = replication
    document["job"]["spec"]["runPolicy"]["hangTimeoutSeconds"] = 2 * PATIENCE_SECONDS
    return document


def _begin_change(job: ThreadedJob, stages: list[Stage], before: int, after: int) -> None:
    job.credentials.request("PUT", PATH_PLAN, plan_document(stages, after))
    for index in range(before, after):
        job.start_server(index)


def _change(job: ThreadedJob, stages: list[Stage], before: int, after: int, at: int) -> None:
    """Change the number of servers at a step."""
    job.hold_at(at)
    generation = job.status()["generation"]
    _begin_change(job, stages, before, after)
    job.wait(lambda status: status["generation"] > generation)
    _await_servers(job, after)


def _await_servers(job: ThreadedJob, servers: int) -> None:
    names = {f"ps-{index}" for index in range(servers)}
    job.wait(lambda status: {m["name"] for m in status["members"] if m["role"] == "ps"} == names)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers-change")


def _with_everything(work: Path) -> dict[str, Any]:
    return _never_saved(with_all_state(work, 75))


@pytest.fixture(scope="module")
def with_everything(folder: Path) -> dict[str, Any]:
    """The model of `_with_everything`, as plain PyTorch trains it."""
    return train(RunConfig.from_json(_with_everything(folder / "with-everything")), torch.float64)


@pytest.mark.parametrize("stages", [TWO, MIXED])
def test_the_model_is_the_same_with_more_and_fewer_servers(
    stages: list[Stage], folder: Path, with_everything: dict[str, Any]
) -> None:
    job = ThreadedJob(_with_everything(folder / f"changes-{stages[1][0]}"))
    job.start(stages, 2, hold_at=15)
    for before, after, at in ((2, 3, 15), (3, 1, 30), (1, 2, 45)):
        _change(job, stages, before, after, at)
    job.hold()
    status = ended(job)
    assert reasons(status).count("ServersChanged") == 3
    assert not {"RolledBack", "MemberLost"} & set(reasons(status))
    assert_same_model(trained_model(status), with_everything)


@pytest.mark.parametrize(("consistency", "replication"), [("sync", 2), ("hybrid", 1), ("async", 3)])
def test_every_sample_counts_once_across_changes(consistency: str, replication: int, tmp_path: Path) -> None:
    document = counting_configuration(tmp_path / "job", consistency, SAMPLES, BATCH, steps=STEPS)
    job = ThreadedJob(_never_saved(document, replication))
    job.start(COUNTING, 3, hold_at=10)
    _change(job, COUNTING, 3, 5, at=10)
    _change(job, COUNTING, 5, 3, at=30)
    job.hold()
    status = ended(job)
    assert reasons(status).count("ServersChanged") == 2
    assert "RolledBack" not in reasons(status)
    assert_every_sample_counted(trained_model(status), BATCH, seed=3, steps=STEPS)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> list[Recovery]:
    """The first server that has copied some rows goes no further, until the change is given up.

    None are copied ahead, so that all of them move when the generation begins.
    """
    found: list[Recovery] = []

    def holds(recovery: Recovery) -> bool:
        if not recovery.lineage:
            raise ProtocolError("not in this test")
        if recovery.num_rows and not found:
            found.append(recovery)
        return recovery in found

    HeldCopies(monkeypatch, holds)
    return found


def _with_rules(work: Path) -> dict[str, Any]:
    document = _never_saved(configuration(work, rows=4000, steps=STEPS))
    document["job"]["spec"]["model"]["tables"] = RULES
    return document


@pytest.fixture(scope="module")
def with_rules(folder: Path) -> dict[str, Any]:
    """The model of `_with_rules`, as plain PyTorch trains it."""
    return train(RunConfig.from_json(_with_rules(folder / "with-rules")), torch.float64)


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("then", [1, 2, 3])
def test_a_change_that_is_interrupted_begins_again_or_is_given_up(
    after: int, then: int, folder: Path, with_rules: dict[str, Any], stuck: list[Recovery]
) -> None:
    """A worker is lost meanwhile, or a plan comes with the servers of before, or with yet another number."""
    job = ThreadedJob(_with_rules(folder / f"interrupted-{after}-{then}"))
    job.start(TWO, 2, hold_at=15)
    _begin_change(job, TWO, 2, after)
    job.wait(lambda status: bool(stuck))
    job.hold()
    if then == after:
        job.credentials.request("POST", PATH_LOST, {"member": "worker-0-1", "reason": "lost by a test"})
    else:
        _begin_change(job, TWO, max(2, after), then)
    status = ended(job)
    assert "RolledBack" not in reasons(status)
    assert reasons(status).count("ServersChanged") == (1 if then == after else 2)
    assert_same_model(trained_model(status), with_rules)


def test_a_server_that_is_lost_while_its_rows_move_takes_the_job_back_to_a_checkpoint(
    tmp_path: Path, lose: Callable[..., None], stuck: list[Recovery]
) -> None:
    document = configuration(tmp_path / "job", rows=4000, steps=STEPS)
    document["job"]["spec"]["checkpoint"]["everySteps"] = 5
    expected = train(RunConfig.from_json(document), torch.float64)
    job = ThreadedJob(document)
    job.start(TWO, 2, hold_at=12)  # two steps after a checkpoint
    _begin_change(job, TWO, 2, 3)
    job.wait(lambda status: bool(stuck))
    job.hold()
    lose(job, "ps-1")
    status = ended(job)
    assert "RolledBack" in reasons(status)
    assert sum(m["role"] == "ps" for m in status["members"]) == 3
    assert_same_model(trained_model(status), expected)


def _with_copies(work: Path) -> dict[str, Any]:
    return _never_saved(configuration(work, rows=4000, steps=2 * STEPS), replication=2)


@pytest.fixture(scope="module")
def with_copies(folder: Path) -> dict[str, Any]:
    """The model of `_with_copies`, as plain PyTorch trains it."""
    return train(RunConfig.from_json(_with_copies(folder / "with-copies")), torch.float64)


@pytest.mark.parametrize(("after", "victim"), [(4, "ps-1"), (2, "ps-0"), (2, "ps-2")])
def test_with_copies_a_server_may_be_lost_while_rows_move(
    after: int,
    victim: str,
    folder: Path,
    with_copies: dict[str, Any],
    lose: Callable[..., None],
    stuck: list[Recovery],
) -> None:
    """One that stays, or one that ends after the change: then the job does not wait for its successor."""
    job = ThreadedJob(_with_copies(folder / f"copies-{after}-{victim}"))
    job.start(TWO, 3, hold_at=12)
    _begin_change(job, TWO, 3, after)
    job.wait(lambda status: bool(stuck))
    job.hold()
    if victim in (f"ps-{index}" for index in range(after)):
        lose(job, victim)
    else:  # the change may be over before it is back
        job.credentials.request("POST", PATH_LOST, {"member": victim, "reason": "lost by a test"})
    status = ended(job)
    assert "RolledBack" not in reasons(status)
    assert sum(m["role"] == "ps" for m in status["members"]) == after
    assert_same_model(trained_model(status), with_copies)


def test_the_next_checkpoint_has_the_rows_of_the_new_servers(tmp_path: Path) -> None:
    """A job that is stopped after a change goes on from there, with yet another number of servers."""
    document = configuration(tmp_path / "job", rows=4000, steps=STEPS)
    document["job"]["spec"]["checkpoint"]["everySteps"] = 7
    document["job"]["spec"]["model"] |= {"tables": RULES, "arguments": {"hidden": [256, 192]}}
    expected = train(RunConfig.from_json(document), torch.float64)
    job = ThreadedJob(document)
    job.start(TWO, 2, hold_at=16)
    _change(job, TWO, 2, 3, at=16)
    job.hold_at(30)
    job.credentials.request("POST", "/v1/stop")
    assert ended(job)["phase"] == "Stopped"
    again = ThreadedJob(document)
    again.start(TWO, 4)
    status = ended(again)
    assert_same_model(trained_model(status), expected)
