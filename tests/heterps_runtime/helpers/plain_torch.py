"""The reference: the same model trained by plain PyTorch in one process on the same batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch._dynamo  # the first optimizer imports it: then what it makes would not be exempt from garbage collection
from torch import nn

from heterps_runtime.config import RunConfig
from heterps_runtime.data import BatchOrder, RowOrder, metrics_for
from heterps_runtime.intake import build_model, resolve_loss, trace_model
from heterps_runtime.partition.access import NO_RULES, TableRules, rules_of
from heterps_runtime.partition.tables import Table
from heterps_runtime.store.initial import EmbeddingInit, initial_rows
from heterps_runtime.worker.main import open_data
from tests.heterps_runtime.helpers.access_reference import turn_of

Array = np.ndarray[Any, Any]
Pieces = Callable[[int], list[tuple[int, int]]]  # samples of a step -> intervals that cover them


def real_model(config: RunConfig, dtype: torch.dtype) -> tuple[nn.Module, tuple[Table, ...]]:
    """The user's module with real tables, holding the values that the job starts with, in `dtype`."""
    start = torch.float64 if config.precision == "fp64" else torch.float32
    module = build_model(config.entrypoint, config.arguments, config.seed, start).to(dtype)
    tables = trace_model(module, None).tables
    init = EmbeddingInit.from_manifest(config.embedding_init)
    by_name = dict(module.named_parameters(remove_duplicate=False))
    for table in tables:
        ids = np.arange(table.num_embeddings)
        values = initial_rows(config.seed, table.name, ids, table.dim, config.dtype_name, init, table.padding_idx)
        weight = nn.Parameter(torch.from_numpy(values).to(dtype))
        for name, parameter in by_name.items():
            if parameter is by_name[table.name]:
                owner, _, attribute = name.rpartition(".")
                setattr(module.get_submodule(owner), attribute, weight)
    return module, tables


def rows_by_feature(tables: tuple[Table, ...]) -> dict[str, int]:
    """Rows of the tables that are named as the feature they look up; their ids may be hashes and need a modulo."""
    return {t.name.split(".")[-2]: t.num_embeddings for t in tables}


def evaluate(config: RunConfig, state: dict[str, Array]) -> dict[str, Any]:
    """Figures of a trained state dict on the job's evaluation data."""
    module, tables = real_model(config, torch.float32)
    module.load_state_dict({n: torch.from_numpy(values.copy()) for n, values in state.items()})
    data = open_data(config).evaluation
    assert data is not None
    sizes = rows_by_feature(tables)
    arrays = data.batch(np.arange(data.num_rows), trace_model(module, data.schema.features).inputs)
    label = arrays.pop("label")
    tensors = {n: torch.from_numpy(a) for n, a in arrays.items()}
    tensors = {n: torch.remainder(t, sizes[n]) if n in sizes else t for n, t in tensors.items()}
    with torch.no_grad():
        logits = module.eval()(**tensors).numpy()
    metrics = metrics_for(config.loss, config.num_classes)
    metrics.update(logits, label, 0.0)
    return metrics.results()


def train(
    config: RunConfig,
    dtype: torch.dtype,
    order: RowOrder | None = None,
    pieces: Pieces | None = None,
    scaling: dict[str, Any] | None = None,
    device: str = "cpu",
) -> dict[str, Array]:
    """Train as the job would, step by step; returns the final state dict.

    Args:
        config: the job.
        dtype: to compute in.
        order: of the samples; without it, the job's.
        pieces: see `states`.
        scaling: arguments of GradScaler, for float16.
        device: that computes.
    """
    *_, last = states(config, dtype, order, pieces, scaling, device)
    return last


def states(
    config: RunConfig,
    dtype: torch.dtype,
    order: RowOrder | None = None,
    pieces: Pieces | None = None,
    scaling: dict[str, Any] | None = None,
    device: str = "cpu",
) -> Iterator[dict[str, Array]]:
    """Train as the job would; yields the state dict, on CPUs not copied, before the first and after every step.

    In float16, the loss is scaled by torch's own GradScaler, and a step that it skips changes nothing at all.

    `pieces` divides a batch. Each piece normalises by itself, from the buffers that the step began with, and a buffer
    changes by the mean of the pieces' changes, weighted by their samples.
    """
    module, tables = real_model(config, dtype)
    module.to(device)
    data = open_data(config)
    order = order or data.train.training_order(config.global_batch_size, config.seed)
    loss_sum = resolve_loss(config.loss)
    features = trace_model(module, data.train.schema.features).inputs
    parameters = dict(module.named_parameters())
    table_weights = {t.name: parameters[t.name] for t in tables}
    dense = [p for n, p in parameters.items() if n not in table_weights]
    dense_optimizer = _dense_optimizer(config.dense_optimizer, dense)
    rules = rules_of(tables, config.tables)
    sparse = {
        t.name: _RowOptimizer(config.sparse_optimizer, table_weights[t.name])
        if rules[t.index] == NO_RULES
        else _RuledOptimizer(config.sparse_optimizer, table_weights[t.name], t.index, rules[t.index])
        for t in tables
    }
    total = config.steps or (config.epochs or 1) * order.batches.per_epoch
    sizes = rows_by_feature(tables)

    def state() -> dict[str, Array]:
        return {n: t.detach().cpu().numpy() for n, t in module.state_dict().items()}

    yield state()
    scaler = torch.amp.GradScaler(device, enabled=config.precision == "fp16", **(scaling or {}))
    unscaled = torch.optim.SGD(module.parameters(), 0.0)  # so that it sees all gradients; it changes none
    for step in range(total):
        size = order.batches.size(step)
        arrays = data.train.batch(order.rows(step, 0, size), features)
        tensors = {n: torch.from_numpy(a).to(device) for n, a in arrays.items()}
        tensors = {n: torch.remainder(t, sizes[n]) if n in sizes else t for n, t in tensors.items()}
        tensors = {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}
        label = tensors.pop("label")
        module.zero_grad()
        buffers = dict(module.named_buffers())
        begun = {name: buffer.clone() for name, buffer in buffers.items()}
        sums = {name: torch.zeros_like(buffer) for name, buffer in buffers.items()}
        for start, stop in pieces(size) if pieces else [(0, size)]:
            for name, buffer in buffers.items():
                buffer.copy_(begun[name])
            part = {name: tensor[start:stop] for name, tensor in tensors.items()} if pieces else tensors
            with short_products(config, device):
                logits = module(**part)
            loss = loss_sum(logits.to(dtype), label[start:stop]) / size
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            for name, buffer in buffers.items():
                sums[name] += buffer * (stop - start)
        scaler.unscale_(unscaled)
        scaler.step(unscaled)
        scaler.update()
        if scaler.is_enabled() and not all(p.grad is None or p.grad.isfinite().all() for p in module.parameters()):
            for name, buffer in buffers.items():
                buffer.copy_(begun[name])
            yield state()
            continue
        for name, buffer in buffers.items():
            buffer.copy_(sums[name] / size)
        dense_optimizer.step()
        for name, optimizer in sparse.items():
            if isinstance(optimizer, _RuledOptimizer):
                optimizer.use(step + 1, torch.unique(tensors[name.split(".")[-2]]).tolist())
            optimizer.step(step + 1)
        yield state()


def short_products(config: RunConfig, device: str = "cpu") -> AbstractContextManager[Any]:
    """The context in which PyTorch multiplies matrices in the job's precision."""
    name = config.product_dtype_name
    return nullcontext() if name is None else torch.autocast(device, getattr(torch, name))


class Losing(BatchOrder):
    """The order of a job that loses the first sample of its last step but one."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(open_data(config).train.num_rows, config.global_batch_size, config.seed)
        assert config.steps is not None
        self._loses = config.steps - 2

    def rows(self, step: int, start: int, stop: int) -> Array:
        """All rows of a step, or of that one all but the first."""
        rows = super().rows(step, start, stop)
        return rows[1:] if step == self._loses else rows


class Again(BatchOrder):
    """The samples of a job, and then the same once more."""

    def __init__(self, config: RunConfig, steps: int) -> None:
        super().__init__(open_data(config).train.num_rows, config.global_batch_size, config.seed)
        self._steps = steps

    def rows(self, step: int, start: int, stop: int) -> Array:
        """As of the job that is trained at that step."""
        return super().rows(step % self._steps, start, stop)


def _dense_optimizer(options: dict[str, Any], parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    rate = float(options["learningRate"])
    if options["name"] == "sgd":
        return torch.optim.SGD(parameters, rate, momentum=float(options.get("momentum", 0)))
    if options["name"] == "adagrad":
        return torch.optim.Adagrad(parameters, rate)
    return torch.optim.Adam(parameters, rate)


class _RowOptimizer:
    """torch's own sparse optimizers where there are such, else the published formula in numpy."""

    def __init__(self, options: dict[str, Any], weight: nn.Parameter) -> None:
        self._weight = weight
        self._name = options["name"]
        self._rate = float(options["learningRate"])
        kinds: dict[str, Any] = {
            "sgd": torch.optim.SGD,
            "adagrad": torch.optim.Adagrad,
            "adam": torch.optim.SparseAdam,
        }
        self._torch = kinds[self._name]([weight], self._rate) if self._name in kinds else None
        self._first = np.zeros(weight.shape)
        self._second = np.zeros(weight.shape)

    def step(self, number: int) -> None:
        """Update the rows that have a gradient."""
        if self._weight.grad is None:
            return
        gradient = self._weight.grad
        touched = (gradient != 0).any(dim=1).nonzero().flatten()
        if self._torch is not None:
            # Also for the tensors that torch's optimizers make inside.
            with torch.sparse.check_sparse_tensor_invariants():  # type: ignore[no-untyped-call]
                self._weight.grad = torch.sparse_coo_tensor(touched[None], gradient[touched], gradient.shape)
                self._torch.step()
            return
        rows, grads = touched.numpy(), gradient[touched].numpy()
        values = self._weight.detach().numpy()
        if self._name == "rowwise-adagrad":
            self._first[rows] += (grads**2).mean(axis=1, keepdims=True)
            values[rows] -= self._rate * grads / (np.sqrt(self._first[rows]) + 1e-10)
        else:  # ftrl with l1 = l2 = 0, power -1/2 (McMahan et al., KDD 2013, algorithm 1)
            before = np.sqrt(self._second[rows])
            self._second[rows] += grads**2
            after = np.sqrt(self._second[rows])
            fresh = (before == 0).all(axis=1)
            assert fresh.shape == (len(rows),)
            self._first[rows] += grads - (after - before) / self._rate * values[rows]
            with np.errstate(divide="ignore", invalid="ignore"):
                values[rows] = np.where(after > 0, -self._first[rows] * self._rate / after, 0)


class _RuledOptimizer(_RowOptimizer):
    """Adagrad of a table whose ids get a row after some steps, and lose it when no step uses them any more."""

    def __init__(self, options: dict[str, Any], weight: nn.Parameter, index: int, rules: TableRules) -> None:
        super().__init__(options, weight)
        assert options["name"] == "adagrad"
        self._rules = rules
        self._initial = weight.detach().clone()
        self._turns = [turn_of((index << 48) | row, rules.period) for row in range(len(weight))]
        self._steps = [0] * len(weight)  # that have used each id
        self._last = [0] * len(weight)

    def use(self, number: int, ids: list[int]) -> None:
        """Note which ids a step uses, and drop the gradients of those that have no row."""
        for row in ids:
            self._steps[row] += 1
            self._last[row] = number
            if self._steps[row] < self._rules.min_steps and self._weight.grad is not None:
                self._weight.grad[row] = 0

    def step(self, number: int) -> None:
        """Update the rows that have a gradient; then some go."""
        super().step(number)
        for row, (steps, last, turn) in enumerate(zip(self._steps, self._last, self._turns, strict=True)):
            has_row = steps >= self._rules.min_steps
            limit = self._rules.unused_steps if has_row else self._rules.candidate_unused_steps
            if steps and number % self._rules.period == turn and number - last >= limit:
                self._steps[row] = 0
                if has_row:
                    assert self._torch is not None
                    self._weight.data[row] = self._initial[row]
                    self._torch.state[self._weight]["sum"][row] = 0
