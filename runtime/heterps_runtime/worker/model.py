"""The user's model in a worker: built, traced, and described for other processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from heterps_runtime.config import PoolConfig, RunConfig
from heterps_runtime.intake import LayeredModel, LossSum, StageModule, build_model, onednn_is_faster, trace_model
from heterps_runtime.partition.access import rules_of
from heterps_runtime.processes.process import log
from heterps_runtime.wire.messages import Model

__all__ = ["UserModel", "Workload", "arithmetic", "choose_device", "set_precision"]

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


def arithmetic(precision: str, device: torch.device) -> str:
    """The precision in which a device computes a job of `precision`: fp32 for tf32, if it has no TF32."""
    has_tf32 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "fp32" if precision == "tf32" and not has_tf32 else precision


def set_precision(config: RunConfig, device: torch.device) -> None:
    """Choose the device's arithmetic for products of float32; log if it has no instructions for the job's precision."""
    # torch's own default rounds the inputs of convolutions to TF32, and those of other products not.
    rounds = config.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = rounds
    torch.backends.cudnn.allow_tf32 = rounds
    if arithmetic(config.precision, device) != config.precision:
        log(f"training.precision tf32: the {device.type} device here has no TF32, so it computes in fp32")
    if config.product_dtype_name is None:
        return
    if device.type == "cpu":
        known, short = torch.cpu.get_capabilities(), config.precision
        native = known.get("architecture") != "x86_64" or known.get(f"avx512_{short}") or known.get(f"amx_{short}")
    else:
        emulated = device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)
        native = config.precision == "fp16" or not emulated
    if not native:
        log(
            f"training.precision {config.precision}: the {device.type} device here has no instructions for "
            f"{config.product_dtype_name}, so fp32 may be faster"
        )


@dataclass(frozen=True)
class UserModel:
    """A traced model.

    Attributes:
        layered: its layers.
        product_dtype: that layers multiply matrices in; None: the type of the parameters.
    """

    layered: LayeredModel
    product_dtype: torch.dtype | None = None

    @classmethod
    def build(cls, config: RunConfig, features: tuple[str, ...] | None) -> UserModel:
        """Build and trace the user's module.

        Args:
            config: the job.
            features: of the data; None if unknown.

        Raises:
            UserError: model.tables names a table that the module does not have.
        """
        dtype = torch.float64 if config.precision == "fp64" else torch.float32
        module = build_model(config.entrypoint, config.arguments, config.seed, dtype)
        layered = trace_model(module, features)
        rules_of(layered.tables, config.tables)
        for warning in layered.warnings:
            log(f"model: {warning}")
        name = config.product_dtype_name
        return cls(layered, None if name is None else getattr(torch, name))

    def stage(self, first: int, last: int, device: torch.device) -> StageModule:
        """The layers `first` to `last`, both inclusive, on a device and in the job's precision."""
        stage = self.layered.stage(first, last).to(device).multiply_in(self.product_dtype)
        return stage.use_onednn() if device.type == "cpu" and onednn_is_faster() else stage

    @cached_property
    def _whole(self) -> StageModule:
        """All layers as one stage."""
        return self.layered.stage(0, len(self.layered.layers) - 1)

    def describe(self) -> Model:
        """The model, for the coordinator."""
        return Model(self.layered.tables, self.state_names())

    def dense_sizes(self) -> dict[str, int]:
        """Number of elements of each dense parameter, and of each statistic, of the whole model."""
        names = {n for layer in self.layered.layers for n in layer.parameters}
        sizes = {n: p.numel() for n, p in self.layered.module.named_parameters() if n in names}
        return sizes | {n: t.numel() for n, t in self._whole.initial_statistics().items()}

    @property
    def statistics_names(self) -> tuple[str, ...]:
        """Names of the buffers of the whole model that training may change."""
        return self._whole.statistics_names

    def state_names(self) -> dict[str, str]:
        """Name in the module's `state_dict()` -> name in checkpoints.

        A tied parameter has several names in a state dict, and one in a checkpoint.
        """
        module = self.layered.module
        first = {id(p): n for n, p in [*module.named_parameters(), *module.named_buffers()]}
        return {name: first[id(tensor)] for name, tensor in module.state_dict(keep_vars=True).items()}

    def leftovers(self) -> dict[str, Array]:
        """Values in the state dict that belong to no stage: unused parameters."""
        held = {t.name for t in self.layered.tables} | set(self.dense_sizes()) | set(self._whole.buffers())
        values = self.layered.module.state_dict()
        rest = {source for source in self.state_names().values() if source not in held}
        return {n: values[n].detach().cpu().numpy() for n in sorted(rest) if n in values and not values[n].is_meta}


@dataclass(frozen=True)
class Workload:
    """A worker's model, loss and device."""

    model: UserModel
    loss: LossSum
    device: torch.device
