"""Two bytes per number on the wire: conversion between floats and fp16 or bf16.

By bit operations on whole arrays, which the compiler turns into vector instructions on any processor; numpy's own
fp16 conversion takes elements one by one. Rounding is to nearest, ties to even, as IEEE 754 prescribes. A finite
value that the format cannot hold becomes the largest one it can, and is counted; NaN and infinities stay what they
are, because the server must see that a step is poisoned. float64 is rounded to float32 first.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from heterps_runtime.store.kernel import AnyFloats, kernel, view

__all__ = ["Encoded", "Precision", "decode", "encode", "wire_dtype"]

Precision = Literal["full", "fp16", "bf16"]
_Bits16 = NDArray[np.uint16]
_Bits32 = NDArray[np.uint32]


class Encoded(NamedTuple):
    """An array as it goes on the wire."""

    data: NDArray[np.generic]  # of `wire_dtype`, same shape
    num_saturated: int  # finite elements that were too large


def wire_dtype(precision: Precision, dtype: DTypeLike) -> np.dtype[np.generic]:
    """Type of the elements on the wire of an array of `dtype`: uint16 bit patterns, or `dtype` itself for "full"."""
    return np.dtype(dtype) if precision == "full" else np.dtype(np.uint16)


def encode(array: AnyFloats, precision: Precision) -> Encoded:
    """Convert a float array of any shape for the wire; "full" returns the array itself."""
    if precision == "full":
        return Encoded(array, 0)
    values = view(array, np.float32)
    data = np.empty(array.shape, np.uint16)
    convert = _to_fp16 if precision == "fp16" else _to_bf16
    return Encoded(data, int(convert(values.reshape(-1).view(np.uint32), data.reshape(-1))))


def decode(data: NDArray[np.generic], precision: Precision, dtype: DTypeLike = np.float32) -> AnyFloats:
    """Inverse of `encode`: a float array of `dtype`; for "full" of that dtype already, the data itself."""
    if precision == "full":
        return data if data.dtype == dtype else data.astype(dtype)
    values = np.empty(data.shape, np.float32)
    convert = _from_fp16 if precision == "fp16" else _from_bf16
    convert(view(data, np.uint16).reshape(-1), values.reshape(-1).view(np.uint32))
    return values if np.dtype(dtype) == np.float32 else values.astype(dtype)
