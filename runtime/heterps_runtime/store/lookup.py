"""Embedding lookups on a CPU worker: from pulled unique rows to a layer's input, and from its gradient back.

A worker pulls each row of a micro-batch once, as `rows` (U, d), and refers to rows by `inverse`. These functions
compute what torch.nn.functional.embedding and embedding_bag compute with the full table, without autograd's bookkeeping
and without the sort of torch's sparse gradients. All float arrays of a call have the same dtype.
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


def gather(rows: AnyFloats, inverse: NDArray[np.int32]) -> AnyFloats:
    """Return rows[inverse], (n, d)."""
    result = np.empty((inverse.size, rows.shape[1]), rows.dtype)
    gather_rows(view(rows, rows.dtype), view(inverse, np.int32), result)
    return result


def scatter_add(
    grads: AnyFloats, inverse: NDArray[np.int32], accumulator: AnyFloats, skip: NDArray[np.bool_] | None = None
) -> None:
    """Add the gradient of `gather`'s result to `accumulator` (U, d), in order, except entries in `skip` (n,).

    Args:
        grads: (..., d), n vectors; those of one index of the first axis must lie together, and may be apart from those
            of the next, as in a part of a wider gradient. Others are copied.
        inverse: (n,), positions in `accumulator`.
        accumulator: changed in place.
        skip: entries to leave out.
    """
    dtype = accumulator.dtype
    values, step = _parts(grads, dtype)
    per_step = int(np.prod(grads.shape[1:-1]))
    if step == per_step * grads.shape[-1]:  # nothing lies apart
        step, per_step = values.size, max(1, len(inverse))
    scatter_add_rows(values, step, per_step, view(inverse, np.int32), _mask(skip), _output(accumulator, dtype))


class Bags(NamedTuple):
    """Entries of B bags, as in torch.nn.EmbeddingBag, with positions of rows in place of ids.

    Attributes:
        inverse: (nnz,), position of each entry's row.
        offsets: (B,), start of each bag.
        mode: how the rows of a bag are combined.
        weights: (nnz,), per_sample_weights; for mode "sum" only.
        skip: (nnz,), entries of padding_idx, which are ignored.
    """

    inverse: NDArray[np.int32]
    offsets: NDArray[np.int64]
    mode: Mode = "sum"
    weights: AnyFloats | None = None
    skip: NDArray[np.bool_] | None = None


def bag_forward(rows: AnyFloats, bags: Bags) -> tuple[AnyFloats, Int32s]:
    """Pool `rows` (U, d) into bags.

    Returns:
        The pooled rows (B, d), zero for empty bags; and the winners that `bag_backward` needs. In mode "max", these are
        the positions of the rows that each element comes from, (B, d), or -1; otherwise an empty array.
    """
    _check(bags)
    num_bags, dim = len(bags.offsets), rows.shape[1]
    result = np.empty((num_bags, dim), rows.dtype)
    winners = np.empty((num_bags if bags.mode == "max" else 0, dim), np.int32)
    _bag_forward(view(rows, rows.dtype), *_entries(bags, rows.dtype), result, winners)
    return result, winners


def bag_backward(grads: AnyFloats, bags: Bags, winners: NDArray[np.int32], accumulator: AnyFloats) -> None:
    """Add the gradient (B, d) of `bag_forward`'s result, whose rows may lie apart, to `accumulator` (U, d)."""
    _check(bags)
    dtype = accumulator.dtype
    values, step = _parts(grads, dtype)
    _bag_backward(
        values,
        step,
        *_entries(bags, dtype),
        view(winners, np.int32),
        _output(accumulator, dtype),
    )


def _check(bags: Bags) -> None:
    if bags.weights is not None and bags.mode != "sum":
        raise ValueError(f"per_sample_weights: only for mode 'sum' as in torch.nn.EmbeddingBag, not {bags.mode!r}")


def _entries(bags: Bags, dtype: Any) -> tuple[Int32s, Int64s, AnyFloats, Mask, int]:
    weights = np.empty(0, dtype) if bags.weights is None else view(bags.weights, dtype)
    return (
        view(bags.inverse, np.int32),
        view(bags.offsets, np.int64),
        weights,
        _mask(bags.skip),
        _MODES[bags.mode],
    )


def _parts(grads: AnyFloats, dtype: Any) -> tuple[AnyFloats, int]:
    """Gradients (..., d) in one dimension, and the distance between two indices of the first axis in it."""
    if grads.size == 0 or grads.flags.c_contiguous or not grads[0].flags.c_contiguous or grads.strides[0] <= 0:
        return view(grads, dtype).reshape(-1), int(np.prod(grads.shape[1:]))
    assert grads.dtype == dtype
    step = grads.strides[0] // grads.itemsize
    span = (len(grads) - 1) * step + grads[0].size
    return np.lib.stride_tricks.as_strided(grads, (span,), (grads.itemsize,)), step


def _mask(skip: NDArray[np.bool_] | None) -> Mask:
    return _NO_MASK if skip is None else view(skip, np.bool_)


def _output(array: AnyFloats, dtype: Any) -> AnyFloats:
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.dtype == dtype
    return array


@kernel
def gather_rows(rows: AnyFloats, positions: Int32s, out: AnyFloats) -> None:
    """out[i] = rows[positions[i]]; out[i] is unchanged if the position is negative."""
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
def scatter_rows(values: AnyFloats, positions: Int32s, rows: AnyFloats) -> None:
    """rows[positions[i]] = values[i]; positions are distinct."""
    for i in range(positions.size):
        p = np.uint64(positions[i])
        for j in range(values.shape[1]):
            rows[p, j] = values[i, j]


@kernel
def scatter_add_rows(
    grads: AnyFloats, step: int, per_step: int, positions: Int32s, skip: Mask, accumulator: AnyFloats
) -> None:
    """Add gradients to the rows at `positions`, in order, except where `skip` is set; it may be empty.

    `grads` (1-D) has `per_step` of them side by side, and the next ones `step` elements after the first.
    """
    dim = accumulator.shape[1]
    per_line = _LINE // grads.itemsize
    i = 0
    for block in range(positions.size // per_step):
        at = block * step
        if step > per_step * dim:  # processors do not foresee the next block if it lies apart
            for j in range(0, per_step * dim, per_line):
                prefetch(grads, at + step + j)
        for _ in range(per_step):
            if skip.size == 0 or not skip[i]:
                p = positions[i]
                first = np.uint64(at)  # unsigned, or each access first asks whether its index counts from the end
                for j in range(dim):
                    accumulator[p, j] += grads[first + np.uint64(j)]
            at += dim
            i += 1


@kernel
def _bag_forward(
    rows: AnyFloats,
    positions: Int32s,
    offsets: Int64s,
    weights: AnyFloats,
    skip: Mask,
    mode: int,
    out: AnyFloats,
    winners: Int32s,
) -> None:
    dim = rows.shape[1]
    for b in range(offsets.size):
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
    step: int,
    positions: Int32s,
    offsets: Int64s,
    weights: AnyFloats,
    skip: Mask,
    mode: int,
    winners: Int32s,
    accumulator: AnyFloats,
) -> None:
    dim = accumulator.shape[1]
    for b in range(offsets.size):
        first = np.uint64(b * step)
        start, stop = offsets[b], offsets[b + 1] if b + 1 < offsets.size else positions.size
        if mode == _MAX:
            for j in range(dim):
                if winners[b, j] >= 0:
                    accumulator[winners[b, j], j] += grads[first + np.uint64(j)]
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
                accumulator[p, j] += weight * grads[first + np.uint64(j)]
