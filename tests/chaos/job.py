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
from tests.chaos.faults.schedule import CARD, Run, Topology
from tests.chaos.namespaces import OUR_ADDRESS
from tests.chaos.replanning import PROGRAM, write_wish
from tests.counting import counting_columns, counting_spec
from tests.heterps_operator.helpers.real_job import BATCH, ROWS, RealJob

__all__ = ["COMPARED", "ChaosJob"]

_ROOT = Path(__file__).parents[2]
_CHECKPOINT_STEPS = 10
_HANG_SECONDS = 60
_STATUS_SECONDS = 2.0
_MAX_UNITS = 6  # of each pool
_MAX_UNITS_CHANGING = 12  # so that the processes of two plans have room beside each other
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
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._variables = {**variables, "PYTHONPATH": path}
        self._program = PROGRAM if len(run.plans) > 1 else "heterps_operator"
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
        fields |= {
            **_spec_of(run.topology),
            "training__steps": run.steps,
            "checkpoint__everySteps": _CHECKPOINT_STEPS,
            "runPolicy__backoffLimit": run.backoff_limit,
            "runPolicy__hangTimeoutSeconds": _HANG_SECONDS,
        }
        columns = counting_columns(ROWS)
        (folder / _EVALUATION).mkdir(parents=True)
        pq.write_table(pa.table(columns), folder / _EVALUATION / "part-0.parquet")
        data = columns if run.model == "counting" else None
        pools = {pool for plan in run.plans for pool, _ in plan.stages} - {"cpu"}
        cards = pools & {CARD}
        most = _MAX_UNITS if len(run.plans) == 1 else _MAX_UNITS_CHANGING
        self.real = RealJob(
            folder, data, max_units=most, other_pools=sorted(cards), cpu_pools=sorted(pools - cards), **fields
        )
        self.files = backing / self.real.work.name
        self.output = ""
        self._command: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start `heterps run`."""
        command = self._command = self.real.start("run", "job.yaml", variables=self._variables, program=self._program)

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

    def replan(self, plan: Topology) -> None:
        """Have the control loop change to a plan: see `replanning`."""
        write_wish(self.real.folder, _stages_of(plan), plan.servers)

    def edit(self, plan: Topology) -> None:
        """Write a plan into the manifest, which the next `heterps run` reads."""
        write_wish(self.real.folder, (), 0)
        self.real.change(**_spec_of(plan))

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


def _spec_of(plan: Topology) -> Json:
    """Fields of a job's spec with a plan by hand, by path."""
    return {
        "scheduling__stages": _stages_of(plan),
        "parameterServer": {"replicas": plan.servers, "replication": plan.copies},
    }


def _stages_of(plan: Topology) -> list[Json]:
    last = len(plan.stages) - 1
    return [
        {"pool": pool, "lastLayer": _LAYERS[-1] if i == last else _LAYERS[i], "units": workers}
        for i, (pool, workers) in enumerate(plan.stages)
    ]
