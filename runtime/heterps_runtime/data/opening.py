"""Opening a split of the job's data."""

from __future__ import annotations

from heterps_runtime.data.cached import CachedDataset
from heterps_runtime.data.dataset import Dataset
from heterps_runtime.data.folder import Progress
from heterps_runtime.data.spec import DataSpec, Split
from heterps_runtime.data.streamed import StreamedDataset

__all__ = ["open_dataset"]


def open_dataset(spec: DataSpec, split: Split, progress: Progress | None = None) -> Dataset:
    """Open a split of the job's data, as `spec.data.access` says.

    Args:
        spec: the job's data.
        split: `train` or `evaluation`.
        progress: see `folder.Progress`.

    Raises:
        DataError: the data is wrong, or cannot be read or cached; the message names the remedy.
    """
    say = progress or (lambda fraction, text: None)
    if spec.access == "Streamed":
        return StreamedDataset(spec, split, say)
    return CachedDataset.open(spec, split, say)
