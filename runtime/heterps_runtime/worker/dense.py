"""Where a stage's dense parameters live: at the parameter servers (CPU pools) or in replicas that all-reduce.

Both give the engine the same thing: for a step, a dictionary of leaf tensors to compute with. In `async` several steps
may be under way, each with the values that it began with, so leaves belong to a step and are never changed in place
while a graph still needs them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from heterps_runtime.errors import PeerLostError, UserError

__all__ = ["Collectives", "DenseOptimizer", "Replica", "leaves_of"]

Array = np.ndarray[Any, Any]
Leaves = dict[str, torch.Tensor]


def leaves_of(values: Mapping[str, torch.Tensor], device: torch.device) -> Leaves:
    """Fresh leaf tensors with these values."""
    return {n: v.detach().to(device, copy=True).requires_grad_(v.is_floating_point()) for n, v in values.items()}


@dataclass(frozen=True)
class DenseOptimizer:
    """The manifest's dense optimizer as a torch optimizer and back.

    State names match those of the parameter servers (`PARAM::exp_avg`), so that a checkpoint can be continued with the
    parameter on the other side.
    """

    options: dict[str, Any]

    def build(self, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        """A torch optimizer over these leaves."""
        given = {k: v for k, v in self.options.items() if k != "name"}
        number = {k: float(v) for k, v in given.items()}
        name = self.options["name"]
        rate = number.get("learningRate", 0.001)
        decay = number.get("weightDecay", 0.0)
        if name == "sgd":
            return torch.optim.SGD(parameters, rate, momentum=number.get("momentum", 0.0), weight_decay=decay)
        if name == "adagrad":
            return torch.optim.Adagrad(
                parameters,
                rate,
                weight_decay=decay,
                eps=number.get("epsilon", 1e-10),
                initial_accumulator_value=number.get("initialAccumulator", 0.0),
            )
        if name == "adam":
            betas = (number.get("beta1", 0.9), number.get("beta2", 0.999))
            return torch.optim.Adam(parameters, rate, betas, number.get("epsilon", 1e-8), decay)
        raise UserError(f"training.optimizer.dense.name: must be sgd, adagrad or adam, is {name!r}")


class Replica:
    """One worker's copy of its stage's dense parameters with their optimizer.

    Args:
        names: parameters of the stage, in the order of the flat buffer that is all-reduced.
        initial: values to begin with.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        initial: Mapping[str, torch.Tensor],
        optimizer: DenseOptimizer,
        device: torch.device,
    ) -> None:
        self.names = names
        self.device = device
        self.version = -1  # committed steps in these values; -1: initial values that nobody has agreed on yet
        self._masters = leaves_of({n: initial[n] for n in names}, device)
        self._spec = optimizer
        self._optimizer = optimizer.build(list(self._masters.values())) if names else None

    def acquire(self, *, private: bool) -> Leaves:
        """Leaves for a step; `private` ones may be used while later commits change the replica."""
        if private:
            return leaves_of(self._masters, self.device)
        for leaf in self._masters.values():
            leaf.grad = None
        return self._masters

    def apply(self, flat: torch.Tensor | None, batch_size: int) -> None:
        """Commit one step: `flat` is the sum over all samples of the gradient, in the order of `names`."""
        if self._optimizer is not None and flat is not None:
            offset = 0
            for leaf in self._masters.values():
                size = leaf.numel()
                leaf.grad = (flat[offset : offset + size] / batch_size).view_as(leaf)
                offset += size
            self._optimizer.step()
        self.version += 1

    def flat_state(self) -> torch.Tensor:
        """Parameters and optimizer state in one buffer, for a newcomer."""
        return torch.cat(
            [t.detach().reshape(-1).to(self.device) for t in self._state_tensors()]
            or [torch.zeros(0, device=self.device)]
        )

    def load_flat_state(self, flat: torch.Tensor, version: int) -> None:
        """Take over what `flat_state` of another replica returned."""
        self._materialise_state()
        offset = 0
        with torch.no_grad():
            for tensor in self._state_tensors():
                tensor.copy_(flat[offset : offset + tensor.numel()].view_as(tensor))
                offset += tensor.numel()
        self.version = version

    def state_size(self) -> int:
        """Elements of `flat_state`."""
        self._materialise_state()
        return sum(t.numel() for t in self._state_tensors())

    def snapshot(self) -> dict[str, Array]:
        """Copies of parameters and optimizer state, named as in checkpoints."""
        result = {}
        for name, leaf in self._masters.items():
            result[name] = leaf.detach().cpu().numpy().copy()
            for key, value in self._optimizer_state(leaf).items():
                if key == "step":
                    continue  # the checkpoint's own step says it
                result[f"{name}::{key}"] = value.detach().cpu().numpy().copy()
        return result

    def load(self, values: Mapping[str, Array], version: int) -> None:
        """Take over a checkpoint's parameters and optimizer state."""
        self._materialise_state()
        with torch.no_grad():
            for name, leaf in self._masters.items():
                leaf.copy_(torch.from_numpy(values[name].copy()).view_as(leaf))
                for key, tensor in self._optimizer_state(leaf).items():
                    if key == "step":
                        tensor.fill_(version)
                    else:
                        tensor.copy_(torch.from_numpy(np.asarray(values[f"{name}::{key}"]).copy()).view_as(tensor))
        self.version = version

    def _optimizer_state(self, leaf: torch.Tensor) -> dict[str, torch.Tensor]:
        if self._optimizer is None:
            return {}
        state = self._optimizer.state.get(leaf, {})
        return {k: v for k, v in sorted(state.items()) if isinstance(v, torch.Tensor)}

    def _state_tensors(self) -> list[torch.Tensor]:
        tensors = []
        for leaf in self._masters.values():
            tensors += [leaf, *self._optimizer_state(leaf).values()]
        return tensors

    def _materialise_state(self) -> None:
        """Make torch create its lazily created state, without changing a parameter."""
        if self._optimizer is None or all(self._optimizer_state(leaf) for leaf in self._masters.values()):
            return
        kept = {n: leaf.detach().clone() for n, leaf in self._masters.items()}
        for leaf in self._masters.values():
            leaf.grad = torch.zeros_like(leaf)
        self._optimizer.step()
        with torch.no_grad():
            for name, leaf in self._masters.items():
                leaf.copy_(kept[name])
                for key, tensor in self._optimizer_state(leaf).items():
                    if key in ("step", "exp_avg", "exp_avg_sq", "momentum_buffer"):
                        tensor.zero_()


class Collectives:
    """Collective operations of one stage's workers, in a thread of their own so that the engine never blocks.

    A group lives for one generation. Groups are built from a plain store without torch's default group, so that they
    can be replaced without restarting the process.
    """

    def __init__(self, host: str, timeout_seconds: float) -> None:
        self._host = host
        self._timeout = timedelta(seconds=timeout_seconds)
        self.store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=self._timeout)
        self.store_address = f"{host}:{self.store.port}"
        self._group: Any = None
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="collectives", daemon=True)
        self._thread.start()

    def join(self, generation: int, stage: int, rank: int, size: int, store_address: str, device: torch.device) -> None:
        """Form the stage's group of a generation; every member calls this. Blocks until all are there.

        Raises:
            PeerLostError: a member did not come.
        """
        self.leave()
        if size == 1:
            return
        host, port = store_address.rsplit(":", 1)
        try:
            store = self.store if rank == 0 else TCPStore(host, int(port), is_master=False, timeout=self._timeout)
            prefixed = PrefixStore(f"generation-{generation}/stage-{stage}", store)
            if device.type == "cuda":
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = self._timeout
                self._group = dist.ProcessGroupNCCL(prefixed, rank, size, options)
            else:
                gloo: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
                gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=self._host)]
                gloo._timeout = self._timeout
                self._group = dist.ProcessGroupGloo(prefixed, rank, size, gloo)
        except RuntimeError as error:
            raise PeerLostError(f"the process group of stage {stage} could not be formed: {error}") from error

    def leave(self) -> None:
        """Drop the group; operations under way fail in their own thread."""
        if self._group is not None and hasattr(self._group, "abort"):
            self._group.abort()
        self._group = None

    def all_reduce(self, flat: torch.Tensor, done: Callable[[Exception | None], None]) -> None:
        """Sum `flat` over the group in place; `done` is called from the collectives' thread."""
        group = self._group
        if group is None:
            done(None)
            return

        def run() -> None:
            try:
                group.allreduce([flat]).wait()
                if flat.is_cuda:
                    torch.cuda.current_stream(flat.device).synchronize()
                done(None)
            except Exception as error:  # gloo and NCCL raise RuntimeError and its relatives
                done(error)

        self._tasks.put(run)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Give everybody the root's values; blocks."""
        if self._group is not None:
            options = dist.BroadcastOptions()
            options.rootRank = root
            self._group.broadcast([tensor], options).wait()

    def gather_numbers(self, value: int, rank: int, size: int, device: torch.device) -> list[int]:
        """Every member's number, in rank order; blocks."""
        numbers = torch.zeros(size, dtype=torch.int64, device=device)
        numbers[rank] = value
        if self._group is not None:
            self._group.allreduce([numbers]).wait()
        return [int(n) for n in numbers.cpu()]

    def close(self) -> None:
        """End the thread."""
        self.leave()
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
