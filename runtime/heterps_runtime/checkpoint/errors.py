"""Errors of checkpoints, worded for users; those of the storage itself are in `heterps_runtime.storage`.

    CheckpointError
    ├── DamagedError        a file differs from what was written: truncated, changed
    │   └── IncompleteError there is no manifest: the checkpoint is being written, or its writer was interrupted
    └── FencedError         another run has taken the checkpoints over
    UserError (heterps_runtime.errors)
    ├── ImportedModelError  the model of spec.model.initFrom cannot be used
    ├── ShapeError          a parameter has another shape in the model than in the checkpoint
    └── NoCheckpointLeftError  every checkpoint is damaged

After a `StorageError`, training continues and the last good checkpoint stays. After a `DamagedError`, an older
checkpoint is used. After a `FencedError`, this run of the job ends: it must not change the checkpoints any more.
"""

from __future__ import annotations

from heterps_runtime.errors import HeterpsRuntimeError, UserError

__all__ = [
    "CheckpointError",
    "DamagedError",
    "FencedError",
    "ImportedModelError",
    "IncompleteError",
    "NoCheckpointLeftError",
    "ShapeError",
]


class CheckpointError(HeterpsRuntimeError):
    """Base class of the errors of this package."""


class DamagedError(CheckpointError):
    """A file or checkpoint differs from what was written.

    Attributes:
        file: name of the file in its storage; empty if the error is not that of one file.
    """

    def __init__(self, text: str, file: str = "") -> None:
        super().__init__(text)
        self.file = file


class IncompleteError(DamagedError):
    """A checkpoint without a manifest: it is being written, or its writer was interrupted."""


class FencedError(CheckpointError):
    """Another run of a job has taken the checkpoints over, so that this one must not change them."""


class NoCheckpointLeftError(UserError):
    """A job has been trained, but none of its checkpoints can be restored; people decide whether to begin again."""


class ImportedModelError(UserError):
    """The model that a job should begin with is missing, or does not fit."""


class ShapeError(UserError):
    """A parameter has another shape in the model than in the checkpoint.

    Attributes:
        name: of the parameter, or of its state.
        theirs: its shape in the checkpoint.
        ours: its shape in the model.
    """

    def __init__(self, name: str, theirs: tuple[int, ...], ours: tuple[int, ...], folder: str) -> None:
        super().__init__(
            f"checkpoint.path: {name!r} has the shape {list(theirs)} in {folder}, but {list(ours)} in this model; "
            "restore the model's code, or choose another checkpoint.path"
        )
        self.name, self.theirs, self.ours = name, theirs, ours
