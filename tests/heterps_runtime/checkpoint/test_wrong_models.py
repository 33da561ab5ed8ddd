"""Models, deltas and checkpoints of others whose parts do not fit together are refused, and nothing is replaced.

Their checksums are right, as those of another program may be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from heterps_runtime.checkpoint import DamagedError, FileEntry, Storage, import_values
from heterps_runtime.checkpoint.delta import write_delta
from heterps_runtime.checkpoint.errors import ImportedModelError
from heterps_runtime.checkpoint.exported import ExportedModel, identity_of
from heterps_runtime.checkpoint.format import TensorFile, write_tensors
from heterps_runtime.checkpoint.manifest import CheckpointManifest, find_latest
from heterps_runtime.checkpoint.patching import Delta, apply_delta
from heterps_runtime.checkpoint.publishing import list_files
from heterps_runtime.exporting import initial_values
from heterps_runtime.processes.work import WorkCounter
from tests.heterps_runtime.helpers.checkpoint_samples import make_manifest
from tests.heterps_runtime.helpers.exported_models import State, export

ROWS = ({1: (1.0, 10), 2: (1.0, 10)}, {5: (1.0, 10), 6: (1.0, 10)}, {7: (1.0, 9), 8: (1.0, 10)})
OLD = State(ROWS)
NEW = State(({**ROWS[0], 2: (2.0, 12)}, {5: (1.0, 10), 9: (3.0, 12), 11: (3.0, 12)}, ROWS[2]), step=13, mean=1.0)
TENSORS, WIDE = "model.safetensors", "tables/wide%2Fx.weight.safetensors"
FOLDER = "step-000000000.1-00000000"

Change = Callable[[Any], None]


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """A model, a newer one, and the delta between them."""
    made = []
    for number, state in enumerate((OLD, NEW)):
        (tmp_path / str(number)).mkdir()
        made.append(export(state, tmp_path / str(number)))
    delta = tmp_path / "delta"
    write_delta(opened(made[0]), opened(made[1]), Storage.open(delta))
    return [*made, delta]


def opened(folder: Path) -> ExportedModel:
    return ExportedModel(Storage.open(folder))


def describe(folder: Path, description: str, change: Change) -> None:
    """Change a description."""
    document = json.loads((folder / description).read_text())
    change(document)
    (folder / description).write_text(json.dumps(document))


def rewrite(folder: Path, description: str, file: str, change: Change) -> None:
    """Change the arrays of a file, and its checksum."""
    arrays = dict(safetensors.numpy.load_file(folder / file))
    change(arrays)
    safetensors.numpy.save_file(arrays, folder / file)
    listed = {entry["name"]: entry for entry in list_files(folder, WorkCounter())}

    def checksums(document: Any) -> None:
        document["files"] = [listed[entry["name"]] for entry in document["files"]]

    describe(folder, description, checksums)


def begin(source: Path, target: Path, *, with_state: bool = False) -> CheckpointManifest:
    like = make_manifest(0, FOLDER, ())
    storages = Storage.open(source), str(source), Storage.open(target)
    return import_values(*storages, FOLDER, like, with_state=with_state, initial_rows=initial_values)


def _endless(document: Any) -> None:
    document["step"] = float("inf")


def _large(document: Any) -> None:
    next(tensor for tensor in document["tensors"] if tensor["name"] == "top.weight")["shape"] = [10**6, 10**6]


def _strange(document: Any) -> None:
    document["tensors"][0]["dtype"] = "O"


def _outside(document: Any) -> None:
    document["files"][0]["name"] = "../model/README.md"


def _no_name(document: Any) -> None:
    document["files"][0]["name"] = "a\0b"


def _endless_file(document: Any) -> None:
    document["files"][0]["bytes"] = float("inf")


def _not_listed(document: Any) -> None:
    document["files"] = [entry for entry in document["files"] if entry["name"] != WIDE]


def _other_dim(document: Any) -> None:
    document["tables"][0]["dim"] = 3


def _long_rows(document: Any) -> None:
    document["tables"][1]["dim"] = 1 << 31


def _no_ids(document: Any) -> None:
    document["tables"][1]["numEmbeddings"] = 0


def _no_text(document: Any) -> None:
    document["tables"][1]["name"] = "\ud800"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_endless, "is malformed"),
        (_large, r"has other tensors than model\.safetensors"),
        (_strange, "'O' is no type of an array"),
        (_outside, r"'\.\./model/README\.md' is no file in this folder"),
        (_no_name, "is no file in this folder"),
        (_endless_file, "is malformed"),
        (_not_listed, "has no checksum of tables/wide%2Fx"),
        (_other_dim, r"has another table 'small\.weight' than model\.safetensors"),
        (_no_ids, "table 'wide/x.weight' of 0 ids"),
        (_long_rows, "ids with rows of 2147483648 elements"),
        (_no_text, "is malformed"),
    ],
)
def test_a_description_must_fit_its_files(models: list[Path], change: Change, text: str) -> None:
    describe(models[0], "model.json", change)
    with pytest.raises(DamagedError, match=text):
        opened(models[0])


def _backwards(arrays: Any) -> None:
    arrays["ids"] = arrays["ids"][::-1].copy()


def _twice(arrays: Any) -> None:
    arrays["ids"][:] = arrays["ids"][0]


def _negative(arrays: Any) -> None:
    arrays["ids"][0] = -1


def _beyond(arrays: Any) -> None:
    arrays["ids"][-1] = 1 << 40


def _wider(arrays: Any) -> None:
    arrays["rows"] = np.ones((len(arrays["ids"]), 3), np.float32)


def _doubles(arrays: Any) -> None:
    arrays["rows"] = arrays["rows"].astype(np.float64)


WRONG_ROWS: list[tuple[Change, str]] = [
    (_backwards, "has ids that are not in order"),
    (_twice, "has ids that are not in order"),
    (_negative, "has ids that are not in order"),
    (_beyond, "has ids beyond the table"),
    (_wider, "has other rows of 'wide/x.weight'"),
    (_doubles, "has other rows of 'wide/x.weight'"),
]


@pytest.mark.parametrize(("change", "text"), WRONG_ROWS)
def test_rows_that_do_not_fit_are_in_no_delta_and_begin_no_job(models: list[Path], change: Change, text: str) -> None:
    rewrite(models[1], "model.json", WIDE, change)
    with pytest.raises(DamagedError, match=text):
        write_delta(opened(models[0]), opened(models[1]), Storage.open(models[2]))
    with pytest.raises(ImportedModelError, match=text):
        begin(models[1], models[1].with_name("target"))


@pytest.mark.parametrize(("change", "text"), WRONG_ROWS)
def test_rows_that_do_not_fit_are_not_applied(models: list[Path], change: Change, text: str) -> None:
    rewrite(models[2], "delta.json", WIDE, change)
    check_kept(models, text)


def _other_shape(arrays: Any) -> None:
    arrays["mean"] = np.ones(2, np.float32)


def _none(arrays: Any) -> None:
    del arrays["mean"]


@pytest.mark.parametrize("change", [_other_shape, _none])
def test_tensors_that_do_not_fit_are_not_applied(models: list[Path], change: Change) -> None:
    rewrite(models[2], "delta.json", TENSORS, change)
    check_kept(models, "has another 'mean' than the model")


@pytest.mark.parametrize("text", ["[]", "{", '{"files": []}'])
def test_a_newer_model_without_a_description_replaces_nothing(models: list[Path], text: str) -> None:
    (models[2] / "model" / "model.json").write_text(text)
    listed = list_files(models[2], WorkCounter())

    def change(document: Any) -> None:
        document["model"] = identity_of(text.encode())
        document["files"] = [entry for entry in listed if entry["name"] != "delta.json"]

    describe(models[2], "delta.json", change)
    check_kept(models, "is malformed")


def check_kept(models: list[Path], text: str) -> None:
    before = {path: path.read_bytes() for path in models[0].rglob("*") if path.is_file()}
    with pytest.raises(DamagedError, match=text):
        apply_delta(opened(models[0]), Delta(Storage.open(models[2])))
    assert {path: path.read_bytes() for path in models[0].rglob("*") if path.is_file()} == before


def _whole_numbers(document: Any) -> None:
    document["tables"][1]["dtype"] = "int64"


def _no_text_option(document: Any) -> None:
    document["tables"][1]["init"] = {"\ud800": 1}  # the manifest of the checkpoint could not be written


def _unknown(document: Any) -> None:
    document["tables"][0]["init"] = {"distribution": "?"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_whole_numbers, "has tables that no job trains"),
        (_unknown, "has no initial values of 'small"),
        (_no_text_option, "has no initial values of 'wide/x"),
    ],
)
def test_a_job_does_not_begin_with_tables_that_no_job_has(models: list[Path], change: Change, text: str) -> None:
    describe(models[0], "model.json", change)
    with pytest.raises(ImportedModelError, match=text):
        begin(models[0], models[0].with_name("target"))


# --- checkpoints ------------------------------------------------------------------------------------------------------


def _float_keys(arrays: Any) -> None:
    arrays["group-2/keys"] = arrays["group-2/keys"].astype(np.float64)


def _one_key(arrays: Any) -> None:
    arrays["group-2/keys"] = np.array(5)


def _wide_rows(arrays: Any) -> None:
    arrays["group-2/rows"] = np.ones((len(arrays["group-2/keys"]), 3), np.float32)


def _fewer_rows(arrays: Any) -> None:
    arrays["group-2/rows"] = arrays["group-2/rows"][:1]


def _no_rows(arrays: Any) -> None:
    del arrays["group-2/rows"]


def _no_dim(arrays: Any) -> None:
    arrays["group-x/keys"] = arrays["group-2/keys"]


def _more_state(arrays: Any) -> None:
    arrays["group-2/1/keys"] = arrays["group-2/keys"][:1]
    arrays["group-2/1/rows"] = arrays["group-2/rows"][:1]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_float_keys, "has keys of float64"),
        (_one_key, r"has keys of int64 \[\]"),
        (_wide_rows, "does not have 4 rows of 2 elements"),
        (_fewer_rows, "does not have 4 rows of 2 elements"),
        (_no_rows, "does not have 4 rows of 2 elements"),
        (_no_dim, "group-x/ has keys of"),
        (_more_state, "the rows of 2 elements have different state"),
    ],
)
def test_rows_of_a_checkpoint_must_fit_together(models: list[Path], change: Change, text: str) -> None:
    source = models[0].parent / "checkpoints"
    replace_file(source, "rows", change)
    with pytest.raises(ImportedModelError, match=text):
        begin(source, source.with_name("target"), with_state=True)


def test_a_wrong_shape_in_a_checkpoint_takes_no_memory(models: list[Path]) -> None:
    source = models[0].parent / "checkpoints"
    pieces = {"top.weight": {"start": 0, "shape": [10**15]}}
    replace_file(source, "dense", lambda _: None, {"pieces": json.dumps(pieces)})
    with pytest.raises(ImportedModelError, match=r"lacks elements of top\.weight"):
        begin(source, source.with_name("target"))


def test_tables_of_a_checkpoint_have_keys(models: list[Path]) -> None:
    source = models[0].parent / "checkpoints"
    rewrite_manifest(source, lambda m: replace(m, tables=(replace(m.tables[0], index=1 << 15), *m.tables[1:])))
    with pytest.raises(ImportedModelError, match="has tables that no key can be of"):
        begin(source, source.with_name("target"))


def test_tables_of_a_checkpoint_have_ages(models: list[Path]) -> None:
    source = models[0].parent / "checkpoints"

    def change(manifest: CheckpointManifest) -> CheckpointManifest:
        tables = (*manifest.tables[:2], replace(manifest.tables[2], unused_steps=10**30))
        return replace(manifest, tables=tables, files=())

    rewrite_manifest(source, change)
    with pytest.raises(
        ImportedModelError, match=r"table 'narrow\.weight' has the index 2, and 10+ steps in turns of 1"
    ):
        begin(source, source.with_name("target"))


def test_an_optimizer_that_is_no_object_is_another_one(models: list[Path]) -> None:
    source = models[0].parent / "checkpoints"
    fingerprint = {"training.optimizer.dense": "adam"}
    rewrite_manifest(source, lambda m: replace(m, fingerprint=fingerprint))
    with pytest.raises(ImportedModelError, match=r"in which training\.optimizer\.dense is None"):
        begin(source, source.with_name("target"), with_state=True)


def rewrite_manifest(source: Path, change: Callable[[CheckpointManifest], CheckpointManifest]) -> None:
    manifest, _ = find_latest(Storage.open(source))
    assert manifest is not None
    (source / manifest.folder / "manifest.json").write_bytes(change(manifest).to_json())


def replace_file(source: Path, role: str, change: Change, metadata: dict[str, str] | None = None) -> None:
    """Change the arrays of a checkpoint's file, and its checksum."""

    def changed(manifest: CheckpointManifest) -> CheckpointManifest:
        storage, [entry] = Storage.open(source), manifest.files_of(role)
        with TensorFile(storage, manifest.path_of(entry)) as file:
            arrays = {name: file.read(name).copy() for name in file.specs}
        change(arrays)
        place = storage, manifest.folder, entry.name
        new: FileEntry = write_tensors(*place, arrays, origin=manifest.origin, role=role, metadata=metadata)
        return replace(manifest, files=tuple(new if one == entry else one for one in manifest.files))

    rewrite_manifest(source, changed)
