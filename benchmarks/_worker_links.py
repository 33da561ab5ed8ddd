"""What the control plane costs a worker: its division of a batch, and its wait for many parameter servers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch
import zmq

from heterps_runtime.partition.allocation import Allocation
from heterps_runtime.partition.batches import Batches
from heterps_runtime.wire.messages import Ack, Commit, Probe, Pull, Push, Rows
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.transport import Connection, Listener, TokenAuthority, listen_socket
from heterps_runtime.worker.rows.entries import RowFormat, RowGradients, ServerKeys
from heterps_runtime.worker.rows.servers import ServerClient
from heterps_runtime.worker.steps.schedule import Schedule

__all__ = ["WorkerCosts", "measure_worker"]

BATCH_PER_WORKER = 100
DIM = 16
KEYS_PER_SERVER = 8
SECURITY = LinkSecurity("a token", encrypted=False)


@dataclass
class WorkerCosts:
    """Processor seconds of a worker's thread, for each step."""

    first_division: float = 0.0  # once per allocation
    divisions: list[float] = field(default_factory=list)
    sending: list[float] = field(default_factory=list)  # requests and gradients
    waiting: list[float] = field(default_factory=list)  # without reading what has arrived
    reading: list[float] = field(default_factory=list)  # rows and acknowledgements
    sockets: int = 0


class _Servers:
    """Servers that answer one request after the other, when they are told to.

    Args:
        context: for their sockets.
        number: of servers.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], number: int) -> None:
        opened = [listen_socket(context, "127.0.0.1", SECURITY) for _ in range(number)]
        self.addresses = [address for _, address in opened]
        self._listeners = [Listener(socket) for socket, _ in opened]

    def answer(self, server: int) -> None:
        """Let a server answer its next request."""
        listener = self._listeners[server]
        listener.socket.poll()
        received = listener.receive()
        assert received is not None
        sender, request = received
        if isinstance(request, Push):
            listener.send(sender, Ack(request.step, request.shard))
        elif isinstance(request, Pull):
            rows = {dim: np.zeros((len(keys), dim), np.float32) for dim, keys in request.keys.items()}
            listener.send(sender, Rows(request.request, rows))

    def close(self) -> None:
        """Close their sockets."""
        for listener in self._listeners:
            listener.socket.close(linger=0)


class _Stopwatch:
    """Processor time of this thread, in parts."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> _Stopwatch:
        self._began = time.thread_time()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds += time.thread_time() - self._began


def measure_worker(workers: int, servers: int, steps: int) -> WorkerCosts:
    """Measure the steps of one of so many workers.

    Each answer of a server arrives alone, which costs a worker most: it waits, and looks at all of its connections, for
    each one.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    authority = TokenAuthority(context, SECURITY)
    others = _Servers(context, servers)
    listener, address = listen_socket(context, "127.0.0.1", SECURITY)
    coordinator, link = Listener(listener), Connection(context, address, "worker-0-0", SECURITY, 1)
    rows = RowFormat(np.dtype("float32"), "full", torch.device("cpu"))
    client = ServerClient(context, SECURITY, "worker-0-0", 1, others.addresses, rows, {})
    pollables = (*link.pollables, *client.pollables)
    poller = zmq.Poller()
    for socket in pollables:
        poller.register(socket, zmq.POLLIN)
    costs = WorkerCosts(sockets=len(pollables))
    batch = BATCH_PER_WORKER * workers
    schedule = Schedule(Batches(10 * batch, batch), (Allocation.even(batch, [workers]),), 0, workers // 2, 1)
    with _Stopwatch() as first:
        schedule.mine(0)
    costs.first_division = first.seconds
    size = KEYS_PER_SERVER * servers
    keys = {DIM: ServerKeys(np.arange(size), np.linspace(0, size, servers + 1).astype(np.int64))}
    gradients = np.zeros((size, DIM), np.float32)
    link.send(Probe())  # so that the coordinator knows this end
    listener.poll()
    coordinator.receive()
    for step in range(steps):
        with _Stopwatch() as dividing:
            schedule.mine(step)
            schedule.mine(step)
            schedule.mine(step)
        with _Stopwatch() as sending:
            client.pull_rows(keys, step)
            client.push(step, [RowGradients(DIM, keys[DIM], gradients, finite=True)], {}, {})
        waiting, reading = _Stopwatch(), _Stopwatch()

        def look(waiting: _Stopwatch = waiting, reading: _Stopwatch = reading) -> None:
            with waiting:
                poller.poll()
                link.receive()
                link.broke()
                link.probe()
                client.broke()
                client.probe()
            with reading:
                client.poll()

        for server in (*range(servers), *range(servers)):
            others.answer(server)
            look()
        coordinator.send(b"worker-0-0", Commit(1, step, batch))
        look()
        costs.divisions.append(dividing.seconds)
        costs.sending.append(sending.seconds)
        costs.waiting.append(waiting.seconds)
        costs.reading.append(reading.seconds)
    client.close()
    link.close()
    listener.close(linger=0)
    others.close()
    context.term()
    del authority
    return costs
