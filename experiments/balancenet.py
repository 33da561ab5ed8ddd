"""BalanceNet's second rule for batch sizes, exactly as published: equations 1, 2, 4 and 5.

[BNO] Sun, Ngo, Huh, "BalanceNet Orchestrator: A KQV-based dynamic task allocation for distributed deep learning", 2024.
For comparison only: jobs use its Algorithm 1 (`heterps_planner.balancing.balancenet`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

__all__ = ["equation_5"]


def equation_5(
    operations: Sequence[float],
    memory_used: Sequence[float],
    latency: Sequence[Sequence[float]],
    base_batch_size: int,
) -> list[int]:
    """Return the batch size of every node.

    As in `algorithm_1`, but with sum_j NCW_ij in place of NCW_i, NCW_ij = 1 - NL_ij / max_k NL_ik. The sum has N terms
    where K_i and MW_i are at most 1, so that a single node can get almost N / 3 times B. The arithmetic is exact, so
    that the paper's floor is the only rounding.

    Args:
        operations: OPS_i, operations per second.
        memory_used: MU_i, in any unit.
        latency: NL_ij from node i to node j; the diagonal, a node's latency to itself, is summed like the rest.
        base_batch_size: B, samples.

    Raises:
        ZeroDivisionError: a sum or a largest latency that the rule divides by is 0.
    """
    speeds, memory = [Fraction(one) for one in operations], [Fraction(one) for one in memory_used]
    all_speeds, all_memory = sum(speeds), sum(memory)
    sizes = []
    for speed, used, row in zip(speeds, memory, latency, strict=True):
        late = [Fraction(one) for one in row]
        network = len(speeds) - sum(late) / max(late)
        weights = speed / all_speeds + 1 - used / all_memory + network
        sizes.append(max(math.floor(base_batch_size * weights / 3), 1))
    return sizes
