"""A split of the job's data as arrays: rows by number, features by the names of the model's arguments."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heterps_runtime.data.cache import CachedSplit, Progress, open_cached
from heterps_runtime.data.errors import DataError, nearest
from heterps_runtime.data.source import Source
from heterps_runtime.data.spec import DataSpec, LabelKind, Split, TensorColumn
from heterps_runtime.data.tensors import scaled

__all__ = ["Dataset", "DatasetSchema", "open_dataset"]

Rows = npt.NDArray[np.int64]

# np.load parses a file's header with `ast`. In CPython 3.11, two threads must not do so at the same time ("AST
# constructor recursion depth mismatch"): the lock is for ours, and the attempts for threads of libraries.
_PARSING = threading.Lock()
_ATTEMPTS = 5


@dataclass(frozen=True)
class DatasetSchema:
    """The columns of a data set."""

    dense: tuple[str, ...]  # columns of `dense`, in order
    single_valued: tuple[str, ...]
    multi_valued: tuple[str, ...]
    tensors: tuple[TensorColumn, ...]
    label: str
    label_kind: LabelKind

    @property
    def features(self) -> tuple[str, ...]:
        """Names that a model's `forward` may use as parameters."""
        multi = [n for name in self.multi_valued for n in (name, f"{name}_offsets")]
        return (*self.single_valued, *multi, *(t.name for t in self.tensors), *(("dense",) if self.dense else ()))


class Dataset:
    """Rows of a split, memory-mapped from the local cache. Thread-safe.

    Args:
        spec: the job's data.
        cached: the split's cache.
    """

    def __init__(self, spec: DataSpec, cached: CachedSplit) -> None:
        self.num_rows = cached.num_rows
        self.schema = DatasetSchema(
            spec.dense, cached.single_valued, cached.multi_valued, spec.tensors, spec.label, spec.label_kind
        )
        self._cached = cached  # prevents the eviction of the folder
        # Plain views: indexing a np.memmap has the overhead of a subclass.
        with _PARSING:
            self._arrays: dict[str, npt.NDArray[Any]] = {
                name: _mapped(cached.folder / file) for name, file in cached.arrays.items()
            }

    def check_features(self, features: Sequence[str]) -> None:
        """Check that the data has the features of a model.

        Args:
            features: the parameter names of the model's `forward`.

        Raises:
            DataError: a feature does not exist, or a multi-valued feature is used without its offsets.
        """
        known = self.schema.features
        for name in features:
            if name in known:
                continue
            if name in self.schema.dense:
                hint = "; dense columns are passed together as `dense`, in the order of spec.data.dense"
            elif name == "dense":
                hint = "; list numeric columns under spec.data.dense"
            elif name.removesuffix("_offsets") in self.schema.single_valued:
                hint = "; that column has one value per row and therefore no offsets (use nn.Embedding)"
            else:
                hint = nearest(name, known)
            raise DataError(
                f"spec.model.entrypoint: the model's forward asks for {name!r}, which spec.data does not give{hint} "
                f"(given: {', '.join(known)})"
            )
        for name in self.schema.multi_valued:
            if (name in features) != (f"{name}_offsets" in features):
                raise DataError(
                    f"spec.model.entrypoint: column {name!r} contains lists, so the model's forward must take "
                    f"both {name!r} and '{name}_offsets' (as nn.EmbeddingBag does)"
                )

    def batch(self, rows: Rows, features: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Read rows.

        Args:
            rows: int64 (n,), row numbers in any order.
            features: names from `schema.features`.

        Returns:
            New, writable, contiguous arrays: int64 (n,) for a single-valued feature; int64 (nnz,) for a multi-valued
            one, with `<name>_offsets` int64 (n,) as in nn.EmbeddingBag; float32 (n, *shape), scaled, for a tensor;
            float32 (n, D) for `dense`; and always `label` (n,), float32, or int64 for classes. Ids are signed 64-bit,
            not reduced modulo a table's size.
        """
        result: dict[str, npt.NDArray[Any]] = {"label": self._arrays["label"].take(rows)}
        if "dense" in features:
            result["dense"] = self._arrays["dense"].take(rows, axis=0)
        if any(name in features for name in self.schema.single_valued):
            # One gather of whole rows, then a transposition in cache: (n, S) -> (S, n).
            columns = np.ascontiguousarray(self._arrays["sparse"].take(rows, axis=0).T)
            for j, name in enumerate(self.schema.single_valued):
                if name in features:
                    result[name] = columns[j]
        for name in self.schema.multi_valued:
            if name in features:
                result[name], result[f"{name}_offsets"] = self._lists(name, rows)
        for tensor in self.schema.tensors:
            if tensor.name in features:
                result[tensor.name] = scaled(self._arrays[tensor.name].take(rows, axis=0), tensor)
        return result

    def _lists(self, name: str, rows: Rows) -> tuple[Rows, Rows]:
        """The concatenated lists of a multi-valued feature, and the start of each."""
        stored = self._arrays[f"{name}:offsets"]  # (N + 1,)
        begins = stored.take(rows)
        lengths = stored.take(rows + 1) - begins
        ends = np.cumsum(lengths)
        offsets = ends - lengths  # (n,)
        total = int(ends[-1]) if len(ends) else 0
        positions = np.arange(total, dtype=np.int64) + np.repeat(begins - offsets, lengths)
        return self._arrays[f"{name}:values"].take(positions), offsets


def open_dataset(spec: DataSpec, split: Split, progress: Progress | None = None) -> Dataset:
    """Open a split of the job's data. The first process of a machine builds the cache, the others wait.

    Args:
        spec: the job's data.
        split: `train` or `evaluation`.
        progress: see `cache.Progress`.

    Raises:
        DataError: the data is wrong, or cannot be read or cached; the message names the remedy.
    """
    source = Source(spec, split)
    return Dataset(spec, open_cached(source, progress or (lambda fraction, text: None)))


def _mapped(path: Path) -> npt.NDArray[Any]:
    for _ in range(_ATTEMPTS - 1):
        try:
            return np.asarray(np.load(path, mmap_mode="r"))
        except SystemError:  # another thread parsed at that moment
            continue
    return np.asarray(np.load(path, mmap_mode="r"))
