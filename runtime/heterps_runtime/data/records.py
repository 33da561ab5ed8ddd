"""From record batches to the arrays of rows: checked, ids hashed, of fixed types.

The arrays of n rows, by name:

    label             (n,) float32, or int64 for classes
    dense             (n, D) float32
    sparse            (n, S) int64, the single-valued columns
    NAME:values       (nnz,) int64 and
    NAME:offsets      (n + 1,) int64, of a multi-valued column
    NAME              (n, *shape) float32 or uint8, of a tensor column
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from heterps_runtime.data.columns import dense_values, label_values
from heterps_runtime.data.ids import column_ids, list_ids
from heterps_runtime.data.places import BatchLocation
from heterps_runtime.data.source import Source
from heterps_runtime.data.tensors import tensor_values

__all__ = ["ArrayType", "Arrays", "array_types", "arrays_of", "empty", "joined", "row_bytes"]

Arrays = Mapping[str, npt.NDArray[Any]]
ArrayType = tuple[np.dtype[Any], tuple[int, ...]]  # of the elements, and the shape of a row


def array_types(source: Source) -> dict[str, ArrayType]:
    """The arrays of a source's rows. Those of lists have another length than the others."""
    spec = source.spec
    types: dict[str, ArrayType] = {
        "label": (np.dtype(np.int64 if spec.label_kind == "class" else np.float32), ()),
    }
    if spec.dense:
        types["dense"] = (np.dtype(np.float32), (len(spec.dense),))
    if source.single_valued:
        types["sparse"] = (np.dtype(np.int64), (len(source.single_valued),))
    for name in source.multi_valued:
        types[f"{name}:values"] = types[f"{name}:offsets"] = (np.dtype(np.int64), ())
    for tensor in spec.tensors:
        types[tensor.name] = (np.dtype(tensor.dtype), tensor.shape)
    return types


def row_bytes(source: Source) -> int:
    """Bytes of a row in its arrays, without the values of lists."""
    types = array_types(source)
    return sum(
        dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        for name, (dtype, shape) in types.items()
        if not name.endswith(":values")
    )


def arrays_of(batch: Any, source: Source, place: BatchLocation) -> Arrays:
    """The arrays of a pyarrow RecordBatch with the job's columns.

    Raises:
        DataError: a value is missing or wrong.
    """
    spec = source.spec
    arrays: dict[str, npt.NDArray[Any]] = {"label": label_values(batch, spec, place)}
    if spec.dense:
        arrays["dense"] = dense_values(batch, spec.dense, place)
    if source.single_valued:
        ids = np.empty((batch.num_rows, len(source.single_valued)), dtype=np.int64)  # (n, S)
        for j, name in enumerate(source.single_valued):
            ids[:, j] = column_ids(batch.column(name))
        arrays["sparse"] = ids
    for name in source.multi_valued:
        values, lengths = list_ids(batch.column(name))
        arrays[f"{name}:values"] = values
        arrays[f"{name}:offsets"] = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    for k, tensor in enumerate(spec.tensors):
        arrays[tensor.name] = tensor_values(batch.column(tensor.name), tensor, k, place)
    return arrays


def empty(types: Mapping[str, ArrayType]) -> Arrays:
    """The arrays of no rows."""
    return {
        name: np.zeros(1 if name.endswith(":offsets") else (0, *shape), dtype=dtype)
        for name, (dtype, shape) in types.items()
    }


def joined(parts: Sequence[Arrays], types: Iterable[str]) -> Arrays:
    """The arrays `types` of consecutive rows in several parts."""
    if len(parts) == 1:
        return parts[0]
    arrays = {}
    for name in types:
        pieces = [part[name] for part in parts]
        if name.endswith(":offsets"):
            before = np.cumsum([0, *(p[-1] for p in pieces)])
            pieces = [pieces[0][:1], *(p[1:] + b for p, b in zip(pieces, before[:-1], strict=True))]
        arrays[name] = np.concatenate(pieces)
    return arrays
