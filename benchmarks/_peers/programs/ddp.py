"""Plain PyTorch: one process, or DistributedDataParallel over gloo with a copy of the tables in each process.

Settings beside the common ones: `sparse`, whether gradients of tables are sparse, and `device`. With one worker there
is no DistributedDataParallel. Dense gradients have torch's fused Adagrad, sparse ones its plain one.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from benchmarks._peers.programs.protocol import Task, end_process, run_steps, started_as
from benchmarks._peers.programs.torch_parts import (
    Dense,
    Samples,
    Tables,
    dense_optimizer,
    distributed,
    evaluate,
    join_group,
    load,
    prepare,
    train_on,
)
from torch import Tensor, nn


class Network(nn.Module):
    """Tables and fully connected layers."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.tables, self.dense = Tables(task, sparse=task.sparse), Dense(task)

    def forward(self, ids: tuple[Tensor, ...], numbers: Tensor) -> Tensor:
        """Compute logits (b,)."""
        logits: Tensor = self.dense(torch.cat([self.tables(ids), numbers], dim=1))
        return logits


def main(task: Task, rank: int) -> None:
    """Train and evaluate."""
    prepare(task)
    device: str = task.device
    torch.backends.cuda.matmul.allow_tf32 = task.precision == "tf32"
    network = Network(task).to(device)
    alone = task.workers == 1
    model: nn.Module = network
    if not alone:
        join_group(task, rank)
        model = distributed(network)
    on_cores = device == "cpu"
    optimizers = [
        dense_optimizer(task, network.dense, fused=on_cores),
        torch.optim.Adagrad(network.tables.parameters(), task.sparseRate, fused=on_cores and not task.sparse),
    ]

    def step(samples: Samples) -> None:
        on_device = samples.to(device)
        train_on(task, on_device, lambda s: model(s.ids, s.numbers), optimizers, device)

    def settle() -> None:
        if not alone:
            dist.barrier()
        if not on_cores:
            torch.cuda.synchronize()

    batches = load(task, range(task.parts) if alone else [rank], pinned=not on_cores)
    run_steps(batches, task.skip, lambda samples: len(samples.labels), step, settle)
    if rank == 0:
        evaluate(task, lambda s: network(s.ids, s.numbers), device)
    if not alone:
        dist.barrier()  # rank 0 evaluates while the others are done, and has the group's store
        dist.destroy_process_group()


if __name__ == "__main__":
    started, _, index = started_as()
    main(started, index)
    end_process()
