"""A split of the job's data as arrays: rows by number, features by the names of the model's arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heterps_runtime.data.errors import DataError, nearest
from heterps_runtime.data.order import RowOrder, Rows
from heterps_runtime.data.records import Arrays
from heterps_runtime.data.spec import DataSpec, LabelKind, TensorColumn
from heterps_runtime.data.tensors import scaled

__all__ = ["Dataset", "DatasetSchema", "Run"]

_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class DatasetSchema:
    """The columns of a data set."""

    dense: tuple[str, ...]  # columns of `dense`, in order
    single_valued: tuple[str, ...]
    multi_valued: tuple[str, ...]
    tensors: tuple[TensorColumn, ...]
    label: str
    label_kind: LabelKind

    @classmethod
    def of(cls, spec: DataSpec, single_valued: tuple[str, ...], multi_valued: tuple[str, ...]) -> DatasetSchema:
        """The schema of a job's data, of whose sparse columns some hold lists."""
        return cls(spec.dense, single_valued, multi_valued, spec.tensors, spec.label, spec.label_kind)

    @property
    def features(self) -> tuple[str, ...]:
        """Names that a model's `forward` may use as parameters."""
        multi = [n for name in self.multi_valued for n in (name, f"{name}_offsets")]
        return (*self.single_valued, *multi, *(t.name for t in self.tensors), *(("dense",) if self.dense else ()))


@dataclass(frozen=True)
class Run:
    """Rows that lie in the same arrays."""

    arrays: Arrays  # as in `records`
    rows: Rows  # int64 (n,), positions in them


class Dataset(ABC):
    """Rows of a split.

    Args:
        schema: its columns.
        num_rows: of the split.
    """

    #: Identity of what the order of rows depends on beside their number; empty if it depends on nothing else.
    layout = ""

    def __init__(self, schema: DatasetSchema, num_rows: int) -> None:
        self.schema = schema
        self.num_rows = num_rows
        #: Rows that this process has read from the user's files while training.
        self.rows_read = 0

    @abstractmethod
    def training_order(self, global_batch_size: int, seed: int) -> RowOrder:
        """The shuffled rows of each step."""

    @abstractmethod
    def evaluation_order(self, global_batch_size: int) -> RowOrder:
        """The rows of each batch of an evaluation, each row once."""

    @abstractmethod
    def runs(self, rows: Rows) -> list[Run]:
        """Find rows, int64 (n,), in arrays: consecutive parts of `rows`, in their order.

        Raises:
            DataError: the rows cannot be read; see the class.
        """

    @abstractmethod
    def location(self, row: int) -> str:
        """A row as users know it, such as `row 12 of train.parquet`."""

    def read_ahead(  # noqa: B027 - nothing to do is right for data that is at hand
        self, order: RowOrder, step: int, start: int, stop: int, end: int
    ) -> None:
        """Say what is read next: the samples `start` to `stop` (exclusive) of a step, and of those after it.

        Args:
            order: of this data set.
            step: the next one.
            start: first sample of each batch.
            stop: one after the last.
            end: steps from here on are not needed.
        """

    def forget(self) -> None:  # noqa: B027
        """Let go of what was read ahead."""

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

        Raises:
            DataError: the rows cannot be read.
        """
        runs = self.runs(rows)
        result = {"label": _taken(runs, "label")}
        if "dense" in features:
            result["dense"] = _taken(runs, "dense")
        if any(name in features for name in self.schema.single_valued):
            columns = _columns(runs, "sparse")
            for j, name in enumerate(self.schema.single_valued):
                if name in features:
                    result[name] = columns[j]
        for name in self.schema.multi_valued:
            if name in features:
                result[name], result[f"{name}_offsets"] = _lists(runs, name)
        for tensor in self.schema.tensors:
            if tensor.name in features:
                result[tensor.name] = scaled(_taken(runs, tensor.name), tensor)
        return result


def _taken(runs: Sequence[Run], name: str) -> npt.NDArray[Any]:
    """The rows of an array, a new array (n, *shape)."""
    if len(runs) == 1:
        return runs[0].arrays[name].take(runs[0].rows, axis=0)
    first = runs[0].arrays[name]
    result = np.empty((sum(len(run.rows) for run in runs), *first.shape[1:]), dtype=first.dtype)
    start = 0
    for run in runs:
        stop = start + len(run.rows)
        # The default mode would collect the result in another buffer first.
        np.take(run.arrays[name], run.rows, axis=0, out=result[start:stop], mode="clip")
        start = stop
    return result


def _columns(runs: Sequence[Run], name: str) -> npt.NDArray[Any]:
    """The rows of an array (N, S), as a new array (S, n): a few whole rows at a time, so that a cache holds them."""
    stored = [run.arrays[name] for run in runs]
    result = np.empty((stored[0].shape[1], sum(len(run.rows) for run in runs)), dtype=stored[0].dtype)
    some = np.empty((_ROWS_AT_ONCE, stored[0].shape[1]), dtype=stored[0].dtype)
    start = 0
    for run, array in zip(runs, stored, strict=True):
        for begin in range(0, len(run.rows), _ROWS_AT_ONCE):
            rows = run.rows[begin : begin + _ROWS_AT_ONCE]
            part = some[: len(rows)]
            np.take(array, rows, axis=0, out=part, mode="clip")
            result[:, start : start + len(rows)] = part.T
            start += len(rows)
    return result


def _lists(runs: Sequence[Run], name: str) -> tuple[Rows, Rows]:
    """The concatenated lists of a multi-valued feature, int64 (nnz,), and the start of each, int64 (n,)."""
    values, lengths = [], []
    for run in runs:
        stored = run.arrays[f"{name}:offsets"]  # (N + 1,)
        begins = stored.take(run.rows)
        sizes = stored.take(run.rows + 1) - begins
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        positions = np.arange(total, dtype=np.int64) + np.repeat(begins - (ends - sizes), sizes)
        values.append(run.arrays[f"{name}:values"].take(positions))
        lengths.append(sizes)
    sizes = np.concatenate(lengths)
    return np.concatenate(values), np.cumsum(sizes) - sizes
