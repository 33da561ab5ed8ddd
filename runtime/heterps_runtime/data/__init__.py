"""The job's data: from the user's files to batches of arrays, and from predictions to metrics.

    spec          spec.data as typed values
    source        files as record batches (parquet, Arrow, CSV, Criteo); `columns` checks them, `ids` hashes
    cache         a split in memory-mapped .npy files (`npy`), built once per machine
    dataset       rows of a split as arrays, by feature name
    order         the rows of each step
    evaluation    AUC, log loss, accuracy: metrics that workers merge

Nothing here imports torch; arrays are ready for `torch.from_numpy`.
"""

from heterps_runtime.data.dataset import Dataset, open_dataset
from heterps_runtime.data.errors import DataError
from heterps_runtime.data.evaluation import metrics_for
from heterps_runtime.data.order import BatchOrder
from heterps_runtime.data.spec import DataSpec

__all__ = ["BatchOrder", "DataError", "DataSpec", "Dataset", "metrics_for", "open_dataset"]
