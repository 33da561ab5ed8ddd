"""The job's data: from the user's files to batches of arrays, and from predictions to metrics.

    spec          spec.data as typed values
    source        `files` as record batches (parquet, Arrow, `text`); `records` makes arrays of them
    records       checked (`columns`, `tensors`) and hashed (`ids`) arrays of rows
    cache         a whole split in memory-mapped .npy files (`npy`), built once per machine
    block_cache   the blocks of a split that is streamed; `index` finds them
    dataset       rows of a split as arrays, by feature name: `cached` or `streamed`
    order         the rows of each step; `windows` those of a streamed split
    evaluation    AUC, log loss, accuracy: metrics that workers merge

Nothing here imports torch; arrays are ready for `torch.from_numpy`.
"""

from heterps_runtime.data.dataset import Dataset
from heterps_runtime.data.errors import DataError
from heterps_runtime.data.evaluation import metrics_for
from heterps_runtime.data.opening import open_dataset
from heterps_runtime.data.order import BatchOrder, RowOrder
from heterps_runtime.data.spec import DataSpec

__all__ = ["BatchOrder", "DataError", "DataSpec", "Dataset", "RowOrder", "metrics_for", "open_dataset"]
