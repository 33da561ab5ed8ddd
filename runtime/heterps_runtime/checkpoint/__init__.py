"""Checkpoints: the state as of one commit, on any storage, valid as a whole or not at all.

A checkpoint exists once its manifest exists, and the manifest is written last. Files of an earlier valid checkpoint are
never written to. This package imports no torch.
"""

from heterps_runtime.checkpoint.dense import dense_arrays, read_dense, read_pieces
from heterps_runtime.checkpoint.errors import DamagedError, FencedError
from heterps_runtime.checkpoint.export import export_model
from heterps_runtime.checkpoint.format import FileEntry, Origin, verify_file
from heterps_runtime.checkpoint.importing import TableMap, import_values, imported_values
from heterps_runtime.checkpoint.manifest import (
    CheckpointManifest,
    TableRecord,
    check_checkpoint,
    explain_mismatch,
    find_latest,
    mark_damaged,
    new_folder,
    read_manifest,
)
from heterps_runtime.checkpoint.ownership import Ownership, take_over
from heterps_runtime.checkpoint.restore import count_rows, iterate_rows
from heterps_runtime.checkpoint.rows import RowPart, row_arrays
from heterps_runtime.checkpoint.writer import Barrier, CheckpointWriter, RowFile, StateFile, commit
from heterps_runtime.storage import Storage, StorageError

__all__ = [
    "Barrier",
    "CheckpointManifest",
    "CheckpointWriter",
    "DamagedError",
    "FencedError",
    "FileEntry",
    "Origin",
    "Ownership",
    "RowFile",
    "RowPart",
    "StateFile",
    "Storage",
    "StorageError",
    "TableMap",
    "TableRecord",
    "check_checkpoint",
    "commit",
    "count_rows",
    "dense_arrays",
    "explain_mismatch",
    "export_model",
    "find_latest",
    "import_values",
    "imported_values",
    "iterate_rows",
    "mark_damaged",
    "new_folder",
    "read_dense",
    "read_manifest",
    "read_pieces",
    "row_arrays",
    "take_over",
    "verify_file",
]
