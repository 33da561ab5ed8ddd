"""The user's model in a worker: built, traced, and described for other processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from heterps_runtime.config import PoolConfig, RunConfig
from heterps_runtime.intake import LayeredModel, LossSum, build_model, trace_model
from heterps_runtime.processes.process import log
from heterps_runtime.wire.messages import Model

__all__ = ["UserModel", "Workload", "choose_device"]

Array = np.ndarray[Any, Any]


def choose_device(pool: PoolConfig, index: int) -> torch.device:
    """The device of a worker of this pool; logs the choice for `auto`."""
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
    # On a cluster, a pod sees only its own cards. On one machine, workers share the cards.
    return torch.device(wanted, index % max(1, count))


@dataclass(frozen=True)
class UserModel:
    """A traced model."""

    layered: LayeredModel

    @classmethod
    def build(cls, config: RunConfig, features: tuple[str, ...] | None) -> UserModel:
        """Build and trace the user's module.

        Args:
            config: the job.
            features: of the data; None if unknown.
        """
        dtype = torch.float64 if config.precision == "fp64" else torch.float32
        module = build_model(config.entrypoint, config.arguments, config.seed, dtype)
        layered = trace_model(module, features)
        for warning in layered.warnings:
            log(f"model: {warning}")
        return cls(layered)

    def describe(self) -> Model:
        """The model, for the coordinator."""
        return Model(self.layered.tables, self.state_names())

    def dense_sizes(self) -> dict[str, int]:
        """Number of elements of each dense parameter of the whole model."""
        names = {n for layer in self.layered.layers for n in layer.parameters}
        return {n: p.numel() for n, p in self.layered.module.named_parameters() if n in names}

    def state_names(self) -> dict[str, str]:
        """Name in the module's `state_dict()` -> name in checkpoints.

        A tied parameter has several names in a state dict, and one in a checkpoint.
        """
        module = self.layered.module
        first = {id(p): n for n, p in [*module.named_parameters(), *module.named_buffers()]}
        return {name: first[id(tensor)] for name, tensor in module.state_dict(keep_vars=True).items()}

    def leftovers(self) -> dict[str, Array]:
        """Values in the state dict that belong to no stage: unused parameters."""
        whole = self.layered.stage(0, len(self.layered.layers) - 1)
        held = {t.name for t in self.layered.tables} | set(self.dense_sizes()) | set(whole.buffers())
        values = self.layered.module.state_dict()
        rest = {source for source in self.state_names().values() if source not in held}
        return {n: values[n].detach().cpu().numpy() for n in sorted(rest) if n in values and not values[n].is_meta}


@dataclass(frozen=True)
class Workload:
    """A worker's model, loss and device."""

    model: UserModel
    loss: LossSum
    device: torch.device
