"""Times of single layers in whole steps: forward through all layers, then backward.

Each layer is a stage, timed within the step, so that its inputs are in the caches as in a real step; a loop over a
single layer would differ. The code is that of workers and servers: lookups, stage modules, encoding of gradients, a
shard with its optimizers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.data import Dataset
from heterps_runtime.intake import LossSum, StageModule
from heterps_runtime.partition.pieces import DensePiece
from heterps_runtime.profiler.memory import LayerBytes, SavedBytes
from heterps_runtime.ps.gradients import Gradients
from heterps_runtime.ps.shard import Shard
from heterps_runtime.store.half import decode, encode
from heterps_runtime.store.keys import UniqueKeys
from heterps_runtime.store.optimizers import DenseOptimizer
from heterps_runtime.worker.exchange.replica import Replica
from heterps_runtime.worker.gradients import backward
from heterps_runtime.worker.model import UserModel
from heterps_runtime.worker.rows.lookups import LookupBlock
from heterps_runtime.worker.tensors import array_of, arrays_of, is_finite, joined

__all__ = ["Cut", "LayerProbe", "LayerSeconds"]

Array = np.ndarray[Any, Any]


@dataclass
class LayerSeconds:
    """Seconds of a layer in a step."""

    compute: float = 0.0  # forward and backward of the module
    lookup: float = 0.0  # rows to outputs, gradients of outputs to gradients of rows
    push: float = 0.0  # preparing gradients to send
    rows: float = 0.0  # at the server: receiving and applying gradients of rows (and reading rows, in sync)
    dense: float = 0.0  # dense parameters: updating and pulling them at the server, or updating the replica

    @property
    def busy(self) -> float:
        """The worker's own work."""
        return self.compute + self.lookup + self.push


@dataclass(frozen=True)
class Cut:
    """The arrays to send if the pipeline is cut after a layer."""

    forward: tuple[Array, ...]  # live tensors and the label
    backward: tuple[Array, ...]  # gradients of tensors that need one


class LayerProbe:
    """Runs steps layer by layer on one device.

    Args:
        config: the job.
        model: the user's model.
        data: training data.
        loss: summed over samples.
        device: of the pool.
        all_reduces: whether the pool's workers have replicas of dense parameters.
    """

    def __init__(
        self,
        config: RunConfig,
        model: UserModel,
        data: Dataset,
        loss: LossSum,
        device: torch.device,
        *,
        all_reduces: bool,
    ) -> None:
        self._config = config
        self._model = model
        self._data = data
        self._loss = loss
        self._device = device
        self._order = data.training_order(config.global_batch_size, config.seed)
        count = len(model.layered.layers)
        self.stages: list[StageModule] = [model.stage(i, i, device).train() for i in range(count)]
        self._unique = UniqueKeys()
        # The few rows of a profile need no disk, and pods of a profiler may not have the servers' one.
        self._shard = Shard(config, 0)
        initial = [stage.initial_parameters() for stage in self.stages]
        self._replicas: list[Replica] | None = None
        if all_reduces:
            optimizer = DenseOptimizer.from_manifest(config.dense_optimizer)
            self._replicas = [Replica(values, {}, optimizer, device) for values in initial]
            for replica in self._replicas:
                replica.version = 0  # in a job, set at the start of a generation
        self._shapes = {n: tuple(t.shape) for values in initial for n, t in values.items()}
        dense = {} if all_reduces else {n: t.numpy() for values in initial for n, t in values.items()}
        pieces = {n: DensePiece(0, v.shape, v.reshape(-1)) for n, v in dense.items()}
        self._shard.define(model.layered.tables, pieces, {})
        self._next = 0
        self.input_bytes = [0.0] * count  # per sample, set by the first step

    @property
    def largest(self) -> int:
        """Samples of a whole batch."""
        return self._order.batches.size(0)

    def step(self, size: int) -> list[LayerSeconds]:
        """Run one step of `size` samples through all layers; returns each layer's times."""
        seconds = [LayerSeconds() for _ in self.stages]
        values, label = self._batch(size)
        inputs: list[dict[str, torch.Tensor]] = []
        blocks: list[LookupBlock] = []
        parameters: list[dict[str, torch.Tensor]] = []
        made: list[list[tuple[torch.Tensor, torch.Tensor]]] = []  # (output with its graph, leaf for the next layer)
        for stage, spent in zip(self.stages, seconds, strict=True):
            given = {n: values[n] for n in stage.inputs}
            block = self._block(stage, given)
            began = time.perf_counter()
            if block.keys:
                precision = self._config.wire_precision
                wire = {dim: encode(rows, precision) for dim, rows in self._shard.pull(_keys(block)).items()}
                block.fill({dim: decode(w.data, precision, self._config.dtype_name) for dim, w in wire.items()})
                if self._config.consistency == "sync":  # otherwise rows arrive during the previous step
                    spent.rows += time.perf_counter() - began
            bound = self._parameters(len(parameters), spent)
            began = self._now()
            looked_up = block.forward(0, training=True)
            after_lookup = self._now()
            stage.bind(bound)
            outputs = stage.forward(given, looked_up)
            ended = self._now()
            spent.lookup += after_lookup - began
            spent.compute += ended - after_lookup
            inputs.append(given)
            blocks.append(block)
            parameters.append(bound)
            made.append(self._pass_on(outputs, given, values))
        began = self._now()
        logits = made[-1][0][1]
        loss = self._loss(logits, label)
        torch.autograd.backward(loss)
        seconds[-1].compute += self._now() - began
        for i in reversed(range(len(self.stages))):
            self._backward(made[i], blocks[i], parameters[i], seconds[i], size, i)
        if not any(self.input_bytes):
            self._note_inputs(inputs, size)
        return seconds

    def cuts(self, size: int) -> list[Cut]:
        """The cut after each layer except the last, for `size` samples."""
        values, label = self._batch(size)
        result = []
        for stage in self.stages:  # shapes are the same, and one sample is too few for batch normalisation in training
            stage.train(False)
        with torch.no_grad():
            for i, stage in enumerate(self.stages[:-1]):
                given = {n: values[n] for n in stage.inputs}
                block = self._block(stage, given)
                if block.keys:
                    block.fill(self._shard.pull(_keys(block)))
                stage.bind(self._parameters(i, LayerSeconds()))
                values |= stage.forward(given, block.forward(0, training=False))
                carrying = [n for n in stage.gradient_outputs if values[n].is_floating_point()]
                result.append(
                    Cut(
                        tuple(array_of(t) for t in [*(values[n] for n in stage.outputs), label]),
                        tuple(array_of(values[n]) for n in carrying),
                    )
                )
        for stage in self.stages:
            stage.train()
        return result

    def memory(self) -> list[LayerBytes]:
        """The memory of each layer, by a forward pass of a whole batch."""
        size, values, known = self.largest, self._batch(self.largest)[0], set[int]()
        found, alive = [], []
        for i, stage in enumerate(self.stages):
            given = {n: values[n] for n in stage.inputs}
            block = self._block(stage, given)
            rows = self._shard.pull(_keys(block)) if block.keys else {}
            block.fill(rows)
            bound = self._parameters(i, LayerSeconds())
            weights, buffers, saved = SavedBytes(known), SavedBytes(known), SavedBytes(known)
            weights.add(bound.values())
            buffers.add(stage.buffers().values())
            stage.bind(bound)
            with saved.counting():
                outputs = stage.forward(given, block.forward(0, training=True))
            made = self._pass_on(outputs, given, values)
            saved.add(tensor for tensor, _ in made)
            alive.append((made, block, bound))  # memory that is freed would be used again, and be counted once
            held = saved.total + 2 * sum(array.nbytes for array in rows.values())
            found.append(LayerBytes(weights.total * self._copies + buffers.total, held / size))
        return found

    @property
    def _copies(self) -> int:
        """How often a worker holds the dense parameters: gradients and optimizer state count, too."""
        if self._replicas is None:
            return 3  # those of two commits, and gradients
        # Those of a step and of the last commit, gradients by parameter and in one piece, and the optimizer's state.
        return 4 + self._replicas[0].num_state_arrays

    # --- one step -----------------------------------------------------------------------------------------------------

    def _batch(self, size: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        step = self._next % max(1, self._data.num_rows // self._config.global_batch_size)  # whole batches only
        self._next += 1
        self._data.read_ahead(self._order, step, 0, self._order.batches.size(step), step + 1)
        arrays = self._data.batch(self._order.rows(step, 0, size), self._model.layered.inputs)
        tensors = {n: torch.from_numpy(a) for n, a in arrays.items()}
        if self._config.precision == "fp64":
            tensors = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
        tensors = {n: t.to(self._device) for n, t in tensors.items()}
        label = tensors.pop("label")
        return tensors, label

    def _block(self, stage: StageModule, given: dict[str, torch.Tensor]) -> LookupBlock:
        return LookupBlock(stage.sites, self._model.layered.tables, [stage.ids(given)], self._unique, self._device, 1)

    def _parameters(self, index: int, spent: LayerSeconds) -> dict[str, torch.Tensor]:
        stage = self.stages[index]
        began = time.perf_counter()
        if self._replicas is not None:
            return self._replicas[index].acquire(private=False)
        arrays = self._shard.dense.pull(stage.parameter_names)
        leaves = {
            n: joined([a], self._shapes[n], self._device).requires_grad_()
            for n, a in zip(stage.parameter_names, arrays, strict=True)
        }
        spent.dense += time.perf_counter() - began
        return leaves

    def _pass_on(
        self, outputs: dict[str, torch.Tensor], given: dict[str, torch.Tensor], values: dict[str, torch.Tensor]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Cut the graph after a layer, except values that only pass through."""
        made = []
        for name, tensor in outputs.items():
            if given.get(name) is tensor:  # under another name it is the result of a layer that changes nothing
                continue
            leaf = tensor.detach()
            values[name] = leaf
            if tensor.requires_grad:
                leaf.requires_grad_()
            made.append((tensor, leaf))
        return made

    def _backward(
        self,
        made: list[tuple[torch.Tensor, torch.Tensor]],
        block: LookupBlock,
        parameters: dict[str, torch.Tensor],
        spent: LayerSeconds,
        size: int,
        index: int,
    ) -> None:
        began = self._now()
        pairs = [(t, leaf.grad) for t, leaf in made if t.requires_grad and leaf.grad is not None]
        if pairs:
            backward([t for t, _ in pairs], [g for _, g in pairs])
        computed = self._now()
        block.backward(0)
        scattered = self._now()
        # Like the engine at the end of a step: check and encode gradients; then the work of the server.
        chunks = block.gradients()
        finite = all(chunk.finite for chunk in chunks)
        encoded = [(c.dim, c.keys.keys, encode(c.values, self._config.wire_precision).data) for c in chunks]
        dense: dict[str, Array] = {}
        if self._replicas is None:
            dense = arrays_of({n: p.grad for n, p in parameters.items() if p.grad is not None})
            finite = finite and all(map(is_finite, dense.values()))
        pushed = self._now()
        spent.compute += computed - began
        spent.lookup += scattered - computed
        spent.push += pushed - scattered
        if not finite:  # the job would stop at this step; the times are still valid
            return
        self._serve(encoded, dense, spent, size)
        replica = self._replicas[index] if self._replicas is not None else None
        if replica is not None and replica.names:
            began = self._now()
            parts = [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters.values()]
            replica.apply(torch.cat(parts), size)
            spent.dense += self._now() - began

    def _serve(
        self, encoded: list[tuple[int, Array, Array]], dense: dict[str, Array], spent: LayerSeconds, size: int
    ) -> None:
        precision, dtype = self._config.wire_precision, self._config.dtype_name
        if not encoded and not dense:
            return
        step = self._shard.committed
        began = time.perf_counter()
        decoded = tuple((dim, keys, decode(g, precision, dtype)) for dim, keys, g in encoded)
        flat = {name: gradient.reshape(-1) for name, gradient in dense.items()}
        self._shard.push(step, "profile", Gradients(decoded, flat, {}))
        received = time.perf_counter()
        self._shard.commit_dense(step, size)
        applied = time.perf_counter()
        self._shard.commit_rows(step, size)
        if encoded:
            spent.rows += received - began + time.perf_counter() - applied
        if dense:
            spent.dense += applied - received

    def _note_inputs(self, inputs: list[dict[str, torch.Tensor]], size: int) -> None:
        for i, (stage, given) in enumerate(zip(self.stages, inputs, strict=True)):
            read = {str(n.target) for n in stage.module.graph.nodes if n.op == "placeholder"}
            used = [t for n, t in given.items() if n in read or n not in stage.outputs]
            self.input_bytes[i] = sum(t.numel() * t.element_size() for t in used) / size

    def _now(self) -> float:
        """The time after all work of the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "xpu":
            torch.xpu.synchronize(self._device)
        return time.perf_counter()


def _keys(block: LookupBlock) -> dict[int, Array]:
    return {dim: known.keys for dim, known in block.keys.items()}
