"""Models of other jobs, and deltas between models, as `heterps model` and jobs that begin with a model read them."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from heterps_runtime.checkpoint.delta import DELTA_DESCRIPTION, write_delta
from heterps_runtime.checkpoint.errors import CheckpointError, ImportedModelError
from heterps_runtime.checkpoint.exported import ExportedModel, dtype_of, identity_of
from heterps_runtime.checkpoint.format import TensorFile, TensorSpec, _header, wide_first
from heterps_runtime.checkpoint.importing import TableMap, import_values, imported_values
from heterps_runtime.checkpoint.manifest import MANIFEST_NAME, _checksum
from heterps_runtime.checkpoint.patching import Delta, apply_delta
from heterps_runtime.checkpoint.publishing import MODEL_DESCRIPTION, list_files
from heterps_runtime.checkpoint.restore import iterate_rows
from heterps_runtime.errors import UserError
from heterps_runtime.exporting import initial_values
from heterps_runtime.model_tool import _check_replaceable
from heterps_runtime.partition.tables import Table
from heterps_runtime.processes.work import WorkCounter
from heterps_runtime.storage import Storage, StorageError
from heterps_runtime.versions import UnsupportedVersionError
from tests.fuzz.target import Form, Target
from tests.fuzz.targets.documents import NotJsonError, parse
from tests.heterps_runtime.helpers.checkpoint_samples import make_manifest
from tests.heterps_runtime.helpers.exported_models import TABLES, State, export

_PLACE = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
_ERRORS = (UserError, CheckpointError, StorageError, NotJsonError)
_TO_BEGIN_WITH = (ImportedModelError, StorageError, UnsupportedVersionError, NotJsonError)
_FOLDER = "step-000000000.1-00000000"
_METADATA = "__metadata__"
_ARRAY_BYTES = 1 << 14
_MEMORY = 16 << 20  # files are read in blocks
_MOST_AXES = 8
_ROWS = ({1: (1.0, 10), 2: (0.5, 10)}, {5: (1.0, 10), 9: (2.0, 10)}, {7: (1.0, 10), 8: (0.5, 9)})
_OLD = State(_ROWS)
_NEW = State(({**_ROWS[0], 2: (2.0, 12)}, {5: (1.0, 10), 11: (3.0, 12)}, _ROWS[2]), step=13, mean=1.0)
pa.set_cpu_count(1)
pa.set_io_thread_count(1)


@contextmanager
def _folder() -> Iterator[Path]:
    """An empty folder, in memory where that is possible."""
    folder = Path(tempfile.mkdtemp(dir=_PLACE))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _write(folder: Path, document: Any, names: Mapping[str, str], description: str) -> None:
    """Write the folder that a document stands for.

    Args:
        folder: does not exist.
        document: `{description: ..., files: {key: {array: [dtype, shape, elements]}}}`. The description gets the
            checksums of the files unless it has some.
        names: of the files, by key.
        description: name of the file with the description.
    """
    folder.mkdir(parents=True)
    files = document.get("files") if isinstance(document, dict) else None
    for key, name in names.items():
        arrays = files.get(key) if isinstance(files, dict) else None
        if isinstance(arrays, dict):
            (folder / name).parent.mkdir(exist_ok=True)
            _write_arrays(folder / name, arrays)
    (folder / "README.md").write_text("x")
    described = document.get("description") if isinstance(document, dict) else None
    if isinstance(described, dict) and "files" not in described:
        described = described | {"files": list_files(folder, WorkCounter())}
    (folder / description).write_text(json.dumps(described))


def _write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write a file with those arrays that can be in one."""
    values, metadata = {}, arrays.get(_METADATA)
    for name, described in arrays.items():
        try:
            dtype, shape, elements = described
            spec = TensorSpec(dtype_of(dtype), tuple(shape))
            usable = len(shape) <= _MOST_AXES and all(type(size) is int and size >= 0 for size in shape)
            if not usable or spec.num_bytes > _ARRAY_BYTES:
                continue
            name.encode()
            with np.errstate(all="ignore"):
                values[name] = spec, np.resize(np.array(elements or [0], spec.dtype), spec.shape)
        except (ValueError, TypeError, OverflowError):
            continue
    order = wide_first({name: spec for name, (spec, _) in values.items()})
    header = _header({name: values[name][0] for name in order}, metadata if isinstance(metadata, dict) else {})
    path.write_bytes(header + b"".join(values[name][1].tobytes() for name in order))


def _read(folder: Path, names: Mapping[str, str], description: str) -> dict[str, Any]:
    """The document that stands for a folder."""
    described = json.loads((folder / description).read_bytes())
    files = {}
    for key, name in names.items():
        if (folder / name).exists():
            with TensorFile(Storage.open(folder), name) as file:
                files[key] = {
                    array: [str(spec.dtype), list(spec.shape), file.read(array).reshape(-1).tolist()]
                    for array, spec in file.specs.items()
                } | {_METADATA: file.metadata}
    return {"description": described, "files": files}


_MODEL_FILES = {
    "tensors": "model.safetensors",
    "wide": "tables/wide%2Fx.weight.safetensors",
    "narrow": "tables/narrow.weight.safetensors",
    "small": "tables/small.weight.safetensors",
}


def _begin(data: bytes) -> None:
    """Begin with an exported model."""
    document = parse(data)
    with _folder() as folder:
        _write(folder / "model", document, _MODEL_FILES, MODEL_DESCRIPTION)
        _import(folder / "model", folder / "target", with_state=False)


def _import(source: Path, target: Path, *, with_state: bool) -> None:
    """Make a checkpoint of a model, and read it as servers and workers do."""
    storage, like = Storage.open(target), make_manifest(0, _FOLDER, ())
    manifest = import_values(
        Storage.open(source), "other", storage, _FOLDER, like, with_state=with_state, initial_rows=initial_values
    )
    json.loads(manifest.to_json())
    known = TableMap(manifest, [Table(9 - t.index, t.name, t.num_embeddings, t.dim, None) for t in TABLES])
    for kind in ("group", "candidates"):
        for block in iterate_rows(storage, manifest, with_state=with_state, kind=kind):
            mapped = known(block)
            assert (mapped.keys >= 0).all()
    for role, name, shape in (("dense", "top.weight", (1, 2)), ("buffers", "mean", ())):
        found = imported_values(storage, manifest, {name: np.zeros(shape, np.float32)}, role=role)
        assert all(value.shape == shape for value in found.values())


def _compare(data: bytes) -> None:
    """Make a delta between a model and a sound one, in both directions."""
    document = parse(data)
    with _folder() as folder:
        _write(folder / "model", document, _MODEL_FILES, MODEL_DESCRIPTION)
        _write(folder / "sound", _documents()["new"], _MODEL_FILES, MODEL_DESCRIPTION)
        places = [Storage.open(folder / name) for name in ("model", "sound")]
        _check_replaceable(places[0], MODEL_DESCRIPTION)
        one, other = map(ExportedModel, places)
        output = Storage.open(folder / "delta")
        write_delta(one, other, output)
        Delta(output)
        write_delta(other, one, output)
        assert apply_delta(other, Delta(output)), "what was written can be applied"


def _apply(data: bytes) -> None:
    """Apply a delta to a sound model; it stays as it is, unless the result is one."""
    document = parse(data)
    with _folder() as folder:
        model = folder / "model"
        _write(model, _documents()["old"], _MODEL_FILES, MODEL_DESCRIPTION)
        before = (model / MODEL_DESCRIPTION).read_bytes()
        _write_delta(folder / "delta", document, before)
        try:
            apply_delta(ExportedModel(Storage.open(model)), Delta(Storage.open(folder / "delta")))
        except _ERRORS:
            assert (model / MODEL_DESCRIPTION).read_bytes() == before
            raise
        finally:
            assert sorted(os.listdir(folder)) == ["delta", "model"]
            ExportedModel(Storage.open(model))


def _write_delta(folder: Path, document: Any, base: bytes) -> None:
    """Write a delta; the identities of its models are computed where the description says "now"."""
    newer = json.dumps(document.get("newer") if isinstance(document, dict) else None).encode()
    (folder / "model").mkdir(parents=True)
    (folder / "model" / MODEL_DESCRIPTION).write_bytes(newer)
    (folder / "model" / "README.md").write_text(_documents()["readme"])
    described = document.get("description") if isinstance(document, dict) else None
    if isinstance(described, dict):
        now = {"base": identity_of(base), "model": identity_of(newer)}
        described = {key: now[key] if value == "now" and key in now else value for key, value in described.items()}
    files = document.get("files") if isinstance(document, dict) else None
    aside = folder.with_name("aside")
    _write(aside, {"files": files}, _MODEL_FILES, DELTA_DESCRIPTION)
    for name in _MODEL_FILES.values():
        if (aside / name).exists():
            (folder / name).parent.mkdir(exist_ok=True)
            (aside / name).rename(folder / name)
    shutil.rmtree(aside)
    if isinstance(described, dict) and "files" not in described:
        described["files"] = list_files(folder, WorkCounter())
    (folder / DELTA_DESCRIPTION).write_text(json.dumps(described))


def _begin_with_checkpoint(data: bytes) -> None:
    """Begin with the checkpoint of another job, with the state of its optimizers and without."""
    document = parse(data)
    with _folder() as folder:
        checkpoint = folder / "source" / _documents()["folder"]
        _write(checkpoint, document, _CHECKPOINT_FILES, "files.json")
        body = document.get("description") if isinstance(document, dict) else None
        if isinstance(body, dict) and isinstance(body.get("files"), list):
            listed = {entry["name"]: entry for entry in list_files(checkpoint, WorkCounter())}
            entries = [entry for entry in body["files"] if isinstance(entry, dict)]
            body = body | {"files": [entry | _found(listed, entry) for entry in entries]}
        try:
            checksum = _checksum(body or {})
        except ValueError:  # it is no JSON of UTF-8
            checksum = ""
        (checkpoint / MANIFEST_NAME).write_text(json.dumps({"manifest": body, "checksum": checksum}))
        for with_state in (False, True):
            _import(folder / "source", folder / f"target-{with_state}", with_state=with_state)


def _found(listed: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """The size and checksum of a file, unless the entry says others."""
    name = entry.get("name")
    found = listed.get(name, {}) if isinstance(name, str) else {}
    return {key: found[key] for key in ("bytes", "checksum") if entry.get(key) == "now" and key in found}


_CHECKPOINT_FILES = {"rows": "rows-0.safetensors", "dense": "dense-0.safetensors", "buffers": "buffers-0.safetensors"}


@cache
def _documents() -> dict[str, Any]:
    """Documents of two models, of the delta between them, and of the checkpoint of the first one."""
    with _folder() as folder:
        models = []
        for number, state in enumerate((_OLD, _NEW)):
            (folder / str(number)).mkdir()
            models.append(export(state, folder / str(number)))
        before, after = (ExportedModel(Storage.open(model)) for model in models)
        write_delta(before, after, Storage.open(folder / "delta"))
        old, new = (_read(model, _MODEL_FILES, MODEL_DESCRIPTION) for model in models)
        delta = _read(folder / "delta", _MODEL_FILES, DELTA_DESCRIPTION)
        [path] = (folder / "0" / "checkpoints").glob("step-*")
        stored = _read(path, _CHECKPOINT_FILES, MANIFEST_NAME)
        readme = (models[1] / "README.md").read_text()
    delta["newer"] = dict(new["description"])
    delta["description"] |= {"base": "now", "model": "now"}
    for one in (old, new, delta):
        del one["description"]["files"]
    stored["description"] = stored["description"]["manifest"]
    for entry in stored["description"]["files"]:
        entry |= {"bytes": "now", "checksum": "now"}
    return {"old": old, "new": new, "delta": delta, "checkpoint": stored, "folder": path.name, "readme": readme}


def _seed(name: str) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(_documents()[name]).encode()]


TARGETS = [
    Target("models.begin", _begin, _TO_BEGIN_WITH, _seed("old"), Form.JSON, memory=_MEMORY),
    Target("models.checkpoint", _begin_with_checkpoint, _TO_BEGIN_WITH, _seed("checkpoint"), Form.JSON, memory=_MEMORY),
    Target("models.delta", _compare, _ERRORS, _seed("old"), Form.JSON, memory=_MEMORY),
    Target("models.apply", _apply, _ERRORS, _seed("delta"), Form.JSON, memory=_MEMORY),
]
