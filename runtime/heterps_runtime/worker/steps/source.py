"""Batches of a first-stage worker: the samples of its micro-batches, read and laid out for the stage."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.cores import usable_cores
from heterps_runtime.data import Dataset, RowOrder
from heterps_runtime.data.order import Rows
from heterps_runtime.intake import StageModule
from heterps_runtime.partition.allocation import MicroBatch
from heterps_runtime.partition.tables import Table
from heterps_runtime.store.keys import UniqueKeys
from heterps_runtime.wire.messages import DataSize
from heterps_runtime.worker.rows.lookups import LookupBlock
from heterps_runtime.worker.steps.runs import LABEL, Prepared, largest_of
from heterps_runtime.worker.tensors import moved

__all__ = ["BatchSource", "Data"]

_MOST_THREADS = 4  # on a card's host


@dataclass(frozen=True)
class Data:
    """The data sets of the first stage."""

    train: Dataset
    evaluation: Dataset | None

    @property
    def size(self) -> DataSize:
        """Numbers of rows."""
        return DataSize(self.train.num_rows, self.evaluation.num_rows if self.evaluation else 0, self.train.layout)

    @property
    def rows_read(self) -> int:
        """Rows that this process has read from the user's files while training."""
        return self.train.rows_read + (self.evaluation.rows_read if self.evaluation else 0)

    def forget(self) -> None:
        """Stop reading ahead."""
        for dataset in (self.train, self.evaluation):
            if dataset is not None:
                dataset.forget()


class BatchSource:
    """Makes batches; `prepare` runs in the feed's threads.

    Args:
        config: the job.
        data: the data sets.
        tables: of the model, by index.
        device: of the stage.

    Attributes:
        threads: that may prepare batches at the same time.
    """

    def __init__(self, config: RunConfig, data: Data, tables: Sequence[Table], device: torch.device) -> None:
        self._data = data
        self._tables = tables
        self._device = device
        self._double = config.precision == "fp64"
        self._config = config
        # One keeps up with a worker on a core, and would only disturb it more. A card waits for two, so it gets more if
        # there are cores for them. Data in streams is read ahead in the order of steps.
        alone = device.type == "cpu" or config.streams_data
        self.threads = 1 if alone else max(1, min(_MOST_THREADS, int(usable_cores() / 2)))
        self._lock = threading.Lock()
        self._current: tuple[Dataset, RowOrder] | None = None  # what is read, and in which order
        self._training = True
        self._of_thread = threading.local()

    def prepare(
        self,
        step: int,
        end: int,
        mine: Sequence[MicroBatch],
        module: StageModule,
        *,
        training: bool,
        num_servers: int,
    ) -> Prepared:
        """Read this worker's samples of a step and make their ids unique.

        Args:
            step: of the training, or batch of the evaluation data.
            end: steps from here on are not needed.
            mine: this worker's micro-batches.
            module: the stage.
            training: False: read the evaluation data.
            num_servers: parameter servers.
        """
        with self._lock:
            dataset, order = self._reading(training=training)
        if mine:
            dataset.read_ahead(order, step, min(m.start for m in mine), max(m.stop for m in mine), end)
        inputs, labels, largest = [], [], []
        for micro in mine:
            tensors = self._read(dataset, order.rows(step, micro.start, micro.stop), module)
            label = tensors.pop(LABEL)
            largest.append(largest_of(label))
            labels.append(moved(label, self._device))
            inputs.append(tensors)
        ids = [module.ids(tensors) for tensors in inputs]
        block = LookupBlock(module.sites, self._tables, ids, self._unique(), self._device, num_servers)
        needed = module.forward_inputs
        inputs = [{n: moved(t, self._device) for n, t in tensors.items() if n in needed} for tensors in inputs]
        return Prepared(step, tuple(mine), inputs, labels, largest, block)

    def _unique(self) -> UniqueKeys:
        """This thread's, which has scratch memory."""
        unique: UniqueKeys | None = getattr(self._of_thread, "unique", None)
        if unique is None:
            unique = self._of_thread.unique = UniqueKeys()
        return unique

    def location(self, step: int, sample: int, *, training: bool) -> str:
        """A sample of a step as users know it: its row, and the file if it is known. Thread-safe."""
        dataset, order = self._of(training=training)
        [row] = order.rows(step, sample, sample + 1)
        return dataset.location(int(row))

    def _of(self, *, training: bool) -> tuple[Dataset, RowOrder]:
        """A data set, and a new order of its rows."""
        data, config = self._data, self._config
        if training:
            return data.train, data.train.training_order(config.global_batch_size, config.seed)
        assert data.evaluation is not None
        return data.evaluation, data.evaluation.evaluation_order(config.global_batch_size)

    def _reading(self, *, training: bool) -> tuple[Dataset, RowOrder]:
        """The data set to read, and the order of its rows; what was read ahead of the other one is given up."""
        if self._current is None or self._training != training:
            if self._current is not None:
                self._current[0].forget()
            self._current, self._training = self._of(training=training), training
        return self._current

    def _read(self, dataset: Dataset, rows: Rows, module: StageModule) -> dict[str, torch.Tensor]:
        tensors = {n: torch.from_numpy(a) for n, a in dataset.batch(rows, module.inputs).items()}
        if self._double:
            tensors = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
        return tensors
