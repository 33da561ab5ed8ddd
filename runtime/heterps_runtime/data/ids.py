"""From a column's values to 64-bit ids.

Code that serves a trained model must apply the same rule:

    def feature_id(value):  # an int, a str, or None for a missing value
        if isinstance(value, int):
            return value
        return int.from_bytes(hashlib.blake2b((value or "").encode(), digest_size=8).digest(), "little", signed=True)

    row = feature_id(value) % num_embeddings  # of that table

Integers are used as they are, so ids 0 .. num_embeddings - 1 do not collide; `%` is never negative, as in Python, torch
and numpy. Text is hashed with blake2b, which depends on the text only. A missing value counts as the empty text.
Booleans are 0 and 1. Ids are signed like the elements of tensors; unsigned integers from 2^63 on become their two's
complement.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["MISSING_ID", "column_ids", "list_ids", "text_id"]

Ids = npt.NDArray[np.int64]


@lru_cache(maxsize=1 << 18)  # frequent values repeat in each batch; about 40 MB at most
def text_id(value: str | bytes) -> int:
    """The signed 64-bit id of a text (as UTF-8) or of bytes."""
    data = value.encode() if isinstance(value, str) else value
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


#: The id of a missing value.
MISSING_ID = text_id("")


def column_ids(values: Any) -> Ids:
    """Ids of a single-valued column. Each distinct text is hashed once.

    Args:
        values: a pyarrow Array (N,) of integers, booleans, strings, binaries, nulls, or a dictionary of those.

    Returns:
        int64 (N,).
    """
    kind = values.type
    if pa.types.is_dictionary(kind):
        ids = column_ids(values.dictionary)
        # An additional entry is for missing values, whose indices are null.
        ids = np.append(ids, MISSING_ID)
        return ids[_indices(values, len(ids) - 1)]
    if pa.types.is_null(kind):
        return np.full(len(values), MISSING_ID, dtype=np.int64)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        missing = np.asarray(values.is_null())
        filled = pc.fill_null(values, False if pa.types.is_boolean(kind) else 0)
        wide = filled.cast(pa.uint64() if pa.types.is_uint64(kind) else pa.int64())
        return np.where(missing, MISSING_ID, np.asarray(wide).view(np.int64))
    encoded = values.dictionary_encode()
    texts = [text_id(v if v is not None else b"") for v in encoded.dictionary.to_pylist()]
    distinct = np.array([*texts, MISSING_ID], dtype=np.int64)
    return distinct[_indices(encoded, len(texts))]


def _indices(values: Any, missing: int) -> Ids:
    """The indices of a dictionary Array, int64 (N,), with `missing` for null."""
    return np.asarray(pc.fill_null(values.indices.cast(pa.int64()), missing), dtype=np.int64)


def list_ids(values: Any) -> tuple[Ids, Ids]:
    """Ids of a multi-valued column.

    Args:
        values: a pyarrow list Array (N,) of values as for `column_ids`; a missing list counts as empty.

    Returns:
        The ids of all lists, int64 (nnz,), and the lengths of the lists, int64 (N,).
    """
    lengths = np.asarray(pc.fill_null(pc.list_value_length(values), 0)).astype(np.int64)
    return column_ids(values.flatten()), lengths
