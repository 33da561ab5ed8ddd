"""Servers copy rows for a change while the job trains: what changes and what goes meanwhile follows at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_LOST, PATH_PLAN, PATH_STOP
from heterps_runtime.coordinator.membership.copy_rounds import CopyRounds
from heterps_runtime.errors import ProtocolError
from heterps_runtime.ps import recovery as recovery_module
from heterps_runtime.ps import server as server_module
from heterps_runtime.ps.recovery import Recovery, answer
from heterps_runtime.ps.shard import Shard
from heterps_runtime.store import keyed, notes
from heterps_runtime.store.notes import ALL
from heterps_runtime.wire.messages import CopyRows, CopyShard, ShardRows, ShardState
from tests.heterps_runtime.helpers.held_copies import HeldCopies
from tests.heterps_runtime.helpers.jobs import PATIENCE_SECONDS, ThreadedJob, plan_document, trained_model
from tests.heterps_runtime.helpers.plain_torch import train
from tests.heterps_runtime.helpers.state_moves import TWO, ended, reasons, with_all_state
from tests.same_model import assert_same_model

pytestmark = pytest.mark.slow

# Meanwhile, and after the change, more steps than the rules let rows and candidates be unused.
STEPS, BEGIN, MEANWHILE = 60, 15, 25


class Copies:
    """Holds copies ahead when they have some rows, and counts what is copied.

    Attributes:
        go_on: whether they may go on.
        fails: makes them fail instead, once they may go on.
        held: copies that were held: one of each server that gets rows, in each round.
        num_ahead: rows that were copied ahead.
        num_since: rows that were copied because they had changed since, and keys of those that were removed.
        full_in: generations in which all rows of a part were asked for.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = False
        self._gone_on: list[Recovery] = []  # those that may
        self.fails = False
        self.held: list[Recovery] = []
        self.num_ahead = 0
        self.num_since = [0, 0]
        self.full_in: set[int] = set()
        monkeypatch.setattr(keyed, "rows_of_piece", lambda row_nbytes: 64)
        self._counting(monkeypatch)
        self._copies = HeldCopies(monkeypatch, self._holds)
        for module in (server_module, recovery_module):
            monkeypatch.setattr(module, "answer", self._answering)

    def let_go(self) -> None:
        """Let all copies go on."""
        self.go_on = True
        self._copies.look_again()

    def begin_round(self) -> None:
        """Let copies that are held go on, but not those of the next round."""
        self._gone_on = list(self.held)
        self._copies.look_again()

    def _holds(self, recovery: Recovery) -> bool:
        if recovery.lineage or not recovery.num_rows:
            return False
        if self.go_on or recovery in self._gone_on:
            if self.fails:
                raise ProtocolError("failed by a test")
            return False
        if recovery not in self.held:
            self.held.append(recovery)
        return True

    def _counting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        advance = Recovery.advance

        def advancing(recovery: Recovery) -> bool:
            before = recovery.num_rows
            done = advance(recovery)
            self.num_ahead += (recovery.num_rows - before) * (recovery.lineage == 0)
            return done

        monkeypatch.setattr(Recovery, "advance", advancing)

    def _answering(self, shard: Shard, request: CopyShard | CopyRows) -> ShardState | ShardRows:
        answered = answer(shard, request)
        if isinstance(request, CopyRows) and isinstance(answered, ShardRows):
            if request.since == ALL:
                self.full_in.add(request.generation)
            else:
                self.num_since[0] += len(answered.keys)
                self.num_since[1] += len(answered.removed)
        return answered


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(monkeypatch)


def _document(work: Path, replication: int = 1) -> dict[str, Any]:
    """A job with all kinds of state, and without a checkpoint to go back to."""
    document = with_all_state(work, STEPS)
    document["job"]["spec"]["checkpoint"]["everySteps"] = 1000
    document["job"]["spec"]["parameterServer"]["replication"] = replication
    document["job"]["spec"]["runPolicy"]["hangTimeoutSeconds"] = 2 * PATIENCE_SECONDS
    return document


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("copied-ahead")


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, Any]:
    """The model of `_document`, as plain PyTorch trains it."""
    return train(RunConfig.from_json(_document(folder / "plain")), torch.float64)


def _begin(job: ThreadedJob, before: int, after: int, copies: Copies) -> None:
    """Begin a change of the number of servers, and wait until some rows are copied; no step is committed meanwhile."""
    job.start(TWO, before, hold_at=BEGIN)
    job.credentials.request("PUT", PATH_PLAN, plan_document(TWO, after))
    for index in range(before, after):
        job.start_server(index)
    job.wait(lambda status: bool(copies.held))


def _finish(job: ThreadedJob, copies: Copies) -> None:
    """Let the servers copy the rest, and training go on to its end after the change."""
    copies.let_go()
    job.wait(lambda status: "ServersChanged" in reasons(status))
    job.hold()


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch, copies: Copies) -> None:
    """Let copies of any size be followed by another round until they may go on. A few marks are read at a time."""
    monkeypatch.setattr(CopyRounds, "another_pays", lambda _: not copies.go_on)
    monkeypatch.setattr(keyed, "_MARKS_READ", 50)


def _go_round(job: ThreadedJob, copies: Copies, step: int) -> None:
    """Train to a step, and let the one server that gets rows begin the next round."""
    job.hold_at(step)
    held = len(copies.held)
    copies.begin_round()
    job.wait(lambda status: len(copies.held) > held)
    assert "ServersChanged" not in reasons(job.status())


def _await_servers(job: ThreadedJob, servers: int) -> None:
    names = {f"ps-{index}" for index in range(servers)}
    job.wait(lambda status: {m["name"] for m in status["members"] if m["role"] == "ps"} == names)


@pytest.mark.parametrize(
    ("before", "after", "replication"), [(1, 2, 1), (2, 3, 1), (2, 1, 1), (5, 3, 1), (2, 4, 2), (3, 2, 2)]
)
def test_steps_are_committed_while_rows_are_copied(
    before: int, after: int, replication: int, folder: Path, expected: dict[str, Any], copies: Copies
) -> None:
    """Rows change meanwhile, are evicted, and come back; candidates get rows."""
    job = ThreadedJob(_document(folder / f"{before}-{after}", replication))
    _begin(job, before, after, copies)
    job.hold_at(BEGIN + MEANWHILE)
    assert "ServersChanged" not in reasons(job.status())
    _finish(job, copies)
    status = ended(job)
    assert reasons(status).count("ServersChanged") == 1
    assert not {"RolledBack", "MemberLost", "MemberRejoined"} & set(reasons(status))
    assert sum(m["role"] == "ps" for m in status["members"]) == after
    assert copies.num_ahead > 100
    assert min(copies.num_since) > 0
    assert len(copies.full_in) == 1, "the next generation asks for changes only"
    assert_same_model(trained_model(status), expected)


@pytest.mark.usefixtures("rounds")
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_what_has_changed_is_copied_in_rounds(
    before: int, after: int, folder: Path, expected: dict[str, Any], copies: Copies
) -> None:
    job = ThreadedJob(_document(folder / f"rounds-{before}-{after}"))
    _begin(job, before, after, copies)
    removed = []
    for step in (BEGIN + 7, BEGIN + 14, BEGIN + MEANWHILE):
        _go_round(job, copies, step)
        removed.append(copies.num_since[1])
    copies.let_go()
    job.wait(lambda status: "ServersChanged" in reasons(status))
    job.hold()
    status = ended(job)
    assert not {"RolledBack", "MemberLost", "MemberRejoined"} & set(reasons(status))
    assert removed == sorted(set(removed)), "rows are evicted in each round"
    assert len(copies.full_in) == 1
    assert_same_model(trained_model(status), expected)


@pytest.mark.usefixtures("rounds")
def test_a_round_that_fails_loses_nothing_of_the_rounds_before(
    folder: Path, expected: dict[str, Any], copies: Copies
) -> None:
    job = ThreadedJob(_document(folder / "round-fails"))
    _begin(job, 1, 2, copies)
    _go_round(job, copies, BEGIN + 12)
    job.hold_at(BEGIN + MEANWHILE)
    copies.fails = True
    _finish(job, copies)
    status = ended(job)
    assert not {"RolledBack", "MemberLost", "MemberRejoined"} & set(reasons(status))
    assert len(copies.full_in) == 1, "the next generation asks for changes only"
    assert_same_model(trained_model(status), expected)


@pytest.mark.usefixtures("rounds")
def test_a_generation_copies_all_if_notes_end_during_a_round(
    folder: Path, expected: dict[str, Any], copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows are evicted than a server keeps in mind. It trains on."""
    job = ThreadedJob(_document(folder / "notes-end"))
    _begin(job, 1, 2, copies)
    _go_round(job, copies, BEGIN + 12)
    monkeypatch.setattr(notes, "_MOST_REMOVED", 0)
    job.hold_at(BEGIN + MEANWHILE)
    _finish(job, copies)
    status = ended(job)
    assert not {"RolledBack", "MemberLost", "MemberRejoined"} & set(reasons(status))
    assert len(copies.full_in) == 2
    assert_same_model(trained_model(status), expected)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (2, 1)])
def test_checkpoints_meanwhile_have_the_rows_of_before(
    before: int, after: int, folder: Path, expected: dict[str, Any], copies: Copies
) -> None:
    """Increments, too. The job is stopped while servers copy ahead, and goes on with yet another number of them."""
    document = _document(folder / f"checkpoints-{before}-{after}")
    document["job"]["spec"]["checkpoint"]["everySteps"] = 7
    job = ThreadedJob(document)
    _begin(job, before, after, copies)
    job.hold_at(BEGIN + MEANWHILE)
    job.credentials.request("POST", PATH_STOP)
    status = ended(job)
    assert status["phase"] == "Stopped"
    assert "ServersChanged" not in reasons(status)
    again = ThreadedJob(document)
    again.start(TWO, 4)
    status = ended(again)
    assert status["resumedFromStep"] == BEGIN + MEANWHILE
    assert_same_model(trained_model(status), expected)


def test_a_copy_that_fails_is_made_when_the_generation_begins(
    folder: Path, expected: dict[str, Any], copies: Copies
) -> None:
    job = ThreadedJob(_document(folder / "fails"))
    _begin(job, 1, 2, copies)
    copies.fails = True
    _finish(job, copies)
    status = ended(job)
    assert reasons(status).count("ServersChanged") == 1
    assert not {"RolledBack", "MemberLost", "MemberRejoined"} & set(reasons(status))
    assert len(copies.full_in) == 2
    assert_same_model(trained_model(status), expected)


def test_a_generation_in_between_makes_servers_copy_again(
    folder: Path, expected: dict[str, Any], copies: Copies
) -> None:
    """A worker is lost and joins again. What the new server had by then is worth nothing: no notes are kept."""
    job = ThreadedJob(_document(folder / "between"))
    _begin(job, 1, 2, copies)
    generation = job.status()["generation"]
    job.credentials.request("POST", PATH_LOST, {"member": "worker-0-1", "reason": "lost by a test"})
    job.wait(lambda status: status["generation"] > generation)
    job.wait_for_member("worker-0-1")
    job.hold(BEGIN + MEANWHILE)  # it takes part again after a commit
    job.wait(lambda status: len(copies.held) > 1)
    _finish(job, copies)
    status = ended(job)
    assert reasons(status).count("ServersChanged") == 1
    assert "RolledBack" not in reasons(status)
    assert_same_model(trained_model(status), expected)


def test_a_new_server_that_dies_is_replaced_and_training_goes_on(
    folder: Path, expected: dict[str, Any], copies: Copies, lose: Callable[..., None]
) -> None:
    job = ThreadedJob(_document(folder / "dies"))
    _begin(job, 1, 2, copies)
    lose(job, "ps-1")
    job.wait(lambda status: len(copies.held) > 1)
    job.hold_at(BEGIN + MEANWHILE)
    _finish(job, copies)
    status = ended(job)
    assert reasons(status).count("ServersChanged") == 1
    assert "RolledBack" not in reasons(status)
    assert_same_model(trained_model(status), expected)


def test_a_change_that_is_given_up_leaves_no_trace(folder: Path, expected: dict[str, Any], copies: Copies) -> None:
    """The plan with the servers of before comes while rows are copied ahead."""
    job = ThreadedJob(_document(folder / "given-up"))
    _begin(job, 1, 2, copies)
    job.credentials.request("PUT", PATH_PLAN, plan_document(TWO, 1))
    _await_servers(job, 1)
    copies.let_go()
    job.hold()
    status = ended(job)
    assert not {"ServersChanged", "RolledBack"} & set(reasons(status))
    assert_same_model(trained_model(status), expected)
