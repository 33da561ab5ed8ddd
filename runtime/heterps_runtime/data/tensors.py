"""Columns of tensors: lists of one length, such as images.

A list holds a row's tensor in C order. The cache keeps the values in the type that the manifest declares, so that an
image of bytes takes a byte per value on disk and in the page cache; `scaled` makes the model's floats of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from heterps_runtime.data.errors import DataError
from heterps_runtime.data.places import BatchLocation
from heterps_runtime.data.spec import TensorColumn

__all__ = ["check_tensor_type", "scaled", "tensor_values"]


def check_tensor_type(kind: Any, tensor: TensorColumn, index: int, file: str) -> None:
    """Check the type of a tensor's column.

    Args:
        kind: pyarrow type of the column.
        tensor: the declared tensor.
        index: in `spec.data.tensors`, for messages.
        file: name of the file, for messages.

    Raises:
        DataError: it is not a column of lists of numbers, or its lists have another length.
    """
    t, field = pa.types, f"spec.data.tensors[{index}]"
    stored = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if not (t.is_list(stored) or t.is_large_list(stored) or t.is_fixed_size_list(stored)):
        raise DataError(
            f"{field}: column {tensor.name!r} of {file} has the type {kind}, but a tensor must be a list of numbers; "
            "write each row's values as one flat list in C order (Arrow's fixed_size_list)"
        )
    value = stored.value_type
    if t.is_list(value) or t.is_large_list(value) or t.is_fixed_size_list(value):
        raise DataError(
            f"{field}: column {tensor.name!r} of {file} holds lists of lists; write each row's values as one flat list "
            "in C order (Arrow's fixed_size_list), and give their arrangement in shape"
        )
    if tensor.dtype == "uint8" and not t.is_integer(value):
        raise DataError(
            f"{field}.dtype: is uint8, but column {tensor.name!r} of {file} holds {value}; set dtype to float32, or "
            "write whole numbers from 0 to 255"
        )
    if not (t.is_integer(value) or t.is_floating(value)):
        raise DataError(
            f"{field}: column {tensor.name!r} of {file} holds {value}, but a tensor must be made of numbers; write "
            "uint8 or float32"
        )
    if t.is_fixed_size_list(stored) and stored.list_size != tensor.size:
        raise DataError(
            f"{field}.shape: {list(tensor.shape)} has {tensor.size} values, but the lists of column {tensor.name!r} of "
            f"{file} have {stored.list_size}; correct the shape"
        )


def tensor_values(column: Any, tensor: TensorColumn, index: int, place: BatchLocation) -> npt.NDArray[Any]:
    """The values of a tensor's column in a record batch, (n, *shape) of the declared type.

    Args:
        column: pyarrow Array (n,) of lists, of a type that `check_tensor_type` accepts.
        tensor: the declared tensor.
        index: in `spec.data.tensors`, for messages.
        place: of the batch.

    Raises:
        DataError: a list is missing or of another length, or a value is missing or does not fit the type.
    """
    field = f"spec.data.tensors[{index}]"
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(
            f"{field}: column {tensor.name!r} is missing (null) in {place.row(row)}; drop such rows when preparing the "
            "data, or write a tensor that stands for a missing one"
        )
    if not pa.types.is_fixed_size_list(column.type):
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        wrong = lengths != tensor.size
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(
                f"{field}: column {tensor.name!r} has {lengths[row]} values in {place.row(row)}, but the shape "
                f"{list(tensor.shape)} needs {tensor.size}; correct the row, or the shape"
            )
    values = column.flatten()  # of the rows of this batch only
    if values.null_count:
        first = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
        raise _bad_value(field, tensor, first, "is missing (null)", "fill it", place)
    numbers = values.to_numpy(zero_copy_only=False)
    if tensor.dtype == "uint8":
        bad = (numbers < 0) | (numbers > 255) if numbers.dtype != np.uint8 else None
        found, fix = "is {}, which uint8 cannot hold (0 to 255)", "correct it, or set dtype to float32"
    else:
        with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, and is reported below
            numbers = numbers.astype(np.float32, copy=False)
        bad = ~np.isfinite(numbers)
        found, fix = "is {}, which is not finite in float32", "correct it"
    if bad is not None and bad.any():
        first = int(np.argmax(bad))
        raise _bad_value(field, tensor, first, found.format(values[first].as_py()), fix, place)
    result: npt.NDArray[Any] = numbers.astype(tensor.dtype, copy=False).reshape(len(column), *tensor.shape)
    return result


def _bad_value(field: str, tensor: TensorColumn, first: int, found: str, fix: str, place: BatchLocation) -> DataError:
    row, position = divmod(first, tensor.size)
    return DataError(f"{field}: value {position} of column {tensor.name!r} {found} in {place.row(row)}; {fix}")


def scaled(values: npt.NDArray[Any], tensor: TensorColumn) -> npt.NDArray[np.float32]:
    """The model's input for stored values (n, *shape): `value * scale + offset`, a new float32 array (n, *shape)."""
    floats = values.astype(np.float32)
    if tensor.scale != 1:
        floats *= np.float32(tensor.scale)
    if tensor.offset != 0:
        floats += np.float32(tensor.offset)
    return floats
