"""A row store as one would write it in an afternoon: a dict of numpy rows. What the real one is compared with."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_runtime.store.initial import TableSpec, initial_rows
from heterps_runtime.store.keyed import KeyedRows
from heterps_runtime.store.optimizers import SparseOptimizer
from heterps_runtime.store.snapshot import RowChunk, RowSnapshot

ID_MASK = (1 << 48) - 1
EXAMPLES: dict[str, dict[str, str]] = {
    "sgd": {},
    "adagrad": {"initialAccumulator": "0.1"},
    "rowwise-adagrad": {"epsilon": "1e-6"},
    "adam": {"beta1": "0.8", "beta2": "0.95"},
    "ftrl": {"l1": "0.02", "l2": "0.1", "initialAccumulator": "0.1"},
}


def sparse_optimizer(name: str, rate: str = "0.1", **options: str) -> SparseOptimizer:
    return SparseOptimizer.from_manifest({"name": name, "learningRate": rate, **(options or EXAMPLES[name])})


def joined(chunks: list[RowChunk], store: KeyedRows) -> RowChunk:
    empty = store.new_chunk(0)
    parts = [empty, *chunks]
    state = {name: np.concatenate([part.state[name] for part in parts]) for name in empty.state}
    return RowChunk(np.concatenate([p.keys for p in parts]), np.concatenate([p.rows for p in parts]), state)


def finished(copy: RowSnapshot) -> list[RowChunk]:
    """The pieces of a snapshot that are still to come."""
    pieces = []
    while not copy.done:
        piece = copy.advance()
        if piece is not None:
            pieces.append(piece)
    return pieces


def all_rows(store: KeyedRows) -> RowChunk:
    """A copy of all rows of a store."""
    _, copy = store.begin_snapshot()
    pieces = finished(copy)
    store.end_snapshot()
    return joined(pieces, store)


class ReferenceStore:
    def __init__(self, dim: int, optimizer: SparseOptimizer, seed: int, tables: dict[int, TableSpec]) -> None:
        self.dim, self.optimizer, self.seed, self.tables = dim, optimizer, seed, tables
        self.rows: dict[int, NDArray[Any]] = {}
        self.state: dict[int, list[NDArray[Any]]] = {}

    def initial(self, key: int) -> NDArray[Any]:
        spec = self.tables[key >> 48]
        ids = np.array([key & ID_MASK])
        row: NDArray[Any] = initial_rows(self.seed, spec.name, ids, self.dim, np.float64, spec.init, spec.padding_idx)[
            0
        ]
        return row

    def pull(self, keys: NDArray[Any]) -> NDArray[Any]:
        rows = [self.rows[k] if k in self.rows else self.initial(k) for k in keys.tolist()]
        return np.array(rows).reshape(-1, self.dim)

    def apply(self, pushes: list[tuple[NDArray[Any], NDArray[Any]]], scale: float, step: int) -> None:
        sums: dict[int, NDArray[Any]] = {}
        for keys, grads in pushes:
            for key, grad in zip(keys.tolist(), grads, strict=True):
                sums[key] = sums.get(key, 0.0) + grad
        for key, total in sums.items():
            if key not in self.rows:
                self.rows[key] = self.initial(key)
                start = self.optimizer.options.get("initialAccumulator", 0.0)
                self.state[key] = {
                    "sgd": [],
                    "adagrad": [np.full(self.dim, start)],
                    "rowwise-adagrad": [np.full(1, start)],
                    "adam": [np.zeros(self.dim), np.zeros(self.dim)],
                    "ftrl": [np.zeros(self.dim), np.full(self.dim, start)],
                }[self.optimizer.name]
            self._update(self.rows[key], self.state[key], total * scale, step)

    def _update(self, w: NDArray[Any], state: list[NDArray[Any]], g: NDArray[Any], t: int) -> None:
        o = self.optimizer.options
        lr = o["learningRate"]
        if self.optimizer.name == "sgd":
            w -= lr * g
        elif self.optimizer.name == "adagrad":
            state[0] += g**2
            w -= lr * g / (np.sqrt(state[0]) + o["epsilon"])
        elif self.optimizer.name == "rowwise-adagrad":
            state[0] += (g**2).mean()
            w -= lr * g / (np.sqrt(state[0]) + o["epsilon"])
        elif self.optimizer.name == "adam":
            m, v = state
            m[:] = o["beta1"] * m + (1 - o["beta1"]) * g
            v[:] = o["beta2"] * v + (1 - o["beta2"]) * g**2
            corrected = lr * np.sqrt(1 - o["beta2"] ** t) / (1 - o["beta1"] ** t)
            w -= corrected * m / (np.sqrt(v) + o["epsilon"])
        else:
            z, n = state
            power = -o["learningRatePower"]
            z += g - ((n + g**2) ** power - n**power) / lr * w
            n += g**2
            shrunk = (np.sign(z) * o["l1"] - z) / (n**power / lr + 2 * o["l2"])
            w[:] = np.where(np.abs(z) <= o["l1"], 0.0, shrunk)
