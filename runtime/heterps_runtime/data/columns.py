"""Checks and conversions of columns.

Types are checked on the schema of each file before any data is read. Values (labels other than 0 and 1, NaN, missing
numbers) are checked while the cache is built, so that training never meets a bad one. Each error names the file, the
column, the first bad row, and a remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from heterps_runtime.data.errors import DataError, nearest
from heterps_runtime.data.places import BatchLocation
from heterps_runtime.data.spec import DataSpec
from heterps_runtime.data.tensors import check_tensor_type

__all__ = ["SparseKind", "check_columns", "dense_values", "label_values", "missing_as_zero"]

#: The values of a sparse column; `integers` and `texts` are lists (multi-valued).
SparseKind = Literal["integer", "text", "integers", "texts"]

_SHOWN_COLUMNS = 30


def check_columns(schema: Any, spec: DataSpec, file: str) -> Mapping[str, SparseKind]:
    """Check that a file has the columns of the job, with suitable types.

    Args:
        schema: the file's pyarrow Schema.
        spec: the job's data.
        file: its name, for messages.

    Returns:
        The kind of each sparse column.

    Raises:
        DataError: a column is missing, duplicated, or of an unsuitable type.
    """
    named = [("label", spec.label), *(("dense", n) for n in spec.dense), *(("sparse", n) for n in spec.sparse)]
    named += [("tensors", t.name) for t in spec.tensors]
    for field, name in named:
        count = schema.names.count(name)
        if count == 0:
            shown = ", ".join(schema.names[:_SHOWN_COLUMNS])
            more = f" and {len(schema.names) - _SHOWN_COLUMNS} more" if len(schema.names) > _SHOWN_COLUMNS else ""
            raise DataError(
                f"spec.data.{field}: there is no column {name!r} in {file}{nearest(name, schema.names)} "
                f"(columns there: {shown}{more})"
            )
        if count > 1:
            raise DataError(f"spec.data.{field}: column {name!r} occurs {count} times in {file}; names must be unique")
    for field, name in named[: 1 + len(spec.dense)]:
        kind = schema.field(name).type
        if not _is_number(kind):
            what = "the label must be a number or a boolean" if field == "label" else "dense columns must be numbers"
            raise DataError(
                f"spec.data.{field}: column {name!r} of {file} has the type {kind}, but {what}; "
                + (
                    "list it under spec.data.sparse, or convert it"
                    if field == "dense"
                    else "convert it, for example to 0 and 1"
                )
            )
    for i, tensor in enumerate(spec.tensors):
        check_tensor_type(schema.field(tensor.name).type, tensor, i, file)
    return {name: _sparse_kind(name, schema.field(name).type, file) for name in spec.sparse}


def _is_number(kind: Any) -> bool:
    t = pa.types
    return bool(t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind) or t.is_decimal(kind))


def _sparse_kind(name: str, kind: Any, file: str) -> SparseKind:
    t = pa.types
    many = t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind)
    value = kind.value_type if many else kind
    if t.is_dictionary(value):
        value = value.value_type
    if t.is_integer(value) or t.is_boolean(value):
        return "integers" if many else "integer"
    if (
        t.is_string(value)
        or t.is_large_string(value)
        or t.is_binary(value)
        or t.is_large_binary(value)
        or t.is_null(value)
    ):
        return "texts" if many else "text"
    fix = (
        "list it under spec.data.dense, or cast it to integers or strings"
        if _is_number(value)
        else "cast it to strings"
    )
    raise DataError(
        f"spec.data.sparse: column {name!r} of {file} has the type {kind}, but sparse columns must be integers, "
        f"strings, dictionaries or lists of those; {fix}"
    )


def _floats(column: Any) -> npt.NDArray[np.float64]:
    """A numeric pyarrow Array (N,) as float64; null becomes NaN."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)


def missing_as_zero(batch: Any, names: tuple[str, ...]) -> Any:
    """A record batch with 0 for nulls in the columns `names` (Criteo logs omit counts)."""
    columns = [
        pc.fill_null(batch.column(i), 0) if name in names else batch.column(i)
        for i, name in enumerate(batch.schema.names)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def dense_values(batch: Any, names: tuple[str, ...], place: BatchLocation) -> npt.NDArray[np.float32]:
    """The dense columns of a record batch, float32 (n, D).

    Raises:
        DataError: a value is missing, NaN, infinite, or too large for float32.
    """
    values = np.empty((batch.num_rows, len(names)), dtype=np.float32)
    for j, name in enumerate(names):
        column = batch.column(name)
        with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, and is reported below
            values[:, j] = _floats(column)
        bad = ~np.isfinite(values[:, j])
        if bad.any():
            row = int(np.argmax(bad))
            found = column[row].as_py()
            what = "is missing (null)" if found is None else f"is {found}, which is not finite in float32"
            raise DataError(
                f"spec.data.dense: column {name!r} {what} in {place.row(row)}; fill it when preparing the data, "
                f"for example with the column's mean and an indicator column, or drop such rows"
            )
    return values


def label_values(batch: Any, spec: DataSpec, place: BatchLocation) -> npt.NDArray[np.float32] | npt.NDArray[np.int64]:
    """The labels of a record batch: float32 (n,), or int64 (n,) for classes.

    Raises:
        DataError: a label is missing, or does not suit the loss.
    """
    column = batch.column(spec.label)
    values = _floats(column)
    if spec.label_kind == "binary":
        good, need = (values == 0) | (values == 1), "0 or 1 (or a boolean) for a binary loss"
    elif spec.label_kind == "class":
        limit = 2**53 if spec.num_classes is None else spec.num_classes
        good = (values >= 0) & (values == np.floor(values)) & (values < limit)
        need = "a class number 0, 1, 2, ... for this loss"
        if spec.num_classes is not None:
            need = f"a class number from 0 to {limit - 1} (spec.data.classes is {limit})"
    else:
        with np.errstate(over="ignore"):
            good, need = np.isfinite(values.astype(np.float32)), "a finite number"
    if not good.all():
        row = int(np.argmin(good))
        found = column[row].as_py()
        shown = "missing (null)" if found is None else repr(found)
        raise DataError(
            f"spec.data.label: column {spec.label!r} must be {need}, but is {shown} in {place.row(row)}; "
            "correct the data, or choose another label or loss (spec.model.loss)"
        )
    return values.astype(np.int64) if spec.label_kind == "class" else values.astype(np.float32)
