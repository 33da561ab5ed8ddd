"""A small job, run by the real command with the real runtime: `heterps` in a child process.

The profile of its one pool is stored in the cache, unless a test is about the profiler: measuring takes a minute, and
any times will do for a hand-written plan.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from heterps_operator.cli.session import Programs, open_session
from heterps_operator.loop.coordinator_client import CoordinatorClient, CoordinatorError

HERE = Path(__file__).parent
ROWS = 4096
BATCH = 256
_PATIENCE_SECONDS = 120
MANIFEST = """
apiVersion: heterps.io/v1alpha1
kind: DevicePool
metadata: {name: cpu}
spec: {deviceType: CPU, torchDevice: cpu, maxUnits: 2, pricePerUnitHour: "0.04"}
---
apiVersion: heterps.io/v1alpha1
kind: HeterPSJob
metadata: {name: small}
spec:
  image: example.com/small:1
  model: {entrypoint: "small_model:build", loss: "torch.nn.functional:binary_cross_entropy_with_logits"}
  data: {format: parquet, train: data, label: late, dense: [distance, hour], sparse: [carrier, origin]}
  training:
    globalBatchSize: 256
    steps: 400
    consistency: sync
    optimizer:
      dense: {name: adam, learningRate: "0.001"}
      sparse: {name: rowwise-adagrad, learningRate: "0.05"}
  pools: [{name: cpu}]
  scheduling: {stages: [{pool: cpu, lastLayer: output, units: 1}]}
  checkpoint: {everySteps: 20, keep: 3}
"""
_LAYER = {"kind": "Linear", "computeSeconds": 0.001, "parallelFraction": 0.9, "processorSeconds": 0.001, "spread": 0.01}
PROFILE: dict[str, Any] = {
    "version": 1,
    "batchSize": BATCH,
    "samples": ROWS,
    "layers": [{"name": name, **_LAYER} for name in ("tables", "linear", "output")],
    "measured": {},
    "warnings": [],
}


def columns(rows: int = ROWS) -> dict[str, Any]:
    """Return a data set without errors."""
    random = np.random.default_rng(0)
    return {
        "distance": random.normal(size=rows),
        "hour": random.uniform(-1, 1, size=rows),
        "carrier": random.integers(0, 50, rows),
        "origin": [f"a{i}" for i in random.integers(0, 200, rows)],
        "late": (random.random(rows) < 0.3).astype(np.int64),
    }


@dataclass(frozen=True)
class Result:
    """Output and exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    def report(self) -> dict[str, Any]:
        """The JSON document on stdout."""
        document: dict[str, Any] = json.loads(self.out)
        assert document["exitCode"] == self.code
        return document


class RealJob:
    """One job in its own folder.

    Args:
        folder: an empty folder.
        data: columns of the training data.
        profiled: whether the profile of the pool is cached.
        max_units: limit of each pool.
        other_pools: names of further pools, whose workers all-reduce dense parameters (on CPUs, as if they were GPUs).
        cpu_pools: names of further pools like the first.
        spec: changes of the manifest by dotted path below spec; None removes the field.
    """

    def __init__(
        self,
        folder: Path,
        data: Mapping[str, Any] | None = None,
        *,
        profiled: bool = True,
        max_units: int = 2,
        other_pools: Sequence[str] = (),
        cpu_pools: Sequence[str] = (),
        **spec: Any,
    ) -> None:
        self.folder = folder
        (folder / "data").mkdir(parents=True)
        pq.write_table(pa.table(dict(data or columns())), folder / "data" / "part-0.parquet")
        (folder / "small_model.py").write_text((HERE / "small_model.py").read_text())
        self._documents = list(yaml.safe_load_all(MANIFEST))
        pool, job = self._documents
        pool["spec"]["maxUnits"] = max_units
        for name in (*other_pools, *cpu_pools):
            kind = "GPU" if name in other_pools else "CPU"
            self._documents.append({**pool, "metadata": {"name": name}, "spec": {**pool["spec"], "deviceType": kind}})
            job["spec"]["pools"].append({"name": name})
        self.work = folder / ".heterps" / "small"
        self.change(**spec)
        if profiled:
            session = open_session(str(folder / "job.yaml"), str(self.work), Programs())
            for name in ("cpu", *other_pools, *cpu_pools):
                session.cache.save(name, PROFILE)

    def change(self, **spec: Any) -> None:
        """Write the manifest with changes: `data__train="elsewhere"`."""
        for path, value in spec.items():
            *parents, last = path.split("__")
            target = self._documents[1]["spec"]
            for name in parents:
                target = target.setdefault(name, {})
            if value is None:
                target.pop(last, None)
            else:
                target[last] = value
        (self.folder / "job.yaml").write_text(yaml.safe_dump_all(self._documents))

    def start(
        self,
        *arguments: str,
        variables: Mapping[str, str] = MappingProxyType({}),
        program: str = "heterps_operator",
    ) -> subprocess.Popen[str]:
        """Start `heterps ARGUMENTS` in the job's folder, as the leader of a process group, like a shell's jobs.

        Args:
            arguments: of the command.
            variables: of its environment, besides this process's.
            program: module of the command.
        """
        environment = {**os.environ, "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", str(HERE / "__pycache__"))}
        return subprocess.Popen(
            [sys.executable, "-P", "-m", program, *arguments],
            cwd=self.folder,
            env=environment | {"COLUMNS": "400", "HETERPS_TEST_FOLDER": str(self.folder)} | dict(variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def finish(self, process: subprocess.Popen[str]) -> Result:
        """Wait for its end, and check that no process is left."""
        try:
            out, err = process.communicate(timeout=_PATIENCE_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                process.communicate()
                raise AssertionError(f"heterps hangs: {self.logs()}")
        result = Result(process.returncode, out, err)
        assert "Traceback" not in result.text, result.text
        assert self.survivors() == {}
        return result

    def run(self, *arguments: str) -> Result:
        """Run `heterps run job.yaml ARGUMENTS` to its end."""
        return self.finish(self.start("run", "job.yaml", *arguments))

    def status(self) -> dict[str, Any] | None:
        """Return the coordinator's current status; None if it does not run."""
        try:
            address = json.loads((self.work / "coordinator.json").read_text())["http"]
            return CoordinatorClient(address, (self.work / "token").read_text()).status()
        except (OSError, ValueError, CoordinatorError):
            return None

    def await_status(self, process: subprocess.Popen[str], found: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Poll the coordinator until a condition holds."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            status = self.status()
            if status is not None and found(status):
                return status
            time.sleep(0.1)  # each answer takes the coordinator and this process some milliseconds
        raise AssertionError(f"ended with {process.poll()} before it came to this: {self.logs()}")

    def await_line(self, process: subprocess.Popen[str], text: str) -> None:
        """Wait until a line of stdout has this text. The coordinator may be further than what the terminal shows."""
        assert process.stdout is not None
        read = []
        for line in process.stdout:
            read.append(line)
            if text in line:
                return
        raise AssertionError(f"ended without {text!r}: {''.join(read)}{self.logs()}")

    def await_step(self, process: subprocess.Popen[str], step: int) -> dict[str, Any]:
        """Wait until a step is committed."""
        return self.await_status(process, lambda status: bool(status["committedSteps"] >= step))

    def pid(self, name: str) -> int | None:
        """Return the pid of the running process of that name."""
        record = json.loads((self.work / "processes.json").read_text())
        return next((int(p["pid"]) for p in record["processes"] if p["name"] == name), None)

    def kill(
        self, process: subprocess.Popen[str], name: str, at_step: int, number: signal.Signals = signal.SIGKILL
    ) -> int:
        """Send a signal to a process of the job once a step is committed; return its pid."""
        self.await_step(process, at_step)
        pid = self.pid(name)
        assert pid is not None
        os.kill(pid, number)
        return pid

    def await_replaced(self, process: subprocess.Popen[str], name: str, pid: int) -> None:
        """Wait until the process of that name is replaced, and the coordinator answers."""
        self.await_status(process, lambda status: self.pid(name) not in (None, pid))

    def survivors(self) -> dict[int, str]:
        """Return the processes of this job that still run."""
        marker = f"HETERPS_TEST_FOLDER={self.folder}\0".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                if marker in (entry / "environ").read_bytes() + b"\0":
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def logs(self) -> str:
        """Return the last lines of every log, for a failed test."""
        paths = sorted((self.work / "logs").glob("*.log"))
        return "\n".join(f"{path.name}: {path.read_text()[-500:]}" for path in paths)

    def checkpoints(self) -> list[Path]:
        """Return the folders of the complete checkpoints, the oldest first."""
        found = [path.parent for path in (self.work / "checkpoints").glob("*/manifest.json")]
        return sorted(found, key=lambda folder: (term_of(folder.name), step_of(folder.name)))


def step_of(folder: str) -> int:
    """Return the step of a checkpoint, by its folder's name: `step-STEP.TERM-ID`."""
    return int(folder.removeprefix("step-").partition(".")[0])


def term_of(folder: str) -> int:
    """Return the term under which a checkpoint was written."""
    return int(folder.partition(".")[2].partition("-")[0])
