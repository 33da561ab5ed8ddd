"""Stored formats: files of versions 1 to 3 are read, additions are ignored, newer versions are refused.

`tests/fixtures/v1/` has one example of each format, `v2/` and `v3/` of those that have later versions
(docs/compatibility.md).
If one of these tests fails, a format has changed: either undo that, or follow the rule there.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from heterps_runtime.checkpoint import (
    CheckpointManifest,
    DamagedError,
    Origin,
    Ownership,
    RowFile,
    RowPart,
    StateFile,
    Storage,
    TableRecord,
    check_checkpoint,
    dense_arrays,
    export_model,
    find_latest,
    iterate_rows,
    read_dense,
    row_arrays,
    take_over,
)
from heterps_runtime.checkpoint.delta import write_delta
from heterps_runtime.checkpoint.exported import ExportedModel
from heterps_runtime.checkpoint.format import TensorFile, write_tensors
from heterps_runtime.checkpoint.manifest import _checksum, write_manifest
from heterps_runtime.checkpoint.patching import Delta, apply_delta
from heterps_runtime.checkpoint.survey import count_rows
from heterps_runtime.config import RunConfig
from heterps_runtime.data import DataSpec, open_dataset
from heterps_runtime.data.cache import fingerprint
from heterps_runtime.data.source import Source
from heterps_runtime.errors import UserError
from heterps_runtime.partition.access import TableRules
from heterps_runtime.partition.pieces import Place
from heterps_runtime.store.snapshot import RowChunk
from heterps_runtime.versions import UnsupportedVersionError, check_version
from tests.heterps_runtime.helpers.data_files import columns, make_spec, write_parquet

V1, V2, V3 = (Path(__file__).parents[1] / "fixtures" / version for version in ("v1", "v2", "v3"))
FOLDER, ORIGIN = "step-000000020.1-00000000", Origin(20, 3)
LATER, LATER_ORIGIN = "step-000000040.1-00000001", Origin(40, 3)
NORMAL = {"distribution": "normal", "mean": "0", "std": "0.1"}
TABLES = (
    TableRecord(0, "user.weight", num_embeddings=3, dim=2, init=NORMAL, padding_idx=0),
    TableRecord(1, "place.weight", num_embeddings=1 << 40, dim=1, init=NORMAL),
)
ROWS = np.array([[1.5, 2.5], [3.5, 4.5]], dtype=np.float32)
FLOAT = np.dtype(np.float32)
WEIGHT = np.array([[0.25, -0.5]], dtype=np.float32)


def write_example(storage: Storage) -> tuple[CheckpointManifest, Ownership]:
    """The checkpoint of the fixtures."""
    groups: dict[int, Any] = {
        2: (np.array([1, 2]), ROWS, {"sum": ROWS * 2}),
        1: (np.array([(1 << 48) | 7]), ROWS[:1, :1], {"sum": ROWS[:1, :1]}),
    }
    states = {
        "rows": row_arrays(groups),
        "dense": dense_arrays({"top.weight": WEIGHT, "top.weight::sum": WEIGHT * 2}),
        "buffers": dense_arrays({"norm.num_batches_tracked": np.array(20)}, "buffers"),
    }
    files = tuple(
        write_tensors(storage, FOLDER, f"{role}-0.safetensors", arrays, origin=ORIGIN, role=role)
        for role, arrays in states.items()
    )
    owner = take_over(storage, "team/shop", 1_800_000_000.0)
    manifest = CheckpointManifest(
        step=20,
        epoch=1,
        seed=7,
        global_batch_size=64,
        num_rows=1000,
        samples=1280,
        fingerprint={"model.entrypoint": "shop.model:build", "model.arguments": {"width": 8}},
        plan={"stages": [], "parameterServer": {"pool": "cpu", "replicas": 1, "units": 1}},
        tables=TABLES,
        files=files,
        term=1,
        lineage=3,
        loss=0.25,
        folder=FOLDER,
    )
    write_manifest(storage, manifest, owner)
    return manifest, owner


def row_file(ids: range, value: float, origin: Origin, added: int) -> RowFile:
    """Rows of dimension 2 in pieces of 8."""

    def piece(start: int) -> RowChunk:
        keys = np.array(ids[start : start + 8], np.int64)
        rows = np.stack([keys + value, keys - value], axis=1).astype(np.float32)
        return RowChunk(keys, rows, {"sum": rows[:, :1].copy()})

    pieces = [piece(start) for start in range(0, len(ids), 8)]
    part = RowPart("group-2", len(ids), 8, {"rows": (FLOAT, 2), "state/sum": (FLOAT, 1)}, pieces)
    return RowFile("rows-0.safetensors", [part], origin, 0, added)


def write_increments(storage: Storage) -> CheckpointManifest:
    """The checkpoints of the fixtures of version 2: one with rows in several pieces, and one that builds on it."""
    owner = take_over(storage, "team/shop", 1_800_000_000.0)
    first = row_file(range(10), 0.5, ORIGIN, 10).write(storage, FOLDER)
    later = row_file(range(9, 12), 0.25, LATER_ORIGIN, 2).write(storage, LATER)
    like = CheckpointManifest(
        step=20, epoch=0, seed=7, global_batch_size=64, num_rows=1000, samples=1280,
        fingerprint={"model.entrypoint": "shop.model:build"}, plan={"stages": []}, tables=TABLES[:1], files=(first,),
        term=1, lineage=3, loss=0.25, folder=FOLDER,
    )  # fmt: skip
    write_manifest(storage, like, owner)
    files = (first.earlier(FOLDER, ORIGIN), later)
    increment = replace(like, step=40, samples=2560, files=files, folder=LATER)
    write_manifest(storage, increment, owner)
    return increment


def write_rules(storage: Storage) -> CheckpointManifest:
    """The checkpoint of the fixtures of version 3: rows of a table whose ids go, and candidates."""
    owner = take_over(storage, "team/shop", 1_800_000_000.0)
    keys, last_steps = np.arange(4), np.array([[11], [15], [16], [20]], np.int32)
    rows = np.stack([keys + 0.5, keys - 0.5], axis=1).astype(np.float32)
    state = {"sum": rows[:, :1].copy(), "last_step": last_steps}
    counted = {"steps": np.array([[1], [2]], np.int32), "last_step": np.array([[15], [20]], np.int32)}
    candidates = RowChunk(np.array([8, 9]), np.empty((2, 0)), counted)
    types = {"rows": (FLOAT, 2), "state/sum": (FLOAT, 1), "state/last_step": (np.dtype(np.int32), 1)}
    counts = {f"state/{name}": (np.dtype(np.int32), 1) for name in counted}
    parts = [
        RowPart("group-2", 4, 8, types, [RowChunk(keys, rows, state)]),
        RowPart("candidates-2", 2, 8, counts, [candidates]),
    ]
    file = RowFile("rows-0.safetensors", parts, ORIGIN, 0, 4).write(storage, FOLDER)
    table = TABLES[0].with_rules(TableRules(min_steps=3, unused_steps=5, candidate_unused_steps=4))
    manifest = CheckpointManifest(
        step=20, epoch=0, seed=7, global_batch_size=64, num_rows=1000, samples=1280,
        fingerprint={"model.entrypoint": "shop.model:build"}, plan={"stages": []}, tables=(table,), files=(file,),
        term=1, lineage=3, loss=0.25, folder=FOLDER,
    )  # fmt: skip
    write_manifest(storage, manifest, owner)
    return manifest


def write_pieces(storage: Storage) -> CheckpointManifest:
    """The checkpoint of the fixtures of version 3: a parameter in pieces of two servers, beside one that is whole."""
    owner, files = take_over(storage, "team/shop", 1_800_000_000.0), []
    flat, bias = np.arange(6, dtype=np.float32), np.array([0.5, 0.25], np.float32)
    for index, place in enumerate((Place(0, 4, (2, 3)), Place(4, 6, (2, 3)))):
        piece = flat[place.start : place.stop]
        held = {"top.weight": piece, "top.weight::sum": piece * 2}
        if index == 1:
            held |= {"top.bias": bias, "top.bias::sum": bias * 2}
        name = f"dense-ps-{index}.safetensors"
        file = StateFile(name, dense_arrays(held), ORIGIN, "dense", index, {"top.weight": place})
        files.append(file.write(storage, FOLDER))
    manifest = CheckpointManifest(
        step=20, epoch=0, seed=7, global_batch_size=64, num_rows=1000, samples=1280,
        fingerprint={"model.entrypoint": "shop.model:build"}, plan={"stages": []}, tables=(), files=tuple(files),
        term=1, lineage=3, loss=0.25, folder=FOLDER,
    )  # fmt: skip
    write_manifest(storage, manifest, owner)
    return manifest


def export_example(storage: Storage, manifest: CheckpointManifest, owner: Ownership, model: Path) -> None:
    """The model of the fixtures."""
    export_model(
        storage,
        manifest,
        model,
        owner=owner,
        initial_rows=lambda table, ids: np.zeros((len(ids), table.dim), table.dtype),
        dense_limit_bytes=1000,
        metrics={"auc": 0.75},
    )


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_readme(model: dict[str, bytes]) -> dict[str, Any]:
    """A model without its text for people, which may be worded otherwise in any release."""
    description = json.loads(model["model.json"])
    assert "README.md" in model
    description["files"] = [file for file in description["files"] if file["name"] != "README.md"]
    return {name: contents for name, contents in model.items() if name != "README.md"} | {"model.json": description}


def with_additions(value: Any) -> Any:
    """A document of a later release that has only additions: one more field in each of its objects."""
    if isinstance(value, dict):
        return {**{key: with_additions(item) for key, item in value.items()}, "addedLater": {"x": [1]}}
    return [with_additions(item) for item in value] if isinstance(value, list) else value


# --- checkpoints and models -------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoints(tmp_path: Path) -> Storage:
    return Storage.open(shutil.copytree(V1 / "checkpoints", tmp_path / "checkpoints"))


def test_a_checkpoint_of_version_1_is_read(checkpoints: Storage) -> None:
    manifest, skipped = find_latest(checkpoints)
    assert skipped == ()
    assert manifest is not None
    assert (manifest.version, manifest.step, manifest.term, manifest.lineage) == (1, 20, 1, 3)
    assert manifest.tables == TABLES
    blocks = {block.dim: block for block in iterate_rows(checkpoints, manifest)}
    assert blocks[2].keys.tolist() == [1, 2]
    np.testing.assert_array_equal(blocks[2].rows, ROWS)
    np.testing.assert_array_equal(blocks[2].state["sum"], ROWS * 2)
    np.testing.assert_array_equal(read_dense(checkpoints, manifest)["top.weight"], WEIGHT)
    assert take_over(checkpoints, "job", 0.0).term == 2


def test_checkpoints_and_models_are_written_as_in_version_1(tmp_path: Path) -> None:
    storage = Storage.open(tmp_path / "checkpoints")
    manifest, owner = write_example(storage)
    export_example(storage, manifest, owner, tmp_path / "model")
    assert files_of(tmp_path / "checkpoints" / FOLDER) == files_of(V1 / "checkpoints" / FOLDER)
    written, expected_model = (without_readme(files_of(folder)) for folder in (tmp_path / "model", V1 / "model"))
    assert written["model.json"].pop("buffers") == ["norm.num_batches_tracked"], "an addition"
    assert written == expected_model
    [record], [expected] = ((folder / "owners").iterdir() for folder in (tmp_path / "checkpoints", V1 / "checkpoints"))
    assert record.read_bytes() == expected.read_bytes()


def test_a_delta_of_version_1_is_applied_and_written(tmp_path: Path) -> None:
    model = shutil.copytree(V1 / "model", tmp_path / "model")
    delta = shutil.copytree(V1 / "delta", tmp_path / "delta")
    description = delta / "delta.json"
    description.write_text(json.dumps(with_additions(json.loads(description.read_text()))))
    assert apply_delta(ExportedModel(Storage.open(model)), Delta(Storage.open(delta)))
    tensors = safetensors.numpy.load_file(model / "model.safetensors")
    assert (tensors["top.weight"].tolist(), tensors["user.weight"].tolist()) == (
        [[0.25, -0.75]],
        [[0, 0], [1.5, 2.5], [3.5, 4.75]],
    )
    place = safetensors.numpy.load_file(model / "tables" / "place.weight.safetensors")
    assert (place["ids"].tolist(), place["rows"].tolist()) == ([8], [[9.5]])
    older, newer = (ExportedModel(Storage.open(folder)) for folder in (V1 / "model", model))
    write_delta(older, newer, Storage.open(tmp_path / "written"))
    assert files_of(tmp_path / "written") == files_of(V1 / "delta")


def test_a_checkpoint_of_version_2_is_read(tmp_path: Path) -> None:
    storage = Storage.open(shutil.copytree(V2 / "checkpoints", tmp_path / "checkpoints"))
    manifest, skipped = find_latest(storage)
    assert skipped == ()
    assert manifest is not None
    assert (manifest.version, manifest.step) == (2, 40)
    blocks = list(iterate_rows(storage, manifest))
    assert [block.keys.tolist() for block in blocks] == [[*range(8)], [8, 9], [9, 10, 11]]
    assert blocks[1].rows.tolist() == [[8.5, 7.5], [9.5, 8.5]]
    assert blocks[2].state["sum"].tolist() == [[9.25], [10.25], [11.25]]
    assert count_rows(storage, manifest) == 12


def test_increments_are_written_as_in_version_2(tmp_path: Path) -> None:
    manifest = write_increments(Storage.open(tmp_path / "checkpoints"))
    assert manifest.version == 2
    for folder in (FOLDER, LATER):
        assert files_of(tmp_path / "checkpoints" / folder) == files_of(V2 / "checkpoints" / folder)


def test_a_checkpoint_of_version_3_is_read_without_what_is_gone(tmp_path: Path) -> None:
    storage = Storage.open(shutil.copytree(V3 / "checkpoints", tmp_path / "checkpoints"))
    manifest, skipped = find_latest(storage)
    assert skipped == ()
    assert manifest is not None
    assert (manifest.version, manifest.tables[0].min_steps, manifest.tables[0].period) == (3, 3, 1)
    [rows] = iterate_rows(storage, manifest)
    assert rows.keys.tolist() == [2, 3]  # the others have been unused for 5 steps and more
    assert rows.state["last_step"].tolist() == [[16], [20]]
    [candidates] = iterate_rows(storage, manifest, kind="candidates")
    assert candidates.keys.tolist() == [9]
    assert candidates.state["steps"].tolist() == [[2]]


def test_rules_are_written_as_in_version_3(tmp_path: Path) -> None:
    write_rules(Storage.open(tmp_path / "checkpoints"))
    assert files_of(tmp_path / "checkpoints" / FOLDER) == files_of(V3 / "checkpoints" / FOLDER)


@pytest.mark.parametrize(
    "changes", [{"index": -1}, {"index": 1 << 40}, {"period": 0}, {"period": 1 << 80}, {"unused_steps": 1 << 80}]
)
def test_rules_of_a_table_that_cannot_be_are_damage(changes: dict[str, Any], tmp_path: Path) -> None:
    storage = Storage.open(tmp_path / "checkpoints")
    manifest = write_rules(storage)
    with pytest.raises(DamagedError, match=r"table 'user\.weight' has the index"):
        list(iterate_rows(storage, replace(manifest, tables=(replace(manifest.tables[0], **changes),))))


def test_a_checkpoint_of_version_3_is_read(tmp_path: Path) -> None:
    storage = Storage.open(shutil.copytree(V3 / "pieces", tmp_path / "checkpoints"))
    manifest, skipped = find_latest(storage)
    assert skipped == ()
    assert manifest is not None
    assert manifest.version == 1, "its files tell an earlier release that it cannot read them"
    found = {name: value.tolist() for name, value in read_dense(storage, manifest).items()}
    assert found == {
        "top.weight": [[0, 1, 2], [3, 4, 5]],
        "top.weight::sum": [[0, 2, 4], [6, 8, 10]],
        "top.bias": [0.5, 0.25],
        "top.bias::sum": [1, 0.5],
    }
    with TensorFile(storage, manifest.path_of(manifest.files[0])) as file:
        assert file.metadata["version"] == "3"


def test_pieces_are_written_as_in_version_3(tmp_path: Path) -> None:
    write_pieces(Storage.open(tmp_path / "checkpoints"))
    assert files_of(tmp_path / "checkpoints" / FOLDER) == files_of(V3 / "pieces" / FOLDER)


def test_an_entry_that_names_no_folder_of_a_checkpoint_is_damaged() -> None:
    document = json.loads((V2 / "checkpoints" / LATER / "manifest.json").read_text())
    document["manifest"]["files"][0]["folder"] = "../../elsewhere"
    document["checksum"] = _checksum(document["manifest"])
    with pytest.raises(DamagedError, match="is no folder of a checkpoint"):
        CheckpointManifest.from_json(json.dumps(document).encode())


def test_fields_that_a_later_release_has_added_to_a_manifest_are_ignored(checkpoints: Storage) -> None:
    manifest, _ = find_latest(checkpoints)
    assert manifest is not None
    body = json.loads(manifest.to_json())["manifest"]
    later = {**body, "addedLater": 1}
    later["tables"] = [with_additions(table) for table in body["tables"]]
    later["files"] = [with_additions(file) for file in body["files"]]
    canonical = json.dumps(later, sort_keys=True, separators=(", ", ": "), ensure_ascii=False)
    document = {"manifest": later, "checksum": f"crc32:{zlib.crc32(canonical.encode()):08x}", "addedLater": 1}
    read = CheckpointManifest.from_json(json.dumps(document).encode())
    assert [t.name for t in read.tables] == [t.name for t in TABLES]
    assert read.files == manifest.files


def change_metadata(storage: Storage, name: str, old: bytes, new: bytes) -> None:
    contents = storage.read(name)
    assert contents.count(old) == 1
    assert len(old) == len(new)
    storage.write_atomic(name, contents.replace(old, new))


def test_a_state_file_of_a_newer_release_is_refused(checkpoints: Storage) -> None:
    name = f"{FOLDER}/dense-0.safetensors"
    change_metadata(checkpoints, name, b'"version":"1"', b'"version":"4"')
    with TensorFile(checkpoints, name) as file, pytest.raises(UnsupportedVersionError, match="has version 4"):
        _ = file.origin
    change_metadata(checkpoints, name, b'"version":"4"', b'"version":"x"')
    with TensorFile(checkpoints, name) as file, pytest.raises(DamagedError):
        _ = file.origin


def test_a_manifest_of_a_newer_release_is_refused_by_every_reader(checkpoints: Storage) -> None:
    name = f"{FOLDER}/manifest.json"
    document = json.loads(checkpoints.read(name))
    document["manifest"]["version"] = 4  # its checksum may be another one
    checkpoints.write_atomic(name, json.dumps(document).encode())
    for read in (lambda: find_latest(checkpoints), lambda: check_checkpoint(checkpoints, FOLDER)):
        with pytest.raises(UnsupportedVersionError) as caught:
            read()
        assert str(caught.value) == (
            f"the checkpoint {FOLDER} has version 4, but this program reads versions up to 3; "
            "use the HeterPS release that wrote it, or a later one"
        )


@pytest.mark.parametrize(
    ("field", "value"),
    [("tables", "x"), ("tables", ["x"]), ("files", [["x"]]), ("fingerprint", 1.5), ("plan", []), ("step", "20"),
     ("step", True), ("loss", "0.1"), ("folder", 1)],
)  # fmt: skip
def test_a_manifest_with_a_value_of_another_type_is_damaged(field: str, value: object) -> None:
    """Its checksum is right, so the writer was wrong."""
    document = json.loads((V1 / "checkpoints" / "step-000000020.1-00000000" / "manifest.json").read_text())
    body = document["manifest"] | {field: value}
    text = json.dumps({"manifest": body, "checksum": _checksum(body)}).encode()
    with pytest.raises(DamagedError, match=r"manifest.json is truncated or malformed"):
        CheckpointManifest.from_json(text)


def test_a_manifest_that_is_nested_too_deeply_is_damaged() -> None:
    with pytest.raises(DamagedError):
        CheckpointManifest.from_json(b"[" * 100_000)


# --- run configuration ------------------------------------------------------------------------------------------------


def test_a_run_configuration_of_version_1_is_read() -> None:
    config = RunConfig.load(V1 / "run-configuration.json")
    assert (config.name, config.namespace, config.full_name) == ("flights", "team", "team/flights")
    assert (config.global_batch_size, config.checkpoint_every, config.hang_timeout_seconds) == (4096, 50, 120.0)
    assert {name: pool.device_type for name, pool in config.pools.items()} == {"cpu": "CPU", "accelerator": "GPU"}


def test_additions_to_a_run_configuration_are_ignored() -> None:
    document = json.loads((V1 / "run-configuration.json").read_text())
    assert RunConfig.from_json(document | {"addedLater": {}}) == RunConfig.from_json(document)
    later = with_additions(document)
    assert RunConfig.from_json(later).pools == RunConfig.from_json(document).pools


@pytest.mark.parametrize("version", [2, 10])
def test_a_run_configuration_of_a_newer_controller_is_refused(version: int) -> None:
    document = json.loads((V1 / "run-configuration.json").read_text())
    text = (
        f"the run configuration has version {version}, but this program reads versions up to 1; use the HeterPS release"
    )
    with pytest.raises(UnsupportedVersionError, match=text):
        RunConfig.from_json(document | {"version": version})


@pytest.mark.parametrize("version", [0, -1, "1", None, True, 1.0])
def test_a_version_that_is_none_is_an_error(version: object) -> None:
    with pytest.raises(ValueError, match="the plan: version must be a whole number >= 1"):
        check_version("the plan", version, 1)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"version": "1"}',
        '{"version": 1, "job": {"spec": []}}',
        (V1 / "run-configuration.json").read_text().replace('"hangTimeoutSeconds": 120', '"hangTimeoutSeconds": "x"'),
        (V1 / "run-configuration.json").read_text().replace('"checkpoint": {', '"checkpoint": 1, "x": {'),
    ],
)
def test_a_malformed_run_configuration_is_refused_by_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "configuration.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"run configuration .*configuration\.json: "):
        RunConfig.load(path)


# --- data cache -------------------------------------------------------------------------------------------------------


def cached_example(folder: Path) -> tuple[DataSpec, Path]:
    """The data set of the fixture, and its folder in the cache, which holds the fixture."""
    path = write_parquet(folder / "rows.parquet", columns(4))
    spec = make_spec(folder, path)
    cached = spec.cache_directory / fingerprint(Source(spec, "train"))
    shutil.copytree(V1 / "data-cache", cached)
    return spec, cached


def test_a_data_cache_of_version_1_is_read(tmp_path: Path) -> None:
    spec, cached = cached_example(tmp_path)
    said: list[str] = []
    data = open_dataset(spec, "train", lambda fraction, text: said.append(text))
    assert said == [], "it is not built again"
    assert data.num_rows == 4
    assert data.batch(np.arange(4), ["dense"])["dense"].tolist() == [[float(i), float(i)] for i in range(4)]
    shutil.rmtree(cached)
    open_dataset(spec, "train")
    written, expected = files_of(cached), files_of(V1 / "data-cache")
    meta = json.loads(written.pop("meta.json"))
    assert {**meta, "source": ""} == {**json.loads(expected.pop("meta.json")), "source": ""}
    assert written == expected


@pytest.mark.parametrize("version", [2, None])
def test_a_data_cache_of_another_version_is_built_again(tmp_path: Path, version: int | None) -> None:
    spec, cached = cached_example(tmp_path)
    meta = json.loads((cached / "meta.json").read_text()) | {"version": version}
    (cached / "meta.json").write_text(json.dumps(meta))
    said: list[str] = []
    open_dataset(spec, "train", lambda fraction, text: said.append(text))
    assert "of another version" in said[0]
    assert f"meta.json has version {version}, this program reads version 1" in said[0]
    assert json.loads((cached / "meta.json").read_text())["version"] == 1


@pytest.mark.parametrize(
    "change", ['"sizes": 1', '"sizes": [1]', '"multiValued": 1', '"singleValued": null', '"x": ' + "[" * 100_000]
)
def test_a_data_cache_with_malformed_metadata_is_built_again(tmp_path: Path, change: str) -> None:
    spec, cached = cached_example(tmp_path)
    text = (cached / "meta.json").read_text().rstrip().removesuffix("}")
    (cached / "meta.json").write_text(f"{text}, {change}}}")
    said: list[str] = []
    open_dataset(spec, "train", lambda fraction, text: said.append(text))
    assert "is damaged or of another version" in said[0]
    open_dataset(spec, "train", lambda fraction, text: pytest.fail(text))


def test_additions_to_a_data_cache_are_ignored(tmp_path: Path) -> None:
    spec, cached = cached_example(tmp_path)
    meta = json.loads((cached / "meta.json").read_text()) | {"addedLater": 1}
    (cached / "meta.json").write_text(json.dumps(meta))
    os.utime(cached / "meta.json", ns=(1, 1))
    said: list[str] = []
    open_dataset(spec, "train", lambda fraction, text: said.append(text))
    assert said == []
