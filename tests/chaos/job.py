"""The job under test: `heterps run` as a user starts it, started again whenever it is killed."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from tests.chaos.faults.director import Pace
from tests.chaos.faults.schedule import Run
from tests.chaos.namespaces import OUR_ADDRESS
from tests.counting import counting_columns, counting_spec
from tests.heterps_operator.helpers.real_job import BATCH, ROWS, RealJob

__all__ = ["COMPARED", "ChaosJob"]

_CHECKPOINT_STEPS = 10
_HANG_SECONDS = 60
_STATUS_SECONDS = 2.0
_MAX_UNITS = 6  # of each pool
_HELD_SINCE_SECONDS = 80.0  # a step takes two seconds from the beginning
_EVALUATION = "held-out"  # folder
_LAYERS = ("tables", "linear", "output")
# The small model in float64, with optimizers that do not amplify rounding errors: see tests/same_model.py.
COMPARED = {
    "model__entrypoint": "small_model:build_held",
    "training__optimizer": {
        "dense": {"name": "sgd", "learningRate": "0.05"},
        "sparse": {"name": "adagrad", "learningRate": "0.05"},
    },
}

Json = dict[str, Any]


class ChaosJob:
    """The job of a run.

    Args:
        folder: a folder without data; `.heterps` in it is the mounted disk.
        backing: holds the files of the disk.
        run: plan of the run.
        variables: of the processes' environment, besides this process's.

    Attributes:
        real: the job as other tests use it.
        files: the job's work directory in the backing folder.
        output: of all commands.
    """

    def __init__(self, folder: Path, backing: Path, run: Run, variables: Mapping[str, str]) -> None:
        self._variables = variables
        if run.model == "counting":
            fields = {
                path.replace(".", "__"): value
                for path, value in counting_spec(
                    "small_model", ROWS, BATCH, run.consistency, least_seconds=run.least_seconds
                ).items()
            }
            fields["data__evaluation"] = _EVALUATION
        else:
            fields = {**COMPARED, "training__precision": "fp64", "training__consistency": run.consistency}
        stages = run.topology.stages
        fields |= {
            "training__steps": run.steps,
            "scheduling__stages": [
                {"pool": pool, "lastLayer": _LAYERS[-1] if i == len(stages) - 1 else _LAYERS[i], "units": workers}
                for i, (pool, workers) in enumerate(stages)
            ],
            "parameterServer": {"replicas": run.topology.servers, "replication": run.topology.copies},
            "checkpoint__everySteps": _CHECKPOINT_STEPS,
            "runPolicy__backoffLimit": run.backoff_limit,
            "runPolicy__hangTimeoutSeconds": _HANG_SECONDS,
        }
        columns = counting_columns(ROWS)
        (folder / _EVALUATION).mkdir(parents=True)
        pq.write_table(pa.table(columns), folder / _EVALUATION / "part-0.parquet")
        data = columns if run.model == "counting" else None
        pools = sorted({pool for pool, _ in stages} - {"cpu"})
        self.real = RealJob(folder, data, max_units=_MAX_UNITS, other_pools=pools, **fields)
        self.files = backing / self.real.work.name
        self.output = ""
        self._command: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start `heterps run`."""
        command = self._command = self.real.start("run", "job.yaml", variables=self._variables)

        def read() -> None:
            self.output += "".join(command.communicate())

        self._reader = threading.Thread(target=read, name="output", daemon=True)  # a full pipe would stop the job
        self._reader.start()

    def poll(self) -> int | None:
        """Return the exit code of `heterps run`; None while it runs."""
        assert self._command is not None
        return self._command.poll()

    def set_pace(self, pace: Pace) -> None:
        """Make training slow, or as fast as before: see `small_model.Held`."""
        file = self.real.folder / "held"
        match pace:
            case Pace.FULL:
                file.unlink(missing_ok=True)
            case Pace.SLOW:
                file.touch()  # a young file
            case Pace.HELD if not file.exists():
                file.touch()
                since = time.time() - _HELD_SINCE_SECONDS
                os.utime(file, (since, since))

    def stop(self) -> None:
        """Ask `heterps run` to end with a checkpoint, as Ctrl-C does."""
        assert self._command is not None
        self._command.send_signal(signal.SIGINT)

    def collect(self) -> None:
        """Read the output of the ended command to its end."""
        self._reader.join()

    def status(self) -> Json | None:
        """Return the coordinator's status; None if it does not answer. The proxy does not see this request."""
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            address = urlsplit(json.loads((self.real.work / "coordinator.json").read_text())["http"])
            assert address.hostname is not None
            connection = http.client.HTTPConnection(
                address.hostname, address.port, timeout=_STATUS_SECONDS, source_address=(OUR_ADDRESS, 0)
            )
            with contextlib.closing(connection):
                headers = {"Authorization": f"Bearer {(self.real.work / 'token').read_text()}"}
                connection.request("GET", "/v1/status", headers=headers)
                document = json.loads(connection.getresponse().read())
                return document if isinstance(document, dict) and "committedSteps" in document else None
        return None

    def interrupt(self) -> None:
        """End a job that has not ended by itself."""
        if self._command is not None and self._command.poll() is None:
            self._command.kill()
            self.collect()
