"""The systems under test: HeterPS, torchrun with DistributedDataParallel, TensorFlow's ParameterServerStrategy."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import yaml
from benchmarks._recovery.data import write_records
from benchmarks._recovery.system import BATCH, CHECKPOINT_STEPS, PATIENCE_SECONDS, Peer, Program, System
from benchmarks._tensorflow import tensorflow_command, tensorflow_variables

from heterps_operator.api.manifest import load_manifest
from heterps_operator.loop.coordinator_client import CoordinatorClient, CoordinatorError
from heterps_runtime.data import DataSpec

__all__ = ["HeterPS", "TensorFlow", "Torchrun", "prepare"]

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = ROOT / "examples" / "flights"
DENSE_RATE, SPARSE_RATE, EMBEDDING_STD, SEED = 0.001, 0.05, 0.05, 17
NAMES = {"worker": "worker-0-1", "ps": "ps-0", "coordinator": "coordinator"}


class HeterPS(System):
    """The flights example under `heterps run`, on a plan by hand, without an end.

    Args:
        folder: empty.
        copies: number of servers, each of which holds all rows.
    """

    faults = ("worker", "ps", "coordinator", "pause", "reset")

    def __init__(self, folder: Path, copies: int = 1) -> None:
        self.name = "heterps" if copies == 1 else "heterps-copies"
        for name in ("flights", "data"):
            (folder / name).symlink_to(FLIGHTS / name)
        documents = list(yaml.safe_load_all((FLIGHTS / "job.yaml").read_text()))
        pools = [d for d in documents if d["kind"] == "DevicePool" and d["metadata"]["name"] == "cpu"]
        job = next(d for d in documents if d["kind"] == "HeterPSJob")
        pools[0]["spec"]["maxUnits"] = 2 + copies
        job["spec"] |= {
            "pools": [{"name": "cpu"}],
            "scheduling": {"stages": [{"pool": "cpu", "lastLayer": "output", "units": 2}]},
            "parameterServer": {"replicas": copies, "replication": copies},
            "runPolicy": {"backoffLimit": 1000},
            "checkpoint": {"everySteps": CHECKPOINT_STEPS, "keep": 2},
            "objective": {"minSamplesPerSecond": 1},
        }
        job["spec"]["training"] |= {"epochs": 10_000, "globalBatchSize": BATCH}
        (folder / "job.yaml").write_text(yaml.safe_dump_all([*pools, job]))
        self._folder = folder
        self._work = folder / ".heterps" / "flights"

    def __enter__(self) -> HeterPS:
        command = [sys.executable, "-P", "-m", "heterps_operator", "run", "job.yaml"]
        with (self._folder / "log").open("wb") as log:
            self._command = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log, process_group=0)
        return self

    def __exit__(self, *error: object) -> None:
        for _ in range(2):  # the second one does not wait for a checkpoint
            self._command.send_signal(signal.SIGINT)
            time.sleep(0.2)
        self._command.wait(PATIENCE_SECONDS)

    def samples(self) -> float | None:
        if self._command.poll() is not None:
            raise SystemExit(f"the job has ended:\n{self.log()}")
        try:
            address = json.loads((self._work / "coordinator.json").read_text())["http"]
            status = CoordinatorClient(address, (self._work / "token").read_text()).status()
        except (OSError, ValueError, CoordinatorError):
            return None
        # A coordinator that has just started counts from the checkpoint before members are at work.
        return float(status["samples"]) if status["running"] else None

    def pid(self, role: str) -> int:
        record = json.loads((self._work / "processes.json").read_text())
        return next(int(p["pid"]) for p in record["processes"] if p["name"] == NAMES[role])

    def log(self) -> str:
        return (self._folder / "log").read_text()[-6000:]


class Torchrun(Peer):
    """`torchrun --max-restarts` with two DDP workers. The death of torchrun itself is the coordinator's."""

    name = "torchrun"
    faults = ("worker", "coordinator", "pause", "reset")

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        (folder / "settings.json").write_text(
            json.dumps(settings | {"folder": str(folder), "timeoutSeconds": PATIENCE_SECONDS / 2})
        )
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command += ["--max-restarts=1000", "--monitor-interval=0.1"]
        command += ["-m", "benchmarks._recovery.elastic_worker", str(folder / "settings.json")]
        environment = {
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(FLIGHTS))),
            "OMP_NUM_THREADS": "1",
            # Otherwise torchrun keeps one store for all attempts, without a prefix for each: restarted workers may read
            # addresses of the previous attempt, and gloo waits for its members (pytorch/pytorch#135712).
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        super().__init__(folder, {"coordinator": Program(command, environment)})

    def pid(self, role: str) -> int:
        if role == "worker":
            return int((self.folder / "worker-1.pid").read_text())
        return super().pid(role)

    def kill(self, role: str) -> None:
        if role == "worker":
            super().kill(role)
        else:  # its workers are in its pod, and end with it
            self.end_pod(role)


class TensorFlow(Peer):
    """ParameterServerStrategy with a chief, one server and two workers."""

    name = "tensorflow"
    faults = ("worker", "ps", "coordinator", "pause", "reset")

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
            chief, server, *workers = (f"127.0.0.1:{s.getsockname()[1]}" for s in sockets)
        cluster = {"chief": [chief], "ps": [server], "worker": workers}
        (folder / "settings.json").write_text(json.dumps(settings | {"folder": str(folder), "cluster": cluster}))

        def program(role: str, index: int) -> Program:
            arguments = (str(folder / "settings.json"), role, str(index))
            command = tensorflow_command("benchmarks._recovery.tensorflow_process", *arguments)
            return Program(command, tensorflow_variables())

        programs = {
            "ps": program("ps", 0),
            "other worker": program("worker", 0),
            "worker": program("worker", 1),
            "coordinator": program("chief", 0),
        }
        super().__init__(folder, programs)


def prepare(folder: Path) -> dict[str, Any]:
    """Write the training data for peers and return their settings, which are HeterPS's."""
    manifest = load_manifest(FLIGHTS / "job.yaml")
    document = manifest.run_configuration(folder, [FLIGHTS])
    spec = document["job"]["spec"]
    arguments = spec["model"]["arguments"]
    sys.path.insert(0, str(FLIGHTS))
    network = importlib.import_module("flights.model").build(**arguments)
    data = DataSpec.from_manifest(spec["data"], spec["model"]["loss"], folder / "data-cache")
    records = folder / "records"
    write_records(data, network, records)
    return {
        "records": str(records),
        "arguments": arguments,
        "tables": [m.num_embeddings for m in network.modules() if isinstance(m, torch.nn.Embedding)],
        "batch": BATCH,
        "checkpointSteps": CHECKPOINT_STEPS,
        "denseRate": DENSE_RATE,
        "sparseRate": SPARSE_RATE,
        "embeddingStd": EMBEDDING_STD,
        "seed": SEED,
    }
