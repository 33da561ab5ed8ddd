"""What `heterps operator` puts together: whatever acts asks the Lease first, and the Lease has requests of its own."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from heterps_operator.__main__ import main
from heterps_operator.cli import operator as operator_module
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.lease import Lease
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.loop.coordinator_client import CoordinatorClient, CoordinatorError
from heterps_operator.state.values import RequestStop
from heterps_runtime.clock import steady_time

Json = Mapping[str, Any]
LEASE_SECONDS = 20


class Client:
    """A client of an API server that has no Lease yet."""

    def __init__(self, seconds: float | None = None, may_write: Callable[[], bool] | None = None) -> None:
        self.seconds = seconds  # of a request; None: patient
        self.may_write = may_write

    def impatient(self, seconds: float) -> Client:
        return Client(seconds=seconds)

    def fenced(self, may_write: Callable[[], bool]) -> Client:
        return Client(may_write=may_write)

    def server_time(self) -> float:
        assert self.seconds == LEASE_SECONDS / 5, "a request that hangs must not cost the Lease"
        return steady_time()

    def get(self, path: str) -> None:
        self._lease(path)

    def create(self, path: str, body: Json) -> Json:
        self._lease(path)
        return body

    def _lease(self, path: str) -> None:
        assert "/leases" in path
        assert self.seconds == LEASE_SECONDS / 5, "a request that hangs leaves time for others"


@pytest.fixture
def few_files() -> Iterator[int]:
    """Processes may have 512 files open, unless they ask for more; returns how many they may ask for."""
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, most))
    yield most
    resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))


def test_whatever_acts_asks_the_lease_and_each_job_may_have_a_connection(
    monkeypatch: pytest.MonkeyPatch, few_files: int
) -> None:
    held, made = [True], list[OperatorContext]()

    class Supervised:
        """Begins nothing, and looks at what it was given."""

        def __init__(self, cluster: OperatorContext, **_: Any) -> None:
            made.append(cluster)

        def start(self) -> None:
            raise ApiError(0, "NoAnswer", "it is not needed")

        def stop(self) -> None:
            pass

    monkeypatch.setattr(operator_module, "connect", lambda *_, **__: Client())
    monkeypatch.setattr(operator_module, "log_to_stderr", lambda form, verbose: None)
    monkeypatch.setattr(operator_module, "Supervisor", Supervised)
    monkeypatch.setattr(Lease, "is_held", lambda lease: held[0])
    options = ["--metrics-port=0", "--lease-namespace=heterps-system", f"--lease-seconds={LEASE_SECONDS}"]
    assert main(["operator", *options]) != 0
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (few_files, few_files)
    [cluster] = made
    api: Any = cluster.api
    assert api.may_write is not None
    assert api.may_write()
    coordinator = cluster.connect("http://127.0.0.1:9", "token")
    assert isinstance(coordinator, CoordinatorClient)
    held[0] = False
    assert not api.may_write()
    with pytest.raises(CoordinatorError, match="no longer holds the Lease"):
        coordinator.send(RequestStop())


def test_a_limit_of_open_files_that_cannot_be_raised_is_told_and_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(what: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(operator_module, "connect", lambda *_, **__: Client())
    monkeypatch.setattr(operator_module, "log_to_stderr", lambda form, verbose: None)
    monkeypatch.setattr(Lease, "acquire", lambda lease, stop: False)
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert main(["operator", "--metrics-port=0", "--lease-namespace=heterps-system"]) == 0
    assert "cannot be raised to" in caplog.text
