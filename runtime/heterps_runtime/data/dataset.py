"""A split of the job's data as arrays: any rows by number, features by the names of the model's arguments."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heterps_runtime.data.cache import CachedSplit, Progress, open_cached
from heterps_runtime.data.errors import DataError, nearest
from heterps_runtime.data.source import Source
from heterps_runtime.data.spec import DataSpec, LabelKind, Split

__all__ = ["Dataset", "DatasetSchema", "open_dataset"]

Rows = npt.NDArray[np.int64]

# np.load parses a file's header with `ast`, which fails in CPython 3.11 when two threads do it at once ("AST
# constructor recursion depth mismatch": its depth counter belongs to the interpreter).
_PARSING = threading.Lock()


@dataclass(frozen=True)
class DatasetSchema:
    """What a data set holds."""

    dense: tuple[str, ...]  # columns of `dense`, in order
    single_valued: tuple[str, ...]
    multi_valued: tuple[str, ...]
    label: str
    label_kind: LabelKind

    @property
    def features(self) -> tuple[str, ...]:
        """The names that a model's `forward` may ask for."""
        multi = [n for name in self.multi_valued for n in (name, f"{name}_offsets")]
        return (*self.single_valued, *multi, *(("dense",) if self.dense else ()))


class Dataset:
    """Rows of one split, memory-mapped from the local cache. Safe to read from several threads.

    Args:
        spec: the job's data.
        cached: the split's cache.
    """

    def __init__(self, spec: DataSpec, cached: CachedSplit) -> None:
        self.num_rows = cached.num_rows
        self.schema = DatasetSchema(spec.dense, cached.single_valued, cached.multi_valued, spec.label, spec.label_kind)
        self._cached = cached  # keeps the folder from being evicted
        # Plain views: indexing a np.memmap costs a subclass's bookkeeping per call.
        with _PARSING:
            self._arrays: dict[str, npt.NDArray[Any]] = {
                name: np.asarray(np.load(cached.folder / file, mmap_mode="r")) for name, file in cached.arrays.items()
            }

    def check_features(self, features: Sequence[str]) -> None:
        """Check that the data has what a model asks for.

        Args:
            features: the parameter names of the model's `forward`.

        Raises:
            DataError: a name is no feature of the data, or a multi-valued feature is asked for without its offsets.
        """
        known = self.schema.features
        for name in features:
            if name in known:
                continue
            if name in self.schema.dense:
                hint = "; dense columns come together, in the order of spec.data.dense, as `dense`"
            elif name == "dense":
                hint = "; list the columns of numbers under spec.data.dense"
            elif name.removesuffix("_offsets") in self.schema.single_valued:
                hint = "; that column holds one value per row, so it has no offsets (use nn.Embedding)"
            else:
                hint = nearest(name, known)
            raise DataError(
                f"spec.model.entrypoint: the model's forward asks for {name!r}, which spec.data does not give{hint} "
                f"(given: {', '.join(known)})"
            )
        for name in self.schema.multi_valued:
            if (name in features) != (f"{name}_offsets" in features):
                raise DataError(
                    f"spec.model.entrypoint: column {name!r} holds lists, so the model's forward must take "
                    f"both {name!r} and '{name}_offsets' (as nn.EmbeddingBag does)"
                )

    def batch(self, rows: Rows, features: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Gather rows.

        Args:
            rows: int64 (n,), row numbers, in any order.
            features: names out of `schema.features`, checked by `check_features`.

        Returns:
            New, writable, contiguous arrays (ready for `torch.from_numpy`): a single-valued feature int64 (n,); a
            multi-valued one int64 (nnz,) and its `<name>_offsets` int64 (n,), as nn.EmbeddingBag takes them; `dense`
            float32 (n, D); and always `label` (n,), float32, or int64 for classes. Ids are signed 64-bit, not yet
            modulo any table's size.
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
        return result

    def _lists(self, name: str, rows: Rows) -> tuple[Rows, Rows]:
        """The lists of a multi-valued feature, one after the other, and where each begins."""
        stored = self._arrays[f"{name}:offsets"]  # (N + 1,)
        begins = stored.take(rows)
        lengths = stored.take(rows + 1) - begins
        ends = np.cumsum(lengths)
        offsets = ends - lengths  # (n,)
        total = int(ends[-1]) if len(ends) else 0
        positions = np.arange(total, dtype=np.int64) + np.repeat(begins - offsets, lengths)
        return self._arrays[f"{name}:values"].take(positions), offsets


def open_dataset(spec: DataSpec, split: Split, progress: Progress | None = None) -> Dataset:
    """Open a split of the job's data; the first process on a machine builds its cache, others wait for it.

    Args:
        spec: the job's data.
        split: `train` or `evaluation`.
        progress: called now and then with the fraction done (0 to 1) and a sentence for people.

    Raises:
        DataError: the data is wrong or cannot be read or cached; the message names what and how to mend it.
    """
    source = Source(spec, split)
    return Dataset(spec, open_cached(source, progress or (lambda fraction, text: None)))
