"""Recovery time: how long training stands still, and how long it is slower, after a fault in one of its processes.

    python -m benchmarks.recovery [--rounds 10] [--systems heterps torchrun tensorflow] [--faults worker ps ...]
                                  [--output table|json]

Each system trains the model of the flights example with two workers of one thread, the same batches' size and a
checkpoint every 50 steps, without an end:

- `heterps`: `heterps run` on a plan by hand with one parameter server, as a user would.
- `heterps-copies`: the same with two servers and `parameterServer.replication: 2`.
- `torchrun`: DistributedDataParallel over gloo under `torchrun --max-restarts`, with snapshots.
- `tensorflow`: ParameterServerStrategy with a chief and one parameter server, each process restarted when it ends.

Each round brings about each fault that applies to the system once:

- `worker`, `ps`, `coordinator`: the process is killed (SIGKILL). The coordinator is torchrun or the chief for peers.
- `pause`: a worker is stopped (SIGSTOP) for 25 s, which is long enough to lose its place, and continued.
- `reset`: all connections of a worker are reset (`ss --kill`); skipped where the kernel does not support that.

Two times are taken from the samples that the system says it has trained on, read every 20 ms: until the number grows
again, and until the throughput over one second is back at 90 % of its mean before the fault. They count from the fault,
for `pause` from the moment the worker continues. Steps that are repeated after a checkpoint count as progress.
Systems take turns of up to five rounds, each with new processes. What does not train on within two minutes has failed
in this round: its time is missing from the medians, the table counts it, and the system is started anew.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks._recovery.system import PATIENCE_SECONDS, System, reset_connections
from benchmarks._recovery.systems import HeterPS, TensorFlow, Torchrun, prepare

SYSTEMS = ("heterps", "heterps-copies", "torchrun", "tensorflow")
FAULTS = ("worker", "ps", "coordinator", "pause", "reset")
WINDOW_SECONDS = 1.0  # of the throughput
STEADY_SECONDS = 3.0  # before a fault, for the mean throughput
RECOVERED = 0.9  # share of the mean throughput before
PAUSE_SECONDS = 25.0
ROUNDS_IN_TURN = 5


@dataclass(frozen=True)
class Recovery:
    """Times after one fault, in seconds; None: it was not reached within the patience."""

    system: str
    fault: str
    first_step: float | None
    full_speed: float | None
    samples_per_second: float  # before the fault


class Watch:
    """Follows the samples that a system trains on, across its returns to checkpoints."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.points: list[tuple[float, float]] = []  # (monotonic seconds, samples so far)
        self._last = 0.0
        self._total = 0.0

    def look(self) -> None:
        """Read the number once."""
        samples = self._system.samples()
        if samples is not None:
            self._total += max(0.0, samples - self._last)  # a return to a checkpoint goes back
            self._last = samples
        self.points.append((time.monotonic(), self._total))

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


def bring_about(fault: str, system: System) -> bool:
    """Bring about a fault; False: this machine cannot."""
    if fault == "reset":
        return reset_connections(system.pid("worker"))
    if fault == "pause":
        pid = system.pid("worker")
        os.kill(pid, signal.SIGSTOP)
        time.sleep(PAUSE_SECONDS)
        os.kill(pid, signal.SIGCONT)
    else:
        system.kill(fault)
    return True


def measure(fault: str, system: System, watch: Watch) -> Recovery | None:
    """Bring about a fault once training is steady; None: this machine cannot."""
    settle = time.monotonic() + STEADY_SECONDS + WINDOW_SECONDS
    watch.until(lambda: time.monotonic() > settle, PATIENCE_SECONDS)
    before = watch.rate(STEADY_SECONDS)
    if not bring_about(fault, system):
        return None
    began = time.monotonic()
    watch.look()
    # A step that was committed before the fault may be seen only now.
    stands_at = watch.points[-1][1]
    if not watch.until(lambda: watch.points[-1][1] > stands_at, PATIENCE_SECONDS):
        return Recovery(system.name, fault, None, None, before)
    first = watch.points[-1][0] - began
    slowest = time.monotonic()

    def recovered() -> bool:
        return time.monotonic() - slowest > WINDOW_SECONDS and watch.rate(WINDOW_SECONDS) >= RECOVERED * before

    full = watch.points[-1][0] - began - WINDOW_SECONDS if watch.until(recovered, PATIENCE_SECONDS) else None
    return Recovery(system.name, fault, first, full, before)


def run(system: System, numbers: Sequence[int], faults: Sequence[str]) -> list[Recovery]:
    """Start a system, and bring about each fault that applies to it in each round, until it does not recover."""
    found: list[Recovery] = []
    with system:
        watch = Watch(system)
        watch.look()
        if not watch.until(lambda: watch.points[-1][1] > 0, 4 * PATIENCE_SECONDS):
            raise SystemExit(f"{system.name}: training did not start\n{system.log()}")
        for number in numbers:
            for fault in faults:
                if fault not in system.faults:
                    continue
                result = measure(fault, system, watch)
                if result is None:
                    text = "not possible on this machine"
                elif result.first_step is None:
                    text = f"no step within {PATIENCE_SECONDS:g} s"
                else:
                    text = f"{result.first_step:.2f} s"
                sys.stderr.write(f"{system.name}, round {number}: {fault}: {text}\n")
                if result is not None:
                    found.append(result)
                    if result.first_step is None:
                        sys.stderr.write(system.log() + "\n")
                        return found
    return found


def run_turn(
    name: str, numbers: Sequence[int], folder: Path, settings: dict[str, Any], faults: Sequence[str]
) -> list[Recovery]:
    """Run rounds of a system; one that does not recover is started anew, and goes on with the next round."""
    found: list[Recovery] = []
    while numbers:
        own = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
        system: System
        if name == "heterps":
            system = HeterPS(own)
        elif name == "heterps-copies":
            system = HeterPS(own, copies=2)
        elif name == "torchrun":
            system = Torchrun(own, settings)
        else:
            system = TensorFlow(own, settings)
        results = run(system, numbers, faults)
        found += results
        hung = sum(result.first_step is None for result in results)
        rounds = sum(result.fault == results[0].fault for result in results)  # begun
        numbers = numbers[rounds:] if hung else ()
    return found


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):6.2f} ({min(values):.2f} - {max(values):.2f})" if values else "-"


def print_table(found: Sequence[Recovery], systems: Sequence[str], faults: Sequence[str]) -> None:
    """Print medians and ranges by fault and system."""
    sys.stdout.write(
        f"{'fault':12} {'system':14} {'n':>3} {'next step, s':>24} {'full speed, s':>24} {'samples/s':>10}\n"
    )
    for fault in faults:
        for name in systems:
            mine = [r for r in found if (r.fault, r.system) == (fault, name)]
            if not mine:
                continue
            firsts = [r.first_step for r in mine if r.first_step is not None]
            first, failed = spread(firsts), f" {len(mine) - len(firsts)} failed" if len(firsts) < len(mine) else ""
            full = spread([r.full_speed for r in mine if r.full_speed is not None])
            rate = statistics.median(r.samples_per_second for r in mine)
            sys.stdout.write(f"{fault:12} {name:14} {len(mine):3} {first:>24} {full:>24} {rate:10,.0f}{failed}\n")


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--systems", choices=SYSTEMS, nargs="+", default=["heterps"], help="default: heterps")
    parser.add_argument("--faults", choices=FAULTS, nargs="+", default=FAULTS)
    parser.add_argument("--output", choices=("table", "json"), default="table")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="heterps-recovery-"))
    found: list[Recovery] = []
    try:
        settings = prepare(folder) if {"torchrun", "tensorflow"} & set(arguments.systems) else {}
        for done in range(0, arguments.rounds, ROUNDS_IN_TURN):
            rounds = min(ROUNDS_IN_TURN, arguments.rounds - done)
            for name in arguments.systems:
                found += run_turn(name, range(done + 1, done + rounds + 1), folder, settings, arguments.faults)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.output == "json":
        sys.stdout.write(json.dumps([asdict(r) for r in found], indent=1) + "\n")
    else:
        print_table(found, arguments.systems, arguments.faults)
    return 0


if __name__ == "__main__":
    sys.exit(main())
