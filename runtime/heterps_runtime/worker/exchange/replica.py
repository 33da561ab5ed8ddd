"""A worker's copy of its stage's dense parameters and statistics, in stages that all-reduce.

Parameters and optimizer state are flat buffers: one tensor is copied to a new worker, or updated, whatever the number
of parameters. On the host, an update is that of parameter servers, in one pass; on an accelerator it takes a few
operations. torch's own optimizers have the same arithmetic, but creating one imports torch's compiler, which takes
seconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from heterps_runtime.store.dense import state_names, update_dense
from heterps_runtime.store.optimizers import DenseOptimizer

__all__ = ["Array", "Bucket", "Leaves", "Replica", "update_on_device"]

BUCKET_BYTES = 2**22  # of gradients that are summed at once: several milliseconds of a network of 10 Gbit/s

Array = np.ndarray[Any, Any]
Leaves = dict[str, torch.Tensor]
State = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Bucket:
    """A part of the flat gradient that is summed over the workers at once."""

    begin: int  # element of the flat gradient
    end: int  # exclusive
    names: tuple[str, ...]  # parameters of which it has the gradients


class Replica:
    """Dense parameters of a stage, their optimizer, and the stage's statistics (`store.statistics` says what they are).

    Args:
        initial: initial values by name, in the order of the flat buffers.
        statistics: initial values of the buffers that training changes.
        optimizer: applied at each commit, like torch.optim.{SGD, Adagrad, Adam}.
        device: of the buffers.
    """

    def __init__(
        self,
        initial: Mapping[str, torch.Tensor],
        statistics: Mapping[str, torch.Tensor],
        optimizer: DenseOptimizer,
        device: torch.device,
    ) -> None:
        self.names = tuple(initial)
        self.version = -1  # committed steps in these values; -1: initial values that are not shared yet
        self.earlier_steps = 0  # before this job's first that the optimizer's state is of, less the skipped ones
        self._shapes = {n: v.shape for n, v in initial.items()}
        ends = list(itertools.accumulate(shape.numel() for shape in self._shapes.values()))
        self._offsets = dict(zip(self._shapes, [0, *ends], strict=False))
        self._optimizer = optimizer
        flat = [v.detach().reshape(-1) for v in initial.values()]
        self._values = (torch.cat(flat) if flat else torch.zeros(0)).to(device)
        self._statistics = {n: v.detach().to(device, copy=True) for n, v in statistics.items()}
        start = optimizer.options.get("initialAccumulator", 0.0)
        self.buckets = self._cut()
        self._state = {name: torch.full_like(self._values, start) for name in state_names(optimizer)}

    def _cut(self) -> tuple[Bucket, ...]:
        """The buckets, from the last parameters on, which backward reaches first; statistics belong to the first one.

        On an accelerator there is one: its gradients are waited for once per step.
        """
        least = BUCKET_BYTES // self._values.element_size() if self._values.device.type == "cpu" else math.inf
        end = self.empty_gradient().numel()
        found, names = [], []
        for name in reversed(self._shapes):
            names.append(name)
            begin = self._offsets[name]
            if begin > 0 and end - begin >= least:
                found.append(Bucket(begin, end, tuple(names)))
                end, names = begin, []
        return (*found, Bucket(0, end, tuple(names)))

    @property
    def num_state_arrays(self) -> int:
        """Arrays of optimizer state, each as large as the parameters."""
        return len(self._state)

    def acquire(self, *, private: bool) -> Leaves:
        """Leaf tensors for a step; `private` ones are not changed by later commits."""
        values = self._values.clone() if private else self._values
        return {n: part.requires_grad_() for n, part in self._split(values).items()}

    @property
    def statistics(self) -> dict[str, torch.Tensor]:
        """The statistics by name; later commits do not change these tensors."""
        return dict(self._statistics)

    def empty_gradient(self) -> torch.Tensor:
        """A tensor, not filled, for gradients and changes: sums over samples, to be summed over workers and applied.

        Changes are in float64 if the parameters are, and in float32 otherwise, in which sums of whole numbers are exact
        up to 2^24.
        """
        size = self._values.numel() + sum(value.numel() for value in self._statistics.values())
        return torch.empty(size, dtype=self._values.dtype, device=self._values.device)

    def part(self, flat: torch.Tensor, name: str) -> torch.Tensor:
        """The view of a parameter's gradient in an `empty_gradient`."""
        shape, begin = self._shapes[name], self._offsets[name]
        return flat[begin : begin + shape.numel()].view(shape)

    def fill_changes(self, flat: torch.Tensor, changes: Mapping[str, torch.Tensor]) -> None:
        """Write the changes of statistics, or zero where there is none, to an `empty_gradient`."""
        offset = self._values.numel()
        for name, value in self._statistics.items():
            target, change = flat[offset : offset + value.numel()], changes.get(name)
            target.zero_() if change is None else target.copy_(change.reshape(-1))
            offset += value.numel()

    def apply(self, flat: torch.Tensor, batch_size: int) -> None:
        """Commit one step.

        Args:
            flat: see `empty_gradient`, summed over all samples of the batch.
            batch_size: samples of the batch.
        """
        values = self._values
        if values.numel():
            step = self.earlier_steps + self.version + 1
            update = _update_on_host if values.device.type == "cpu" else update_on_device
            update(self._optimizer, values, self._state, flat[: values.numel()], 1 / batch_size, step)
        offset = values.numel()
        for name, value in self._statistics.items():
            mean = flat[offset : offset + value.numel()].view(value.shape) / batch_size
            offset += value.numel()
            mean = mean if value.is_floating_point() else mean.round()
            self._statistics[name] = (value + mean).to(value.dtype)
        self.version += 1

    def skip(self) -> None:
        """Count a step that changes nothing."""
        self.version += 1
        self.earlier_steps -= 1

    def flat_state(self) -> torch.Tensor:
        """All state as bytes in one buffer, for new workers: types differ, and a copy must be exact."""
        return torch.cat([t.reshape(-1).view(torch.uint8) for t in self._all_state()])

    def load_flat_state(self, flat: torch.Tensor, version: int) -> None:
        """Load the `flat_state` of another replica."""
        self._statistics = {n: t.clone() for n, t in self._statistics.items()}  # steps may hold the old ones
        offset = 0
        for target in self._all_state():
            size = target.numel() * target.element_size()
            part = flat[offset : offset + size].clone()  # aligned for its type
            target.copy_(part.view(target.dtype).view(target.shape))
            offset += size
        self.version = version

    def _all_state(self) -> list[torch.Tensor]:
        return [self._values, *self._state.values(), *self._statistics.values()]

    def snapshot(self) -> dict[str, Array]:
        """Copies of parameters and optimizer state, named as in checkpoints: `PARAM` and `PARAM::exp_avg`."""
        result = {n: _copy(part) for n, part in self._split(self._values).items()}
        for key, values in self._state.items():
            result.update({f"{n}::{key}": _copy(part) for n, part in self._split(values).items()})
        return result

    def statistics_snapshot(self) -> dict[str, Array]:
        """Copies of the statistics."""
        return {n: _copy(value) for n, value in self._statistics.items()}

    def load(self, snapshot: Mapping[str, Array], statistics: Mapping[str, Array], version: int) -> None:
        """Load parameters, optimizer state and statistics of a checkpoint."""
        for name, value in self._statistics.items():
            self._statistics[name] = torch.from_numpy(np.array(statistics[name])).to(value.device, value.dtype)
        for key, values in (("", self._values), *((f"::{k}", v) for k, v in self._state.items())):
            for name, part in self._split(values).items():
                part.copy_(torch.from_numpy(np.array(snapshot[name + key])))
        self.version = version

    def _split(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """A view of each parameter in a flat buffer."""
        parts, offset = {}, 0
        for name, shape in self._shapes.items():
            size = shape.numel()
            parts[name] = flat[offset : offset + size].view(shape)
            offset += size
        return parts


def _update_on_host(
    optimizer: DenseOptimizer, values: torch.Tensor, state: State, gradient: torch.Tensor, scale: float, step: int
) -> None:
    """The update of parameter servers: torch's would read and write each array several times."""
    arrays = [state[name].numpy() for name in state_names(optimizer)]
    update_dense(optimizer, values.numpy(), arrays, gradient.numpy(), scale=scale, step=step)


def update_on_device(
    optimizer: DenseOptimizer, values: torch.Tensor, state: State, gradient: torch.Tensor, scale: float, step: int
) -> None:
    """Update flat parameters and the optimizer's state in place, as `store.dense.update_dense` does on the host.

    Args:
        optimizer: like torch.optim.{SGD, Adagrad, Adam}.
        values: shape (n,).
        state: tensors (n,), by name.
        gradient: shape (n,); not changed.
        scale: factor of the gradient.
        step: number of this step, from 1.
    """
    options = optimizer.options
    rate, gradient = options["learningRate"], gradient * scale
    if options["weightDecay"]:
        gradient = gradient.add(values, alpha=options["weightDecay"])
    if optimizer.name == "sgd":
        if state:
            gradient = state["momentum_buffer"].mul_(options["momentum"]).add_(gradient)
        values.add_(gradient, alpha=-rate)
    elif optimizer.name == "adagrad":
        total = state["sum"].addcmul_(gradient, gradient)
        values.addcdiv_(gradient, total.sqrt().add_(options["epsilon"]), value=-rate)
    else:
        mean = state["exp_avg"].lerp_(gradient, 1 - options["beta1"])
        square = state["exp_avg_sq"].mul_(options["beta2"])
        square.addcmul_(gradient, gradient, value=1 - options["beta2"])
        correction_1, correction_2 = optimizer.adam_step_size(step)
        values.addcdiv_(mean, (square.sqrt() / correction_2).add_(options["epsilon"]), value=-rate / correction_1)


def _copy(tensor: torch.Tensor) -> Array:
    return tensor.detach().cpu().numpy().copy()
