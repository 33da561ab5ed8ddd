"""Write a synthetic click log of any length: `python examples/paper/prepare.py --rows N`.

Each of the fields, by default 26, has its own vocabulary, log-uniform between 4 and 280,000 values for a million ids,
and draws ids by a bounded Zipf law: a few ids make up most accesses, as in real logs. Ids are unique across fields, so
one table can hold them all. A hidden teacher gives each row its chance of a click: a weight per id, low-rank
interactions between all pairs of fields, the numbers, and a bias. The label is drawn from that chance. Held-out rows
therefore show any loss of quality, and the best possible result is known: the AUC of `chances`.

Rows are drawn in chunks, each with its own seed. Memory does not grow with the log, and a short log is a prefix of a
longer one with the same seed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

__all__ = ["FIELDS", "LABEL", "NUMBERS", "Chunk", "ClickLog", "ClickLogSpec", "field_names", "write_click_log"]


def field_names(count: int) -> tuple[str, ...]:
    """Names of the columns of `count` fields."""
    return tuple(f"c{i}" for i in range(count))


FIELDS = field_names(26)
NUMBERS = tuple(f"x{i}" for i in range(13))
LABEL = "click"

DATA = Path(__file__).parent / "data"  # where the jobs of this example look for it
CHUNK_ROWS = 65_536
_ROWS_PER_FILE = 16 * CHUNK_ROWS
_RANK = 4  # of the interactions
# These make about 30 % of the rows clicks and let the best model reach an AUC of about 0.90.
_WEIGHT_STD = 0.35  # of the ids' weights
_FACTOR_STD = 0.2  # of the interactions' factors
_NUMBER_STD = 0.3  # of the numbers' weights
_BIAS = -1.6
# Vocabulary sizes are drawn log-uniformly in this range, and then scaled to make `ids` in all.
_SMALLEST_FIELD, _LARGEST_FIELD = 4, 280_000
_MARKER = "prepared.json"


@dataclass(frozen=True)
class ClickLogSpec:
    """What a log is like; equal specs give equal logs."""

    seed: int = 0
    ids: int = 1_000_000  # of all fields together
    fields: int = len(FIELDS)
    zipf: float = 1.05  # exponent of the ids' law; larger is more skewed
    drift: float = 0.0  # part of each vocabulary by which the popular ids move on within a million rows

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ValueError: a field is out of range; the message names it.
        """
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, is {self.seed}")
        if self.fields < 1:
            raise ValueError(f"fields must be at least 1, is {self.fields}")
        least = _SMALLEST_FIELD * self.fields
        if self.ids < least:
            raise ValueError(f"ids must be at least {least} ({_SMALLEST_FIELD} for each field), is {self.ids}")
        if not 0 < self.zipf <= 4 or self.zipf == 1:
            raise ValueError(f"zipf must be above 0, at most 4, and not 1 (take 1.001), is {self.zipf:g}")
        if not 0 <= self.drift <= 1:
            raise ValueError(f"drift must be 0..1, is {self.drift:g}")


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a log."""

    ids: NDArray[np.int64]  # (n, fields)
    numbers: NDArray[np.float32]  # (n, 13)
    chances: NDArray[np.float32]  # (n,), the teacher's
    clicks: NDArray[np.int8]  # (n,), drawn from the chances

    def rows(self, start: int, stop: int) -> Chunk:
        """Some of the rows."""
        part = slice(start, stop)
        return Chunk(self.ids[part], self.numbers[part], self.chances[part], self.clicks[part])

    def table(self) -> Any:
        """The rows as a pyarrow Table; the chances are not in it."""
        fields = field_names(self.ids.shape[1])
        columns: dict[str, NDArray[Any]] = {name: self.ids[:, j] for j, name in enumerate(fields)}
        columns |= {name: self.numbers[:, j] for j, name in enumerate(NUMBERS)}
        return pa.table(columns | {LABEL: self.clicks}, schema=_schema(fields))


class ClickLog:
    """An endless log.

    Attributes:
        sizes: of the fields' vocabularies, int64 (fields,).
    """

    def __init__(self, spec: ClickLogSpec) -> None:
        self.spec = spec
        random = np.random.default_rng([spec.seed, 0])
        self.sizes = _vocabularies(random, spec.ids, spec.fields)
        self._begins = np.cumsum(self.sizes) - self.sizes
        share = (len(FIELDS) / spec.fields) ** 0.5  # more fields say no more of a click together
        self._weights = random.normal(0, _WEIGHT_STD * share, spec.ids).astype(np.float32)
        self._factors = random.normal(0, _FACTOR_STD * share, (spec.ids, _RANK)).astype(np.float32)
        self._number_weights = random.normal(0, _NUMBER_STD, len(NUMBERS)).astype(np.float32)
        # Which id has which rank: without it the popular ids would be the small ones.
        self._by_rank = [random.permutation(size) for size in self.sizes]

    def chunk(self, index: int) -> Chunk:
        """Rows `index * CHUNK_ROWS` and on, `CHUNK_ROWS` of them."""
        random = np.random.default_rng([self.spec.seed, 1, index])
        n = CHUNK_ROWS
        ids = np.empty((n, self.spec.fields), np.int64)
        score = np.full(n, _BIAS, np.float32)
        total, squares = np.zeros((n, _RANK), np.float32), np.zeros(n, np.float32)
        moved = self.spec.drift * index * CHUNK_ROWS / 1e6
        for j, (size, begin, by_rank) in enumerate(zip(self.sizes, self._begins, self._by_rank, strict=True)):
            ranks = _zipf_ranks(random, int(size), self.spec.zipf, n)
            ids[:, j] = begin + by_rank[(ranks + int(moved * size)) % size]
            factors = self._factors[ids[:, j]]
            score += self._weights[ids[:, j]]
            total += factors
            squares += (factors**2).sum(axis=1)
        score += ((total**2).sum(axis=1) - squares) * 0.5  # all pairs of fields, as in a factorisation machine
        numbers = random.standard_normal((n, len(NUMBERS)), dtype=np.float32)
        score += numbers @ self._number_weights
        chances = (1 / (1 + np.exp(-score))).astype(np.float32)
        return Chunk(ids, numbers, chances, (random.random(n, dtype=np.float32) < chances).astype(np.int8))

    def chunks(self, rows: int, first_row: int = 0) -> Iterator[Chunk]:
        """Rows `first_row` to `first_row + rows` in pieces of at most `CHUNK_ROWS`."""
        stop = first_row + rows
        for index in range(first_row // CHUNK_ROWS, -(-stop // CHUNK_ROWS)):
            begin = index * CHUNK_ROWS
            yield self.chunk(index).rows(max(first_row - begin, 0), min(stop - begin, CHUNK_ROWS))


def write_click_log(
    folder: Path,
    spec: ClickLogSpec,
    rows: int,
    held_out: int = 0,
    *,
    row_group_rows: int = CHUNK_ROWS,
    progress: bool = False,
) -> Path:
    """Write `train/` and `held-out/` as parquet, unless this very log is there already.

    Args:
        folder: for the two folders and a note of what they hold, written last.
        spec: of the log.
        rows: of `train/`.
        held_out: rows of `held-out/`, those that follow in the log; 0: there is no such folder.
        row_group_rows: rows of a row group.
        progress: show it on stderr.

    Returns:
        The folder.

    Raises:
        ValueError: a number is out of range, or the folder holds something else.
        OSError: it cannot be written.
    """
    if rows < 1:
        raise ValueError(f"rows must be at least 1, is {rows}")
    if held_out < 0:
        raise ValueError(f"held-out must be at least 0, is {held_out}")
    recipe = {**asdict(spec), "rows": rows, "heldOut": held_out}
    if row_group_rows != CHUNK_ROWS:
        recipe["rowGroupRows"] = row_group_rows
    if _holds(folder, recipe):
        return folder
    log, done = ClickLog(spec), 0
    for name, first, count in (("train", 0, rows), ("held-out", rows, held_out)):
        shutil.rmtree(folder / name, ignore_errors=True)
        if not count:
            continue
        (folder / name).mkdir(parents=True)
        chunks = log.chunks(count, first)
        for part in range(-(-count // _ROWS_PER_FILE)):
            path = folder / name / f"part-{part:05}.parquet"
            with pq.ParquetWriter(path, _schema(field_names(spec.fields)), compression="zstd") as writer:
                for chunk in itertools.islice(chunks, _ROWS_PER_FILE // CHUNK_ROWS):
                    writer.write_table(chunk.table(), row_group_rows)
                    done += len(chunk.clicks)
                    if progress:
                        sys.stderr.write(f"\r{done:,} of {rows + held_out:,} rows")
                        sys.stderr.flush()
    if progress:
        sys.stderr.write("\n")
    (folder / _MARKER).write_text(json.dumps(recipe), encoding="utf-8")
    return folder


def _holds(folder: Path, recipe: dict[str, Any]) -> bool:
    """Whether the folder holds this log already. Makes it ready to be written if not."""
    marker = folder / _MARKER
    if marker.is_file():
        if json.loads(marker.read_text(encoding="utf-8")) == recipe:
            return True
        marker.unlink()  # without it the folder counts as unfinished
    elif folder.is_dir() and any(p.name not in ("train", "held-out") for p in folder.iterdir()):
        raise ValueError(f"out: {folder} holds other files; name a new or empty folder")
    return False


def _schema(fields: Sequence[str]) -> Any:
    """The pyarrow Schema of a log with these fields."""
    numbers = ((n, pa.float32()) for n in NUMBERS)
    return pa.schema([*((n, pa.int64()) for n in fields), *numbers, (LABEL, pa.int8())])


def _vocabularies(random: np.random.Generator, ids: int, fields: int) -> NDArray[np.int64]:
    """Sizes of the fields' vocabularies, int64 (fields,), `ids` in all."""
    raw = np.exp(random.uniform(np.log(_SMALLEST_FIELD), np.log(_LARGEST_FIELD), fields))
    spare = ids - _SMALLEST_FIELD * fields
    sizes = _SMALLEST_FIELD + (raw * (spare / raw.sum())).astype(np.int64)
    sizes[np.argmax(sizes)] += ids - sizes.sum()
    return np.asarray(sizes)


def _zipf_ranks(random: np.random.Generator, size: int, exponent: float, rows: int) -> NDArray[np.int64]:
    """Ranks from 0, int64 (rows,): the inverse of the continuous Zipf distribution on [1, size + 1)."""
    top = (size + 1.0) ** (1 - exponent)
    ranks = np.floor((1 + random.random(rows) * (top - 1)) ** (1 / (1 - exponent))).astype(np.int64) - 1
    return np.asarray(np.minimum(ranks, size - 1))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Write a synthetic click log as parquet: fields of one id each, 13 numbers, a click."
    )
    default = ClickLogSpec()
    parser.add_argument("--out", type=Path, default=DATA, help="folder for train/ and held-out/, default: %(default)s")
    parser.add_argument("--rows", type=int, required=True, help="rows to train on")
    parser.add_argument("--held-out", type=int, default=0, help="rows to evaluate on, default: none")
    parser.add_argument("--seed", type=int, default=default.seed, help="default: %(default)s")
    parser.add_argument("--ids", type=int, default=default.ids, help="of all fields together, default: %(default)s")
    parser.add_argument("--fields", type=int, default=default.fields, help="default: %(default)s, as the models need")
    parser.add_argument("--zipf", type=float, default=default.zipf, help="exponent of the ids, default: %(default)s")
    parser.add_argument(
        "--drift",
        type=float,
        default=default.drift,
        help="part of each vocabulary by which popular ids move on within a million rows, 0..1, default: %(default)s",
    )
    options = parser.parse_args(arguments)
    try:
        spec = ClickLogSpec(options.seed, options.ids, options.fields, options.zipf, options.drift)
        write_click_log(options.out, spec, options.rows, options.held_out, progress=sys.stderr.isatty())
    except (ValueError, OSError) as error:
        parser.error(str(error))
    parts = f"{options.rows:,} rows to train on" + (f", {options.held_out:,} held out" if options.held_out else "")
    sys.stdout.write(f"{options.out}: {parts}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
