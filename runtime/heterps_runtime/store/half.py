"""Conversion between floats and the 16-bit formats of messages, fp16 and bf16.

Bit operations on whole arrays compile to vector instructions; numpy's own fp16 conversion works element by element.
Rounding is to nearest, ties to even (IEEE 754). A finite value beyond the format's range is clamped to the largest
value, and counted. NaN and infinity are preserved, so that the server can refuse the step. float64 is rounded to
float32 first.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from heterps_runtime.store.kernel import AnyFloats, kernel, view

__all__ = ["Encoded", "Precision", "decode", "encode"]

Precision = Literal["full", "fp16", "bf16"]
_Bits16 = NDArray[np.uint16]
_Bits32 = NDArray[np.uint32]


class Encoded(NamedTuple):
    """An array in a message's format."""

    data: NDArray[np.generic]  # same shape; uint16 bit patterns, or the array itself for "full"
    num_saturated: int  # finite elements that were clamped


def encode(array: AnyFloats, precision: Precision) -> Encoded:
    """Convert a float array of any shape; "full" returns the array itself."""
    if precision == "full":
        return Encoded(array, 0)
    values = view(array, np.float32)
    data = np.empty(array.shape, np.uint16)
    convert = _to_fp16 if precision == "fp16" else _to_bf16
    return Encoded(data, int(convert(values.reshape(-1).view(np.uint32), data.reshape(-1))))


def decode(data: NDArray[np.generic], precision: Precision, dtype: DTypeLike = np.float32) -> AnyFloats:
    """The inverse of `encode`: a float array of `dtype`. "full" data of that dtype is returned itself."""
    if precision == "full":
        return data if data.dtype == dtype else data.astype(dtype)
    values = np.empty(data.shape, np.float32)
    convert = _from_fp16 if precision == "fp16" else _from_bf16
    convert(view(data, np.uint16).reshape(-1), values.reshape(-1).view(np.uint32))
    return values if np.dtype(dtype) == np.float32 else values.astype(dtype)


# Bit patterns of float32 magnitudes.
_INFINITY = np.uint32(0x7F800000)
_FP16_OVERFLOW = np.uint32(0x477FF000)  # 65520, the least magnitude that rounds beyond 65504, fp16's largest
_FP16_NORMAL = np.uint32(0x38800000)  # 2**-14, fp16's least normal magnitude
_FP16_REBIAS = np.uint32((127 - 15) << 23)  # difference of the exponents' biases
_HALF = np.float32(0.5)  # added to a subnormal, it aligns and rounds the mantissa
_HALF_BITS = np.uint32(0x3F000000)
_TWO_112 = np.float32(2.0**112)  # undoes the exponent bias, for normal and subnormal fp16 alike
_BF16_OVERFLOW = np.uint32(0x7F7F8000)  # the least magnitude that rounds beyond bf16's largest
_MAGNITUDE = np.uint32(0x7FFFFFFF)


@kernel
def _to_fp16(bits: _Bits32, out: _Bits16) -> int:
    saturated = np.int32(0)
    for i in range(bits.size):
        magnitude = np.uint32(bits[i] & _MAGNITUDE)
        sign = np.uint32(np.uint32(bits[i] >> np.uint32(16)) & np.uint32(0x8000))
        odd = np.uint32(np.uint32(magnitude >> np.uint32(13)) & np.uint32(1))
        normal = np.uint32(np.uint32(magnitude - _FP16_REBIAS + np.uint32(0xFFF) + odd) >> np.uint32(13))
        subnormal = np.uint32(np.float32(np.uint32(magnitude).view(np.float32) + _HALF).view(np.uint32) - _HALF_BITS)
        special = np.uint32(0x7C00) if magnitude == _INFINITY else np.uint32(0x7E00)
        over = (magnitude >= _FP16_OVERFLOW) & (magnitude < _INFINITY)
        result = normal if magnitude >= _FP16_NORMAL else subnormal
        result = np.uint32(0x7BFF) if over else result
        result = special if magnitude >= _INFINITY else result
        out[i] = result | sign
        saturated += np.int32(over)
    return int(saturated)


@kernel
def _from_fp16(data: _Bits16, bits: _Bits32) -> None:
    for i in range(data.size):
        half = np.uint32(data[i])
        sign = np.uint32(np.uint32(half & np.uint32(0x8000)) << np.uint32(16))
        shifted = np.uint32(np.uint32(half & np.uint32(0x7FFF)) << np.uint32(13))
        finite = np.float32(np.uint32(shifted).view(np.float32) * _TWO_112).view(np.uint32)
        special = np.uint32(shifted | _INFINITY)
        bits[i] = np.uint32(special if shifted >= np.uint32(0x0F800000) else finite) | sign


@kernel
def _to_bf16(bits: _Bits32, out: _Bits16) -> int:
    saturated = np.int32(0)
    for i in range(bits.size):
        magnitude = np.uint32(bits[i] & _MAGNITUDE)
        sign = np.uint32(np.uint32(bits[i] >> np.uint32(16)) & np.uint32(0x8000))
        odd = np.uint32(np.uint32(magnitude >> np.uint32(16)) & np.uint32(1))
        rounded = np.uint32(np.uint32(magnitude + np.uint32(0x7FFF) + odd) >> np.uint32(16))
        over = (magnitude >= _BF16_OVERFLOW) & (magnitude < _INFINITY)
        result = np.uint32(0x7F7F) if over else rounded
        result = np.uint32(0x7FC0) if magnitude > _INFINITY else result
        out[i] = result | sign
        saturated += np.int32(over)
    return int(saturated)


@kernel
def _from_bf16(data: _Bits16, bits: _Bits32) -> None:
    for i in range(data.size):
        bits[i] = np.uint32(data[i]) << np.uint32(16)
