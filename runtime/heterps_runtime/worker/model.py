"""The user's model in a worker: built, traced, checked against the data, described for the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from heterps_runtime.config import PoolConfig, RunConfig
from heterps_runtime.intake import LayeredModel, LossSum, build_model, trace_model
from heterps_runtime.process import log
from heterps_runtime.wire.messages import Model, Table
from heterps_runtime.worker.rows.lookups import TableShape

__all__ = ["UserModel", "Workload", "choose_device"]

Array = np.ndarray[Any, Any]


def choose_device(pool: PoolConfig, index: int) -> torch.device:
    """The device of a worker of this pool; says aloud what `auto` came to."""
    wanted = pool.torch_device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "xpu" if torch.xpu.is_available() else "cpu"
        if wanted == "cpu":
            log(f"pool {pool.name}: torchDevice auto: there is no accelerator here, so its workers compute on the CPU")
        else:
            log(f"pool {pool.name}: torchDevice auto: using {wanted}")
    if wanted == "cpu":
        torch.set_num_threads(pool.units_per_pod)
        return torch.device("cpu")
    count = torch.cuda.device_count() if wanted == "cuda" else torch.xpu.device_count()
    # In a cluster every pod sees only its own cards; on one machine workers share the cards there are.
    return torch.device(wanted, index % max(1, count))


@dataclass(frozen=True)
class UserModel:
    """A traced model with what the rest of the job must know of it."""

    layered: LayeredModel

    @classmethod
    def build(cls, config: RunConfig, features: tuple[str, ...] | None) -> UserModel:
        """Build and trace the user's module.

        Args:
            config: the job.
            features: names that the data can give; None where the data is not at hand (later stages).
        """
        dtype = torch.float64 if config.precision == "fp64" else torch.float32
        module = build_model(config.entrypoint, config.arguments, config.seed, dtype)
        layered = trace_model(module, features)
        for warning in layered.warnings:
            log(f"model: {warning}")
        return cls(layered)

    @property
    def tables(self) -> dict[int, TableShape]:
        """Shapes of the tables by index."""
        return {t.index: TableShape(t.num_embeddings, t.dim) for t in self.layered.tables}

    def describe(self) -> Model:
        """What the coordinator must know of the model."""
        return Model(self.describe_tables(), self.state_names())

    def describe_tables(self) -> tuple[Table, ...]:
        """The tables as parameter servers and checkpoints know them."""
        return tuple(Table(t.index, t.name, t.num_embeddings, t.dim, t.padding_idx) for t in self.layered.tables)

    def dense_sizes(self) -> dict[str, int]:
        """Elements of every dense parameter of the whole model."""
        names = {n for layer in self.layered.layers for n in layer.parameters}
        return {n: p.numel() for n, p in self.layered.module.named_parameters() if n in names}

    def state_names(self) -> dict[str, str]:
        """Name in the module's `state_dict()` -> name under which a checkpoint holds it.

        Tied parameters appear under several names in a state dict, and once in a checkpoint.
        """
        module = self.layered.module
        first = {id(p): n for n, p in [*module.named_parameters(), *module.named_buffers()]}
        return {name: first[id(tensor)] for name, tensor in module.state_dict(keep_vars=True).items()}

    def leftovers(self) -> dict[str, Array]:
        """Values that no stage holds: unused parameters, which a state dict has all the same."""
        whole = self.layered.stage(0, len(self.layered.layers) - 1)
        held = {t.name for t in self.layered.tables} | set(self.dense_sizes()) | set(whole.buffers())
        values = self.layered.module.state_dict()
        rest = {source for source in self.state_names().values() if source not in held}
        return {n: values[n].detach().cpu().numpy() for n in sorted(rest) if n in values and not values[n].is_meta}


@dataclass(frozen=True)
class Workload:
    """What a worker computes, and where."""

    model: UserModel
    loss: LossSum
    device: torch.device
