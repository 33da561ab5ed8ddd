"""What changed between two checkpoints, beside a count row by row."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from heterps_runtime.checkpoint import Storage
from heterps_runtime.checkpoint.comparison import TableChange, compare
from tests.heterps_runtime.helpers.checkpoint_samples import TABLES, Array, random_groups, write_checkpoint

Groups = dict[int, tuple[Array, Array, dict[str, Array]]]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(tmp_path)


def later(groups: Groups, seed: int) -> Groups:
    """Rows of a later step: some changed, some gone, some new."""
    rng = np.random.default_rng(seed)
    fresh = random_groups(seed)
    result: Groups = {}
    for dim, (keys, rows, state) in groups.items():
        rows = rows.copy()
        rows[rng.random(len(rows)) < 0.3] += rng.standard_normal(dim).astype(np.float32)
        stays = rng.random(len(keys)) < 0.8
        others, new_rows, new_state = fresh[dim]
        new = ~np.isin(others, keys)
        result[dim] = (
            np.concatenate([keys[stays], others[new]]),
            np.concatenate([rows[stays], new_rows[new]]),
            {name: np.concatenate([values[stays], new_state[name][new]]) for name, values in state.items()},
        )
    return result


def count(before: Groups, after: Groups) -> dict[str, TableChange]:
    """Compare one row at a time."""
    changes = {record.name: TableChange(record.name) for record in TABLES}
    rows: list[dict[int, Array]] = []
    for groups in (before, after):
        rows.append({int(key): values[i] for keys, values, _ in groups.values() for i, key in enumerate(keys)})
    old, new = rows
    for key in {*old, *new}:
        change = changes[TABLES[key >> 48].name]
        change.before += key in old
        change.after += key in new
        change.removed += key not in new
        change.added += key not in old
        if key in old and key in new and (old[key] != new[key]).any():
            change.changed += 1
            change.largest = max(change.largest, float(np.abs(np.float64(new[key]) - np.float64(old[key])).max()))
    return changes


@pytest.mark.parametrize("most_bytes", [1 << 30, 3000, 200])
@pytest.mark.parametrize("seed", [1, 2])
def test_rows_are_compared_whatever_their_files_and_however_many_are_held(
    storage: Storage, seed: int, most_bytes: int
) -> None:
    before = random_groups(seed)
    after = later(before, seed + 100)
    one = write_checkpoint(storage, 20, shards=2, groups=before)
    other = write_checkpoint(storage, 40, shards=3, groups=after)
    found = {table.name: table for table in compare(storage, one, other, most_bytes=most_bytes).tables}
    assert found == count(before, after)
    assert all(table.added and table.removed and table.changed for table in found.values())


def test_a_checkpoint_does_not_differ_from_itself(storage: Storage) -> None:
    manifest = write_checkpoint(storage, 20)
    found = compare(storage, manifest, manifest)
    assert not found.fields
    assert not any(table.added or table.removed or table.changed for table in found.tables)
    assert not any(array.changed for array in found.arrays)


def test_arrays_are_compared_element_by_element_buffers_too(storage: Storage) -> None:
    one, other = write_checkpoint(storage, 20), write_checkpoint(storage, 23)
    found = {array.name: array for array in compare(storage, one, other).arrays}
    assert set(found) == {"top.weight", "top.bias", "top.weight::exp_avg", "norm.num_batches_tracked"}
    assert (found["norm.num_batches_tracked"].changed, found["norm.num_batches_tracked"].largest) == (1, 3.0)
    weights = [np.random.default_rng(step).standard_normal((3, 10)).astype(np.float32) for step in (20, 23)]
    largest = np.abs(weights[1].astype(np.float64) - weights[0]).max()
    assert found["top.weight"].largest == largest
    assert found["top.weight::exp_avg"].largest == 2 * largest


def test_a_field_of_the_job_that_differs_has_both_values(storage: Storage) -> None:
    one = write_checkpoint(storage, 20)
    other = dataclasses.replace(one, fingerprint={**one.fingerprint, "training.seed": 8}, plan={"revision": 2})
    assert compare(storage, one, other).fields == [("training.seed", "7", "8"), ("plan.revision", "nothing", "2")]


def test_an_array_of_another_shape_has_no_largest_change(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    one = write_checkpoint(storage, 20)
    monkeypatch.setattr(
        "tests.heterps_runtime.helpers.checkpoint_samples.dense_state",
        lambda _step: {"top.weight": np.zeros((3, 11), np.float32)},
    )
    other = write_checkpoint(storage, 40)
    found = {array.name: array for array in compare(storage, one, other).arrays}
    assert found["top.weight"].elements == found["top.weight"].changed == 33
    assert math.isnan(found["top.weight"].largest)
    assert found["top.bias"].changed == 3
