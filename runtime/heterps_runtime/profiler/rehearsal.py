"""Whole steps on this pool, with real processes: a coordinator, a parameter server, and two workers, then one.

The profiler itself is the first worker. The job is the user's, without an end and with its own checkpoint folder, and
is discarded afterwards. Whole steps include what single layers do not show: waiting for acknowledgements and commits,
reading data, bookkeeping, and the interference of two workers.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import zmq

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import (
    ENV_CONFIG,
    ENV_COORDINATOR,
    ENV_TOKEN,
    PATH_LOST,
    PATH_PLAN,
    PATH_SHUTDOWN,
    PATH_STATUS,
    PATH_STOP,
    DenseExchange,
    JobPhase,
    Role,
    worker_name,
)
from heterps_runtime.cores import computing_threads, main_thread_seconds, processor_seconds
from heterps_runtime.errors import TransientError, UserError
from heterps_runtime.profiler.readings import Reading
from heterps_runtime.wire.link import ControlLink, Credentials
from heterps_runtime.wire.messages import Done, FromMember
from heterps_runtime.wire.security import LinkSecurity

if TYPE_CHECKING:  # it imports torch, which would delay the start of the processes
    from heterps_runtime.worker.member import WorkerMember

__all__ = ["Rehearsal", "RehearsalError", "Whole"]

_HOST = "127.0.0.1"
_WARM_STEPS = 4  # they create rows, fill caches, and include the time before the first step
_FEWEST_STEPS = 8
_MOST_STEPS = 100
_PHASE_SECONDS = 4.0  # a shared machine changes its speed by a tenth from second to second
_ENOUGH_SPREAD = 0.03
_PATIENCE_SECONDS = 120.0
_POLL_SECONDS = 0.05
_PHASE_POLL_SECONDS = 0.2  # this process is a worker, too, whose processor time is measured
_ASK_SECONDS = 0.5  # between requests for the job's phase, as in the controller; each costs processor time
_ENDLESS = 10**9  # steps
# Activities of a worker's clock that are its own work; the rest is waiting and bookkeeping.
_BUSY = ("lookup", "forward", "backward", "lookup-backward", "push")

_ROLES = {Role.WORKER: "workers", Role.PS: "servers", Role.COORDINATOR: "coordinator"}


class RehearsalError(UserError):
    """Training fails with this model and data; the message is the coordinator's."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Whole:
    """Whole steps of workers that share a batch."""

    workers: int
    step: Reading  # seconds from commit to commit
    busy: Reading  # seconds of a worker's own work
    steps: int  # number of measured steps
    activities: dict[str, float]  # seconds per step by the worker's clock
    processor: dict[str, float]  # processor seconds per step, by role: workers, servers, coordinator
    server_core: float  # those of the server's busiest core: of its main thread, and an equal part of all at least


class _Used(NamedTuple):
    """Processor seconds of the job's processes."""

    processor: dict[str, float]  # as in `Whole`
    server_core: float

    def since(self, earlier: _Used, steps: int) -> _Used:
        """What each of some steps has taken."""
        processor = {role: (seconds - earlier.processor[role]) / steps for role, seconds in self.processor.items()}
        return _Used(processor, (self.server_core - earlier.server_core) / steps)


class _Report(NamedTuple):
    """The first worker's report of a step."""

    at: float  # seconds by the clock of `time.perf_counter`
    generation: int
    activities: dict[str, float]  # seconds


class _RecordingLink(ControlLink):
    """The first worker's line to the coordinator, which also records the reports of steps."""

    def __init__(self, credentials: Credentials, name: str) -> None:
        super().__init__(credentials, name)
        self.reports: list[_Report] = []

    def send(self, message: FromMember) -> None:
        """Send a message, and record it if it is the report of a step."""
        if isinstance(message, Done):
            self.reports.append(_Report(time.perf_counter(), message.generation, message.figures))
        super().send(message)


class Rehearsal:
    """The processes of a one-stage job on one pool; a context that ends them.

    Args:
        document: the run configuration, as JSON.
        pool: of the workers.
    """

    def __init__(self, document: dict[str, Any], pool: str) -> None:
        self._document = _rehearsed(document)
        self._pool = pool
        self._workers = 0
        self._processes: dict[Role, subprocess.Popen[bytes]] = {}
        self._stack = contextlib.ExitStack()
        self._credentials: Credentials | None = None

    def __enter__(self) -> Rehearsal:
        """Start the coordinator, without waiting for it."""
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="heterps-profile-")))
        spec = self._document["job"]["spec"]
        spec["checkpoint"]["path"] = str(self._folder / "checkpoints")
        if spec["data"].get("access") == "Streamed":  # with the job's own cache, only the first pool would read files
            spec["data"]["cache"]["directory"] = str(self._folder / "data")
        path = self._folder / "config.json"
        path.write_text(json.dumps(self._document))
        self._security = LinkSecurity(secrets.token_hex(16), self.config.encrypted)
        self._environment = dict(os.environ) | {ENV_CONFIG: str(path), ENV_TOKEN: self._security.token}
        self._ready = self._folder / "ready.json"
        self._start(Role.COORDINATOR, "--host", _HOST, "--ready-file", str(self._ready))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes."""
        self.end()
        self._stack.close()

    @property
    def config(self) -> RunConfig:
        """The job of the measurement."""
        return RunConfig.from_json(self._document)

    def launch(self, layers: int, workers: int) -> None:
        """Start all processes except the first worker, without waiting for them.

        Args:
            layers: number of layers of the model.
            workers: 1 or 2.

        Raises:
            TransientError: the coordinator does not start.
        """
        self._workers = workers
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self._ready.exists():
            self._check_alive()
            if time.monotonic() > deadline:
                raise TransientError("the coordinator of the measurement does not start")
            time.sleep(_POLL_SECONDS)
        credentials = Credentials(json.loads(self._ready.read_text())["http"], self._security)
        self._credentials = credentials
        self._environment[ENV_COORDINATOR] = credentials.url
        credentials.request("PUT", PATH_PLAN, self._plan(layers))
        if workers == 2:
            place = ("--stage", "0", "--index", "1", "--pool", self._pool, "--host", _HOST)
            self._start(Role.WORKER, *place, "--dense-exchange", self._exchange)
        self._start(Role.PS, "--index", "0", "--pool", self._pool, "--host", _HOST)

    def end(self) -> None:
        """End all processes and wait for them, so that they do not disturb later measurements."""
        if self._credentials is not None:
            with contextlib.suppress(OSError):
                self._credentials.request("POST", PATH_SHUTDOWN)
            self._credentials = None
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def measure(
        self, member: Callable[[RunConfig, ControlLink, zmq.Context[zmq.Socket[bytes]], Credentials], WorkerMember]
    ) -> list[Whole]:
        """Run the first worker, and measure steps of all workers, then of the first alone.

        Args:
            member: creates the worker.

        Returns:
            One result per number of workers, the largest first.

        Raises:
            RehearsalError: the job failed (the loss is not finite, the data is wrong).
            TransientError: a process of the measurement ended.
        """
        credentials = self._credentials
        assert credentials is not None, "launch comes first"
        link = _RecordingLink(credentials, worker_name(0, 0))
        worker = member(self.config, link, zmq.Context(), credentials)
        results: list[Whole] = []
        problem: list[Exception] = []

        def conduct() -> None:
            try:
                generation = 0
                for workers in range(self._workers, 0, -1):
                    results.append(self._phase(credentials, link, workers, after=generation))
                    if workers > 1:
                        generation = link.reports[-1].generation
                        self._dismiss(credentials, worker_name(0, 1))
            except Exception as error:
                problem.append(error)
            finally:
                with contextlib.suppress(OSError):
                    credentials.request("POST", PATH_STOP)

        conductor = threading.Thread(target=conduct, name="rehearsal", daemon=True)
        conductor.start()
        worker.run()
        conductor.join()
        if problem:
            raise problem[0]
        return results

    # --- phases -------------------------------------------------------------------------------------------------------

    def _phase(self, credentials: Credentials, link: _RecordingLink, workers: int, after: int) -> Whole:
        """Wait for enough steps with this number of workers.

        Their generations follow `after`, by one or more: a worker that all-reduces may miss the dismissed one before
        the coordinator is told, and join again.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        asked = began = None
        first: tuple[int, _Used] | None = None
        while True:
            time.sleep(_PHASE_POLL_SECONDS)
            reports = [r for r in link.reports if r.generation > after][_WARM_STEPS:]
            if len(reports) > 1:
                began = began or time.monotonic()
                first = first or (len(reports), self._used())
                deadline = time.monotonic() + _PATIENCE_SECONDS
            if first is not None and len(reports) > max(_FEWEST_STEPS, first[0]):
                late = began is not None and time.monotonic() > began + _PHASE_SECONDS
                settled = _steps(reports).spread < _ENOUGH_SPREAD and len(reports) > 2 * _FEWEST_STEPS
                if late or settled or len(reports) > _MOST_STEPS:
                    return _reduce(workers, reports, self._used().since(first[1], len(reports) - first[0]))
            if time.monotonic() > deadline:
                raise TransientError(f"no step was committed for {_PATIENCE_SECONDS:.0f} s while measuring whole steps")
            self._check_alive()
            if asked is None or time.monotonic() > asked + _ASK_SECONDS:
                asked = time.monotonic()
                _check_phase(credentials)

    def _used(self) -> _Used:
        seconds = {"workers": time.process_time(), "servers": 0.0, "coordinator": 0.0}
        for role, process in self._processes.items():
            seconds[_ROLES[role]] += processor_seconds(process.pid)
        whole, threads = seconds["servers"], computing_threads()  # the server has as many as a worker
        main = None if threads == 1 else main_thread_seconds(self._processes[Role.PS].pid)
        return _Used(seconds, whole if main is None else max(main, whole / threads))

    def _dismiss(self, credentials: Credentials, name: str) -> None:
        process = self._processes.pop(Role.WORKER)
        process.kill()
        process.wait()
        credentials.request("POST", PATH_LOST, {"member": name, "reason": "it has been measured"})

    def _check_alive(self) -> None:
        for role, process in self._processes.items():
            if process.poll() is not None:
                lines = (self._folder / f"{role}.log").read_text(errors="replace").splitlines()
                said = lines[-1] if lines else "it said nothing"
                raise TransientError(f"the {role} of the measurement ended with code {process.returncode}: {said}")

    # --- processes ----------------------------------------------------------------------------------------------------

    def _start(self, role: Role, *arguments: str) -> None:
        # With `--parent`, processes end even if the profiler is killed, and cannot disturb the next measurement.
        command = [sys.executable, "-P", "-m", "heterps_runtime", "--parent", str(os.getpid()), role, *arguments]
        with (self._folder / f"{role}.log").open("wb") as output:
            self._processes[role] = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    @property
    def _exchange(self) -> DenseExchange:
        """How the workers exchange gradients of dense parameters."""
        all_reduces = self.config.all_reduces_on(self.config.pools[self._pool])
        return DenseExchange.ALL_REDUCE if all_reduces else DenseExchange.PARAMETER_SERVER

    def _plan(self, layers: int) -> dict[str, Any]:
        stage = {
            "name": "stage-0",
            "pool": self._pool,
            "firstLayer": 0,
            "lastLayer": layers - 1,
            "layers": [],
            "units": self._workers,  # the runtime uses pods only
            "pods": self._workers,
            "denseExchange": self._exchange,
        }
        return {"stages": [stage], "parameterServer": {"pool": self._pool, "replicas": 1, "units": 1}}


def _check_phase(credentials: Credentials) -> None:
    status = credentials.request("GET", PATH_STATUS)
    if status["phase"] == JobPhase.FAILED:
        raise RehearsalError(status["error"]["reason"], status["error"]["message"])


def _rehearsed(document: dict[str, Any]) -> dict[str, Any]:
    """The job without end and evaluation, with its own checkpoints, and with each row once, in memory."""
    changed = copy.deepcopy(document)
    spec = changed["job"]["spec"]
    spec["training"]["steps"] = _ENDLESS
    spec["training"].pop("epochs", None)
    spec["data"].pop("evaluation", None)
    spec["checkpoint"] = {"everySteps": _ENDLESS, "keep": 1}
    spec["parameterServer"].pop("spill", None)  # the disk may be a volume of the servers' pods
    spec["parameterServer"]["replication"] = 1  # there is one server
    return changed


def _steps(reports: Sequence[_Report]) -> Reading:
    return Reading.of([later.at - earlier.at for earlier, later in itertools.pairwise(reports)])


def _reduce(workers: int, reports: Sequence[_Report], used: _Used) -> Whole:
    figures = [report.activities for report in reports[1:]]
    busy = [sum(f.get(name, 0.0) for name in _BUSY) for f in figures]
    names = {n for f in figures for n in f}
    activities = {n: Reading.of([f.get(n, 0.0) for f in figures]).seconds for n in sorted(names)}
    return Whole(workers, _steps(reports), Reading.of(busy), len(figures), activities, *used)
