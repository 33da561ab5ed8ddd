"""Recovery time: how long training stands still, and how long it is slower, after a fault in one of its processes.

    python -m benchmarks.recovery [--rounds 10] [--faults worker ps coordinator pause reset] [--output table|json]

`heterps run` trains the flights example with one parameter server and two workers on a plan by hand, as a user would.
Each round brings about each fault once:

- `worker`, `ps`, `coordinator`: the process is killed (SIGKILL).
- `pause`: a worker is stopped (SIGSTOP) for 25 s, which is long enough to lose its place, and continued.
- `reset`: all connections of a worker to the coordinator and the server are reset (`ss --kill`); skipped where the
  kernel does not support that.

Two times are taken from the coordinator's status, read every 20 ms: until the next step is committed, and until the
throughput over one second is back at 90 % of its mean before the fault. They count from the fault, for `pause` from the
moment the worker continues.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from heterps_operator.loop.coordinator_client import CoordinatorClient, CoordinatorError

FLIGHTS = Path(__file__).resolve().parents[1] / "examples" / "flights"
FAULTS = ("worker", "ps", "coordinator", "pause", "reset")
KILLED = {"worker": "worker-0-1", "ps": "ps-0", "coordinator": "coordinator"}
WINDOW_SECONDS = 1.0  # of the throughput
STEADY_SECONDS = 3.0  # before a fault, for the mean throughput
RECOVERED = 0.9  # share of the mean throughput before
PAUSE_SECONDS = 25.0
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Recovery:
    """Times after one fault, in seconds; None: it was not reached within the patience."""

    fault: str
    first_step: float
    full_speed: float | None


class Job:
    """The flights example under `heterps run`, trained for longer than the benchmark takes."""

    def __init__(self, folder: Path) -> None:
        for name in ("flights", "data"):
            (folder / name).symlink_to(FLIGHTS / name)
        documents = list(yaml.safe_load_all((FLIGHTS / "job.yaml").read_text()))
        pools = [d for d in documents if d["kind"] == "DevicePool" and d["metadata"]["name"] == "cpu"]
        job = next(d for d in documents if d["kind"] == "HeterPSJob")
        pools[0]["spec"]["maxUnits"] = 3
        job["spec"] |= {
            "pools": [{"name": "cpu"}],
            "scheduling": {"stages": [{"pool": "cpu", "lastLayer": "output", "units": 2}]},
            "parameterServer": {"replicas": 1},
            "runPolicy": {"backoffLimit": 1000},
            "checkpoint": {"everySteps": 50, "keep": 2},
            "objective": {"minSamplesPerSecond": 1},
        }
        job["spec"]["training"]["epochs"] = 10_000
        (folder / "job.yaml").write_text(yaml.safe_dump_all([*pools, job]))
        self._folder = folder
        self._work = folder / ".heterps" / "flights"

    def __enter__(self) -> Job:
        command = [sys.executable, "-P", "-m", "heterps_operator", "run", "job.yaml"]
        with (self._folder / "log").open("wb") as log:
            self._command = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log, process_group=0)
        return self

    def __exit__(self, *error: object) -> None:
        for _ in range(2):  # the second one does not wait for a checkpoint
            self._command.send_signal(signal.SIGINT)
            time.sleep(0.2)
        self._command.wait(PATIENCE_SECONDS)

    def status(self) -> dict[str, Any] | None:
        """The coordinator's status; None while there is no coordinator."""
        if self._command.poll() is not None:
            raise SystemExit(f"the job has ended:\n{(self._folder / 'log').read_text()[-6000:]}")
        try:
            address = json.loads((self._work / "coordinator.json").read_text())["http"]
            return CoordinatorClient(address, (self._work / "token").read_text()).status()
        except (OSError, ValueError, CoordinatorError):
            return None

    def pid(self, name: str) -> int:
        """The pid of a process of the job."""
        record = json.loads((self._work / "processes.json").read_text())
        return next(int(p["pid"]) for p in record["processes"] if p["name"] == name)


class Watch:
    """Follows the samples that the job has committed, across restarts of the coordinator."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.points: list[tuple[float, float]] = []  # (monotonic seconds, samples committed so far)
        self._last = 0.0
        self._total = 0.0

    def look(self) -> None:
        """Read the status once."""
        status = self._job.status()
        now = time.monotonic()
        samples = None if status is None else float(status["samples"])
        if status is not None and samples is not None:
            # A restart goes back, then to the checkpoint; only what is committed by members at work counts.
            if status["running"]:
                self._total += max(0.0, samples - self._last)
            self._last = samples
        self.points.append((now, self._total))

    def until(self, found: Callable[[], bool], seconds: float) -> bool:
        """Look again and again until a condition holds; False: it did not within the time."""
        end = time.monotonic() + seconds
        while not found():
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
            self.look()
        return True

    def rate(self, seconds: float) -> float:
        """Samples per second over the latest time."""
        now, total = self.points[-1]
        earlier = next(((t, n) for t, n in reversed(self.points) if t <= now - seconds), None)
        return 0.0 if earlier is None else (total - earlier[1]) / (now - earlier[0])


def reset_connections(pid: int) -> bool:
    """Reset all TCP connections of a process; False: this kernel or machine cannot."""
    listed = subprocess.run(["ss", "-tnpH", "state", "established"], capture_output=True, text=True, check=False)
    ends = [line.split()[2:4] for line in listed.stdout.splitlines() if f"pid={pid}," in line]
    killed = [
        subprocess.run(["ss", "-K", "-tnH", "src", here, "dst", there], capture_output=True, text=True, check=False)
        for here, there in ends
    ]
    return bool(killed) and all(k.returncode == 0 and k.stdout.strip() for k in killed)


def bring_about(fault: str, job: Job) -> bool:
    """Bring about a fault; False: this machine cannot."""
    if fault == "reset":
        return reset_connections(job.pid("worker-0-1"))
    if fault == "pause":
        pid = job.pid("worker-0-1")
        os.kill(pid, signal.SIGSTOP)
        time.sleep(PAUSE_SECONDS)
        os.kill(pid, signal.SIGCONT)
        return True
    os.kill(job.pid(KILLED[fault]), signal.SIGKILL)
    return True


def measure(fault: str, job: Job, watch: Watch) -> Recovery | None:
    """Bring about a fault once training is steady; None: this machine cannot."""
    settle = time.monotonic() + STEADY_SECONDS + WINDOW_SECONDS
    watch.until(lambda: time.monotonic() > settle, PATIENCE_SECONDS)
    before = watch.rate(STEADY_SECONDS)
    if not bring_about(fault, job):
        return None
    began = time.monotonic()
    watch.look()
    # A step that was committed before the fault may be seen only now.
    stands_at = watch.points[-1][1]
    if not watch.until(lambda: watch.points[-1][1] > stands_at, PATIENCE_SECONDS):
        raise SystemExit(f"{fault}: no step was committed within {PATIENCE_SECONDS:g} s")
    first = watch.points[-1][0] - began
    slowest = time.monotonic()

    def recovered() -> bool:
        return time.monotonic() - slowest > WINDOW_SECONDS and watch.rate(WINDOW_SECONDS) >= RECOVERED * before

    full = watch.points[-1][0] - began - WINDOW_SECONDS if watch.until(recovered, PATIENCE_SECONDS) else None
    return Recovery(fault, first, full)


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):6.2f} ({min(values):.2f} - {max(values):.2f})" if values else "-"


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--faults", choices=FAULTS, nargs="+", default=FAULTS)
    parser.add_argument("--output", choices=("table", "json"), default="table")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="heterps-recovery-"))
    found: list[Recovery] = []
    try:
        with Job(folder) as job:
            watch = Watch(job)
            watch.look()
            if not watch.until(lambda: watch.points[-1][1] > 0, 4 * PATIENCE_SECONDS):
                raise SystemExit("training did not start")
            for number in range(1, arguments.rounds + 1):
                for fault in arguments.faults:
                    result = measure(fault, job, watch)
                    text = "not possible on this machine" if result is None else f"{result.first_step:.2f} s"
                    sys.stderr.write(f"round {number}: {fault}: {text}\n")
                    if result is not None:
                        found.append(result)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.output == "json":
        sys.stdout.write(json.dumps([asdict(r) for r in found], indent=1) + "\n")
        return 0
    sys.stdout.write(f"{'fault':12} {'next step, s':>24} {'full speed, s':>24}\n")
    for fault in arguments.faults:
        mine = [r for r in found if r.fault == fault]
        speeds = [r.full_speed for r in mine if r.full_speed is not None]
        sys.stdout.write(f"{fault:12} {spread([r.first_step for r in mine]):>24} {spread(speeds):>24}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
