"""A job of real runtime processes started by a benchmark, and the documents of its pools and plans."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from heterps_runtime.contract import ENV_CONFIG, ENV_COORDINATOR, ENV_TOKEN, PATH_PLAN
from heterps_runtime.wire.link import Credentials
from heterps_runtime.wire.security import LinkSecurity

__all__ = ["Processes", "pool_document", "stage_document"]


def pool_document(
    name: str, device: str, resource: str, units: int, price: str, torch_device: str = "cpu"
) -> dict[str, Any]:
    """Return a DevicePool, whose workers compute on CPUs unless `torch_device` says otherwise."""
    return {
        "apiVersion": "heterps.io/v1alpha1",
        "kind": "DevicePool",
        "metadata": {"name": name},
        "spec": {
            "deviceType": device,
            "resourceName": resource,
            "torchDevice": torch_device,
            "maxUnits": units,
            "pricePerUnitHour": price,
        },
    }


def stage_document(index: int, pool: str, first_layer: int, last_layer: int, units: int, pods: int) -> dict[str, Any]:
    """Return a stage in the format of the coordinator's plan."""
    return {
        "name": f"stage-{index}",
        "pool": pool,
        "firstLayer": first_layer,
        "lastLayer": last_layer,
        "layers": [],
        "units": units,
        "pods": pods,
    }


class Processes:
    """A coordinator and further processes of a job, which end with the context.

    Args:
        document: the run configuration.
        folder: an empty folder for configuration, address and log.

    Attributes:
        started: all processes in order of their start, the coordinator first.
        pools: of the servers and workers among them, by pid.
    """

    def __init__(self, document: dict[str, Any], folder: Path) -> None:
        self._folder = folder
        (folder / "config.json").write_text(json.dumps(document))
        self._token = secrets.token_hex(8)
        self._environment = dict(os.environ) | {
            ENV_CONFIG: str(folder / "config.json"),
            ENV_TOKEN: self._token,
            "OMP_NUM_THREADS": "1",
        }
        self.started: list[subprocess.Popen[bytes]] = []
        self.pools: dict[int, str] = {}
        self._log = (folder / "log").open("wb")
        self._url = ""

    def __enter__(self) -> Processes:
        ready = self._folder / "ready.json"
        self.start("coordinator", "--ready-file", str(ready))
        while not ready.exists():
            self.check()
            time.sleep(0.05)
        self._url = self._environment[ENV_COORDINATOR] = json.loads(ready.read_text())["http"]
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.started:
            process.terminate()
        for process in self.started:
            process.wait()
        self._log.close()

    @property
    def credentials(self) -> Credentials:
        """Return what a member needs to connect to the coordinator."""
        return Credentials(self._url, LinkSecurity(self._token, encrypted=False))

    def start(self, role: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process of the runtime."""
        command = [sys.executable, "-m", "heterps_runtime", role, *arguments]
        self.started.append(subprocess.Popen(command, env=self._environment, stderr=self._log))
        return self.started[-1]

    def train(self, stages: list[dict[str, Any]], servers: int, server_pool: str) -> None:
        """Submit a plan and start its servers, then its workers."""
        plan = {"stages": stages, "parameterServer": {"pool": server_pool, "replicas": servers, "units": servers}}
        self.request("PUT", PATH_PLAN, plan)
        for index in range(servers):
            self._start_member(server_pool, "ps", "--index", str(index))
        for number, stage in enumerate(stages):
            exchange = ("--dense-exchange", stage["denseExchange"]) if "denseExchange" in stage else ()
            for index in range(stage["pods"]):
                place = ("--stage", str(number), "--index", str(index))
                self._start_member(stage["pool"], "worker", *place, *exchange)

    def _start_member(self, pool: str, *arguments: str) -> None:
        self.pools[self.start(*arguments, "--pool", pool).pid] = pool

    def check(self) -> None:
        """Raise if a process has failed."""
        if any(process.poll() for process in self.started):
            raise SystemExit(f"a process of the job failed:\n{(self._folder / 'log').read_text()[-3000:]}")

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Call the coordinator."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Authorization": f"Bearer {self._token}"})
        request.method = method
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")
