"""What entrants of PyTorch share: the network's parts, batches in memory, optimizers, the evaluation."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from benchmarks._peers.programs.protocol import Task
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

__all__ = [
    "Dense",
    "Samples",
    "Tables",
    "dense_optimizer",
    "distributed",
    "evaluate",
    "join_group",
    "load",
    "prepare",
    "short_products",
    "train_on",
]


class Samples(NamedTuple):
    """A batch, laid out for lookups."""

    ids: tuple[Tensor, ...]  # of each slot, int64 (b, fields of the slot)
    numbers: Tensor  # float32 (b, 13)
    labels: Tensor  # float32 (b,)

    def to(self, device: str) -> Samples:
        """Copy to a device, from pinned memory without waiting."""
        ids = tuple(slot.to(device, non_blocking=True) for slot in self.ids)
        return Samples(ids, *(t.to(device, non_blocking=True) for t in (self.numbers, self.labels)))


class Tables(nn.Module):
    """The slots' tables with their initial values: ids of each slot -> rows side by side (b, fields dim)."""

    def __init__(self, task: Task, *, sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.Embedding(values.shape[0], values.shape[1], sparse=sparse, _weight=torch.tensor(values))
            for values in task.tables()
        )

    def forward(self, ids: tuple[Tensor, ...]) -> Tensor:
        """Look up."""
        return torch.cat([table(slot).flatten(1) for table, slot in zip(self.tables, ids, strict=True)], dim=1)


class Dense(nn.Module):
    """The fully connected layers with their initial values: (b, width) -> logits (b,)."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        values = iter(task.dense())
        for into, out in itertools.pairwise([task.width, *task.hidden, 1]):
            linear = nn.Linear(into, out)
            with torch.no_grad():
                linear.weight.copy_(torch.from_numpy(next(values)))
                linear.bias.copy_(torch.from_numpy(next(values)))
            layers += [linear, nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits."""
        logits: Tensor = self.layers(x)
        return logits.squeeze(-1)


def prepare(task: Task) -> None:
    """Set what all processes of PyTorch have in common."""
    # torch's own Adagrad creates sparse tensors without the flag for checks.
    warnings.filterwarnings("ignore", message="Sparse invariant checks")
    for library in ("GLOO", "TP"):  # all processes are on this machine
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    torch.set_num_threads(task.threads)
    torch.manual_seed(task.seed)


def join_group(task: Task, rank: int) -> None:
    """Join the process group of the workers."""
    rendezvous = f"file://{task.folder / 'gloo'}"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=task.workers)


def distributed(module: nn.Module) -> nn.Module:
    """Return a module whose gradients are averaged, with the options that help here."""
    return nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True, static_graph=True)


def load(task: Task, parts: Iterable[int], *, pinned: bool = False) -> list[Samples]:
    """Lay out the shares of all steps in memory."""
    parts = tuple(parts)
    return [_samples(task, *task.batch(step, parts), pinned=pinned) for step in range(task.steps)]


def dense_optimizer(task: Task, module: nn.Module, *, fused: bool = True) -> torch.optim.Optimizer:
    """Return Adagrad for the fully connected layers. The fused one is there for CPUs only."""
    return torch.optim.Adagrad(module.parameters(), task.denseRate, fused=fused)


def short_products(task: Task, device: str = "cpu") -> AbstractContextManager[object]:
    """Return what a user of PyTorch writes around the model for this precision."""
    return torch.autocast(device, torch.bfloat16) if task.precision == "bf16" else nullcontext()


def train_on(
    task: Task,
    samples: Samples,
    model: Callable[[Samples], Tensor],
    optimizers: Iterable[torch.optim.Optimizer],
    device: str = "cpu",
) -> None:
    """Train on a batch."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    with short_products(task, device):
        logits = model(samples)
    loss = binary_cross_entropy_with_logits(logits.float(), samples.labels)
    torch.autograd.backward(loss)
    for optimizer in optimizers:
        optimizer.step()


def evaluate(task: Task, model: Callable[[Samples], Tensor], device: str = "cpu") -> None:
    """Hand over the logits of the held-out rows."""
    samples = _samples(task, *task.held_out(), pinned=False).to(device)
    with torch.no_grad(), short_products(task, device):
        logits = model(samples)
    task.save_logits(logits.float().cpu().numpy())


def _samples(task: Task, ids: object, numbers: object, labels: object, *, pinned: bool) -> Samples:
    columns = torch.as_tensor(ids).long()
    slots = tuple(columns[:, first:end].contiguous() for first, end in task.slots)
    samples = Samples(slots, torch.as_tensor(numbers), torch.as_tensor(labels))
    if not pinned:
        return samples
    return Samples(
        tuple(t.pin_memory() for t in samples.ids), samples.numbers.pin_memory(), samples.labels.pin_memory()
    )
