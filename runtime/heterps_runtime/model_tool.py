"""`heterps-runtime model`: models of checkpoints, and deltas between models, for `heterps model`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from heterps_runtime.checkpoint.answering import answer, progress
from heterps_runtime.checkpoint.delta import DELTA_DESCRIPTION, write_delta
from heterps_runtime.checkpoint.errors import DamagedError
from heterps_runtime.checkpoint.export import export_model
from heterps_runtime.checkpoint.exported import ExportedModel
from heterps_runtime.checkpoint.manifest import MANIFEST_NAME, CheckpointManifest, find_latest, read_manifest
from heterps_runtime.checkpoint.patching import Delta, apply_delta
from heterps_runtime.checkpoint.publishing import MODEL_DESCRIPTION
from heterps_runtime.checkpoint.survey import named
from heterps_runtime.errors import UserError
from heterps_runtime.processes.work import WorkCounter
from heterps_runtime.storage import Storage, StorageError

__all__ = ["run_tool"]


def run_tool(options: argparse.Namespace) -> int:
    """Carry out an action, and print what was written (`checkpoint.answering`).

    Args:
        options: the action and its arguments; heterps_runtime/__main__.py declares them.

    Returns:
        The exit code of a process of the runtime.
    """
    actions = {"export": _export, "delta": _delta, "apply": _apply}
    return answer(lambda: {"version": 1} | actions[options.action](options))


def _export(options: argparse.Namespace) -> dict[str, Any]:
    """Export a checkpoint of a job, which may be running.

    Raises:
        UserError: there is no such checkpoint, or something else is at the place of the model.
        StorageError: a file cannot be read or written.
    """
    from heterps_runtime.exporting import initial_values  # compiled kernels take long to load; the others need none

    storage = Storage.open(options.address)
    output = Storage.open(options.to, storage.work)
    _check_replaceable(output, MODEL_DESCRIPTION)
    folder = "" if options.checkpoint is None else named(storage, options.checkpoint)
    try:
        manifest = read_manifest(storage, folder) if folder else _newest(storage)
        folder = manifest.folder
        if manifest.imported_from:
            raise UserError(f"{folder}: this is the model of {manifest.imported_from}, and not yet one of this job")
        with progress(storage.work, "read and written"):
            export_model(storage, manifest, options.to, owner=None, initial_rows=initial_values(manifest.seed))
    except (DamagedError, StorageError) as error:
        if folder and storage.size(f"{folder}/{MANIFEST_NAME}") is None:
            raise UserError(
                f"{folder}: this checkpoint is not complete, or the job has deleted it meanwhile; export a newer one, "
                "or let the job keep more of them (checkpoint.keep)"
            ) from error
        if isinstance(error, StorageError):
            raise
        raise UserError(f"{folder}: cannot be exported, {error}; name another one with --checkpoint") from error
    model = ExportedModel(output)
    return {
        "model": _describe(model),
        "checkpoint": folder,
        "rows": sum(int(table["numRows"]) for table in model.document["tables"]),
        "bytes": sum(output.sizes().values()),
    }


def _newest(storage: Storage) -> CheckpointManifest:
    manifest, skipped = find_latest(storage, contents=False)
    if manifest is None:
        why = "".join(f"; {folder}: {reason}" for folder, reason in skipped)
        raise UserError(f"{storage.address}: there is no valid checkpoint to export{why}")
    return manifest


def _delta(options: argparse.Namespace) -> dict[str, Any]:
    """Write what changed between two models.

    Raises:
        UserError, DamagedError, StorageError: as in `write_delta`; or something else is at the place of the delta.
    """
    work = WorkCounter()
    storages = [Storage.open(place, work) for place in (options.before, options.after)]
    output = Storage.open(options.to, work)
    _check_replaceable(output, DELTA_DESCRIPTION)
    with progress(work, "compared", 2 * sum(_size(storage) for storage in storages)):  # after their checksums
        before, after = map(ExportedModel, storages)
        tables, tensors = write_delta(before, after, output)
    return {
        "before": _describe(before),
        "after": _describe(after),
        "delta": output.address,
        "tables": [asdict(table) for table in tables],
        "tensors": tensors,
        "unchanged": len(after.tables) - len(tables) + len(after.values) - len(tensors),
        "bytes": sum(output.sizes().values()),
        "bytesOfModel": _size(storages[1]),
    }


def _apply(options: argparse.Namespace) -> dict[str, Any]:
    """Replace a model by a newer one.

    Raises:
        UserError, DamagedError, StorageError: as in `apply_delta`; or the model's folder has other files.
    """
    work = WorkCounter()
    place, delta = Storage.open(options.model, work), Storage.open(options.delta, work)
    with progress(work, "read and written"):
        older = ExportedModel(place)
        _check_replaceable(place, MODEL_DESCRIPTION)
        applied = apply_delta(older, Delta(delta))
        newer = ExportedModel(place) if applied else older
    return {"applied": applied, "before": _describe(older), "after": _describe(newer)}


def _check_replaceable(place: Storage, description: str) -> None:
    """Check that nothing is lost if a folder is replaced; an object store keeps the files that are not.

    Raises:
        UserError: the place has files that its description does not have.
    """
    if not place.local or not place.exists(""):
        return
    known = {description}
    if place.size(description) is not None:
        try:
            known |= {file["name"] for file in json.loads(place.read(description))["files"]}
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(f"{place.path(description)} is malformed; remove the folder, or name another one") from None
    others = [place.address] if place.size("") is not None else sorted(set(place.files()) - known)
    if others:
        what = f"{place.address}: would be replaced, but has other files, such as {others[0]}"
        raise UserError(f"{what}; name another folder")


def _size(place: Storage) -> int:
    return sum(place.sizes().values())


def _describe(model: ExportedModel) -> dict[str, Any]:
    return {"address": model.storage.address, "identity": model.identity, "step": model.step}
