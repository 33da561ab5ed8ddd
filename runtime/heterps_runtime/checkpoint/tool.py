"""`heterps-runtime checkpoint`: what lies at a checkpoint path, as a JSON document for `heterps checkpoint`."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from typing import Any

from heterps_runtime.checkpoint.answering import answer, progress
from heterps_runtime.checkpoint.comparison import compare
from heterps_runtime.checkpoint.errors import DamagedError
from heterps_runtime.checkpoint.manifest import (
    CheckpointManifest,
    check_checkpoint,
    find_latest,
    order_of,
)
from heterps_runtime.checkpoint.ownership import owner_of
from heterps_runtime.checkpoint.retention import superseded
from heterps_runtime.checkpoint.survey import Found, Health, count_rows, named, survey
from heterps_runtime.errors import UserError
from heterps_runtime.storage import Storage

__all__ = ["run_tool"]


def run_tool(options: argparse.Namespace) -> int:
    """Carry out an action, and print what was found (`answering`).

    Args:
        options: the action and its arguments; heterps_runtime/__main__.py declares them.

    Returns:
        The exit code of a process of the runtime.
    """
    return answer(lambda: _act(options))


def _act(options: argparse.Namespace) -> dict[str, Any]:
    """Return the document of an action.

    Raises:
        UserError: there is no such folder or checkpoint.
        DamagedError: a checkpoint to compare is damaged.
        StorageError: the storage cannot be read, or a file cannot be deleted.
    """
    storage = Storage.open(options.address)
    if not storage.exists(""):
        raise UserError(f"{storage.address}: there is no such folder; name a checkpoint path or a job file")
    document: dict[str, Any] = {"version": 1, "address": storage.address}
    match options.action:
        case "ls":
            found = survey(storage)
        case "verify":
            found = _verify(storage, options.checkpoint)
        case "diff":
            return document | _diff(storage, options.before, options.after)
        case _:
            return document | _prune(storage, options.keep, options.dry_run)
    return document | {"owner": owner_of(storage), "checkpoints": [_to_json(storage, one) for one in found]}


def _verify(storage: Storage, checkpoint: str | None) -> list[Found]:
    """Look at all checkpoints, or at one, with the contents of all files."""
    only = None if checkpoint is None else [named(storage, checkpoint)]
    size = sum(one.bytes for one in survey(storage, only) if one.health == Health.VALID)
    with progress(storage.work, "verified", size):
        return survey(storage, only, contents=True)


def _to_json(storage: Storage, found: Found) -> dict[str, Any]:
    manifest = found.manifest
    document: dict[str, Any] = {
        "folder": found.folder,
        "step": found.step,
        "term": found.term,
        "health": found.health,
        "reason": found.reason or None,
        "bytes": found.bytes,
        "stored": found.stored,
    }
    if manifest is not None:
        document |= {
            "epoch": manifest.epoch,
            "samples": manifest.samples,
            "loss": _number(manifest.loss),
            "rows": count_rows(storage, manifest),
            "tables": len(manifest.tables),
            "files": len(manifest.files),
        }
    return document


def _diff(storage: Storage, before: str | None, after: str | None) -> dict[str, Any]:
    valid = [one.folder for one in survey(storage) if one.health == Health.VALID]
    newer = named(storage, after) if after is not None else next(iter(valid), None)
    if newer is None:
        raise UserError(f"{storage.address}: there is no valid checkpoint to compare; heterps checkpoint ls lists all")
    if before is not None:
        older: str | None = named(storage, before)
    else:
        older = next((folder for folder in valid if order_of(folder) < order_of(newer)), None)
    if older is None:
        raise UserError(f"{storage.address}: there is no valid checkpoint before {newer}; name one to compare it with")
    one, other = _read(storage, older), _read(storage, newer)
    size = sum(entry.bytes for manifest in (one, other) for entry in manifest.files)
    with progress(storage.work, "compared", size):
        compared = compare(storage, one, other)
    return {
        "before": _identity(one),
        "after": _identity(other),
        "fields": [{"field": name, "before": a, "after": b} for name, a, b in compared.fields],
        "tables": [asdict(table) | {"largest": _number(table.largest)} for table in compared.tables],
        "arrays": [asdict(array) | {"largest": _number(array.largest)} for array in compared.arrays],
    }


def _read(storage: Storage, folder: str) -> CheckpointManifest:
    try:
        return check_checkpoint(storage, folder, contents=False)
    except DamagedError as error:
        raise UserError(f"{folder}: cannot be compared, {error}; name a valid one, or leave it out") from error


def _identity(manifest: CheckpointManifest) -> dict[str, Any]:
    facts = {name: getattr(manifest, name) for name in ("folder", "step", "epoch", "samples")}
    return facts | {"loss": _number(manifest.loss)}


def _number(value: float | None) -> float | None:
    """Return a number that JSON has: neither infinite nor NaN."""
    return value if value is not None and math.isfinite(value) else None


def _prune(storage: Storage, keep: int, dry_run: bool) -> dict[str, Any]:
    found = survey(storage)
    size = next((one.bytes for one in found if one.health is Health.VALID), 0)
    with progress(storage.work, "verified the newest checkpoint:", size):
        newest, skipped = find_latest(storage)
    if newest is None:
        raise UserError(f"{storage.address}: there is no valid checkpoint, so nothing is deleted")
    # Without taking the path over: a running job goes on. It resumes from `newest` or a newer one, which stay.
    old = superseded(storage, newest, keep)
    if not dry_run:
        for one in old:
            one.delete(storage)
    deleted = [one.folder for one in old]
    return {
        "dryRun": dry_run,
        "kept": [one.folder for one in found if one.folder not in deleted],
        "passedOver": [{"folder": folder, "reason": reason} for folder, reason in skipped],
        "deleted": deleted,
        "needed": [one.folder for one in old if not one.whole],
        "bytes": sum(one.bytes for one in old),
    }
