"""The end of a connection ends the generation by itself, though no message was under way whose loss would show."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest

from heterps_runtime.coordinator import connections as coordinator
from heterps_runtime.ps import server as ps
from heterps_runtime.worker import member
from tests.counting import assert_every_sample_counted
from tests.heterps_runtime.helpers.jobs import Stage, ThreadedJob, counting_configuration, trained_model
from tests.heterps_runtime.helpers.wiretap import Wiretap

pytestmark = pytest.mark.slow

STEPS = 60
STAGES: list[Stage] = [("cpu", 0, 2), ("cpu", 2, 1)]
MOST_CUTS = 10  # with a connection, a message may be lost whose loss is noticed first


class Cutting(Wiretap):
    """Ends connections when asked to."""

    def __init__(self) -> None:
        super().__init__()
        self._clients: list[socket.socket] = []

    def _connect(self, client: socket.socket, target: tuple[str, int]) -> None:
        self._clients.append(client)
        super()._connect(client, target)

    def cut(self) -> None:
        """End all connections; new ones are forwarded."""
        clients, self._clients = self._clients, []
        for client in clients:
            with contextlib.suppress(OSError):  # it has ended already
                client.shutdown(socket.SHUT_RDWR)


def has_gone_on(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether another generation has committed a step, for which its members needed all of their connections."""
    steps = after["committedSteps"] - before["committedSteps"]
    return bool(after["running"] and after["generation"] > before["generation"] and steps > 0)


def test_the_end_of_a_connection_is_reason_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    links = {"the coordinator": coordinator, "a parameter server": ps, "the next stage": member}
    networks = {name: Cutting() for name in links}
    for name, network in networks.items():
        network.tap_listeners(monkeypatch, [links[name]])
    job = ThreadedJob(counting_configuration(tmp_path / "job", "hybrid", steps=STEPS))
    held = tmp_path / "job" / "held"
    held.touch()  # training cannot end meanwhile
    job.start(STAGES, 2)
    status, told = job.wait(lambda s: s["running"] and s["committedSteps"] > 0), ""
    for name, network in networks.items():
        words, cuts = f"joining again: the connection to {name} broke", 0
        while words not in told and cuts < MOST_CUTS:
            before, cuts = status, cuts + 1
            network.cut()
            status = job.wait(lambda s: has_gone_on(before, s))  # noqa: B023
            told += capsys.readouterr().err
        assert words in told
    held.unlink()
    status = job.wait()
    job.close()
    for network in networks.values():
        network.close()
    assert not job.failures, "\n".join(job.failures)
    lost = [e["message"] for e in status["events"] if e["reason"] == "MemberLost"]
    assert any(message.endswith(": its connection ended") for message in lost), "the coordinator sees it, too"
    assert_every_sample_counted(trained_model(status), 32, seed=3, steps=STEPS)
