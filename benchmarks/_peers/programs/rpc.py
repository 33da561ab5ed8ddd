"""torch.distributed.rpc with one parameter server for the tables, and DistributedDataParallel for the other layers.

Both are as in PyTorch's tutorials: embeddings on a server beside DistributedDataParallel ("Combining Distributed
DataParallel with Distributed RPC Framework"), and a server that applies the gradients of all trainers together
("Implementing Batch RPC Processing Using Asynchronous Executions"). A worker pulls each distinct row of its batch once.
It does not wait until its gradients are applied before it goes on, for `staleness` steps at most.

Roles: worker, and server, whose index is the number of workers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from benchmarks._peers.programs.protocol import Task, end_process, run_steps, started_as
from benchmarks._peers.programs.torch_parts import (
    Dense,
    Samples,
    dense_optimizer,
    distributed,
    evaluate,
    join_group,
    load,
    prepare,
    short_products,
)
from torch import Tensor
from torch.distributed import rpc
from torch.nn.functional import binary_cross_entropy_with_logits, embedding

_SERVER = "server"
_TIMEOUT_SECONDS = 120


class Server:
    """The tables, and their optimizer."""

    def __init__(self, task: Task) -> None:
        self._workers: int = task.workers
        self._tables = [torch.nn.Parameter(torch.tensor(values)) for values in task.tables()]
        self._optimizer = torch.optim.Adagrad(self._tables, task.sparseRate)
        self._lock = threading.Lock()
        self._pushed: list[Sequence[tuple[Tensor, Tensor]]] = []
        self._applied: torch.futures.Future[None] = torch.futures.Future()

    def pull(self, ids: Sequence[Tensor]) -> list[Tensor]:
        """Return rows (n, dim) of each table."""
        with torch.no_grad():
            return [table[rows] for table, rows in zip(self._tables, ids, strict=True)]

    def push(self, gradients: Sequence[tuple[Tensor, Tensor]]) -> torch.futures.Future[None]:
        """Take a worker's gradients (ids (n,), values (n, dim)) of each table.

        The future is done when those of all workers are applied.
        """
        with self._lock:
            applied = self._applied
            self._pushed.append(gradients)
            if len(self._pushed) == self._workers:
                self._apply()
                self._pushed, self._applied = [], torch.futures.Future()
                applied.set_result(None)
        return applied

    def _apply(self) -> None:
        for number, table in enumerate(self._tables):
            ids = torch.cat([worker[number][0] for worker in self._pushed])
            values = torch.cat([worker[number][1] for worker in self._pushed]) / self._workers
            table.grad = torch.sparse_coo_tensor(ids[None], values, table.shape)
        self._optimizer.step()


SERVER: Server | None = None


def pull(ids: Sequence[Tensor]) -> list[Tensor]:
    """Runs on the server."""
    assert SERVER is not None
    return SERVER.pull(ids)


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def push(gradients: Sequence[tuple[Tensor, Tensor]]) -> torch.futures.Future[None]:
    """Runs on the server."""
    assert SERVER is not None
    return SERVER.push(gradients)


def join_rpc(task: Task, name: str, rank: int) -> None:
    """Join the group of workers and server."""
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{task.folder / 'rpc'}",
        rpc_timeout=_TIMEOUT_SECONDS,
        num_worker_threads=4,
        # The default, shared memory, polls: three processes on two cores are half as fast with it.
        _transports=["uv"],
        _channels=["basic"],
    )
    rpc.init_rpc(  # type: ignore[no-untyped-call]
        name, rank=rank, world_size=task.workers + 1, rpc_backend_options=options
    )


def train(task: Task, rank: int) -> None:
    """Train and evaluate in a worker."""
    join_group(task, rank)
    dense = Dense(task)
    model = distributed(dense)
    optimizer = dense_optimizer(task, dense)
    pushes: deque[Any] = deque()

    def look_up(samples: Samples) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Return distinct ids, their rows, and the network's inputs."""
        distinct = [torch.unique(ids, return_inverse=True) for ids in samples.ids]
        rows = rpc.rpc_sync(_SERVER, pull, ([ids for ids, _ in distinct],))
        for table in rows:
            table.requires_grad_()
        parts = [embedding(places, table).flatten(1) for (_, places), table in zip(distinct, rows, strict=True)]
        return [ids for ids, _ in distinct], rows, torch.cat([*parts, samples.numbers], dim=1)

    def step(samples: Samples) -> None:
        ids, rows, x = look_up(samples)
        optimizer.zero_grad()
        with short_products(task):
            logits = model(x)
        torch.autograd.backward(binary_cross_entropy_with_logits(logits.float(), samples.labels))
        gradients = [(i, table.grad) for i, table in zip(ids, rows, strict=True)]
        pushes.append(rpc.rpc_async(_SERVER, push, (gradients,)))
        optimizer.step()
        while len(pushes) > task.staleness:
            pushes.popleft().wait()

    def settle() -> None:
        while pushes:
            pushes.popleft().wait()
        dist.barrier()

    run_steps(load(task, [rank]), task.skip, lambda samples: len(samples.labels), step, settle)
    if rank == 0:
        evaluate(task, lambda samples: dense(look_up(samples)[2]))
    dist.barrier()


def main(task: Task, role: str, index: int) -> None:
    """Serve or train."""
    global SERVER
    prepare(task)
    if role == "server":
        SERVER = Server(task)
    join_rpc(task, _SERVER if role == "server" else f"worker-{index}", index)
    if role == "worker":
        train(task, index)
    rpc.shutdown()


if __name__ == "__main__":
    # rpc looks functions up by their module's name, which for this process would be __main__.
    from benchmarks._peers.programs import rpc as program

    program.main(*started_as())
    end_process()
