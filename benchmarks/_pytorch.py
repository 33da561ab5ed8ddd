"""One process of plain PyTorch training the benchmark model; started by training_speed.py.

    python -m benchmarks._pytorch SETTINGS.json RANK

The whole log is in memory, in training order, so a batch is a slice. With several processes the model is
DistributedDataParallel over gloo, with the options that help it here: gradients as bucket views, and a static graph.
Both ways use torch's fused Adagrad for dense parameters (it takes no sparse gradients, and is there for CPUs only) and
the plain one for the tables. Prints one JSON object: throughput, processor time and, in process 0, the model's quality.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks._clicks import build_arguments, read_log
from examples.paper.clicks.ctrdnn import build
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as loss_of

from heterps_runtime.data import BatchOrder


def short_products(precision: str, device: str) -> AbstractContextManager[object]:
    """Return what a user of PyTorch writes around the model for this precision."""
    return torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext()


def main(settings: dict[str, Any], rank: int) -> None:
    """Train, and print the result."""
    # torch's own Adagrad creates sparse tensors without the flag for checks.
    warnings.filterwarnings("ignore", message="Sparse invariant checks")
    size: int = settings["processes"]
    device: str = settings["device"]
    torch.backends.cuda.matmul.allow_tf32 = settings["precision"] == "tf32"
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(settings["seed"])
    network = build(**build_arguments(settings["variant"]), sparse=True).to(device)
    tables = [slot.table.weight for slot in (network.user, network.item, network.context)]
    with torch.no_grad():
        for table in tables:
            table.normal_(0, settings["embeddingStd"])
    model: nn.Module = network
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{settings['rendezvous']}", rank=rank, world_size=size)
        model = nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=True, static_graph=True)
    optimizers = [
        torch.optim.Adagrad(
            [*network.fc.parameters(), *network.output.parameters()], settings["denseRate"], fused=device == "cpu"
        ),
        torch.optim.Adagrad(tables, settings["sparseRate"]),
    ]

    batch: int = settings["globalBatchSize"] // size
    ids, numbers, labels = read_log(Path(settings["data"]) / "train")
    order = BatchOrder(len(labels), settings["globalBatchSize"], settings["seed"])
    data = []
    samples = 0  # of the timed steps
    for step in range(settings["steps"]):
        size_of_step = order.batches.size(step)  # smaller at the end of an epoch
        samples += size_of_step if step >= settings["skip"] else 0
        rows = order.rows(step, min(rank * batch, size_of_step), min((rank + 1) * batch, size_of_step))
        columns = torch.from_numpy(ids[rows].T.copy())  # (26, b): one contiguous column per field
        batch_data = (columns, torch.from_numpy(numbers[rows]), torch.from_numpy(labels[rows]))
        data.append(tuple(t.pin_memory() for t in batch_data) if device == "cuda" else batch_data)
    del ids, numbers, labels

    started = started_cpu = 0.0
    for step, on_host in enumerate(data):
        if step == settings["skip"]:
            if size > 1:
                dist.barrier()
            if device == "cuda":
                torch.cuda.synchronize()
            started, started_cpu = time.perf_counter(), time.process_time()
        i, x, y = (t.to(device, non_blocking=True) for t in on_host)
        for optimizer in optimizers:
            optimizer.zero_grad()
        with short_products(settings["precision"], device):
            logits = model(*i, x)
        loss = loss_of(logits.float(), y)
        torch.autograd.backward(loss)
        for optimizer in optimizers:
            optimizer.step()
    if size > 1:
        dist.barrier()
    if device == "cuda":
        torch.cuda.synchronize()
    seconds, cpu = time.perf_counter() - started, time.process_time() - started_cpu
    outcome = {"samplesPerSecond": samples / seconds, "cpuSeconds": cpu, "samples": samples}

    if rank == 0:
        ids, numbers, labels = read_log(Path(settings["data"]) / "held-out")
        with torch.no_grad(), short_products(settings["precision"], device):
            logits = network(*torch.from_numpy(ids.T.copy()).to(device), torch.from_numpy(numbers).to(device))
            held_out = float(loss_of(logits.float(), torch.from_numpy(labels).to(device)))
        outcome["logLoss"] = held_out
    print(json.dumps(outcome))
    if size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2]))
