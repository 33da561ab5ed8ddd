"""Training speed: HeterPS beside PyTorch's DistributedDataParallel and single-process PyTorch on the same machine.

    python -m benchmarks.training_speed [--model deep|wide|both] [--rounds 5] [--steps 70] [--output table|json]
                                        [--precision fp32 bf16] [--wire fp16]

All train the same network on the same batches in the same order with the same optimizers, in float32, or with products
in bfloat16 (`training.precision: bf16`; autocast in PyTorch):

- HeterPS: two workers of one thread and one parameter server; sparse rows in `hybrid`, the dense part synchronised. The
  real processes, reading parquet through the job's own cache. Throughput is measured by the coordinator's commits.
- DDP: two processes of one thread, gloo, `nn.Embedding(sparse=True)`; all data in memory.
- single: one process of two threads, `sparse=True`; all data in memory.

Rounds are interleaved and ratios are taken within a round, since a shared machine changes its speed within minutes.
Start-up and the first steps do not count. The held-out log loss shows that all learn the same.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._clicks import DENSE_RATE, EMBEDDING_STD, NETWORKS, SPARSE_RATE, click_job
from benchmarks._processes import Processes, pool_document, stage_document
from examples.paper.prepare import ClickLogSpec, write_click_log

from heterps_operator.api.manifest import load_manifest
from heterps_runtime.contract import PATH_SHUTDOWN, PATH_STATUS

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".cache" / "benchmarks"
PATIENCE_SECONDS = 240
SKIP = 15  # untimed first steps
WORKERS = 2
BATCH = 4096  # per worker
TRAIN_ROWS, HELD_OUT_ROWS = 600_000, 50_000
SEED = 17
LOG_SEED = 11

Outcome = dict[str, Any]


class Entrant(NamedTuple):
    """A way of training."""

    processes: int  # of plain PyTorch; 0: HeterPS
    precision: str
    wire: str = "full"  # precision of rows in messages


def pytorch(
    variant: str,
    data: Path,
    steps: int,
    folder: Path,
    processes: int,
    precision: str,
    device: str = "cpu",
    batch: int = BATCH * WORKERS,
) -> Outcome:
    """Train with plain PyTorch; a single process gets all threads. `batch`: of all processes together."""
    settings = {
        "variant": variant,
        "data": str(data),
        "steps": steps,
        "skip": SKIP,
        "processes": processes,
        "threads": WORKERS // processes,
        "globalBatchSize": batch,
        "device": device,
        "seed": SEED,
        "denseRate": DENSE_RATE,
        "sparseRate": SPARSE_RATE,
        "embeddingStd": EMBEDDING_STD,
        "precision": precision,
        "rendezvous": str(folder / "rendezvous"),
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    environment = dict(os.environ) | {"OMP_NUM_THREADS": str(WORKERS // processes)}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks._pytorch", str(folder / "settings.json"), str(rank)],
            cwd=HERE.parent,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    answers = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("plain PyTorch failed")
    outcomes: list[Outcome] = [json.loads(answer) for answer in answers]
    cpu = sum(o["cpuSeconds"] for o in outcomes)
    return outcomes[0] | {"samplesPerCpuSecond": outcomes[0]["samples"] / cpu}


def cpu_manifest(variant: str, data: Path, steps: int, precision: str, wire: str) -> list[dict[str, Any]]:
    """Return the HeterPS job and its pool."""
    pool = pool_document("cpu", "CPU", "cpu", WORKERS, "0.04")
    files = {
        "train": str(data / "train"),
        "evaluation": str(data / "held-out"),
        "cache": {"directory": str(CACHE / "data-cache")},
    }
    training = {"globalBatchSize": BATCH * WORKERS, "steps": steps, "precision": precision, "seed": SEED}
    job = click_job("training-speed", variant, files, training)
    job["spec"]["parameterServer"] = {"wirePrecision": wire}
    return [pool, job]


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
        stages: as `stage_document` makes them; without any, one stage of `WORKERS` CPU workers.
        servers: number of parameter servers, on pool `cpu`.
    """

    def __init__(
        self,
        documents: list[dict[str, Any]],
        folder: Path,
        stages: list[dict[str, Any]] | None = None,
        servers: int = 1,
    ) -> None:
        (folder / "job.yaml").write_text("---\n".join(json.dumps(part) + "\n" for part in documents))
        (folder / "work").mkdir()
        super().__init__(load_manifest(folder / "job.yaml").run_configuration(folder / "work", [HERE.parent]), folder)
        spec = documents[-1]["spec"]
        last_layer = spec["model"]["arguments"]["layers"] - 1
        self._stages = stages or [stage_document(0, "cpu", 0, last_layer, WORKERS, WORKERS)]
        self._servers = servers
        self._batch: int = spec["training"]["globalBatchSize"]

    def __enter__(self) -> HeterPS:
        super().__enter__()
        self.train(self._stages, self._servers, "cpu")
        return self

    def measure(self, steps: int, skip: int = SKIP) -> Outcome:
        """Wait for the end; return throughput after the first `skip` steps, from commits, and time per activity."""
        begin = self._await(skip, steps)
        end = self._await(steps, steps)
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
            "serverBytes": sum(m["totals"]["bytes"] for m in end.status["members"] if m["name"].startswith("ps-")),
            "millisecondsPerStep": self._breakdown(begin.status, end.status),
        }
        self.request("POST", PATH_SHUTDOWN)
        for process in self.started:
            process.wait(timeout=PATIENCE_SECONDS)
        return outcome

    def _await(self, step: int, last: int) -> Moment:
        """Return the state when a commit of `step` or later is first seen.

        It polls rarely until shortly before, so that polling costs nothing.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
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


def heterps(variant: str, data: Path, steps: int, folder: Path, precision: str, wire: str) -> Outcome:
    """Train with HeterPS."""
    with HeterPS(cpu_manifest(variant, data, steps, precision, wire), folder) as job:
        return job.measure(steps)


def entrants_of(precisions: list[str], wires: list[str]) -> dict[str, Entrant]:
    """Return the entrants by name."""
    found: dict[str, Entrant] = {}
    for precision in precisions:
        suffix = "" if precision == "fp32" else f" {precision}"
        for wire in wires:
            found["HeterPS" + suffix + (f" ({wire})" if wire != "full" else "")] = Entrant(0, precision, wire)
        found[f"DDP{suffix}"] = Entrant(WORKERS, precision)
        found[f"single{suffix}"] = Entrant(1, precision)
    return found


def compare(variant: str, steps: int, rounds: int, entrants: dict[str, Entrant]) -> dict[str, list[Outcome]]:
    """Train with every entrant, `rounds` times; return outcomes by entrant, one per round."""
    log = ClickLogSpec(seed=LOG_SEED)
    data = write_click_log(CACHE / "click-log", log, TRAIN_ROWS, HELD_OUT_ROWS, progress=sys.stderr.isatty())
    outcomes: dict[str, list[Outcome]] = {name: [] for name in entrants}
    for number in range(rounds):
        for name, (processes, precision, wire) in entrants.items():
            with tempfile.TemporaryDirectory(prefix="heterps-speed-") as folder:
                if processes:
                    outcome = pytorch(variant, data, steps, Path(folder), processes, precision)
                else:
                    outcome = heterps(variant, data, steps, Path(folder), precision, wire)
            outcomes[name].append(outcome)
        figures = ", ".join(f"{name} {o[-1]['samplesPerSecond']:,.0f}" for name, o in outcomes.items())
        print(f"  {variant}, round {number + 1}: {figures} samples/s", file=sys.stderr, flush=True)
    return outcomes


def summary(outcomes: dict[str, list[Outcome]]) -> list[dict[str, Any]]:
    """Return medians and spreads per entrant, and the ratio to it of HeterPS in its precision, round by round."""
    rows = []
    for name, rounds in outcomes.items():
        rates = [o["samplesPerSecond"] for o in rounds]
        same = "HeterPS bf16" if " bf16" in name else "HeterPS"
        ours = [o["samplesPerSecond"] for o in outcomes.get(same, rounds)]
        ratios = [a / b for a, b in zip(ours, rates, strict=True)]
        rows.append(
            {
                "name": name,
                "samplesPerSecond": {"median": statistics.median(rates), "min": min(rates), "max": max(rates)},
                "heterpsRatio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
                "samplesPerCpuSecond": statistics.median(o["samplesPerCpuSecond"] for o in rounds),
                "logLoss": statistics.median(o["logLoss"] for o in rounds),
            }
        )
    return rows


def print_tables(variant: str, outcomes: dict[str, list[Outcome]]) -> None:
    """Print the comparison, and the parts of HeterPS's time."""
    print(
        f"\n| {variant} | samples/s, median (min - max) | HeterPS / this, median (min - max) "
        "| samples per processor second | held-out log loss |"
    )
    print("|---|---|---|---|---|")
    for row in summary(outcomes):
        rate, ratio = row["samplesPerSecond"], row["heterpsRatio"]
        spread = f"{ratio['median']:.2f} ({ratio['min']:.2f} - {ratio['max']:.2f})"
        print(
            f"| {row['name']} | {rate['median']:,.0f} ({rate['min']:,.0f} - {rate['max']:,.0f}) "
            f"| {'1' if row['name'] in ('HeterPS', 'HeterPS bf16') else spread} "
            f"| {row['samplesPerCpuSecond']:,.0f} | {row['logLoss']:.4f} |"
        )
    for name in ("HeterPS", "HeterPS bf16"):
        if name in outcomes:
            print_parts(name, outcomes[name])


def print_parts(name: str, outcomes: list[Outcome]) -> None:
    """Print the parts of HeterPS's time."""
    cpu = [o["cpuMillisecondsPerStep"] for o in outcomes]
    medians = {role: statistics.median(c[role] for c in cpu) for role in cpu[0]}
    print(f"{name}, processor time, ms per step: " + ", ".join(f"{role} {ms:.1f}" for role, ms in medians.items()))
    members = sorted({name for o in outcomes for name in o["millisecondsPerStep"]})
    for member in members:
        rounds = [o["millisecondsPerStep"].get(member, {}) for o in outcomes]
        names = {name for activities in rounds for name in activities}
        medians = {name: statistics.median(a.get(name, 0.0) for a in rounds) for name in names}
        parts = sorted(((ms, name) for name, ms in medians.items() if ms >= 0.05), reverse=True)
        print(f"{member}, ms per step: " + ", ".join(f"{name} {ms:.1f}" for ms, name in parts))


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=(*NETWORKS, "both"), default="deep")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--precision", choices=("fp32", "bf16"), nargs="+", default=["fp32"], help="default: fp32")
    parser.add_argument("--wire", choices=("fp16", "bf16"), help="add HeterPS with this wire precision")
    parser.add_argument("--only", action="append", default=[], help="only this entrant (may be repeated)")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    entrants = entrants_of(options.precision, ["full", *([options.wire] if options.wire else [])])
    entrants = {name: entrant for name, entrant in entrants.items() if not options.only or name in options.only}
    report: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "steps": options.steps, "batchPerWorker": BATCH}
    for variant in NETWORKS if options.model == "both" else (options.model,):
        outcomes = compare(variant, options.steps, options.rounds, entrants)
        report[variant] = {"rounds": outcomes, "summary": summary(outcomes)}
        if options.output == "table":
            print_tables(variant, outcomes)
    if options.output == "json":
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
