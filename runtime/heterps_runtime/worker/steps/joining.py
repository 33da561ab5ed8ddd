"""Micro-batches that a worker of the last stage computes together.

If the stage before has more workers, each of its micro-batches is small, and a worker of the last stage has many of
them in a step. Each one costs a pass through the layers: on a card, mostly the launch of kernels. So what has arrived
is computed together, up to the samples that the cost model takes for a micro-batch of this worker. Sums of gradients
stay the same, up to rounding, if the result of a sample depends on no other sample. Nothing says so of a model: a
normalisation or a softmax over the batch looks like any other operation. It is tried out with random values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from heterps_runtime.intake import LossSum, StageModule
from heterps_runtime.worker.steps.runs import Work

__all__ = ["Joining", "is_row_wise"]

_MOST_ON_CPU = 1024  # samples: the inputs of more do not stay in a core's cache, which costs more than a pass
_FIRST, _ROWS = 2, 5  # samples of the trial: so few that each one would change a mean over them
_TOLERANCE = 0.02  # of the largest result; short products differ by less, other samples' results by more


class Joining:
    """Chooses what is computed together.

    Args:
        row_wise: whether results of samples are independent, by a micro-batch; called at most once.
    """

    def __init__(self, row_wise: Callable[[Work], bool]) -> None:
        self._row_wise = row_wise
        self._known: bool | None = None

    def take(self, work: Work, most: int) -> list[Work]:
        """Take the waiting micro-batches of a step to compute together with one of them.

        Args:
            work: the first one, which does not wait any more.
            most: samples of all together.
        """
        found: list[Work] = []
        if self._known is False or not _is_whole(work):
            return found
        if work.label.device.type == "cpu":
            most = min(most, _MOST_ON_CPU)
        size = work.micro_batch.size
        for other in sorted(work.run.waiting, key=lambda w: w.order):
            if size + other.micro_batch.size > most:
                break
            if other.block.arrived and _is_whole(other) and _kinds(other) == _kinds(work):
                found.append(other)
                size += other.micro_batch.size
        if found and self._known is None:
            self._known = self._row_wise(work)
        if not self._known:
            return []
        for other in found:
            work.run.waiting.remove(other)
        return found


def _is_whole(work: Work) -> bool:
    """Whether each input has one entry for each sample, as far as its shape tells."""
    return all(tensor.shape[:1] == (work.micro_batch.size,) for tensor in work.inputs.values())


def _kinds(work: Work) -> dict[str, tuple[torch.Size, torch.dtype, bool]]:
    """What must be the same of inputs that are joined."""
    return {name: (t.shape[1:], t.dtype, t.requires_grad) for name, t in work.inputs.items()}


def is_row_wise(
    module: StageModule,
    loss_sum: LossSum,
    inputs: Mapping[str, Tensor],
    looked_up: Sequence[Tensor],
    label: Tensor,
) -> bool:
    """Try out whether the last stage computes each sample's result from that sample alone.

    Random samples, with random parameters, must have the same logits and the same sum of losses whether they are
    computed in two parts or together. The caller binds parameters again.

    Args:
        module: the last stage, in training.
        loss_sum: (logits, label) -> loss summed over samples.
        inputs: of any micro-batch: types and shapes are used, and values of whole numbers.
        looked_up: results of its lookups.
        label: its labels.
    """
    if module.statistics_names or any(tensor.shape[:1] != label.shape[:1] for tensor in looked_up):
        return False
    device = label.device
    with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        module.bind({name: _weights(value).to(device) for name, value in module.initial_parameters().items()})
        samples = {name: _samples(tensor) for name, tensor in inputs.items()}
        rows, labels = [_samples(tensor) for tensor in looked_up], _samples(label, keep=True)

        def compute(begin: int, end: int) -> tuple[Tensor, float]:
            given = {name: tensor[begin:end] for name, tensor in samples.items()}
            [logits] = module.forward(given, [tensor[begin:end] for tensor in rows]).values()
            return logits, float(loss_sum(logits, labels[begin:end], None))

        try:
            if not torch.equal(compute(0, _ROWS)[0], compute(0, _ROWS)[0]):  # dropout
                module.train(False)
            whole, loss = compute(0, _ROWS)
            (one, loss_of_one), (two, loss_of_two) = compute(0, _FIRST), compute(_FIRST, _ROWS)
            parts = torch.cat([one, two])
        except Exception:  # whatever a layer raises for such samples
            return False
        finally:
            module.train()
    if parts.shape != whole.shape:
        return False
    largest = float(whole.abs().max())
    difference = float((whole - parts).abs().max())  # NaN: no comparison below holds
    return (
        0 < largest < math.inf
        and difference <= _TOLERANCE * largest
        and abs(loss - loss_of_one - loss_of_two) <= _TOLERANCE * abs(loss)
    )


def _weights(like: Tensor) -> Tensor:
    """Random parameters of a size that neither hides nor blows up what they are multiplied with."""
    inputs = like[0].numel() if like.dim() > 1 else 1
    return (torch.randn(like.shape) / math.sqrt(inputs)).to(like.dtype)


def _samples(like: Tensor, *, keep: bool = False) -> Tensor:
    """Random samples; whole numbers, and all that `keep` says, are those of the micro-batch."""
    if keep or not like.is_floating_point():
        return like.detach()[torch.arange(_ROWS, device=like.device) % len(like)]
    return torch.randn((_ROWS, *like.shape[1:]), device=like.device).to(like.dtype)
