"""BalanceNet's equation 5 as printed: it gives more than Algorithm 1, and does not conserve the global batch either."""

from __future__ import annotations

import pytest
from experiments.balancenet import equation_5

B = 256


def alike(n: int) -> list[float]:
    return [1.0] * n


@pytest.mark.parametrize("n", [2, 4, 8, 16, 64])
def test_equation_5_gives_identical_nodes_twice_what_algorithm_1_gives(n: int) -> None:
    latency = [[float(i != j) for j in range(n)] for i in range(n)]
    sizes = equation_5(alike(n), alike(n), latency, B)
    assert sizes == [170] * n
    if n == 64:
        assert sum(sizes) / B == 42.5


def test_equation_5_gives_a_node_that_is_near_to_all_but_one_many_times_the_batch() -> None:
    n = 30
    latency = [[float(i != j) for j in range(n)] for i in range(n)]
    latency[0] = [0.0] * (n - 1) + [1.0]
    assert equation_5(alike(n), alike(n), latency, B)[0] == n * B // 3


def test_equation_5_weighs_speed_and_memory_as_algorithm_1_does() -> None:
    # K .75 .25, MW .6 .4, NCW 1 + 0 and 0 + .5
    assert equation_5([3.0, 1.0], [4.0, 6.0], [[0.0, 2.0], [1.0, 0.5]], B) == [200, 98]
