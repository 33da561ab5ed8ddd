"""Workers that join a running job one after another: what becomes of the steps meanwhile.

    python -m benchmarks.newcomers [--rounds 3] [--workers 8] [--batch 131072]

The deep network trains on a click log with one worker and one server. Its next plan has more workers, which come as
pods do whose nodes start one after another: each process is started when the one before has joined, a few seconds
later. A step takes longer than that. Counted are the steps that are committed from the first join until all workers
take part, and the longest time without one (docs/decisions/0081-newcomers-wait-for-a-commit.md).
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._clicks import CACHE, NETWORKS, click_job, click_log
from benchmarks._heterps import HeterPS
from benchmarks._processes import pool_document, stage_document
from benchmarks._ratios import spread

from heterps_runtime.contract import PATH_PLAN, PATH_STATUS, MemberState

WARM_UP, ENDLESS = 2, 1_000_000  # steps
LOOK_SECONDS = 0.02
PATIENCE_SECONDS = 300.0


@dataclass
class Round:
    """What was seen from the first join until all take part.

    Attributes:
        step_seconds: of the last step before.
        seconds: of the whole.
        committed: steps.
        longest: time without a commit, in seconds.
    """

    step_seconds: float
    seconds: float
    committed: int
    longest: float


@dataclass
class Commits:
    """Times at which numbers of committed steps were first seen."""

    job: HeterPS
    times: list[float] = field(default_factory=list)
    committed: int = 0

    def look(self) -> dict[str, Any]:
        """Look at the job once; return its status."""
        time.sleep(LOOK_SECONDS)
        self.job.check()
        status: dict[str, Any] = self.job.request("GET", PATH_STATUS)
        if status["committedSteps"] > self.committed:
            self.times.append(time.monotonic())
            self.committed = status["committedSteps"]
        return status


def _plan(workers: int) -> list[dict[str, Any]]:
    return [stage_document(0, "cpu", 0, NETWORKS["deep"].layers - 1, workers, workers)]


def measure(workers: int, batch: int, data: Path, folder: Path) -> Round:
    """Let workers join a job of one, and count its steps."""
    files = {
        "train": str(data / "train"),
        "evaluation": str(data / "held-out"),
        "cache": {"directory": str(CACHE / "data-cache")},
    }
    training = {"globalBatchSize": batch, "steps": ENDLESS, "precision": "fp32", "seed": 17}
    documents = [
        pool_document("cpu", "CPU", "cpu", workers, "0.04"),
        click_job("newcomers", "deep", files, training),
    ]
    names = [f"worker-0-{index}" for index in range(1, workers)]
    with HeterPS(documents, folder, _plan(1)) as job:
        commits, deadline = Commits(job), time.monotonic() + PATIENCE_SECONDS
        while commits.committed < WARM_UP:
            commits.look()
        server = {"pool": "cpu", "replicas": 1, "units": 1}
        job.request("PUT", PATH_PLAN, {"stages": _plan(workers), "parameterServer": server, "revision": 2})
        started, begun, before, step_seconds = 0, 0.0, 0, 0.0
        while True:
            status = commits.look()
            states = {member["name"]: member["state"] for member in status["members"]}
            joined = sum(states.get(name, MemberState.ABSENT) != MemberState.ABSENT for name in names)
            if joined and not begun:
                begun, before = time.monotonic(), commits.committed
                step_seconds = commits.times[-1] - commits.times[-2]
            if joined == started < len(names):
                job.start("worker", "--stage", "0", "--index", str(started + 1), "--pool", "cpu")
                started += 1
            if status["running"] and all(states.get(name) == MemberState.READY for name in names):
                break
            if time.monotonic() > deadline:
                raise SystemExit("the workers do not take part")
        end = time.monotonic()
    seen = [begun, *(at for at in commits.times if at > begun), end]
    longest = max(later - earlier for earlier, later in itertools.pairwise(seen))
    return Round(step_seconds, end - begun, commits.committed - before, longest)


def main() -> None:
    """Measure some rounds, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--workers", type=int, default=8, help="in the end; default: 8")
    parser.add_argument("--batch", type=int, default=131_072, help="samples of a step; default: 131072")
    options = parser.parse_args()
    data, rounds = click_log("deep"), []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="heterps-newcomers-") as folder:
            rounds.append(measure(options.workers, options.batch, data, Path(folder)))
        print(f"  round {number + 1}: {rounds[-1]}", file=sys.stderr, flush=True)
    columns: dict[str, list[float]] = {
        "seconds of a step": [each.step_seconds for each in rounds],
        "seconds until all take part": [each.seconds for each in rounds],
        "steps meanwhile": [each.committed for each in rounds],
        "longest time without one, s": [each.longest for each in rounds],
    }
    print(f"| workers | {' | '.join(columns)} |")
    print(f"|---|{'---|' * len(columns)}")
    print(f"| 1 become {options.workers} | {' | '.join(spread(values, '.1f') for values in columns.values())} |")


if __name__ == "__main__":
    main()
