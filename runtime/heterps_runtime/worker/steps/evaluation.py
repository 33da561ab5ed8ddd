"""Evaluation in a worker of the last stage."""

from __future__ import annotations

import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.data import metrics_for
from heterps_runtime.wire.messages import Array

__all__ = ["Evaluation"]


class Evaluation:
    """Metrics of this worker's share.

    Args:
        config: its loss and number of classes determine the metrics.
    """

    def __init__(self, config: RunConfig) -> None:
        self._metrics = metrics_for(config.loss, config.num_classes)

    def take(self, logits: torch.Tensor, labels: torch.Tensor, loss_sum: float) -> None:
        """Add a micro-batch.

        Args:
            logits: (n,), (n, 1) or (n, classes), on the CPU.
            labels: (n,) or as the loss needs them, on the CPU.
            loss_sum: over these samples.
        """
        values = logits.numpy()
        one_column = values.ndim == 2 and values.shape[1] == 1
        self._metrics.update(values.reshape(-1) if one_column else values, labels.numpy(), loss_sum)

    def results(self) -> dict[str, Array]:
        """Sums and histograms that merge with those of other workers."""
        return self._metrics.to_arrays()
