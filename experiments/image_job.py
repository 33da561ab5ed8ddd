"""A training job of an image model on confined nodes: real processes, and the product's own controller of batch sizes.

The job is a manifest of `examples/balancenet`, its processes are those that a controller starts. Each turn reads the
coordinator's status, scrapes its metrics, asks `rebalance` and sends what it decides, as the control loop does; the
loop itself is not used, because it would start the processes outside of the nodes.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from experiments.confinement import HUB, Confinement
from experiments.framework import ROOT
from heterps_operator.api.job import JobSpec
from heterps_operator.api.manifest import load_manifest
from heterps_operator.control.tuning.rebalancing import rebalance
from heterps_operator.loop.coordinator_client import CoordinatorClient
from heterps_operator.measure.measurement import Meter, Scraping
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Status
from heterps_operator.state.values import CoordinatorView, MemberView, Observed, SubmitAllocation, SubmitPlan
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import ENV_CONFIG, ENV_COORDINATOR, ENV_TOKEN, JobPhase, worker_name
from heterps_runtime.worker.main import feature_names
from heterps_runtime.worker.model import UserModel

__all__ = ["EXAMPLE", "ImageJob", "manifest_of"]

EXAMPLE = ROOT / "examples" / "balancenet"
_POLL_SECONDS = 0.02
_START_SECONDS = 120.0


def manifest_of(model: str, batch: int, data: Path, folder: Path) -> Path:
    """Write a job that trains on and on, without checkpoints; returns its path.

    Args:
        model: name of the example's manifest.
        batch: global batch size.
        data: folder with the images.
        folder: where to write.
    """
    pool, job = yaml.safe_load_all((EXAMPLE / f"{model}.yaml").read_text())
    spec = job["spec"]
    spec["data"] |= {"train": str(data / "train"), "evaluation": str(data / "test")}
    spec["data"]["cache"] = {"directory": str(data.parent / "cache")}
    spec["training"] |= {"epochs": 100_000, "globalBatchSize": batch}
    spec["checkpoint"] = {"everySteps": 10_000_000, "path": str(folder / "checkpoints")}
    pool["spec"]["maxUnits"] = 5
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump_all([pool, job]))
    return path


class ImageJob:
    """A running job, whose processes end with the context.

    Args:
        name: of the example's manifest.
        batch: global batch size.
        data: folder with the images.
        folder: an empty folder for everything that the job writes.
        nodes: one for each worker.
        count: number of workers.

    Attributes:
        job: what the controller was told; its policy may be changed.
        view: the last status, with the measured figures.
        parameter_bytes: of the model's parameters and statistics, in float32.
    """

    def __init__(self, name: str, batch: int, data: Path, folder: Path, nodes: Confinement, count: int) -> None:
        manifest = load_manifest(manifest_of(name, batch, data, folder))
        configuration = manifest.run_configuration(folder, [EXAMPLE])
        (folder / "config.json").write_text(json.dumps(configuration))
        self.job = JobSpec.from_manifests(manifest.job, manifest.pools)
        self.view = CoordinatorView(JobPhase.STARTING)
        self._status = Status()
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
        config = RunConfig.load(folder / "config.json")
        model = UserModel.build(config, feature_names(config))
        self.parameter_bytes = 4 * sum(model.dense_sizes().values())
        self._plan = JobPlan.from_json(_plan(count, len(model.layered.layers)))

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

    @property
    def workers(self) -> list[MemberView]:
        """The workers, by index."""
        found = [self.view.member(worker_name(0, index)) for index in range(self._count)]
        return [member for member in found if member is not None]

    @property
    def batches(self) -> tuple[int, ...]:
        """The present division of the batch."""
        return tuple(member.batch_size for member in self.workers)

    def activities(self) -> list[Mapping[str, float]]:
        """Seconds per step by activity, of each worker."""
        entries = {entry["name"]: entry for entry in self.view.document.get("members") or ()}
        return [entries[member.name]["figures"] for member in self.workers]

    def follow(self, policy: str, interval: float, seed: int) -> None:
        """Follow a policy from now on, with nothing known of the workers."""
        balancing = replace(self.job.balancing, policy=policy, interval_seconds=interval, seed=seed)
        self.job, self._status = replace(self.job, balancing=balancing), Status()

    def divide(self, batches: tuple[int, ...]) -> None:
        """Divide the batch by hand."""
        self._client.send(SubmitAllocation((batches,)))

    def turn(self, *, decide: bool = True) -> bool:
        """Look at the job and carry out what the controller decides; returns whether it moved samples."""
        self._check()
        view = CoordinatorView.from_json(self._client.status())
        self.view, _ = self._meter.measure(view, self._client.address)
        if not decide or self.view.phase != JobPhase.TRAINING:
            return False
        observed = Observed(time.monotonic(), self._status, coordinator=self.view)
        self._status, actions = rebalance(self.job, observed, self._status, self._plan)
        for action in actions:
            self._client.send(action)
        return bool(actions)

    # --- processes ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        ready = self._folder / "ready.json"
        self._run("coordinator", "--host", HUB, "--ready-file", str(ready))
        self._wait(ready.exists)
        address = str(json.loads(ready.read_text())["http"])
        self._environment[ENV_COORDINATOR] = address
        self._client = CoordinatorClient(address, self._token, timeout_seconds=10.0)
        self._meter = Meter(Scraping(self._token))
        self._client.send(SubmitPlan(self._plan, 1))
        self._run("ps", "--index", "0", "--pool", "cpu", "--host", HUB)
        for index in range(self._count):
            arguments = ("worker", "--stage", "0", "--index", str(index), "--pool", "cpu")
            command = _command(*arguments, "--host", self._nodes.address(index))
            self._processes.append(self._nodes.start(index, command, self._environment, self._folder / "log"))
        self._wait(lambda: not self.turn(decide=False) and self.view.committed_steps > 0)

    def _run(self, *arguments: str) -> None:
        with (self._folder / "log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(_command(*arguments), env=self._environment, stdout=log, stderr=log)
            )

    def _wait(self, reached: Any) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not reached():
            self._check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"the job does not train within {_START_SECONDS:.0f} s:\n{self._log()}")
            time.sleep(_POLL_SECONDS)

    def _check(self) -> None:
        ended = [process.args for process in self._processes if process.poll() is not None]
        if ended:
            raise RuntimeError(f"a process has ended: {ended[0]!r}\n{self._log()}")

    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-3000:]

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()


def _command(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", "heterps_runtime", *arguments)


def _plan(count: int, layers: int) -> dict[str, Any]:
    """One stage of all layers on `count` workers."""
    return {
        "stages": [
            {"name": "stage-0", "pool": "cpu", "firstLayer": 0, "lastLayer": layers - 1, "layers": ["all"], "units": count,
             "pods": count}
        ],
        "parameterServer": {"pool": "cpu", "replicas": 1, "units": 1},
    }  # fmt: skip
