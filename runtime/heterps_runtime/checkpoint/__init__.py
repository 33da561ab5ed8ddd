"""Checkpoints: state as of one commit, on any storage, valid in full or not at all.

The rule: a checkpoint exists once its manifest exists, the manifest is written last, and nothing that an earlier valid
checkpoint consists of is ever written to. This package imports neither torch nor, but for the root of
the errors, any other part of the runtime.
"""

from heterps_runtime.checkpoint.errors import CheckpointError, DamagedError, StorageAddressError, StorageError
from heterps_runtime.checkpoint.export import ExportedModel, InitialRows, export_model
from heterps_runtime.checkpoint.format import FileEntry, TensorFile, TensorSpec, verify_file, write_tensors
from heterps_runtime.checkpoint.manifest import (
    CheckpointManifest,
    TableRecord,
    check_checkpoint,
    explain_mismatch,
    find_latest,
    mark_damaged,
    new_folder,
    retain,
    write_manifest,
)
from heterps_runtime.checkpoint.restore import RowBlock, iterate_keys, iterate_rows, read_dense
from heterps_runtime.checkpoint.storage import Storage, StoredFile
from heterps_runtime.checkpoint.writer import Barrier, CheckpointWriter, StateFile, commit, dense_arrays, row_arrays

__all__ = [
    "Barrier",
    "CheckpointError",
    "CheckpointManifest",
    "CheckpointWriter",
    "DamagedError",
    "ExportedModel",
    "FileEntry",
    "InitialRows",
    "RowBlock",
    "StateFile",
    "Storage",
    "StorageAddressError",
    "StorageError",
    "StoredFile",
    "TableRecord",
    "TensorFile",
    "TensorSpec",
    "check_checkpoint",
    "commit",
    "dense_arrays",
    "explain_mismatch",
    "export_model",
    "find_latest",
    "iterate_keys",
    "iterate_rows",
    "mark_damaged",
    "new_folder",
    "read_dense",
    "retain",
    "row_arrays",
    "verify_file",
    "write_manifest",
    "write_tensors",
]
