"""A damaged message of a member: what it said may matter, so the member joins again. Last words count, too."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from heterps_runtime.contract import PATH_PLAN, Role
from heterps_runtime.coordinator.core import CoordinatorCore
from heterps_runtime.wire.link import ControlLink
from heterps_runtime.wire.messages import Failed, FromMember, Join, Pulse, Rejoin
from tests.heterps_runtime.helpers.jobs import ThreadedJob, configuration, plan_document


def test_a_member_whose_message_is_damaged_is_asked_to_join_again(tmp_path: Path) -> None:
    job = ThreadedJob(configuration(tmp_path / "job"))
    job.credentials.request("PUT", PATH_PLAN, plan_document([("cpu", 10, 1)], 1))
    link = ControlLink(job.credentials, "ps-0")
    link.join(Join(Role.PS, 0, "cpu", "tcp://127.0.0.1:1", 0, lineage=0, version=-1))
    job.wait(lambda status: any(m["name"] == "ps-0" and m["state"] == "joined" for m in status["members"]))
    socket = link.pollables[0]
    socket.send_multipart([b"damaged " * 3, b"{}"])
    assert socket.poll(20_000)
    assert link.receive() == Rejoin(1)
    [lost] = [e["message"] for e in job.status()["events"] if e["reason"] == "MemberLost"]
    assert lost == "ps-0: received a malformed message: its checksum is wrong"
    link.close()
    job.close()


def test_the_last_words_of_a_member_are_heard_after_the_end_of_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, handle = threading.Event(), CoordinatorCore.handle

    def held(core: CoordinatorCore, sender: str, incarnation: str, message: FromMember) -> None:
        """Handle a pulse when the connection has ended: what was sent after it waits to be read."""
        assert not isinstance(message, Pulse) or closed.wait(60)
        handle(core, sender, incarnation, message)

    job = ThreadedJob(configuration(tmp_path / "job"))
    job.credentials.request("PUT", PATH_PLAN, plan_document([("cpu", 10, 1)], 1))
    link = ControlLink(job.credentials, "ps-0")
    link.join(Join(Role.PS, 0, "cpu", "tcp://127.0.0.1:1", 0, lineage=0, version=-1))
    job.wait(lambda status: any(m["name"] == "ps-0" and m["state"] == "joined" for m in status["members"]))
    monkeypatch.setattr(CoordinatorCore, "handle", held)
    link.send(Pulse(1, "starting", {}))
    link.send(Failed("BadInput", "row 42", permanent=True))
    link.close()
    closed.set()
    status = job.wait(lambda status: status["phase"] == "Failed")
    assert status["error"] == {"reason": "BadInput", "message": "ps-0: row 42"}
    job.close()


def test_a_member_that_cannot_read_its_figures_still_pulses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The end of the pulse looked like the end of the member."""
    job = ThreadedJob(configuration(tmp_path / "job"))
    job.credentials.request("PUT", PATH_PLAN, plan_document([("cpu", 10, 1)], 1))
    link = ControlLink(job.credentials, "ps-0")
    link.join(Join(Role.PS, 0, "cpu", "tcp://127.0.0.1:1", 0, lineage=0, version=-1))

    def shown(words: str) -> None:
        link.status = words
        job.wait(lambda status: any((m["name"], m["message"]) == ("ps-0", words) for m in status["members"]))

    def totals() -> dict[str, float]:
        raise KeyError(link.status)

    shown("all is well")
    link.totals = totals
    for words in ("a figure is missing", "and is missing still"):
        shown(words)
    link.close()
    job.close()
    assert capsys.readouterr().err.count("KeyError: ") == 1
