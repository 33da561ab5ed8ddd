"""A worker that torchrun starts and restarts: the flights model under DistributedDataParallel, with snapshots.

    torchrun ... -m benchmarks._recovery.elastic_worker SETTINGS.json

It follows PyTorch's tutorial on fault-tolerant training: process 0 saves model and optimizers every so many steps, and
all continue from the latest snapshot when torchrun restarts them.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from benchmarks._recovery.data import RECORD
from flights.model import build
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as loss_of

from heterps_runtime.data import BatchOrder


def main(settings: dict[str, Any]) -> None:
    """Train without an end."""
    warnings.filterwarnings("ignore", message="Sparse invariant checks")
    torch.set_num_threads(1)
    torch.manual_seed(settings["seed"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=settings["timeoutSeconds"]))
    rank, size = dist.get_rank(), dist.get_world_size()
    folder = Path(settings["folder"])
    (folder / f"worker-{rank}.pid").write_text(str(os.getpid()))

    network = build(**settings["arguments"])
    tables: list[Tensor] = []
    for module in network.modules():
        if isinstance(module, nn.Embedding):
            module.sparse = True
            nn.init.normal_(module.weight, 0, settings["embeddingStd"])
            tables.append(module.weight)
    model = nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=True, static_graph=True)
    known = {id(table) for table in tables}
    optimizers = [
        torch.optim.Adam([p for p in network.parameters() if id(p) not in known], settings["denseRate"]),
        torch.optim.Adagrad(tables, settings["sparseRate"]),
    ]
    step = 0
    snapshot = folder / "snapshot.pt"
    if snapshot.exists():
        saved = torch.load(snapshot, weights_only=True)
        network.load_state_dict(saved["model"])
        for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        step = saved["step"]

    records = np.memmap(settings["records"], RECORD, "r")
    order = BatchOrder(len(records), settings["batch"], settings["seed"])
    with (folder / "samples").open("r+b", buffering=0) as progress:
        while True:
            batch = order.batches.size(step)
            rows = records[order.rows(step, rank * batch // size, (rank + 1) * batch // size)]
            columns = torch.from_numpy(rows["ids"].T.astype(np.int64))
            for optimizer in optimizers:
                optimizer.zero_grad()
            logits = model(*columns, torch.from_numpy(rows["dense"]))
            torch.autograd.backward(loss_of(logits, torch.from_numpy(rows["label"])))
            for optimizer in optimizers:
                optimizer.step()
            step += 1
            if rank:
                continue
            os.pwrite(progress.fileno(), struct.pack("q", step * settings["batch"]), 0)
            if step % settings["checkpointSteps"] == 0:
                states = [optimizer.state_dict() for optimizer in optimizers]
                torch.save({"model": network.state_dict(), "optimizers": states, "step": step}, folder / "new.pt")
                (folder / "new.pt").replace(snapshot)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
