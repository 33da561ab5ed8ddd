"""A training job of an image model on confined nodes: real processes of the runtime.

The job is a manifest of `examples/balancenet`, its processes are those that a controller starts: a coordinator, a
parameter server and, in the nodes, the workers. Their figures are read as the operator does it.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import yaml

from experiments.balanced_job import BalancedJob, one_stage
from experiments.confinement import HUB, Confinement
from experiments.framework import ROOT
from experiments.image_data import EXAMPLE, manifest_documents
from heterps_operator.api.job import JobSpec
from heterps_operator.api.manifest import load_manifest
from heterps_operator.loop.coordinator_client import CoordinatorClient
from heterps_operator.state.values import CoordinatorView, SubmitAllocation, SubmitPlan
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import ENV_CONFIG, ENV_COORDINATOR, ENV_TOKEN
from heterps_runtime.worker.main import feature_names
from heterps_runtime.worker.model import UserModel

__all__ = ["ImageJob", "JobEndedError"]

_POLL_SECONDS = 0.02
_START_SECONDS = 120.0


class JobEndedError(Exception):
    """A process of the job has ended; the text has the end of its log."""


def _manifest(model: str, data: Path, folder: Path) -> Path:
    """Write a job that trains on and on, without checkpoints."""
    pool, job = manifest_documents(model)
    spec = job["spec"]
    spec["data"] |= {"train": str(data / "train"), "evaluation": str(data / "test")}
    spec["data"]["cache"] = {"directory": str(data.parent / "cache")}
    spec["training"] |= {"epochs": 100_000, "consistency": "sync"}  # dense parameters are, in any mode
    spec["checkpoint"] = {"everySteps": 10_000_000, "path": str(folder / "checkpoints")}
    pool["spec"]["maxUnits"] = 5
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump_all([pool, job]))
    return path


class ImageJob(BalancedJob):
    """A running job, whose processes end with the context.

    Args:
        model: of `MODELS`.
        data: folder with the images.
        folder: an empty folder for everything that the job writes.
        nodes: one for each worker.
        count: number of workers.

    Attributes:
        parameter_bytes: of the model's parameters and statistics, in float32.
    """

    def __init__(self, model: str, data: Path, folder: Path, nodes: Confinement, count: int) -> None:
        manifest = load_manifest(_manifest(model, data, folder))
        configuration = manifest.run_configuration(folder, [EXAMPLE])
        (folder / "config.json").write_text(json.dumps(configuration))
        run = RunConfig.load(folder / "config.json")
        built = UserModel.build(run, feature_names(run))
        job = JobSpec.from_manifests(manifest.job, manifest.pools)
        super().__init__(job, one_stage(count, len(built.layered.layers)))
        self.parameter_bytes = 4 * sum(built.dense_sizes().values())
        self._count = count
        self._folder = folder
        self._nodes = nodes
        self._token = secrets.token_hex(8)
        self._environment = dict(os.environ) | {
            ENV_CONFIG: str(folder / "config.json"),
            ENV_TOKEN: self._token,
            "OMP_NUM_THREADS": "1",
            "NUMBA_CACHE_DIR": str(data.parent / "numba"),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "operator"), str(ROOT / "runtime"), str(EXAMPLE)]),
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> ImageJob:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    # --- the job ------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """See `BalancedJob.now`."""
        return time.monotonic()

    def pause(self) -> None:
        """See `BalancedJob.pause`."""
        time.sleep(_POLL_SECONDS)

    def _look(self) -> CoordinatorView:
        self._check()
        return CoordinatorView.from_json(self._client.status())

    def _send(self, action: SubmitAllocation) -> None:
        self._client.send(action)

    # --- processes ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        ready = self._folder / "ready.json"
        self._run("coordinator", "--host", HUB, "--ready-file", str(ready))
        self._wait(ready.exists)
        address = str(json.loads(ready.read_text())["http"])
        self._environment[ENV_COORDINATOR] = address
        self._client = CoordinatorClient(address, self._token, timeout_seconds=10.0)
        self._client.send(SubmitPlan(self._plan, 1))
        self._run("ps", "--index", "0", "--pool", "cpu", "--host", HUB)
        for index in range(self._count):
            arguments = ("worker", "--stage", "0", "--index", str(index), "--pool", "cpu")
            command = _command(*arguments, "--host", self._nodes.address(index))
            self._processes.append(self._nodes.start(index, command, self._environment, self._folder / "log"))
        self._wait(self._trains)

    def _run(self, *arguments: str) -> None:
        self._processes.append(self._nodes.start(None, _command(*arguments), self._environment, self._folder / "log"))

    def _trains(self) -> bool:
        self.turn(decide=False)
        return self.view.committed_steps > 0

    def _wait(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not reached():
            self._check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"the job does not train within {_START_SECONDS:.0f} s:\n{self._log()}")
            time.sleep(_POLL_SECONDS)

    def _check(self) -> None:
        ended = [process.args for process in self._processes if process.poll() is not None]
        if ended:
            raise JobEndedError(f"a process has ended: {ended[0]!r}\n{self._log()}")

    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-3000:]

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()


def _command(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", "heterps_runtime", "--parent", str(os.getpid()), *arguments)
