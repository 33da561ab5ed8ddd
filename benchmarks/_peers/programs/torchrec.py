"""torchrec: tables divided over the workers (table-wise), gradients of rows applied by fbgemm in the backward pass.

A table per field, as DLRM has them, so that both workers hold as many. A slot's fields share a table elsewhere, but no
two fields have an id in common, so it is the same model.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.distributed as dist
from benchmarks._peers.programs.protocol import Batch, Task, end_process, run_steps, started_as
from benchmarks._peers.programs.torch_parts import (
    Dense,
    dense_optimizer,
    join_group,
    prepare,
    short_products,
)
from torch import Tensor, nn

# Their types are not installed where types are checked.
torchrec: Any = importlib.import_module("torchrec")
distributed: Any = importlib.import_module("torchrec.distributed")
embeddingbag: Any = importlib.import_module("torchrec.distributed.embeddingbag")
sharding_plan: Any = importlib.import_module("torchrec.distributed.sharding_plan")
types: Any = importlib.import_module("torchrec.distributed.types")
backward: Any = importlib.import_module("torch.distributed.optim")


class Network(nn.Module):
    """Tables and fully connected layers."""

    def __init__(self, task: Task, tables: nn.Module) -> None:
        super().__init__()
        self.tables, self.dense = tables, Dense(task)
        self._names = [f"f{i}" for i in range(task.slots[-1][1])]

    def forward(self, features: Any, numbers: Tensor) -> Tensor:
        """Compute logits (b,)."""
        [rows] = torchrec.KeyedTensor.regroup([self.tables(features)], [self._names])
        logits: Tensor = self.dense(torch.cat([rows, numbers], dim=1))
        return logits


def make_tables(task: Task) -> nn.Module:
    """Return a table for each field, whose rows have their initial values as soon as they exist."""
    initial = task.tables()
    slot_of = [slot for slot, (first, end) in enumerate(task.slots) for _ in range(first, end)]

    def config(field: int, begin: int, size: int) -> Any:
        def fill(table: Tensor) -> None:
            if not table.numel():
                return  # it is another worker's
            with torch.no_grad():
                table.copy_(torch.tensor(initial[slot_of[field]][begin : begin + size]))

        return torchrec.EmbeddingBagConfig(
            name=f"t{field}",
            embedding_dim=task.dim,
            num_embeddings=size,
            feature_names=[f"f{field}"],
            pooling=torchrec.PoolingType.SUM,
            init_fn=fill,
        )

    configs = [config(field, begin, size) for field, (begin, size) in enumerate(task.vocabularies)]
    tables: nn.Module = torchrec.EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    options = {"lr": task.sparseRate, "eps": 1e-10}
    backward._apply_optimizer_in_backward(torch.optim.Adagrad, tables.parameters(), options)
    return tables


def divide(task: Task, network: nn.Module) -> Any:
    """Return the network with its tables on the workers in turns."""
    sharder = embeddingbag.EmbeddingBagCollectionSharder()
    places = {f"t{i}": sharding_plan.table_wise(rank=i % task.workers) for i in range(len(task.vocabularies))}
    plan = sharding_plan.construct_module_sharding_plan(
        network.tables,
        places,
        sharder=sharder,
        local_size=task.workers,
        world_size=task.workers,
        device_type="cpu",
    )
    return distributed.DistributedModelParallel(
        network,
        env=distributed.ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device("cpu"),
        plan=types.ShardingPlan({"tables": plan}),
        sharders=[sharder],
        data_parallel_wrapper=distributed.model_parallel.DefaultDataParallelWrapper(static_graph=True),
    )


def features_of(task: Task, batch: Batch) -> tuple[Any, Tensor, Tensor]:
    """Lay out a batch: ids as a KeyedJaggedTensor of one id each, counted within their field."""
    begins = torch.tensor([begin for begin, _ in task.vocabularies])
    ids = (torch.from_numpy(batch.ids).long() - begins).T.contiguous()  # (fields, b)
    features = torchrec.KeyedJaggedTensor(
        keys=[f"f{i}" for i in range(len(ids))],
        values=ids.flatten(),
        lengths=torch.ones(ids.numel(), dtype=torch.int32),
    )
    return features, torch.from_numpy(batch.numbers), torch.from_numpy(batch.labels)


def main(task: Task, rank: int) -> None:
    """Train and evaluate."""
    prepare(task)
    join_group(task, rank)
    network = Network(task, make_tables(task))
    model = divide(task, network)
    optimizer = dense_optimizer(task, network.dense)
    batches = [features_of(task, task.batch(step, [rank])) for step in range(task.steps)]

    def step(batch: tuple[Any, Tensor, Tensor]) -> None:
        features, numbers, labels = batch
        optimizer.zero_grad()
        with short_products(task):
            logits = model(features, numbers)
        torch.autograd.backward(nn.functional.binary_cross_entropy_with_logits(logits.float(), labels))
        optimizer.step()

    run_steps(batches, task.skip, lambda batch: len(batch[2]), step, dist.barrier)
    features, numbers, _ = features_of(task, task.held_out())  # the tables are divided, so all look up
    with torch.no_grad(), short_products(task):
        logits = model(features, numbers)
    if rank == 0:
        task.save_logits(logits.float().numpy())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    started, _, index = started_as()
    main(started, index)
    end_process()
