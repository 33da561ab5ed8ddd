"""Batches of a first-stage worker: the samples of its micro-batches, read and laid out for the stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.data import BatchOrder, Dataset
from heterps_runtime.intake import StageModule
from heterps_runtime.partition.allocation import MicroBatch
from heterps_runtime.partition.tables import Table
from heterps_runtime.store.keys import UniqueKeys
from heterps_runtime.wire.messages import DataSize
from heterps_runtime.worker.rows.lookups import LookupBlock
from heterps_runtime.worker.steps.runs import LABEL, Prepared

__all__ = ["BatchSource", "Data"]


@dataclass(frozen=True)
class Data:
    """The data sets of the first stage."""

    train: Dataset
    evaluation: Dataset | None

    @property
    def size(self) -> DataSize:
        """Numbers of rows."""
        return DataSize(self.train.num_rows, self.evaluation.num_rows if self.evaluation else 0)


class BatchSource:
    """Makes batches; `prepare` runs in the feed's thread, one call at a time.

    Args:
        config: the job.
        data: the data sets.
        tables: of the model, by index.
        device: of the stage.
    """

    def __init__(self, config: RunConfig, data: Data, tables: Sequence[Table], device: torch.device) -> None:
        self._data = data
        self._tables = tables
        self._device = device
        self._double = config.precision == "fp64"
        self._order = BatchOrder(data.train.num_rows, config.global_batch_size, config.seed)
        self._global_batch_size = config.global_batch_size
        self._unique = UniqueKeys()

    def prepare(self, step: int, mine: Sequence[MicroBatch], module: StageModule, *, training: bool) -> Prepared:
        """Read this worker's samples of a step and make their ids unique.

        Args:
            step: of the training, or batch of the evaluation data.
            mine: this worker's micro-batches.
            module: the stage.
            training: False: read the evaluation data.
        """
        dataset = self._data.train if training else self._data.evaluation
        assert dataset is not None
        inputs, labels = [], []
        for micro in mine:
            tensors = self._read(dataset, self._rows(step, micro, training=training), module)
            labels.append(tensors.pop(LABEL).to(self._device))
            inputs.append(tensors)
        ids = [module.ids(tensors) for tensors in inputs]
        block = LookupBlock(module.sites, self._tables, ids, self._unique)
        if self._device.type != "cpu":
            inputs = [{n: t.to(self._device) for n, t in tensors.items()} for tensors in inputs]
        return Prepared(step, tuple(mine), inputs, labels, block)

    def _rows(self, step: int, micro: MicroBatch, *, training: bool) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if training:
            return self._order.rows(step, micro.start, micro.stop)
        first = step * self._global_batch_size
        return np.arange(first + micro.start, first + micro.stop)

    def _read(
        self, dataset: Dataset, rows: np.ndarray[tuple[int], np.dtype[np.int64]], module: StageModule
    ) -> dict[str, torch.Tensor]:
        tensors = {n: torch.from_numpy(a) for n, a in dataset.batch(rows, module.inputs).items()}
        if self._double:
            tensors = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
        return tensors
