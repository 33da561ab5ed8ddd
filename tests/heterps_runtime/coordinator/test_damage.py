"""A damaged message of a member: what it said may matter, so the member joins again."""

from __future__ import annotations

from pathlib import Path

from heterps_runtime.contract import PATH_PLAN, Role
from heterps_runtime.wire.link import ControlLink
from heterps_runtime.wire.messages import Join, Rejoin
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
