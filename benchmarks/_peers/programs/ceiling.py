"""The ceiling: the fully connected layers alone under DistributedDataParallel, with random numbers as their inputs.

Gradients of the inputs are computed, as tables need them. What it learns means nothing.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from benchmarks._peers.programs.protocol import Task, end_process, run_steps, started_as
from benchmarks._peers.programs.torch_parts import (
    Dense,
    Samples,
    dense_optimizer,
    distributed,
    join_group,
    load,
    prepare,
    train_on,
)


def main(task: Task, rank: int) -> None:
    """Train."""
    prepare(task)
    join_group(task, rank)
    dense = Dense(task)
    model = distributed(dense)
    optimizers = [dense_optimizer(task, dense)]
    batches = load(task, [rank])
    inputs = torch.randn(max(len(samples.labels) for samples in batches), task.width)

    def step(samples: Samples) -> None:
        x = inputs[: len(samples.labels)].detach().requires_grad_()
        train_on(task, samples, lambda _: model(x), optimizers)

    run_steps(batches, task.skip, lambda samples: len(samples.labels), step, dist.barrier)
    dist.destroy_process_group()


if __name__ == "__main__":
    started, _, index = started_as()
    main(started, index)
    end_process()
