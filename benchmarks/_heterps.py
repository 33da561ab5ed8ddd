"""A whole run of a HeterPS job with real processes, measured by its commits."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._clicks import CACHE, NETWORKS, SEED, click_job
from benchmarks._processes import Processes, pool_document, stage_document

from heterps_operator.api.manifest import load_manifest
from heterps_runtime.contract import PATH_SHUTDOWN, PATH_STATUS

__all__ = ["SKIP", "HeterPS", "Moment", "Outcome", "on_cores"]

SKIP = 15  # untimed first steps
_ROOT = Path(__file__).resolve().parents[1]
_PATIENCE_SECONDS = 240

Outcome = dict[str, Any]


class Moment(NamedTuple):
    """State at a commit."""

    time: float
    cpu_seconds: list[float]  # by process
    samples: int
    status: dict[str, Any]


class HeterPS(Processes):
    """A job.

    Args:
        documents: pools, and the job last.
        folder: empty.
        stages: as `stage_document` makes them.
        servers: number of parameter servers, on pool `cpu`.
    """

    def __init__(
        self,
        documents: list[dict[str, Any]],
        folder: Path,
        stages: list[dict[str, Any]],
        servers: int = 1,
    ) -> None:
        (folder / "job.yaml").write_text("---\n".join(json.dumps(part) + "\n" for part in documents))
        (folder / "work").mkdir()
        super().__init__(load_manifest(folder / "job.yaml").run_configuration(folder / "work", [_ROOT]), folder)
        self._stages = stages
        self._servers = servers
        self._batch: int = documents[-1]["spec"]["training"]["globalBatchSize"]

    def __enter__(self) -> HeterPS:
        super().__enter__()
        self.train(self._stages, self._servers, "cpu")
        return self

    def measure(self, steps: int, seen: Callable[[Moment], None] = lambda moment: None, skip: int = SKIP) -> Outcome:
        """Wait for the end; return throughput after the first steps, from commits, and time per activity.

        Args:
            steps: of the job.
            seen: called when the first and the last commit that count have been seen.
            skip: first steps, which do not count.
        """
        begin = self._await(skip, steps)
        seen(begin)
        end = self._await(steps, steps)
        seen(end)
        status = end.status
        while status["phase"] not in ("Succeeded", "Failed", "Stopped"):
            self.check()
            time.sleep(0.1)
            status = self.request("GET", PATH_STATUS)
        if status["phase"] != "Succeeded":
            raise SystemExit(f"the job ended as {status['phase']}: {status['error']}")
        cpu = [after - before for before, after in zip(begin.cpu_seconds, end.cpu_seconds, strict=True)]
        workers = [f"worker-{s}-{i}" for s, stage in enumerate(self._stages) for i in range(stage["pods"])]
        roles = ("coordinator", *(f"ps-{i}" for i in range(self._servers)), *workers)
        measured = (end.samples - begin.samples) / self._batch
        outcome = {
            "samplesPerSecond": (end.samples - begin.samples) / (end.time - begin.time),
            "samplesPerCpuSecond": (end.samples - begin.samples) / sum(cpu),
            "cpuMillisecondsPerStep": {r: 1000 * c / measured for r, c in zip(roles, cpu, strict=True)},
            "logLoss": status["evaluation"]["logLoss"],
            "auc": status["evaluation"]["auc"],
            "millisecondsPerStep": self._breakdown(begin.status, end.status),
        }
        self.request("POST", PATH_SHUTDOWN)
        for process in self.started:
            process.wait(timeout=_PATIENCE_SECONDS)
        return outcome

    def _await(self, step: int, last: int) -> Moment:
        """Return the state when a commit of `step` or later is first seen.

        It polls rarely until shortly before, so that polling costs nothing.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        before = -1
        while time.monotonic() < deadline:
            status = self.request("GET", PATH_STATUS)
            committed = status["committedSteps"]
            if committed >= step and (before >= 0 or committed >= last) and committed != before:
                return Moment(time.monotonic(), self._cpu_seconds(), status["samples"], status)
            close = committed >= step - 4
            before = committed if close else -1
            time.sleep(0.02 if close else 0.1)
            self.check()
        raise SystemExit("the job does not end")

    def _cpu_seconds(self) -> list[float]:
        """Return the processor time of each process of the job: coordinator, server, workers."""
        seconds = []
        for process in self.started:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            seconds.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))  # user and system
        return seconds

    def _breakdown(self, begin: dict[str, Any], end: dict[str, Any]) -> dict[str, dict[str, float]]:
        """Return milliseconds per step by member and activity, from the pulses at both ends."""
        at_begin = {m["name"]: m.get("totals", {}) for m in begin["members"]}
        steps = end["committedSteps"] - begin["committedSteps"]
        result: dict[str, dict[str, float]] = {}
        for member in end["members"]:
            now, then = member.get("totals", {}), at_begin.get(member["name"], {})
            delta = {
                name.removeprefix("seconds:"): 1000 * (value - then.get(name, 0.0)) / steps
                for name, value in now.items()
                if name.startswith("seconds:")
            }
            if delta:
                result[member["name"]] = delta
        return result


def on_cores(
    variant: str,
    data: Path,
    folder: Path,
    steps: int,
    batch: int,
    workers: int,
    precision: str = "fp32",
    wire: str = "full",
    consistency: str = "hybrid",
    warmup: int | None = None,
    servers: int = 1,
    server: Mapping[str, Any] | None = None,
) -> HeterPS:
    """Return a job whose workers have one thread each.

    Args:
        variant: of NETWORKS.
        data: folder of the click log.
        folder: empty.
        steps: to train.
        batch: samples of a step.
        workers: their number.
        precision: of products.
        wire: precision of rows in messages.
        consistency: of rows.
        warmup: first steps that read no stale rows; None: the default.
        servers: their number.
        server: other fields of `spec.parameterServer`.
    """
    files = {
        "train": str(data / "train"),
        "evaluation": str(data / "held-out"),
        "cache": {"directory": str(CACHE / "data-cache")},
    }
    training = {
        "globalBatchSize": batch,
        "steps": steps,
        "precision": precision,
        "seed": SEED,
        "consistency": consistency,
    }
    if warmup is not None:
        training["stalenessWarmupSteps"] = warmup
    job = click_job("training-speed", variant, files, training)
    job["spec"]["parameterServer"] = {"wirePrecision": wire, **(server or {})}
    stage = stage_document(0, "cpu", 0, NETWORKS[variant].layers - 1, workers, workers)
    return HeterPS([pool_document("cpu", "CPU", "cpu", workers, "0.04"), job], folder, [stage], servers)
