"""Whole jobs in one process: the real coordinator, servers and workers over real sockets, each in a thread.

Processes cost seconds of imports each; threads let a test run dozens of jobs. Nothing is replaced: the same classes run
that `heterps-runtime` runs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import json
import math
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.numpy import load_file

from heterps_runtime.clock import steady_time
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import (
    ENV_CONFIG,
    ENV_COORDINATOR,
    ENV_MESSAGE_PORT,
    ENV_METRICS_PORT,
    ENV_RENDEZVOUS_PORT,
    ENV_TOKEN,
    FINAL_PHASES,
    PATH_LOST,
    PATH_PLAN,
    PATH_SHUTDOWN,
    DenseExchange,
    JobPhase,
)
from heterps_runtime.coordinator.figures import describe_job
from heterps_runtime.coordinator.membership.liveness import HEARTBEAT_TIMEOUT_SECONDS
from heterps_runtime.coordinator.server import CoordinatorServer
from heterps_runtime.coordinator.steps import Steps
from heterps_runtime.ps.server import ParameterServer
from heterps_runtime.store.optimizers import DenseOptimizer, SparseOptimizer
from heterps_runtime.store.warm import warm_up_server, warm_up_worker
from heterps_runtime.wire.link import Credentials
from heterps_runtime.wire.ports import FREE_PORTS, Ports
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.worker.main import open_worker
from tests.counting import NUMBERS, counting_columns, counting_spec
from tests.heterps_runtime.helpers.forking import MemberProcess

TOKEN = "a token of the tests"
POLL_SECONDS = 0.05
PATIENCE_SECONDS = 240
CARD = "cuda" if torch.cuda.is_available() else "cpu"  # torchDevice of pool `card`: real where there is one
ROWS = 300
PROGRAM = ("heterps_runtime",)  # Python's module, and arguments before the role

Condition = Callable[[dict[str, Any]], object]  # of a status document
Stage = tuple[str, int, int]  # pool, last layer, workers; on pool `ring`, CPUs all-reduce
RING = "ring"


def write_data(folder: Path, columns: dict[str, Any]) -> str:
    """A data set of one parquet file; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / "part-0.parquet", row_group_size=50)
    return str(folder)


def flights_columns(rows: int, seed: int = 5) -> dict[str, Any]:
    """Columns for `models.Flights`, with a label that can be learnt."""
    random = np.random.default_rng(seed)
    sizes = {"carrier": 20, "origin": 5, "dest": 110, "hour": 24, "weekday": 7, "tail": 997}
    columns: dict[str, Any] = {n: random.integers(0, size, rows) for n, size in sizes.items()}
    columns |= {f"x{i}": random.normal(size=rows).astype(np.float32) for i in range(3)}
    columns["late"] = ((columns["hour"] > 12) ^ (random.random(rows) < 0.2)).astype(np.int64)
    return columns


def two_tower_columns(rows: int, seed: int = 6) -> dict[str, Any]:
    """Columns for `models.TwoTower`: two single-valued and two multi-valued features."""
    random = np.random.default_rng(seed)

    def lists(size: int) -> list[list[int]]:
        return [random.integers(0, size, n).tolist() for n in random.integers(0, 4, rows)]

    return {
        "user": random.integers(0, 50, rows),
        "item": random.integers(0, 70, rows),
        "history": lists(70),
        "tags": lists(30),
        "late": random.integers(0, 2, rows),
    }


def residual_columns(rows: int, seed: int = 7) -> dict[str, Any]:
    """Columns for `models.Residual`: three fields that share one table, two classes."""
    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {n: random.integers(0, 20, rows) for n in "abc"}
    return {**columns, "late": ((columns["a"] + columns["b"]) % 2).astype(np.int64)}


def logistic_columns(rows: int, seed: int = 8) -> dict[str, Any]:
    """Columns for `models.Logistic`: three fields, and three numbers from -1 to 1."""
    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {n: random.integers(0, 20, rows) for n in "abc"}
    columns |= {f"x{i}": random.uniform(-1, 1, rows).astype(np.float32) for i in range(3)}
    columns["late"] = (columns["a"] / 20 + columns["x0"] + random.random(rows) > 1).astype(np.int64)
    return columns


def picture_columns(rows: int, seed: int = 9) -> dict[str, Any]:
    """Columns for `models.Picture`: images of bytes (2, 5, 5), and three classes that their brightness tells apart."""
    random = np.random.default_rng(seed)
    classes = random.integers(0, 3, rows)
    images = random.integers(0, 120, (rows, 2, 5, 5))
    images[:, 0, :2] += 60 * classes[:, None, None]
    flat = pa.array(images.astype(np.uint8).reshape(-1))
    return {"image": pa.FixedSizeListArray.from_arrays(flat, 50), "late": classes}


PICTURE = [{"name": "image", "shape": [2, 5, 5], "dtype": "uint8", "scale": "0.01", "offset": "-0.5"}]
TENSORS = {"picture": PICTURE, "normed_picture": PICTURE}  # model -> spec.data.tensors
MODELS: dict[str, tuple[Callable[[int], dict[str, Any]], list[str], list[str], str]] = {
    # name -> columns, sparse, dense, loss
    "flights": (
        flights_columns,
        ["carrier", "origin", "dest", "hour", "weekday", "tail"],
        ["x0", "x1", "x2"],
        "torch.nn.functional:binary_cross_entropy_with_logits",
    ),
    "two_tower": (
        two_tower_columns,
        ["user", "item", "history", "tags"],
        [],
        "torch.nn.functional:binary_cross_entropy_with_logits",
    ),
    "residual": (residual_columns, ["a", "b", "c"], [], "torch.nn.functional:cross_entropy"),
    "logistic": (
        logistic_columns,
        ["a", "b", "c"],
        ["x0", "x1", "x2"],
        "torch.nn.functional:binary_cross_entropy_with_logits",
    ),
    "awkwardly_named": (
        logistic_columns,
        ["a", "b", "c"],
        ["x0", "x1", "x2"],
        "torch.nn.functional:binary_cross_entropy_with_logits",
    ),
    "picture": (picture_columns, [], [], "torch.nn.functional:cross_entropy"),
    "normed_picture": (picture_columns, [], [], "torch.nn.functional:cross_entropy"),
    "counting": (counting_columns, ["sample"], list(NUMBERS), "tests.heterps_operator.helpers.small_model:count"),
}


def configuration(work: Path, model: str = "flights", rows: int = ROWS, **training: Any) -> dict[str, Any]:
    """A run configuration for one of the example models; `training` overrides spec.training.

    Data and its cache are shared between the jobs of a test session that use the same folder `work.parent`. A job that
    trains on many rows evaluates on few, so that it spends most of its time on training.
    """
    columns, sparse, dense, loss = MODELS[model]

    def data(number: int) -> str:
        folder = work.parent / f"data-{model}-{number}"
        return str(folder) if folder.exists() else write_data(folder, columns(number))

    work.mkdir(parents=True, exist_ok=True)
    spec: dict[str, Any] = {
        "model": {"entrypoint": f"tests.heterps_runtime.helpers.models:build_{model}", "arguments": {}, "loss": loss},
        "data": {
            "format": "parquet",
            "train": data(rows),
            "evaluation": data(min(rows, ROWS)),
            "label": "late",
            "dense": dense,
            "sparse": sparse,
            "tensors": TENSORS.get(model, []),
            "cache": {"directory": str(work.parent / "cache"), "maxBytes": "10Gi"},
        },
        "training": {
            "globalBatchSize": 32,
            "microBatches": 2,
            "steps": 24,
            "consistency": "sync",
            "maxStaleness": 4,
            "optimizer": {
                "dense": {"name": "adam", "learningRate": "0.01"},
                "sparse": {"name": "adagrad", "learningRate": "0.1"},
            },
            "seed": 3,
            "precision": "fp64",
            **training,
        },
        "parameterServer": {"wirePrecision": "full"},
        "encryption": "Disabled",
        "checkpoint": {"everySteps": 10, "keep": 3},
        "runPolicy": {"hangTimeoutSeconds": 60},
    }
    spec["model"]["embeddingInit"] = {"distribution": "normal", "std": "0.1"}
    pools = [
        {"metadata": {"name": "cpu"}, "spec": {"deviceType": "CPU", "torchDevice": "cpu", "unitsPerPod": 1}},
        {"metadata": {"name": RING}, "spec": {"deviceType": "CPU", "torchDevice": "cpu", "unitsPerPod": 1}},
        {"metadata": {"name": "card"}, "spec": {"deviceType": "GPU", "torchDevice": CARD, "unitsPerPod": 1}},
    ]
    return {
        "version": 1,
        "job": {"metadata": {"name": f"test-{model}"}, "spec": spec},
        "pools": pools,
        "workDirectory": str(work),
        "pythonPath": [],
    }


def counting_configuration(
    work: Path, consistency: str, samples: int = 320, batch: int = 32, least_seconds: float = 0.0, **training: Any
) -> dict[str, Any]:
    """A run configuration for the model that counts samples (`tests/counting.py`); `training` as in `configuration`.

    It is slow for as long as a file `held` lies in the folder `work`.
    """
    document = configuration(work, "counting", samples, **training)
    held = str(work / "held")
    fields = counting_spec(
        "tests.heterps_operator.helpers.small_model", samples, batch, consistency, held, least_seconds
    )
    for path, value in fields.items():
        section, name = path.split(".")
        document["job"]["spec"][section][name] = value
    del document["job"]["spec"]["data"]["evaluation"]  # it counts, and learns nothing
    return document


def plan_document(stages: Sequence[Stage], servers: int, precision: str | None = None) -> dict[str, Any]:
    """A plan of (pool, last layer, workers) per stage; `precision`: its choice for a job that leaves one."""
    documents, first = [], 0
    for i, (pool, last, workers) in enumerate(stages):
        documents.append(
            {
                "name": f"stage-{i}",
                "pool": pool,
                "firstLayer": first,
                "lastLayer": last,
                "layers": [],
                "units": workers,
                "pods": workers,
                **({"denseExchange": DenseExchange.ALL_REDUCE} if pool == RING else {}),
            }
        )
        first = last + 1
    chosen = {} if precision is None else {"precision": precision}
    return {"stages": documents, "parameterServer": {"pool": "cpu", "replicas": servers, "units": servers}, **chosen}


def on_loopback(process: str) -> str:
    """The address of every process, unless a test gives them others."""
    return "127.0.0.1"


def is_over(status: dict[str, Any]) -> bool:
    """Whether a status document is that of a job that has ended."""
    return status["phase"] in FINAL_PHASES


class _HeldSteps(Steps):
    """Steps of which those from `first_held` on are not committed."""

    first_held = math.inf

    def complete(self, step: int, num_workers: int) -> bool:
        return step < self.first_held and super().complete(step, num_workers)


class ThreadedJob:
    """A job whose processes are threads of this one.

    Args:
        document: the run configuration.
        heartbeat_seconds: silence after which a member is considered lost.
        host: the address that a process listens on, by its name.
        ports: that every process listens on.
    """

    def __init__(
        self,
        document: dict[str, Any],
        heartbeat_seconds: float = HEARTBEAT_TIMEOUT_SECONDS,
        host: Callable[[str], str] = on_loopback,
        ports: Ports = FREE_PORTS,
    ) -> None:
        self._host, self._ports = host, ports
        self.document = copy.deepcopy(document)
        self.config = RunConfig.from_json(document)
        self._steps = _HeldSteps(self.config)
        self._threads: list[threading.Thread] = []
        self._processes: list[MemberProcess] = []
        self.failures: list[str] = []
        self._loop_failure: BaseException | None = None
        ready = Path(document["workDirectory"]) / "coordinator.json"
        ready.unlink(missing_ok=True)
        self._start("coordinator", self._coordinate, ready, heartbeat_seconds)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not ready.exists():
            if self._loop_failure is not None:
                raise self._loop_failure
            assert time.monotonic() < deadline, "the coordinator does not start"
            time.sleep(POLL_SECONDS)
        self.credentials = Credentials(
            json.loads(ready.read_text())["http"], LinkSecurity(TOKEN, self.config.encrypted)
        )

    def _coordinate(self, ready: Path, heartbeat_seconds: float) -> None:
        try:
            host = self._host("coordinator")
            server = CoordinatorServer(self.config, TOKEN, host, 0, ready, heartbeat_seconds, ports=self._ports)
            asyncio.run(self._serve(server))
        except BaseException as error:
            self._loop_failure = error

    async def _serve(self, server: CoordinatorServer) -> None:
        self._loop, self._core = asyncio.get_running_loop(), server.core
        self._core.steps = self._steps
        await server.run()

    def _start(self, name: str, run: Callable[..., None], *arguments: Any) -> None:
        def guarded() -> None:
            try:
                run(*arguments)
            except Exception:
                self.failures.append(f"{name}: {traceback.format_exc()}")

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def start(
        self,
        stages: Sequence[Stage],
        servers: int,
        as_process: str | None = None,
        program: Sequence[str] = PROGRAM,
        precision: str | None = None,
        hold_at: int | None = None,
    ) -> MemberProcess | None:
        """Submit a plan and start its members; one of them, if named, as a process of a program, which is returned.

        With `hold_at`, training goes on to this step only, which is waited for.
        """
        if hold_at is not None:
            self.hold(hold_at)
        self.credentials.request("PUT", PATH_PLAN, plan_document(stages, servers, precision))
        self.config = self.config.in_precision(precision)
        self._compile()
        names = [f"ps-{i}" for i in range(servers)]
        names += [f"worker-{i}-{w}" for i, (_, _, workers) in enumerate(stages) for w in range(workers)]
        for name in names:
            if name != as_process:
                self.start_member(name, stages)
        process = self.start_process(as_process, stages, program) if as_process else None
        if hold_at is not None:
            self.hold_at(hold_at)
        return process

    def _compile(self) -> None:
        """Compile before the first thread traces: torch.fx replaces functions of `math` while it reads a model."""
        config = self.config
        sparse = SparseOptimizer.from_manifest(config.sparse_optimizer)
        dense = DenseOptimizer.from_manifest(config.dense_optimizer)
        warm_up_server(sparse, dense, config.dtype_name, config.wire_precision, rules=bool(config.tables))
        warm_up_worker(config.dtype_name, config.wire_precision, bags=True)

    def start_member(self, name: str, stages: Sequence[Stage]) -> None:
        """Start a server or a worker by its name."""
        role, *numbers = name.split("-")
        if role == "ps":
            self.start_server(int(numbers[0]))
        else:
            self.start_worker(int(numbers[0]), int(numbers[1]), stages[int(numbers[0])][0])

    def start_server(self, index: int) -> None:
        """Start a parameter server."""
        place = (index, "cpu", self._host(f"ps-{index}"), self._ports)
        self._start(f"ps-{index}", lambda: ParameterServer(self.config, self.credentials, *place).run())

    def start_worker(self, stage: int, index: int, pool: str) -> None:
        """Start a worker."""
        name = f"worker-{stage}-{index}"
        exchange = DenseExchange.ALL_REDUCE if pool == RING else None
        place = (stage, index, pool, self._host(name), self._ports, exchange)
        self._start(name, lambda: open_worker(self.config, self.credentials, *place).run())

    def start_process(self, name: str, stages: Sequence[Stage], program: Sequence[str] = PROGRAM) -> MemberProcess:
        """Start a server or a worker by its name as a process of its own, which a test may kill.

        A member that joins while others compute must be a process, too: torch.fx, which reads the model of a newcomer,
        patches the modules of its whole process.
        """
        role, *numbers = name.split("-")
        pool = "cpu" if role == "ps" else stages[int(numbers[0])][0]
        stage = [] if role == "ps" else ["--stage", numbers[0]]
        arguments = [role, *stage, "--index", numbers[-1], "--pool", pool, "--host", self._host(name)]
        arguments += ["--dense-exchange", DenseExchange.ALL_REDUCE] if pool == RING else []
        path = Path(self.document["workDirectory"]) / "config.json"
        path.write_text(json.dumps(self.document))
        environment = {
            ENV_CONFIG: str(path),
            ENV_COORDINATOR: self.credentials.url,
            ENV_TOKEN: TOKEN,
            ENV_MESSAGE_PORT: str(self._ports.messages),
            ENV_RENDEZVOUS_PORT: str(self._ports.rendezvous),
            ENV_METRICS_PORT: str(self._ports.metrics),
        }
        process = MemberProcess([*program, *arguments], environment)
        self._processes.append(process)
        return process

    def kill(self, process: MemberProcess, member: str) -> None:
        """End a process without a word, as a crash does, and report it as the controller would."""
        process.kill()
        process.wait()
        self.credentials.request("POST", PATH_LOST, {"member": member, "reason": "killed by a test"})

    def status(self) -> dict[str, Any]:
        """The coordinator's status document."""
        status = self._status_if(lambda status: True)
        assert status is not None
        return status

    def _status_if(self, condition: Condition) -> dict[str, Any] | None:
        """The status document, if it meets a condition, which the coordinator's thread checks.

        Asking again and again by HTTP took a quarter of the time of all tests of jobs.
        """
        made: concurrent.futures.Future[str | None] = concurrent.futures.Future()

        def make() -> None:
            try:
                status = describe_job(self._core, self.config, steady_time())
                made.set_result(json.dumps(status) if condition(status) else None)
            except Exception as error:
                made.set_exception(error)

        self._loop.call_soon_threadsafe(make)
        text = made.result(PATIENCE_SECONDS)
        return None if text is None else json.loads(text)

    def hold(self, step: float = math.inf) -> None:
        """Commit no step from this one on, so that training is not over before a test has acted.

        All members go on: they answer, and compute what they may before the next commit. Called again, it lets training
        go on to a later step; by default, to its end.
        """

        def move() -> None:
            self._steps.first_held = step
            self._core._commit_ready_steps()

        self._loop.call_soon_threadsafe(move)

    def hold_at(self, step: int) -> None:
        """Let training go on to a step, and wait until it is there."""
        self.hold(step)
        self.wait(lambda status: status["committedSteps"] >= step)

    def wait_for_member(self, name: str) -> None:
        """Wait until a member has joined."""
        self.wait(lambda status: any(m["name"] == name and m["state"] != "absent" for m in status["members"]))

    def wait(self, until: Condition = is_over) -> dict[str, Any]:
        """Wait for a condition on the status, by default the end of the job."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (status := self._status_if(lambda status: is_over(status) or until(status))) is None:
            assert not self.failures, "\n".join(self.failures)
            if time.monotonic() > deadline:
                text = json.dumps(self.status(), indent=1)
                raise AssertionError(f"the job does not get on: {text} {self.failures}")
            time.sleep(POLL_SECONDS)
        assert not is_over(status) or until(status), status["error"] or status["phase"]
        return status

    def failure(self, timeout_seconds: float) -> BaseException | None:
        """The error with which the coordinator has ended; waits for its end."""
        self._threads[0].join(timeout_seconds)
        return self._loop_failure

    def close(self) -> None:
        """Wait for all members, whom the coordinator tells that the job is over, then end the coordinator."""
        coordinator, *members = self._threads
        for thread in members:
            thread.join(timeout=PATIENCE_SECONDS)
        for process in self._processes:
            process.wait(timeout=PATIENCE_SECONDS)
        self.credentials.request("POST", PATH_SHUTDOWN)
        coordinator.join(timeout=PATIENCE_SECONDS)
        left = [thread.name for thread in self._threads if thread.is_alive()]
        assert not left, f"{left} do not end"


def trained_model(status: dict[str, Any]) -> dict[str, Any]:
    """The model that a job has written, by the names of its parameters."""
    assert status["phase"] == JobPhase.SUCCEEDED, status["error"]
    return dict(load_file(Path(status["model"]) / "model.safetensors"))


def run_job(document: dict[str, Any], stages: Sequence[Stage], servers: int) -> dict[str, Any]:
    """Run a job to its end; returns the final status."""
    return finish(ThreadedJob(document), stages, servers)


def finish(job: ThreadedJob, stages: Sequence[Stage], servers: int) -> dict[str, Any]:
    """Run a job that was made to its end; returns the final status."""
    job.start(stages, servers)
    try:
        return job.wait()
    finally:
        job.close()
        assert not job.failures, "\n".join(job.failures)
