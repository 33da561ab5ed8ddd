"""The batch sizes of BalanceNet, exactly as published.

[BNO] Sun, Ngo, Huh, "BalanceNet Orchestrator: A KQV-based dynamic task allocation for distributed deep learning", 2024.
The paper gives two different versions of its rule: Algorithm 1 has one latency per node, equation 5 sums over all
pairs. Neither keeps the global batch. Whole numbers are used throughout, so that the paper's floor is the only
rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from heterps_planner.errors import ProblemError

__all__ = ["algorithm_1", "equation_5"]


def algorithm_1(
    operations: Sequence[float], memory_used: Sequence[float], latency: Sequence[float], base_batch_size: int
) -> list[int]:
    """Return the batch size of every node by Algorithm 1 of [BNO], lines 6 to 10.

    BS_i = max(floor((K_i + MW_i + NCW_i) / 3 * B), 1), K_i = OPS_i / sum OPS, MW_i = 1 - MU_i / sum MU,
    NCW_i = 1 - NL_i / max NL.

    The K_i add up to 1 and the MW_i to N - 1, so that before rounding down sum BS_i = B (N + sum NCW_i) / 3: anything
    from N / 3 to (2 N - 1) / 3 times B, and B itself only by accident. The rule does not conserve the global batch.

    Args:
        operations: OPS_i, operations per second.
        memory_used: MU_i, in any unit.
        latency: NL_i, in any unit.
        base_batch_size: B, samples.

    Raises:
        ProblemError: a number is negative, or a sum that the rule divides by is 0.
    """
    speeds, memory = _compute_and_memory(operations, memory_used, base_batch_size)
    latencies = _whole("networkLatency", latency, len(speeds))
    return _sizes(speeds, memory, [(1, *one) for one in _with_largest("networkLatency", latencies)], base_batch_size)


def equation_5(
    operations: Sequence[float],
    memory_used: Sequence[float],
    latency: Sequence[Sequence[float]],
    base_batch_size: int,
) -> list[int]:
    """Return the batch size of every node by equations 1, 2, 4 and 5 of [BNO].

    As in `algorithm_1`, but with sum_j NCW_ij in place of NCW_i, NCW_ij = 1 - NL_ij / max_k NL_ik. The sum has N terms
    where K_i and MW_i are at most 1, so that a single node can get almost N / 3 times B.

    Args:
        operations: OPS_i, operations per second.
        memory_used: MU_i, in any unit.
        latency: NL_ij from node i to node j; the diagonal, a node's latency to itself, is summed like the rest.
        base_batch_size: B, samples.

    Raises:
        ProblemError: a number is negative, or a sum that the rule divides by is 0.
    """
    speeds, memory = _compute_and_memory(operations, memory_used, base_batch_size)
    count = len(speeds)
    if len(latency) != count:
        raise ProblemError("balancing.networkLatency", f"needs {count} rows, has {len(latency)}")
    network = []
    for i, row in enumerate(latency):
        latencies = _with_largest(f"networkLatency[{i}]", _whole(f"networkLatency[{i}]", row, count))
        network.append((count, sum(one for one, _ in latencies), latencies[0][1]))
    return _sizes(speeds, memory, network, base_batch_size)


def _compute_and_memory(
    operations: Sequence[float], memory_used: Sequence[float], base_batch_size: int
) -> tuple[list[int], list[int]]:
    """Return speeds and memory as whole numbers."""
    if base_batch_size < 1:
        raise ProblemError("balancing.globalBatchSize", f"must be >= 1, is {base_batch_size}")
    if not operations:
        raise ProblemError("balancing.workers", "must not be empty")
    speeds = _whole("operations", operations, len(operations))
    memory = _whole("memoryUsed", memory_used, len(operations))
    for name, values in (("operations", speeds), ("memoryUsed", memory)):
        if sum(values) == 0:
            raise ProblemError(f"balancing.{name}", "the sum must be > 0, is 0")
    return speeds, memory


def _whole(name: str, values: Sequence[float], count: int) -> list[int]:
    """Check one number >= 0 per node, and scale all of them by a power of two that makes them whole."""
    if len(values) != count:
        raise ProblemError(f"balancing.{name}", f"needs {count} numbers, has {len(values)}")
    for i, value in enumerate(values):
        if not math.isfinite(value) or value < 0:
            raise ProblemError(f"balancing.{name}[{i}]", f"must be finite and >= 0, is {value!r}")
    ratios = [float(value).as_integer_ratio() for value in values]
    scale = max(denominator for _, denominator in ratios)  # denominators are powers of two
    return [numerator * (scale // denominator) for numerator, denominator in ratios]


def _with_largest(name: str, latencies: list[int]) -> list[tuple[int, int]]:
    """Return each latency with its divisor."""
    slowest = max(latencies)
    if slowest == 0:
        raise ProblemError(f"balancing.{name}", "the largest must be > 0, is 0")
    return [(one, slowest) for one in latencies]


def _sizes(
    speeds: list[int], memory: list[int], network: list[tuple[int, int, int]], base_batch_size: int
) -> list[int]:
    """Return max(floor(B / 3 (K + MW + NCW)), 1), where NCW of (n, a, b) is n - a / b, over the common denominator."""
    all_speeds, all_memory = sum(speeds), sum(memory)
    sizes = []
    for speed, used, (whole, part, slowest) in zip(speeds, memory, network, strict=True):
        over = all_speeds * all_memory * slowest
        weights = speed * all_memory * slowest + (1 + whole) * over
        weights -= used * all_speeds * slowest + part * all_speeds * all_memory
        sizes.append(max(base_batch_size * weights // (3 * over), 1))
    return sizes
