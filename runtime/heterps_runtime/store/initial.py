"""Initial values of embedding rows, a pure function of (seed, table name, id).

A row is created at its first update, on any shard; before that, a pull computes its values without storing them. Values
must therefore not depend on order, shards or machine. Draws come from a counter: splitmix64, started at a hash of seed,
table and id. Normal draws use inversion with additions, multiplications, divisions and square roots only, which IEEE
754 defines to the last bit; a library's log or cos may differ. Draws are float64; float32 rows are these draws,
rounded.

.. [Wichura1988] M. J. Wichura, "Algorithm AS 241: The Percentage Points of the Normal Distribution",
   Applied Statistics 37(3), 1988. Here routine PPND7, relative error about 1e-7.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from heterps_runtime.partition.access import NO_RULES, TableRules
from heterps_runtime.partition.splitmix import GOLDEN
from heterps_runtime.store.kernel import AnyFloats, Int32s, Int64s, kernel, mix64, view

__all__ = ["EmbeddingInit", "TableDraws", "TableSpec", "draw_rows", "first_foreign", "initial_rows"]

ID_BITS = 48  # a row's key is (table << ID_BITS) | id
MAX_TABLES = 1 << 15

_ZEROS, _NORMAL, _UNIFORM = 0, 1, 2
_DISTRIBUTIONS = {"zeros": _ZEROS, "normal": _NORMAL, "uniform": _UNIFORM}
_OPTIONS = {"zeros": (), "normal": ("mean", "std"), "uniform": ("low", "high")}

_ID_FACTOR = np.uint64(0xD1342543DE82EF95)  # another odd constant, so that ids and columns use different sequences
_U12 = np.uint64(12)
_ULP52 = 2.0**-52
_CENTRE = 0.425  # |q| up to which the central formula holds
_LN2 = 0.6931471805599453
_ID_MASK = np.int64((1 << ID_BITS) - 1)


@dataclass(frozen=True)
class EmbeddingInit:
    """Distribution of a table's initial values (`model.embeddingInit`); the default is that of nn.Embedding.

    Raises:
        ValueError: the distribution is unknown, or a parameter is out of range.
    """

    distribution: str = "normal"  # normal | uniform | zeros
    mean: float = 0.0
    std: float = 1.0
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.distribution not in _DISTRIBUTIONS:
            raise ValueError(
                f"embeddingInit.distribution: {self.distribution!r} is unknown, use one of {', '.join(_DISTRIBUTIONS)}"
            )
        for name in ("mean", "std", "low", "high"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"embeddingInit.{name}: must be finite, is {getattr(self, name)}")
        if self.std < 0:
            raise ValueError(f"embeddingInit.std: must be >= 0, is {self.std}")
        if self.low > self.high:
            raise ValueError(f"embeddingInit.low: must be <= high ({self.high}), is {self.low}")

    @classmethod
    def from_manifest(cls, value: Mapping[str, Any] | None) -> EmbeddingInit:
        """Read `model.embeddingInit`; numbers may be decimal strings, None is the default.

        Raises:
            ValueError: the distribution has no such option, or a value is not a number.
        """
        options = dict(value or {})
        distribution = str(options.pop("distribution", "normal"))
        if distribution not in _OPTIONS:
            return cls(distribution)  # which is refused
        known = _OPTIONS[distribution]
        numbers: dict[str, float] = {}
        for name, text in options.items():
            if name not in known:
                raise ValueError(
                    f"embeddingInit.{name}: {distribution!r} has no such option"
                    + (f", it has {', '.join(known)}" if known else "")
                )
            try:
                numbers[name] = float(text)
            except (OverflowError, TypeError, ValueError):
                raise ValueError(f"embeddingInit.{name}: {text!r} is not a number") from None
        return cls(distribution, **numbers)

    def code(self) -> tuple[int, float, float]:
        """The distribution as (kind, offset, factor): value = offset + factor * standard draw."""
        kind = _DISTRIBUTIONS[self.distribution]
        if kind == _NORMAL:
            return kind, self.mean, self.std
        if kind == _UNIFORM:
            return kind, self.low, self.high - self.low
        return kind, 0.0, 0.0


@dataclass(frozen=True)
class TableSpec:
    """What the initial values of a table's rows depend on, and when its ids have rows."""

    name: str  # qualified name of the parameter; part of the seed, so it must not change between runs
    num_embeddings: int  # ids are 0 .. num_embeddings - 1
    init: EmbeddingInit = EmbeddingInit()
    padding_idx: int | None = None  # this row starts at zero, as in nn.Embedding
    rules: TableRules = NO_RULES

    def __post_init__(self) -> None:
        if not 0 < self.num_embeddings <= 1 << ID_BITS:
            raise ValueError(
                f"table {self.name!r}: num_embeddings must be in 1 .. 2**{ID_BITS}, is {self.num_embeddings}"
            )


class TableDraws(NamedTuple):
    """Tables as arrays for kernels, indexed by table number (T = highest number + 1)."""

    limits: Int64s  # (T, 3): number of ids (0: no such table), kind of distribution, padding id or -1
    streams: NDArray[np.uint64]  # (T,): where the table's random numbers start
    scales: NDArray[np.float64]  # (T, 2): offset and factor of the distribution

    @classmethod
    def of(cls, seed: int, tables: Mapping[int, TableSpec]) -> TableDraws:
        """Prepare `tables` (by number) for `draw_rows`.

        Raises:
            ValueError: a table number is not in 0 .. 2**15 - 1.
        """
        size = max(tables, default=-1) + 1
        if size > MAX_TABLES or any(number < 0 for number in tables):
            raise ValueError(f"tables: numbers must be in 0 .. {MAX_TABLES - 1}, are {sorted(tables)}")
        draws = cls(np.zeros((size, 3), np.int64), np.zeros(size, np.uint64), np.zeros((size, 2)))
        for number, spec in tables.items():
            kind, offset, factor = spec.init.code()
            padding = -1 if spec.padding_idx is None else spec.padding_idx % spec.num_embeddings
            draws.limits[number] = spec.num_embeddings, kind, padding
            draws.streams[number] = _stream(seed, spec.name)
            draws.scales[number] = offset, factor
        return draws


def initial_rows(
    seed: int,
    table_name: str,
    ids: NDArray[np.int64],
    dim: int,
    dtype: DTypeLike = np.float32,
    init: EmbeddingInit | None = None,
    padding_idx: int | None = None,
) -> NDArray[Any]:
    """Initial values (n, dim) of the rows `ids` (n,) of a table; `padding_idx` must not be negative."""
    spec = TableSpec(table_name, 1 << ID_BITS, init or EmbeddingInit(), padding_idx)
    keys = view(ids, np.int64)
    out = np.empty((len(keys), dim), dtype)
    bad = draw_rows(keys, np.arange(len(keys), dtype=np.int32), *TableDraws.of(seed, {0: spec}), out)
    if bad >= 0:
        raise ValueError(f"ids[{bad}]: must be in 0 .. 2**{ID_BITS} - 1, is {keys[bad]}")
    return out


def _stream(seed: int, table_name: str) -> int:
    """64 bits from seed and name, by blake2b: Python's own hash differs between processes."""
    text = f"{seed}\0{table_name}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


@kernel
def first_foreign(keys: Int64s, limits: Int64s) -> int:
    """The position of the first of `keys` (n,) that belongs to no table, or -1; `limits` as in `TableDraws`."""
    for i in range(keys.size):
        table, row_id = keys[i] >> ID_BITS, keys[i] & _ID_MASK
        if table < 0 or table >= limits.shape[0] or row_id >= limits[table, 0]:
            return i
    return -1


@kernel
def draw_rows(
    keys: Int64s,
    positions: Int32s,
    limits: Int64s,
    streams: NDArray[np.uint64],
    scales: NDArray[np.float64],
    out: AnyFloats,
) -> int:
    """Fill out[p] with the initial row of keys[p], for each p in `positions`.

    Returns:
        -1, or the first position whose key belongs to no table; later rows are then not filled.
    """
    dim = out.shape[1]
    draws = np.empty(dim, np.float64)
    for i in range(positions.size):
        p = positions[i]
        table, row_id = keys[p] >> ID_BITS, keys[p] & _ID_MASK
        if table < 0 or table >= limits.shape[0] or row_id >= limits[table, 0]:
            return int(p)
        kind, offset, factor = limits[table, 1], scales[table, 0], scales[table, 1]
        counter = mix64(streams[table] + np.uint64(row_id) * _ID_FACTOR)
        if row_id == limits[table, 2]:
            kind = _ZEROS
        # Separate loops: the first two compile to vector instructions.
        for j in range(dim):
            # Centres of 2**52 equal cells of (-1/2, 1/2): symmetric, without the ends.
            bits = mix64(counter + np.uint64(j + 1) * GOLDEN) >> _U12
            draws[j] = (np.float64(np.int64(bits)) + 0.5) * _ULP52 - 0.5
        if kind == _NORMAL:
            for j in range(dim):
                out[p, j] = offset + factor * _central_quantile(draws[j])
            for j in range(dim):
                if abs(draws[j]) > _CENTRE:
                    out[p, j] = offset + factor * _tail_quantile(draws[j])
        elif kind == _UNIFORM:
            for j in range(dim):
                out[p, j] = offset + factor * (draws[j] + 0.5)
        else:
            for j in range(dim):
                out[p, j] = 0.0
    return -1


@kernel
def _central_quantile(q: float) -> float:
    """Standard normal quantile of q + 1/2 for |q| <= 0.425: routine PPND7 of [Wichura1988]_."""
    r = 0.180625 - q * q
    top = ((5.9109374720e01 * r + 1.5929113202e02) * r + 5.0434271938e01) * r + 3.3871327179e00
    return q * top / (((6.7187563600e01 * r + 7.8757757664e01) * r + 1.7895169469e01) * r + 1.0)


@kernel
def _tail_quantile(q: float) -> float:
    """The same for 0.425 < |q| < 1/2."""
    r = math.sqrt(-_log(0.5 - abs(q)))
    if r <= 5.0:
        r -= 1.6
        z = (((1.7023821103e-01 * r + 1.3067284816e00) * r + 2.7568153900e00) * r + 1.4234372777e00) / (
            (1.2021132975e-01 * r + 7.3700164250e-01) * r + 1.0
        )
    else:
        r -= 5.0
        z = (((1.7337203997e-02 * r + 4.2868294337e-01) * r + 3.0812263860e00) * r + 6.6579051150e00) / (
            (1.2258202635e-02 * r + 2.4197894225e-01) * r + 1.0
        )
    return z if q > 0.0 else -z


@kernel
def _log(x: float) -> float:
    """Natural logarithm for 0 < x < 1 by log m = 2 artanh((m - 1) / (m + 1)), about 1e-15 relative."""
    mantissa, exponent = math.frexp(x)  # 1/2 <= mantissa < 1
    if mantissa < 0.7071067811865476:
        mantissa, exponent = mantissa * 2.0, exponent - 1
    s = (mantissa - 1.0) / (mantissa + 1.0)  # |s| <= 0.172, so the tenth term is below 1e-16
    t = s * s
    series = t * (1 / 15 + t * (1 / 17 + t / 19))
    series = t * (1 / 7 + t * (1 / 9 + t * (1 / 11 + t * (1 / 13 + series))))
    return exponent * _LN2 + 2.0 * s * (1.0 + t * (1 / 3 + t * (1 / 5 + series)))
