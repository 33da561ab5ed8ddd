"""A model and a delta make the newer model, byte for byte, whatever has changed; nothing else is changed by them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs as pafs

from heterps_runtime.checkpoint import DamagedError, Storage, StorageError, TableRecord
from heterps_runtime.checkpoint import exported as exported_models
from heterps_runtime.checkpoint.delta import TableDelta, write_delta
from heterps_runtime.checkpoint.exported import ExportedModel
from heterps_runtime.checkpoint.patching import Delta, apply_delta
from heterps_runtime.errors import UserError
from heterps_runtime.versions import UnsupportedVersionError
from tests.heterps_runtime.helpers.exported_models import NAMES, TABLES, State, export

DOCUMENT = Path(__file__).parents[3] / "docs" / "serving.md"
VALUES = [0.0, -0.0, 1.0, float("nan")]  # of which two are equal, and one is unequal to itself


def opened(folder: Path) -> ExportedModel:
    return ExportedModel(Storage.open(folder))


def make_delta(before: Path, after: Path, output: Path) -> tuple[list[TableDelta], list[str]]:
    return write_delta(opened(before), opened(after), Storage.open(output))


def apply(model: Path, delta: Path) -> bool:
    return apply_delta(opened(model), Delta(Storage.open(delta)))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def chain(folder: Path, *states: State) -> list[Path]:
    """Export states; returns the models, and then the delta between each two."""
    models = []
    for number, state in enumerate(states):
        (folder / str(number)).mkdir(parents=True)
        models.append(export(state, folder / str(number)))
    deltas = [folder / "deltas" / str(number) for number in range(len(states) - 1)]
    for before, after, delta in zip(models, models[1:], deltas, strict=False):
        make_delta(before, after, delta)
    return models + deltas


def reader() -> dict[str, Any]:
    """The programs in docs/serving.md."""
    namespace: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL):
        exec(code, namespace)
    return namespace


def entries(largest: int) -> st.SearchStrategy[dict[int, tuple[float, int]]]:
    return st.dictionaries(st.integers(0, largest), st.tuples(st.sampled_from(VALUES), st.integers(6, 20)), max_size=9)


def states(step: int) -> st.SearchStrategy[State]:
    few = st.sampled_from(VALUES)
    rows = st.tuples(entries(6), entries(12), entries(12))
    return st.builds(State, rows, st.tuples(few, few), few, st.just(step), st.integers(0, 3))


@given(first=states(10), second=states(13), third=states(16))
@settings(max_examples=25, deadline=None)
def test_a_model_and_its_deltas_make_the_newest_model(
    tmp_path_factory: pytest.TempPathFactory, first: State, second: State, third: State
) -> None:
    folder = tmp_path_factory.mktemp("chain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exported_models, "_PIECE_ROWS", 3)  # so that tables have several pieces
        models = chain(folder, first, second, third)
    [zero, one, two], deltas = models[:3], models[3:]
    served = reader()["Served"](zero)
    for delta, newer in zip(deltas, (one, two), strict=True):
        assert apply(zero, delta)
        assert files_of(zero) == files_of(newer)
        served.update(delta)
        assert served.identity == opened(newer).identity
        for name, value in safetensors.numpy.load_file(newer / "model.safetensors").items():
            assert served.tensors[name].numpy().tobytes() == value.tobytes(), name
    for index, table in enumerate(TABLES[1:], 1):
        expected = {key: row.tobytes() for key, row in third.there(index).items()}
        assert {key: row.numpy().tobytes() for key, row in served.rows[table.name].items()} == expected
    # and nothing is in a delta that has not changed
    before, after = first.there(1), second.there(1)
    changed = [key for key in after if key not in before or before[key].tobytes() != after[key].tobytes()]
    stored = deltas[0] / "tables" / "wide%2Fx.weight.safetensors"
    found = safetensors.numpy.load_file(stored) if stored.exists() else {"ids": np.empty(0), "gone": np.empty(0)}
    assert found["ids"].tolist() == sorted(changed)
    assert found["gone"].tolist() == sorted(set(before) - set(after))


ROWS = ({1: (1.0, 10), 2: (1.0, 10)}, {5: (1.0, 10), 6: (1.0, 10)}, {7: (1.0, 9), 8: (1.0, 10)})
OLD = State(ROWS)
NEW = State(({**ROWS[0], 2: (2.0, 12)}, {5: (1.0, 10), 9: (3.0, 12)}, ROWS[2]), step=13, mean=1.0)


def test_a_delta_has_what_changed_what_is_new_and_what_is_gone(tmp_path: Path) -> None:
    [before, after] = (export(state, tmp_path / name) for name, state in (("old", OLD), ("new", NEW)))
    found = make_delta(before, after, tmp_path / "delta")
    gone = [TableDelta("small.weight", 1, 0), TableDelta("wide/x.weight", 1, 1), TableDelta("narrow.weight", 0, 1)]
    assert found == (gone, ["mean"])
    described = json.loads((tmp_path / "delta" / "delta.json").read_text())
    assert (described["base"], described["model"]) == (opened(before).identity, opened(after).identity)
    assert (described["baseStep"], described["step"]) == (10, 13)
    assert [(t["name"], t["numRows"], t["numGone"]) for t in described["tables"]] == [
        (t.name, t.rows, t.gone) for t in gone
    ]
    assert files_of(tmp_path / "delta" / "model")["model.json"] == files_of(after)["model.json"]
    wide = safetensors.numpy.load_file(tmp_path / "delta" / "tables" / "wide%2Fx.weight.safetensors")
    assert (wide["ids"].tolist(), wide["rows"].tolist(), wide["gone"].tolist()) == ([9], [[3.0, 3.0]], [6])
    small = safetensors.numpy.load_file(tmp_path / "delta" / "tables" / "small.weight.safetensors")
    assert (small["ids"].tolist(), small["rows"].tolist()) == ([2], [[2.0, 2.0]])


def test_a_delta_fits_one_model_only_and_is_applied_once(tmp_path: Path) -> None:
    models = chain(tmp_path, OLD, NEW, replace(NEW, step=14, weight=(7.0, 7.0)))
    model, first, second = models[0], *models[3:]
    unchanged = files_of(model)
    with pytest.raises(
        UserError, match=r"fits the model sha256:\w+ of step 13, but .* has sha256:\w+ of step 10; apply"
    ):
        apply(model, second)
    assert files_of(model) == unchanged
    with pytest.raises(ValueError, match="this delta is for sha256:"):
        reader()["Served"](model).update(second)
    assert apply(model, first)
    assert not apply(model, first)
    assert apply(model, second)
    assert files_of(model) == files_of(models[2])


def test_a_server_follows_the_chain_whatever_the_folders_are_called(tmp_path: Path) -> None:
    models = chain(tmp_path, OLD, NEW, replace(NEW, step=14, weight=(7.0, 7.0)))
    deltas = tmp_path / "deltas"
    for old, new in (("0", "b"), ("1", "a")):
        (deltas / old).rename(deltas / new)
    shutil.copytree(deltas / "b", deltas / ".b.exporting")  # being written
    names = reader()
    served = names["Served"](models[0])
    names["follow"](served, deltas)
    assert served.identity == opened(models[2]).identity
    assert served.tensors["top.weight"].tolist() == [[7.0, 7.0]]
    names["follow"](served, deltas)  # nothing is left to do


def test_a_served_module_has_the_new_values_at_once(tmp_path: Path) -> None:
    models = chain(tmp_path, OLD, replace(OLD, step=11, weight=(7.0, 8.0)))
    module = torch.nn.Module()
    module.top = torch.nn.Linear(2, 1, bias=False)
    served = reader()["Served"](models[0])
    module.load_state_dict(served.tensors, strict=False, assign=True)
    served.update(models[2])
    assert module.top.weight.tolist() == [[7.0, 8.0]]


DIFFERENT: list[tuple[str, Callable[[], tuple[State, tuple[TableRecord, ...]]]]] = [
    ("table 'narrow.weight'", lambda: (OLD, TABLES[:2])),
    ("table 'narrow.weight'", lambda: (OLD, (*TABLES[:2], replace(TABLES[2], num_embeddings=1 << 39)))),
    ("tensor 'top.weight'", lambda: (replace(OLD, weight=(1.0, 2.0, 3.0)), TABLES)),
    ("tensor 'more'", lambda: (replace(OLD, names={**NAMES, "more": "mean"}), TABLES)),
]


@pytest.mark.parametrize(("what", "other"), DIFFERENT)
def test_models_of_other_modules_have_no_delta(tmp_path: Path, what: str, other: Any) -> None:
    before = export(OLD, tmp_path / "old")
    after = export(other()[0], tmp_path / "new", other()[1])
    with pytest.raises(UserError, match=re.escape(what) + r" differs .* give the server the whole model"):
        make_delta(before, after, tmp_path / "delta")
    assert not (tmp_path / "delta").exists()


def test_a_model_has_no_delta_to_itself(tmp_path: Path) -> None:
    model = export(OLD, tmp_path)
    with pytest.raises(UserError, match="are the same model"):
        make_delta(model, model, tmp_path / "delta")


@pytest.mark.parametrize("file", ["model.safetensors", "tables/narrow.weight.safetensors"])
@pytest.mark.parametrize("harm", ["change", "truncate", "remove"])
def test_a_model_that_is_damaged_is_neither_compared_nor_replaced(tmp_path: Path, file: str, harm: str) -> None:
    models = chain(tmp_path, OLD, NEW)
    damage(models[0] / file, harm)
    left = files_of(models[0])
    with pytest.raises(DamagedError, match=re.escape(file)):
        make_delta(models[0], models[1], tmp_path / "again")
    with pytest.raises(DamagedError, match=re.escape(file)):
        apply(models[0], models[2])
    assert files_of(models[0]) == left
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("file", ["model.safetensors", "tables/narrow.weight.safetensors", "model/model.json"])
@pytest.mark.parametrize("harm", ["change", "truncate", "remove"])
def test_a_delta_that_is_damaged_is_not_applied(tmp_path: Path, file: str, harm: str) -> None:
    models = chain(tmp_path, OLD, NEW)
    damage(models[2] / file, harm)
    left = files_of(models[0])
    with pytest.raises(DamagedError, match=re.escape(file)):
        apply(models[0], models[2])
    assert files_of(models[0]) == left


def damage(path: Path, harm: str) -> None:
    contents = path.read_bytes()
    if harm == "remove":
        path.unlink()
    elif harm == "truncate":
        path.write_bytes(contents[:-1])
    else:
        path.write_bytes(contents[:-1] + bytes([contents[-1] ^ 1]))


def rewritten(folder: Path, **changes: Any) -> None:
    """Change a delta's description."""
    path = folder / "delta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_result_that_is_not_the_newer_model_replaces_nothing(tmp_path: Path) -> None:
    """A delta whose files are whole, but that lacks a table, as another program may have written it."""
    models = chain(tmp_path, OLD, NEW)
    rewritten(models[2], tables=[])
    left = files_of(models[0])
    with pytest.raises(DamagedError, match=r"differs from what model\.json says"):
        apply(models[0], models[2])
    assert files_of(models[0]) == left
    assert sorted(path.name for path in models[0].parent.iterdir()) == ["checkpoints", "model"]


def test_what_is_no_delta_or_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    models = chain(tmp_path, OLD, NEW)
    with pytest.raises(UserError, match=r"there is no delta, as delta\.json is missing"):
        apply(models[0], models[1])
    with pytest.raises(UserError, match=r"there is no exported model, as model\.json is missing"):
        apply(models[2], models[2])
    rewritten(models[2], version=2)
    with pytest.raises(UnsupportedVersionError, match="has version 2, but this program reads versions up to 1"):
        apply(models[0], models[2])
    (models[2] / "delta.json").write_text("[]")
    with pytest.raises(DamagedError, match=r"delta\.json is malformed"):
        apply(models[0], models[2])


def test_a_full_disk_leaves_the_older_model_and_no_delta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = chain(tmp_path, OLD, NEW)
    left = files_of(models[0])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(StorageError, match="the disk is full"):
        apply(models[0], models[2])
    with pytest.raises(StorageError, match="the disk is full"):
        make_delta(models[0], models[1], tmp_path / "again")
    assert files_of(models[0]) == left
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "deltas"]


def test_models_and_deltas_lie_in_object_stores(tmp_path: Path) -> None:
    models = chain(tmp_path, OLD, NEW)
    filesystem = pafs._MockFileSystem()
    stores = [Storage(filesystem, name, f"mock://{name}") for name in ("old", "new", "delta")]
    for folder, store in zip(models, stores, strict=False):
        for name, contents in files_of(folder).items():
            store.write_atomic(name, contents)
    old, new, delta = stores
    write_delta(ExportedModel(old), ExportedModel(new), delta)
    assert {name: delta.read(name) for name in delta.files()} == files_of(models[2])
    assert apply_delta(ExportedModel(old), Delta(delta))
    assert {name: old.read(name) for name in old.files()} == files_of(models[1])
