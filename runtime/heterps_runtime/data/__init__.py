"""The job's data: from the user's files to batches of arrays, and from predictions to figures.

    spec.py        spec.data as typed values
    source.py      files in record batches (parquet, Arrow, CSV, Criteo), columns.py checks them, ids.py hashes
    cache.py       a split in memory-mapped .npy files (npy.py), built once per machine
    dataset.py     any rows of it as arrays by feature name
    order.py       which rows belong to which step
    evaluation.py  AUC, log loss, accuracy: figures that workers merge

Nothing here imports torch: arrays go to `torch.from_numpy` as they are.
"""

from heterps_runtime.data.dataset import Dataset, DatasetSchema, open_dataset
from heterps_runtime.data.errors import DataCacheError, DataError
from heterps_runtime.data.evaluation import BinaryMetrics, ClassMetrics, LossMetrics, Metrics, metrics_for
from heterps_runtime.data.order import BatchOrder
from heterps_runtime.data.spec import DataSpec, label_kind

__all__ = [
    "BatchOrder",
    "BinaryMetrics",
    "ClassMetrics",
    "DataCacheError",
    "DataError",
    "DataSpec",
    "Dataset",
    "DatasetSchema",
    "LossMetrics",
    "Metrics",
    "label_kind",
    "metrics_for",
    "open_dataset",
]
