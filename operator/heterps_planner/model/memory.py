"""Memory of pods: the least number of pods with which each segment's share of a batch fits.

A worker is a pod. It holds the weights, gradients and optimiser state of its stage's layers (`residentBytes`), whatever
the number of workers, and the activations of the samples in flight (`activationBytes` per sample). The last of several
stages sends each micro-batch back before it takes the next one; every other stage may have its whole share of a batch
in flight. Embedding tables are on the parameter servers: only the rows that were looked up count, per sample.
"""

from __future__ import annotations

import numpy as np

from heterps_planner.model.pieces import FloatArray
from heterps_planner.model.problem import Pool, Problem

__all__ = ["is_limited", "least_pods_for_memory", "needed_bytes"]


def is_limited(problem: Problem) -> bool:
    """Return whether any pool limits the memory."""
    return any(pool.memory_bytes_per_pod is not None for pool in problem.pools)


def _pieces(problem: Problem, first: int, last: int) -> int:
    """Return the number of pieces by which a worker's share is divided."""
    return problem.micro_batches if last == len(problem.layers) - 1 and first > 0 else 1


def least_pods_for_memory(problem: Problem, pool: Pool) -> FloatArray:
    """Return the least pods of a pool for each segment.

    A share of x samples needs `resident + ceil(x) * activation` bytes.

    Args:
        problem: the problem.
        pool: one of its pools.

    Returns:
        Shape (L, L), whole numbers >= 1; infinite where the segment fits no pod, whatever its share.
    """
    num_layers = len(problem.layers)
    result = np.ones((num_layers, num_layers))
    if pool.memory_bytes_per_pod is None:
        return result
    resident = np.array([layer.resident_bytes for layer in problem.layers])
    activation = np.array([layer.activation_bytes for layer in problem.layers])
    batch = float(problem.training_batch_size)
    for first in range(num_layers):
        free = pool.memory_bytes_per_pod - resident[first:].cumsum()
        per_sample = activation[first:].cumsum()
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            samples = np.where(per_sample > 0, np.floor(free / per_sample), np.inf)
            share = np.full(num_layers - first, batch)
            share[-1] /= _pieces(problem, first, num_layers - 1)
            pods = np.maximum(np.ceil(share / samples), 1.0)
        result[first, first:] = np.where((free >= 0) & (samples >= 1), pods, np.inf)
    return result


def needed_bytes(problem: Problem, first: int, last: int, pods: float) -> float:
    """Return the bytes per pod that a segment needs on a number of pods; with infinitely many, one sample each."""
    layers = problem.layers[first : last + 1]
    share = max(np.ceil(problem.training_batch_size / _pieces(problem, first, last) / pods), 1.0)
    return float(sum(layer.resident_bytes for layer in layers) + share * sum(x.activation_bytes for x in layers))
