"""What the control plane costs the coordinator and each worker, by number of workers.

    python -m benchmarks.control_plane [--workers 10 100 1000] [--steps 20] [--generations 6]

The real coordinator runs as its own process, as `heterps run` starts it. Its members are simulated in this process:
they join, report, pulse and follow orders over real sockets on the loopback, with the product's connections and
messages, but compute nothing. There are 64 servers for 1,000 workers. Times of the coordinator are processor time, of
its own thread and of the whole process (with ZeroMQ's thread for input and output). A generation's time is that of the
clock from a worker's loss, or from the last report of the step whose commit a worker that came back waits for, until
all members are ready and told to go; the members' own work, on the same cores, counts.

A worker's figures are processor time of its thread, with its division of batches and its connections to servers that
answer one after the other (`_worker_links`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks._clicks import click_job
from benchmarks._processes import Processes, pool_document, stage_document
from benchmarks._simulated import Members
from benchmarks._worker_links import measure_worker

from heterps_operator.api.manifest import load_manifest
from heterps_runtime.contract import PATH_LOST, PATH_PLAN, PATH_SHUTDOWN, PATH_STATUS
from heterps_runtime.wire.messages import Generation

ROOT = Path(__file__).resolve().parent.parent
POOL = "cpu"
ROWS = 100_000_000
BATCH_PER_WORKER = 100
SERVERS_PER_WORKER = 64 / 1000
RETURNING = 20  # one worker of so many joins again at the same time
QUIET_SECONDS = 0.02
QUIET_SHARE = 0.05  # of a core, below which a process waits


@dataclass(frozen=True)
class Spent:
    """Processor seconds of a process."""

    thread: float  # of its main thread
    total: float  # of all threads


class Coordinator:
    """The coordinator's processor time and memory.

    Args:
        pid: of its process.
    """

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        self._main = str(pid)

    def spent(self) -> Spent:
        """Return the processor time since its start."""
        seconds = {}
        for task in (self._folder / "task").iterdir():
            seconds[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
        return Spent(seconds[self._main], sum(seconds.values()))

    def settle(self) -> Spent:
        """Wait until it has nothing to do; return its processor time then."""
        before = self.spent()
        while True:
            time.sleep(QUIET_SECONDS)
            now = self.spent()
            if now.total - before.total < QUIET_SHARE * QUIET_SECONDS:
                return now
            before = now

    def cost(self, action: Callable[[], object]) -> Spent:
        """Return what it spends on what an action makes it do."""
        before = self.settle()
        action()
        after = self.settle()
        return Spent(after.thread - before.thread, after.total - before.total)

    @property
    def resident_bytes(self) -> int:
        """Its memory."""
        return int((self._folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass
class Measured:
    """Figures of a job of one size."""

    workers: int
    servers: int
    reports: list[Spent]  # of a step
    commits: list[Spent]
    generations: list[Spent]
    forming: list[float]  # seconds until all are told to go
    returning: Spent  # of many workers that join again
    returned: int  # generations that these took
    pulses: Spent  # of all members, once
    status: Spent
    resident: int  # bytes
    announcement: int  # bytes for one worker


def configuration(folder: Path, workers: int) -> dict[str, object]:
    """Return the run configuration of a job that writes no checkpoint."""
    training = {"globalBatchSize": BATCH_PER_WORKER * workers, "steps": 1_000_000, "seed": 1}
    job = click_job("control-plane", "wide", {"train": str(folder / "none")}, training)
    path = folder / "job.yaml"
    parts = [pool_document(POOL, "CPU", "cpu", 2 * workers, "0.04"), job]
    path.write_text("---\n".join(json.dumps(part) + "\n" for part in parts))
    return load_manifest(path).run_configuration(folder, [ROOT])


def measure(workers: int, steps: int, generations: int) -> Measured:
    """Run a job of simulated members, and measure its coordinator."""
    servers = max(1, round(workers * SERVERS_PER_WORKER))
    with tempfile.TemporaryDirectory() as name, Processes(configuration(Path(name), workers), Path(name)) as job:
        stages = [stage_document(0, POOL, 0, 7, workers, workers)]
        plan = {"stages": stages, "parameterServer": {"pool": POOL, "replicas": servers, "units": servers}}
        job.request("PUT", PATH_PLAN, plan)
        credentials = job.credentials
        coordinator = Coordinator(job.started[0].pid)
        members = Members(credentials.control_address(), credentials.security, workers, servers, pool=POOL, rows=ROWS)
        try:
            return _measure(job, coordinator, members, steps, generations)
        finally:
            job.request("POST", PATH_SHUTDOWN)  # first, or each member that goes would end a generation
            members.close()


def _measure(job: Processes, coordinator: Coordinator, members: Members, steps: int, generations: int) -> Measured:
    for member in members.all:
        member.join()
    members.follow(running=1)
    workers = members.workers
    reports, commits = [], []
    for step in range(steps):
        reports.append(coordinator.cost(partial(members.report, workers[1:])))
        commits.append(coordinator.cost(partial(_commit, members, step)))
        members.pulse(m for m in members.all if not m.is_worker)  # so that servers are not taken for lost
    found: list[Spent] = []
    forming: list[float] = []
    for number in range(generations):
        members.pulse()
        lost = number % 2 == 0
        if not lost:
            members.back(workers[-1])
            members.report(workers[1:-1])
        coordinator.settle()
        found.append(coordinator.cost(partial(_change, job, members, forming, lost=lost)))
    first = members.generation
    returning = coordinator.cost(partial(_rejoin, members))
    pulses = [coordinator.cost(members.pulse) for _ in range(3)]
    status = [coordinator.cost(partial(job.request, "GET", PATH_STATUS)) for _ in range(3)]
    return Measured(
        workers=len(workers),
        servers=len(members.all) - len(workers),
        reports=reports,
        commits=commits,
        generations=found,
        forming=forming,
        returning=returning,
        returned=members.generation - first,
        pulses=sorted(pulses, key=lambda s: s.total)[1],
        status=sorted(status, key=lambda s: s.total)[1],
        resident=coordinator.resident_bytes,
        announcement=members.bytes_of(Generation),
    )


def _commit(members: Members, step: int) -> None:
    """Let the first worker be the last one that reports a step."""
    members.report(members.workers[:1])
    members.follow(committed=step + 1)


def _change(job: Processes, members: Members, forming: list[float], *, lost: bool) -> None:
    """Lose the last worker, or commit the step that it waits for; add the seconds until all are told to go."""
    began, last = time.perf_counter(), members.workers[-1]
    if lost:
        members.away(last)
        job.request("POST", PATH_LOST, {"member": last.name, "reason": "the benchmark's"})
    else:
        members.report(members.workers[:1])
    members.follow(running=members.generation + 1)
    forming.append(time.perf_counter() - began)


def _rejoin(members: Members) -> None:
    """Let every twentieth worker join again, as after the end of its connection."""
    for member in members.workers[::RETURNING]:
        member.join()
    members.follow(running=members.generation + 1, settled=True)


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return median, least and greatest value."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} - {max(values):.{digits}f})"


def milliseconds(spent: Sequence[Spent]) -> str:
    """Return the milliseconds of the main thread, and the median of the whole process."""
    return f"{spread([1e3 * s.thread for s in spent])}; {statistics.median(1e3 * s.total for s in spent):.1f}"


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--generations", type=int, default=6)
    options = parser.parse_args()
    print("Processor ms of the coordinator's thread, median (min - max); of its whole process, median")
    print("| workers, servers | reports of a step | one, us | commit | generation | its time, s | bytes per worker |")
    print("|---|---|---|---|---|---|---|")
    rest = []
    for workers in options.workers:
        found = measure(workers, options.steps, options.generations)
        each = [1e6 * s.thread / (workers - 1) for s in found.reports]
        cells = [
            f"{workers:,}, {found.servers}",
            milliseconds(found.reports),
            spread(each, 0),
            milliseconds(found.commits),
            milliseconds(found.generations),
            spread(found.forming, 2),
            f"{found.announcement:,}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
        rest.append(found)
    print()
    print("| workers, servers | pulses of all | status | a twentieth joins again | generations of it | memory, MB |")
    print("|---|---|---|---|---|---|")
    for found in rest:
        cells = [
            f"{found.workers:,}, {found.servers}",
            *(milliseconds([s]) for s in (found.pulses, found.status, found.returning)),
            str(found.returned),
            f"{found.resident / 1e6:.0f}",
        ]
        print(f"| {' | '.join(cells)} |")
    print()
    print("Processor ms of a worker's thread per step, median (min - max)")
    print("| workers, servers | first division | divisions | waiting | sending to servers | reading | sockets |")
    print("|---|---|---|---|---|---|---|")
    for found in rest:
        costs = measure_worker(found.workers, found.servers, options.steps)
        parts = (costs.divisions, costs.waiting, costs.sending, costs.reading)
        cells = [
            f"{found.workers:,}, {found.servers}",
            f"{1e3 * costs.first_division:.2f}",
            *(spread([1e3 * seconds for seconds in part], 2) for part in parts),
            str(costs.sockets),
        ]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
