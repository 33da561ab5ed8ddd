import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from scipy import stats

from heterps_runtime.store.initial import (
    EmbeddingInit,
    TableDraws,
    TableSpec,
    _central_quantile,
    _log,
    _tail_quantile,
    initial_rows,
)

UNIFORM = EmbeddingInit("uniform", low=-0.25, high=0.5)


GOLDEN_NORMAL = [
    ["0x1.07afd88b32d7dp-1", "0x1.1b9c6738415a6p-1", "0x1.40efd2cd1e515p-2"],
    ["-0x1.c12600866e297p-3", "-0x1.0798b4de227e0p+0", "0x1.48123249fa9b1p+0"],
    ["-0x1.68412f576c377p+0", "-0x1.173281b151297p+0", "0x1.047c97bf922bap-5"],
]
GOLDEN_UNIFORM = [["0x1.1716562c238a2p-2", "0x1.216c361922ef2p-2"], ["0x1.eab9acc065060p-5", "-0x1.172bb3cc363f5p-3"]]


def test_initial_values_never_change() -> None:
    # A checkpoint holds trained rows only: all others are these numbers, also in later versions.
    rows = initial_rows(17, "net.embedding.weight", np.array([0, 1, 2**48 - 1]), 3, np.float64)
    assert [[x.hex() for x in row] for row in rows.tolist()] == GOLDEN_NORMAL
    rows = initial_rows(17, "net.embedding.weight", np.array([0, 1]), 2, np.float64, UNIFORM)
    assert [[x.hex() for x in row] for row in rows.tolist()] == GOLDEN_UNIFORM


def test_another_process_draws_the_same_values() -> None:
    program = (
        "import numpy as np; from heterps_runtime.store.initial import initial_rows;"
        "print(initial_rows(3, 'table', np.arange(5), 4).tobytes().hex())"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == initial_rows(3, "table", np.arange(5), 4).tobytes().hex()


def test_values_do_not_depend_on_the_batch_they_are_drawn_in() -> None:
    ids = np.array([7, 3, 7, 2**40, 0])
    together = initial_rows(1, "t", ids, 5)
    alone = np.concatenate([initial_rows(1, "t", ids[i : i + 1], 5) for i in range(len(ids))])
    np.testing.assert_array_equal(together, alone)


def test_single_precision_is_the_rounded_double_precision_draw() -> None:
    ids = np.arange(1000)
    for init in (EmbeddingInit(), UNIFORM):
        double = initial_rows(1, "t", ids, 8, np.float64, init)
        np.testing.assert_array_equal(initial_rows(1, "t", ids, 8, np.float32, init), double.astype(np.float32))


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (-2.0, 0.01)])
def test_normal_draws_follow_the_normal_distribution(mean: float, std: float) -> None:
    draws = initial_rows(0, "t", np.arange(50_000), 16, np.float64, EmbeddingInit("normal", mean, std)).ravel()
    standard = (draws - mean) / std
    n = len(draws)
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):  # moments of N(0, 1)
        assert abs((standard**power).mean() - expected) < 4 * np.sqrt(variance / n)
    assert stats.kstest(standard, "norm").pvalue > 1e-3
    assert 4.5 < np.abs(standard).max() < 6  # the tails are there too: 800,000 draws reach 5


def test_uniform_draws_fill_their_interval_evenly() -> None:
    draws = initial_rows(0, "t", np.arange(20_000), 16, np.float64, UNIFORM).ravel()
    assert draws.min() >= -0.25
    assert draws.max() <= 0.5
    assert stats.kstest(draws, "uniform", (-0.25, 0.75)).pvalue > 1e-3


@pytest.mark.parametrize("seeds_and_names", [((0, "a"), (0, "b")), ((0, "a"), (1, "a")), ((1, "2"), (12, ""))])
def test_tables_and_seeds_are_independent(seeds_and_names: tuple[tuple[int, str], tuple[int, str]]) -> None:
    first, second = (initial_rows(seed, name, np.arange(20_000), 4, np.float64) for seed, name in seeds_and_names)
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 4 / np.sqrt(first.size)


def test_neighbouring_ids_and_columns_are_independent() -> None:
    draws = initial_rows(0, "t", np.arange(50_000), 8, np.float64)
    for x, y in (
        (draws[:-1], draws[1:]),  # next id
        (draws[:, :-1], draws[:, 1:]),  # next column
        (draws[:-1, 1:], draws[1:, :-1]),  # along the diagonals
        (draws[1:, 1:], draws[:-1, :-1]),
        (draws[:-1024], draws[1024:]),
    ):
        for f in (lambda v: v, np.abs):
            assert abs(np.corrcoef(f(x).ravel(), f(y).ravel())[0, 1]) < 4 / np.sqrt(x.size)
    columns = np.corrcoef(draws.T) - np.eye(8)
    assert np.abs(columns).max() < 4.5 / np.sqrt(len(draws))


def test_zeros_and_the_padding_row_are_zero() -> None:
    assert not initial_rows(0, "t", np.arange(9), 4, init=EmbeddingInit("zeros")).any()
    rows = initial_rows(0, "t", np.arange(4), 4, padding_idx=2)
    assert rows.any(axis=1).tolist() == [True, True, False, True]
    assert TableDraws.of(0, {0: TableSpec("t", 10, padding_idx=-1)}).limits[0, 2] == 9


def test_the_normal_quantile_is_accurate_to_its_published_error() -> None:
    q = np.concatenate([np.linspace(-0.4999, 0.0, 20_002), 10.0 ** -np.arange(1, 16) - 0.5])
    expected = stats.norm.ppf(q + 0.5)
    quantile = [_tail_quantile if x < -0.425 else _central_quantile for x in q]
    np.testing.assert_allclose([f(x) for f, x in zip(quantile, q, strict=True)], expected, rtol=3e-7, atol=1e-15)
    np.testing.assert_allclose([f(-x) for f, x in zip(quantile, q, strict=True)], -expected, rtol=3e-7, atol=1e-15)
    x = 10.0 ** np.linspace(-17, -1e-3, 5_000)
    np.testing.assert_allclose([_log(v) for v in x], np.log(x), rtol=2e-15)


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (None, EmbeddingInit()),
        ({"distribution": "zeros"}, EmbeddingInit("zeros")),
        ({"distribution": "uniform", "low": "-0.25", "high": "0.5"}, UNIFORM),
        ({"std": "0.01"}, EmbeddingInit("normal", 0.0, 0.01)),
    ],
)
def test_the_manifest_names_the_distribution(manifest: Any, expected: EmbeddingInit) -> None:
    assert EmbeddingInit.from_manifest(manifest) == expected


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"distribution": "gauss"}, r"embeddingInit.distribution: 'gauss' is unknown, use one of zeros, normal"),
        ({"distribution": "uniform", "std": "1"}, r"embeddingInit.std: 'uniform' has no such option, it has low, high"),
        ({"distribution": "zeros", "mean": "1"}, r"embeddingInit.mean: 'zeros' has no such option$"),
        ({"std": "wide"}, r"embeddingInit.std: 'wide' is not a number"),
        ({"distribution": "gauss", "sigma": "1"}, r"embeddingInit.distribution: 'gauss' is unknown"),
        ({"std": 10**400}, r"embeddingInit.std: 1000+ is not a number"),
        ({"std": "-1"}, r"embeddingInit.std: must be >= 0, is -1.0"),
        ({"mean": "nan"}, r"embeddingInit.mean: must be finite, is nan"),
        ({"distribution": "uniform", "low": "2"}, r"embeddingInit.low: must be <= high"),
    ],
)
def test_a_wrong_distribution_is_refused_by_name(manifest: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EmbeddingInit.from_manifest(manifest)


def test_ids_and_tables_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"ids\[1\]: must be in 0 .. 2\*\*48 - 1, is -1"):
        initial_rows(0, "t", np.array([0, -1]), 2)
    with pytest.raises(ValueError, match="table 't': num_embeddings must be in"):
        TableSpec("t", 2**48 + 1)
    with pytest.raises(ValueError, match="tables: numbers must be in"):
        TableDraws.of(0, {2**15: TableSpec("t", 1)})
