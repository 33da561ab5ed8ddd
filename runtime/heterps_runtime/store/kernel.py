"""Common parts of the compiled kernels: the decorator, the hash, prefetching, and array views.

Kernels are plain loops over scalars, because numba compiles loops much faster than array expressions, and compile time
is start-up time of a server. For the same reason each argument has one type: `view` turns any array (a read-only
network frame, a slice, a list) into a C-contiguous, aligned, writable one, since numba compiles one version per memory
layout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # numba's code generator
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import DTypeLike, NDArray

from heterps_runtime.partition import splitmix
from heterps_runtime.store.kernel_cache import KernelCache

__all__ = ["AnyFloats", "Int32s", "Int64s", "Words", "first_equal", "kernel", "mix64", "prefetch", "view"]

AnyFloats = NDArray[Any]  # float32 or float64; all float arrays of one call have the same type
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Words = NDArray[np.uint32]

F = TypeVar("F", bound=Callable[..., Any])

PREFETCH_BLOCK = 32  # keys whose memory is requested before the first is used: work for a few cache misses


def kernel(function: F, *, reassociate: bool = False) -> F:
    """Compile `function` on first call, without the GIL, and cache the machine code on disk.

    The cache is in `$NUMBA_CACHE_DIR`, beside the source, or in the user's cache directory (`kernel_cache`). If none of
    them is writable (a read-only image without a home directory), each process compiles the kernel.

    Args:
        function: a function in numba's subset of Python.
        reassociate: let sums be reordered, so that reductions use vector instructions.
    """
    fastmath: bool | set[str] = {"reassoc"} if reassociate else False
    compiled: Any = njit(nogil=True, error_model="numpy", fastmath=fastmath)(function)
    with contextlib.suppress(RuntimeError):  # "no locator available": no writable cache
        compiled._cache = KernelCache(function)  # where `cache=True` puts numba's own
    return cast(F, compiled)  # numba's dispatcher, under the function's type


mix64: Callable[[np.uint64], np.uint64] = kernel(splitmix.mix64)
"""The compiled `splitmix.mix64`, for single words."""


@intrinsic
def _prefetch(typing_context: Any, array: Any, offset: Any) -> Any:

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values = context.make_array(signature.args[0])(context, builder, arguments[0])
        i32 = ir.IntType(32)
        pointer = builder.bitcast(builder.gep(values.data, [arguments[1]]), cgutils.voidptr_t)
        function_type = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32])
        declare: Any = cgutils.get_or_insert_function
        declared = declare(builder.module, function_type, "llvm.prefetch.p0")
        builder.call(declared, [pointer, i32(0), i32(3), i32(1)])  # for reading, keep in all caches, data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


prefetch = cast(Callable[[NDArray[Any], Any], None], _prefetch)
"""`prefetch(array, offset)`: request the cache line of element `offset` of a C-contiguous array; never faults."""


@intrinsic
def _first_equal(typing_context: Any, words: Any, offset: Any, wanted: Any) -> Any:

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values = context.make_array(signature.args[0])(context, builder, arguments[0])
        i1, i8, i32, i64 = (ir.IntType(width) for width in (1, 8, 32, 64))
        eight = ir.VectorType(i32, 8)
        undefined = ir.Constant(eight, ir.Undefined)
        pointer = builder.bitcast(builder.gep(values.data, [arguments[1]]), eight.as_pointer())
        found = builder.load(pointer, align=4)
        first = builder.insert_element(undefined, arguments[2], ir.Constant(i32, 0))
        splat = builder.shuffle_vector(first, undefined, ir.Constant(eight, [0] * 8))
        mask = builder.bitcast(builder.icmp_unsigned("==", found, splat), i8)
        return builder.cttz(builder.or_(builder.zext(mask, i64), ir.Constant(i64, 1 << 8)), ir.Constant(i1, 1))

    return types.uint64(words, types.uint64, types.uint32), generate


first_equal = cast(Callable[[Words, np.uint64, np.uint32], np.uint64], _first_equal)
"""`first_equal(words, offset, wanted)`: the least j < 8 with words[offset + j] == wanted, or 8; a few instructions."""


class _Writable:
    """Presents the memory of a read-only array as writable, and keeps the array alive."""

    def __init__(self, array: NDArray[Any]) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.owner = array


def view(array: Any, dtype: DTypeLike) -> NDArray[Any]:
    """Give `array` the type that kernels are compiled for; copies it only if it is strided or of another dtype.

    A read-only array becomes a view that *claims* to be writable: use it as an input of kernels only.
    """
    result = np.require(array, dtype, ("C", "A"))
    return result if result.flags.writeable else np.asarray(_Writable(result))
