"""Copies of rows: what `parameterServer.replication` costs, and how fast a server copies its state from another one.

    python -m benchmarks.replication [--rounds 3] [--part copy|job|both] [--models wide deep] [--rows 4000000]

copy: a server without state copies rows of dimension 16 with row-wise Adagrad from the memory of another process, over
sockets of this machine, as after a death.

job: two workers and two servers train a network with one and with two copies of each row, in turns. `recovery` measures
how long training stands still when a server dies.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import zmq
from benchmarks._clicks import CACHE, NETWORKS, TRAIN_ROWS, click_log
from benchmarks._heterps import Outcome, on_cores
from benchmarks._processes import stage_document
from benchmarks._ratios import ratios, spread
from benchmarks.restore import DIM, configuration

from heterps_runtime.checkpoint import Storage
from heterps_runtime.contract import PlanDocument
from heterps_runtime.partition.allocation import Allocation
from heterps_runtime.partition.tables import Table
from heterps_runtime.ps.holding import Holding
from heterps_runtime.ps.recovery import Recovery, answer
from heterps_runtime.ps.shard import Shard
from heterps_runtime.slots import slot_map
from heterps_runtime.store.keys import shard_of
from heterps_runtime.store.optimizers import SparseOptimizer
from heterps_runtime.wire.messages import CopyRows, CopyShard, Generation
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.transport import Listener, TokenAuthority, listen_socket

SECURITY = LinkSecurity("a token of the benchmark", encrypted=False)
PART = f"group-{DIM}"
WORKERS, SERVERS, BATCH = 2, 2, 8192
EPOCH = -(-TRAIN_ROWS // BATCH)
PLAN = {
    "stages": [stage_document(0, "cpu", 0, 0, 1, 1)],
    "parameterServer": {"pool": "cpu", "replicas": 2, "units": 2},
}


def filled(folder: Path, rows: int) -> Shard:
    """Return the first of two shards, with rows of one table."""
    config = configuration(folder)
    shard = Shard(config, 0)
    shard.begin_generation(2)
    shard.define([Table(0, "table", 3 * rows, DIM, None)], {}, {})
    columns = SparseOptimizer.from_manifest(config.sparse_optimizer).state_columns(DIM)
    keys = np.random.default_rng(5).permutation(3 * rows)
    own = keys[shard_of(keys, slot_map(SERVERS)) == 0][:rows]
    assert len(own) == rows
    for keys in np.array_split(own, max(1, rows // 100_000)):
        state = {f"state/{name}": np.ones((len(keys), count), np.float32) for name, count in columns.items()}
        shard.take_rows(PART, keys, {"rows": np.ones((len(keys), DIM), np.float32), **state})
    return shard


def serve(folder: str, rows: int, pipe: Connection) -> None:
    """Answer requests for copies in a process of its own, until told to end; say its processor time when asked."""
    shard = filled(Path(folder), rows)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    _authority = TokenAuthority(context, SECURITY)
    socket, address = listen_socket(context, "127.0.0.1", SECURITY)
    listener, generation = Listener(socket), 0
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(pipe.fileno(), zmq.POLLIN)
    pipe.send(address)
    while True:
        poller.poll()
        if pipe.poll():
            if pipe.recv() is None:
                return
            generation += 1
            listener.begin(generation)
            pipe.send(time.process_time())
        while (received := listener.receive()) is not None:
            sender, request = received
            assert isinstance(request, CopyShard | CopyRows)
            listener.send(sender, answer(shard, request))


def copy(folder: Path, address: str, generation: int, rows: int) -> tuple[float, float]:
    """Copy the rows; return seconds and processor seconds."""
    holding = Holding(configuration(folder), 0, None)
    holding.begin_generation(2, 2, 0, missing=True)
    announced = Generation(
        generation=generation,
        lineage=1,
        committed=1,
        total=2,
        num_rows=1,
        plan=PlanDocument.from_json(PLAN),
        workers=(),
        rendezvous=None,
        next_stage=(),
        servers=(address, address),
        allocation=Allocation(0, ((1,),)),
        restore=None,
        missing=(0,),
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    began, used = time.perf_counter(), time.process_time()
    recovery = Recovery(context, SECURITY, "ps-0", announced, holding, 2, Storage.open(folder / "checkpoints"))
    poller = zmq.Poller()
    for socket in recovery.pollables:
        poller.register(socket, zmq.POLLIN)
    while not recovery.advance():
        poller.poll()
    taken = time.perf_counter() - began, time.process_time() - used
    recovery.close()
    context.term()
    assert holding.own.num_rows == rows
    return taken


def measure_copies(rows: int, rounds: int) -> None:
    """Copy rows several times, and print a table."""
    with tempfile.TemporaryDirectory(prefix="heterps-replication-") as name:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(name, rows, theirs))
        process.start()
        address = ours.recv()
        found: list[tuple[float, float, float]] = []
        for generation in range(1, rounds + 2):  # the first one compiles
            ours.send(generation)
            before = ours.recv()
            taken = copy(Path(name), address, generation, rows)
            ours.send(generation)
            found.append((*taken, ours.recv() - before))
        ours.send(None)
        process.join()
    seconds, receiving, sending = ([each[i] for each in found[1:]] for i in range(3))
    print(
        "| rows | seconds, median (min - max) | rows per second | processor seconds of the copying one | of the other |"
    )
    print("|---|---|---|---|---|")
    print(
        f"| {rows:,} | {spread(seconds, '.2f')} | {rows / statistics.median(seconds):,.0f} "
        f"| {spread(receiving, '.2f')} | {spread(sending, '.2f')} |"
    )


def train(model: str, data: Path, copies: int, folder: Path) -> Outcome:
    """Train two epochs, of which the first does not count."""
    server = {"replication": copies}
    with on_cores(model, data, folder, 2 * EPOCH, BATCH, WORKERS, servers=SERVERS, server=server) as job:
        return job.measure(2 * EPOCH, skip=EPOCH)


def compare_jobs(model: str, rounds: int) -> None:
    """Train with one and with two copies of each row, in turns, and print throughput and processor time."""
    data = click_log(model)
    outcomes: dict[int, list[Outcome]] = {1: [], 2: []}
    for number in range(rounds):
        for copies, found in outcomes.items():
            with tempfile.TemporaryDirectory(prefix="heterps-replication-") as folder:
                found.append(train(model, data, copies, Path(folder)))
        figures = ", ".join(f"{n}: {found[-1]['samplesPerSecond']:,.0f}" for n, found in outcomes.items())
        print(f"  {model}, round {number + 1}: {figures} samples/s", file=sys.stderr, flush=True)
    print(f"\n| {model}, copies | samples/s, median (min - max) | one copy = 1 | processor ms per step and server |")
    print("|---|---|---|---|")
    for copies, found in outcomes.items():
        rates = [o["samplesPerSecond"] for o in found]
        beside = [o["samplesPerSecond"] for o in outcomes[1]]
        used = [sum(o["cpuMillisecondsPerStep"][f"ps-{i}"] for i in range(SERVERS)) / SERVERS for o in found]
        print(
            f"| {copies} | {spread(rates, ',.0f')} | {spread(ratios(rates, beside), '.2f')} | {spread(used, '.1f')} |"
        )


def main() -> None:
    """Run the comparisons and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--part", choices=("copy", "job", "both"), default="both")
    parser.add_argument("--models", choices=NETWORKS, nargs="+", default=["wide", "deep"], help="default: wide deep")
    parser.add_argument("--rows", type=int, default=4_000_000, help="to copy; default: %(default)s")
    options = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    if options.part != "job":
        measure_copies(options.rows, options.rounds)
    if options.part != "copy":
        for model in options.models:
            compare_jobs(model, options.rounds)


if __name__ == "__main__":
    main()
