"""What an exported model gives to a job that begins with it: the same as the checkpoint that it is of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from heterps_runtime.checkpoint import (
    CheckpointManifest,
    Storage,
    count_rows,
    import_values,
    imported_values,
    iterate_rows,
    read_dense,
)
from heterps_runtime.checkpoint import importing as importing_module
from heterps_runtime.checkpoint.errors import ImportedModelError
from heterps_runtime.versions import UnsupportedVersionError
from tests.heterps_runtime.helpers.checkpoint_samples import make_manifest
from tests.heterps_runtime.helpers.exported_models import TABLES, State, export, initial_rows

ROWS = ({1: (1.0, 10), 2: (-0.0, 10)}, {5: (1.0, 10), 1 << 39: (2.0, 10)}, {7: (1.0, 6), 8: (float("nan"), 10)})
FOLDER = "step-000000000.1-00000000"


def begun(source: Path, target: Path, *, with_state: bool = False) -> tuple[Storage, CheckpointManifest]:
    storage = Storage.open(target)
    like = make_manifest(0, FOLDER, ())
    opened = Storage.open(source)
    manifest = import_values(
        opened, str(source), storage, FOLDER, like, with_state=with_state, initial_rows=lambda _: initial_rows
    )
    return storage, manifest


def rows_of(storage: Storage, manifest: CheckpointManifest) -> dict[tuple[str, int], bytes]:
    names = {table.index: table.name for table in manifest.tables}

    def found() -> Iterator[tuple[tuple[str, int], bytes]]:
        for block in iterate_rows(storage, manifest):
            assert not block.state
            for key, row in zip(block.keys.tolist(), block.rows, strict=True):
                yield (names[key >> 48], key & ((1 << 48) - 1)), row.tobytes()

    return dict(found())


@pytest.mark.parametrize("file_rows", [2, 1 << 20])
def test_a_model_gives_what_the_checkpoint_gives_that_it_is_of(
    tmp_path: Path, file_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing_module, "_FILE_ROWS", file_rows)
    model = export(State(ROWS, mean=3.0), tmp_path)
    storage, of_model = begun(model, tmp_path / "a")
    other, of_checkpoint = begun(tmp_path / "checkpoints", tmp_path / "b")
    rows = rows_of(storage, of_model)
    assert rows == rows_of(other, of_checkpoint)
    assert set(rows) == {
        *(("small.weight", key) for key in (1, 2)),
        *(("wide/x.weight", key) for key in (5, 1 << 39)),
        ("narrow.weight", 8),  # 7 was gone
    }
    assert sum(sum(count_rows(storage, of_model, entry).values()) for entry in of_model.files_of("rows")) == len(rows)
    for role, name in (("dense", "top.weight"), ("buffers", "mean")):
        initial = {name: np.zeros((1, 2) if role == "dense" else (), np.float64)}
        [one, two] = (
            imported_values(s, m, initial, role=role) for s, m in ((storage, of_model), (other, of_checkpoint))
        )
        assert one[name].tolist() == two[name].tolist() == ([[0.5, 0.25]] if role == "dense" else 3.0)
        assert set(read_dense(storage, of_model, role=role)) == {name}, "and nothing of the other role, or of a table"
    assert (of_model.step, of_model.earlier_steps, of_model.imported_from) == (0, 0, str(model))


def test_rows_of_a_whole_table_that_have_their_initial_values_are_not_trained(tmp_path: Path) -> None:
    same = float(initial_rows(TABLES[0], np.array([3]))[0, 0])
    model = export(State(({3: (same, 10), 4: (same, 10)}, {}, {})), tmp_path)
    assert set(rows_of(*begun(model, tmp_path / "a"))) == {("small.weight", 4)}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("model.safetensors", r"model.initFrom.path: .* cannot be used: .*model\.safetensors differs from what"),
        (
            "tables/narrow.weight.safetensors",
            r"narrow\.weight\.safetensors differs from what model\.json says; export it",
        ),
    ],
)
def test_a_damaged_model_is_refused_by_the_field(tmp_path: Path, file: str, message: str) -> None:
    model = export(State(ROWS), tmp_path)
    contents = (model / file).read_bytes()
    (model / file).write_bytes(contents[:-1] + bytes([contents[-1] ^ 1]))
    with pytest.raises(ImportedModelError, match=message):
        begun(model, tmp_path / "a")


def test_what_a_model_does_not_have_is_refused(tmp_path: Path) -> None:
    model = export(State(ROWS), tmp_path)
    with pytest.raises(
        ImportedModelError, match=r"optimizerState: Keep needs checkpoints, but .* is an exported model"
    ):
        begun(model, tmp_path / "a", with_state=True)
    description = model / "model.json"
    document = json.loads(description.read_text())
    description.write_text(json.dumps({name: value for name, value in document.items() if name != "buffers"}))
    with pytest.raises(ImportedModelError, match="does not say which tensors are buffers; export it again"):
        begun(model, tmp_path / "a")
    description.write_text(json.dumps(document | {"version": 2}))
    with pytest.raises(UnsupportedVersionError, match="has version 2"):
        begun(model, tmp_path / "a")
    with pytest.raises(ImportedModelError, match=r"has no valid checkpoint and no exported model; name the checkpoint"):
        begun(tmp_path, tmp_path / "a")
