"""Lookups on a CPU worker: from pulled unique rows to a layer's input, and from its gradient back.

A worker pulls each row of a micro-batch once, as `rows` (U, d), and refers to it by `inverse`. These functions do what
torch.nn.functional.embedding and embedding_bag would do with the full table, on numpy views of the tensors' memory
(`tensor.numpy()` shares it), without autograd's bookkeeping and without the sort that torch's own sparse gradients
need. All float arrays of a call have the same dtype. Results go into `out` where it is given.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_runtime.store.kernel import AnyFloats, Int32s, Int64s, kernel, prefetch, view

__all__ = ["Bags", "Mode", "bag_backward", "bag_forward", "gather", "scatter_add"]

Mode = Literal["sum", "mean", "max"]
Mask = NDArray[np.bool_]

_SUM, _MEAN, _MAX = 0, 1, 2
_MODES: dict[str, int] = {"sum": _SUM, "mean": _MEAN, "max": _MAX}
_NO_MASK = np.zeros(0, np.bool_)
_AHEAD = 16  # rows whose memory is requested in advance
_LINE = 64  # bytes of a cache line


def gather(rows: AnyFloats, inverse: NDArray[np.int32], out: AnyFloats | None = None) -> AnyFloats:
    """Return rows[inverse], (n, d)."""
    result = np.empty((inverse.size, rows.shape[1]), rows.dtype) if out is None else out
    gather_rows(view(rows, rows.dtype), view(inverse, np.int32), _output(result, rows.dtype))
    return result


def scatter_add(
    grads: AnyFloats, inverse: NDArray[np.int32], accumulator: AnyFloats, skip: NDArray[np.bool_] | None = None
) -> AnyFloats:
    """Add the gradient (n, d) of `gather`'s result to the rows' `accumulator` (U, d), in order; return the latter.

    `skip` (n,) marks entries without gradient: those of an embedding's padding_idx.
    """
    scatter_add_rows(
        view(grads, accumulator.dtype), view(inverse, np.int32), _mask(skip), _output(accumulator, accumulator.dtype)
    )
    return accumulator


class Bags(NamedTuple):
    """Entries of B bags, as torch.nn.EmbeddingBag takes them, with row positions in place of ids.

    Attributes:
        inverse: (nnz,) position of each entry's row.
        offsets: (B,) or, with `include_last_offset`, (B + 1,): where each bag begins.
        mode: How a bag's rows become one.
        weights: (nnz,) per_sample_weights, for mode "sum" only.
        skip: (nnz,) entries of padding_idx, which count for nothing.
        include_last_offset: The last offset is the end of the last bag, not the start of one more.
    """

    inverse: NDArray[np.int32]
    offsets: NDArray[np.int64]
    mode: Mode = "sum"
    weights: AnyFloats | None = None
    skip: NDArray[np.bool_] | None = None
    include_last_offset: bool = False

    @property
    def num_bags(self) -> int:
        """B."""
        return len(self.offsets) - int(self.include_last_offset)


def bag_forward(rows: AnyFloats, bags: Bags, out: AnyFloats | None = None) -> tuple[AnyFloats, Int32s]:
    """Pool `rows` (U, d) into bags.

    Returns:
        The pooled rows (B, d), zero for empty bags, and for mode "max" the row position that each element came from
        (B, d), -1 for none; for other modes an array of no rows. `bag_backward` wants the latter.
    """
    _check(bags)
    result = np.empty((bags.num_bags, rows.shape[1]), rows.dtype) if out is None else out
    winners = np.empty((bags.num_bags if bags.mode == "max" else 0, rows.shape[1]), np.int32)
    _bag_forward(view(rows, rows.dtype), *_entries(bags, rows.dtype), _output(result, rows.dtype), winners)
    return result, winners


def bag_backward(grads: AnyFloats, bags: Bags, winners: NDArray[np.int32], accumulator: AnyFloats) -> AnyFloats:
    """Add the gradient (B, d) of `bag_forward`'s result to the rows' `accumulator` (U, d); return the latter."""
    _check(bags)
    dtype = accumulator.dtype
    _bag_backward(
        view(grads, dtype),
        *_entries(bags, dtype),
        view(winners, np.int32),
        _output(accumulator, dtype),
    )
    return accumulator


def _check(bags: Bags) -> None:
    if bags.weights is not None and bags.mode != "sum":
        raise ValueError(f"per_sample_weights: only for mode 'sum' as in torch.nn.EmbeddingBag, not {bags.mode!r}")


def _entries(bags: Bags, dtype: Any) -> tuple[Int32s, Int64s, int, AnyFloats, Mask, int]:
    weights = np.empty(0, dtype) if bags.weights is None else view(bags.weights, dtype)
    return (
        view(bags.inverse, np.int32),
        view(bags.offsets, np.int64),
        bags.num_bags,
        weights,
        _mask(bags.skip),
        _MODES[bags.mode],
    )


def _mask(skip: NDArray[np.bool_] | None) -> Mask:
    return _NO_MASK if skip is None else view(skip, np.bool_)


def _output(array: AnyFloats, dtype: Any) -> AnyFloats:
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.dtype == dtype
    return array


@kernel
def gather_rows(rows: AnyFloats, positions: Int32s, out: AnyFloats) -> None:
    """out[i] = rows[positions[i]]; where a position is negative, out[i] stays."""
    dim = rows.shape[1]
    per_line = _LINE // rows.itemsize
    for i in range(positions.size):
        if i + _AHEAD < positions.size:
            ahead = np.int64(positions[i + _AHEAD])
            if ahead >= 0:
                for j in range(0, dim, per_line):
                    prefetch(rows, ahead * dim + j)
        p = positions[i]
        if p >= 0:
            for j in range(dim):
                out[i, j] = rows[p, j]


@kernel
def scatter_add_rows(grads: AnyFloats, positions: Int32s, skip: Mask, accumulator: AnyFloats) -> None:
    """accumulator[positions[i]] += grads[i] in order of i, but where `skip` (empty: nowhere) is set."""
    for i in range(positions.size):
        if skip.size == 0 or not skip[i]:
            p = positions[i]
            for j in range(grads.shape[1]):
                accumulator[p, j] += grads[i, j]


@kernel
def _bag_forward(
    rows: AnyFloats,
    positions: Int32s,
    offsets: Int64s,
    num_bags: int,
    weights: AnyFloats,
    skip: Mask,
    mode: int,
    out: AnyFloats,
    winners: Int32s,
) -> None:
    dim = rows.shape[1]
    for b in range(num_bags):
        stop = offsets[b + 1] if b + 1 < offsets.size else positions.size
        for j in range(dim):
            out[b, j] = 0
        if mode == _MAX:
            for j in range(dim):
                winners[b, j] = -1
        count = 0
        for i in range(offsets[b], stop):
            if skip.size != 0 and skip[i]:
                continue
            p = positions[i]
            count += 1
            if mode == _MAX:
                for j in range(dim):
                    if count == 1 or rows[p, j] > out[b, j]:
                        out[b, j] = rows[p, j]
                        winners[b, j] = p
            elif weights.size != 0:
                weight = weights[i]
                for j in range(dim):
                    out[b, j] += weight * rows[p, j]
            else:
                for j in range(dim):
                    out[b, j] += rows[p, j]
        if mode == _MEAN and count > 1:
            divisor = rows.dtype.type(count)
            for j in range(dim):
                out[b, j] /= divisor


@kernel
def _bag_backward(
    grads: AnyFloats,
    positions: Int32s,
    offsets: Int64s,
    num_bags: int,
    weights: AnyFloats,
    skip: Mask,
    mode: int,
    winners: Int32s,
    accumulator: AnyFloats,
) -> None:
    dim = grads.shape[1]
    for b in range(num_bags):
        start, stop = offsets[b], offsets[b + 1] if b + 1 < offsets.size else positions.size
        if mode == _MAX:
            for j in range(dim):
                if winners[b, j] >= 0:
                    accumulator[winners[b, j], j] += grads[b, j]
            continue
        count = stop - start
        if skip.size != 0:
            for i in range(start, stop):
                count -= skip[i]
        factor = grads.dtype.type(1)
        if mode == _MEAN and count > 1:
            factor = factor / grads.dtype.type(count)
        for i in range(start, stop):
            if skip.size != 0 and skip[i]:
                continue
            p = positions[i]
            weight = weights[i] if weights.size != 0 else factor
            for j in range(dim):
                accumulator[p, j] += weight * grads[b, j]
