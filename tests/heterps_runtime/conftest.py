"""Settings and fixtures that all runtime tests share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from heterps_runtime.contract import PATH_LOST
from heterps_runtime.ps.server import ParameterServer
from tests.heterps_runtime.helpers.jobs import ThreadedJob


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tests run beside each other on few cores, and sums must not depend on the number of threads."""
    torch.set_num_threads(1)


def _forget_all(server: ParameterServer) -> None:
    """Make a server one that has just started."""
    server._holding.drop()
    server._lineage = 0


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let servers that are threads lose their state, as by a restart of their processes."""
    victims: set[str] = set()
    join = ParameterServer._join

    def joining(server: ParameterServer) -> None:
        if server._link.name in victims:
            victims.remove(server._link.name)
            _forget_all(server)
        join(server)

    def losing(job: ThreadedJob, *names: str) -> None:
        victims.update(names)
        for name in names:
            job.credentials.request("POST", PATH_LOST, {"member": name, "reason": "lost by a test"})
        job.wait(lambda status: not victims)

    monkeypatch.setattr(ParameterServer, "_join", joining)
    return losing
