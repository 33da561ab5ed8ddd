"""The batch sizes of BalanceNet, exactly as published.

[BNO] Sun, Ngo, Huh, "BalanceNet Orchestrator: A KQV-based dynamic task allocation for distributed deep learning", 2024.
The paper gives two different versions of its rule: Algorithm 1 has one latency per node, equation 5 sums over all
pairs. Neither keeps the global batch; jobs use the first. Whole numbers are used throughout, so that the paper's floor
is the only rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from heterps_planner.errors import ProblemError

__all__ = ["algorithm_1"]


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
    if base_batch_size < 1:
        raise ProblemError("balancing.globalBatchSize", f"must be >= 1, is {base_batch_size}")
    if not operations:
        raise ProblemError("balancing.workers", "must not be empty")
    count = len(operations)
    speeds = _whole("operations", operations, count)
    memory = _whole("memoryUsed", memory_used, count)
    latencies = _whole("networkLatency", latency, count)
    all_speeds, all_memory, slowest = sum(speeds), sum(memory), max(latencies)
    for name, what, value in (
        ("operations", "sum", all_speeds),
        ("memoryUsed", "sum", all_memory),
        ("networkLatency", "largest", slowest),
    ):
        if value == 0:
            raise ProblemError(f"balancing.{name}", f"the {what} must be > 0, is 0")
    common = all_speeds * all_memory * slowest  # denominator of all weights
    sizes = []
    for speed, used, late in zip(speeds, memory, latencies, strict=True):
        weights = speed * all_memory * slowest - used * all_speeds * slowest - late * all_speeds * all_memory
        sizes.append(max(base_batch_size * (weights + 2 * common) // (3 * common), 1))
    return sizes


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
