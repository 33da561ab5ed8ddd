"""A stage of the model on its device: forward and backward of micro-batches."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

import torch

from heterps_runtime.errors import UserError
from heterps_runtime.intake import LossSum, StageModule
from heterps_runtime.partition.tables import Table
from heterps_runtime.store.keys import UniqueKeys
from heterps_runtime.wire.messages import Array, Forward
from heterps_runtime.worker.gradients import backward
from heterps_runtime.worker.rows.lookups import LookupBlock
from heterps_runtime.worker.steps.joining import Joining, is_row_wise
from heterps_runtime.worker.steps.operations import Operations
from heterps_runtime.worker.steps.runs import LABEL, Clock, StepRun, Work, largest_of
from heterps_runtime.worker.tensors import arrays_of, host_tensor, joined, moved, tensor_of

__all__ = ["Stage"]

_ONE_VALUE = "Expected more than 1 value per channel when training"  # torch's message


class Stage:
    """Computes micro-batches, in the engine's thread.

    Args:
        module: the layers.
        tables: of the model, by index.
        device: to compute on.
        loss_sum: (logits, label) -> loss summed over samples; for the last stage.
        clock: books the time.
    """

    def __init__(
        self,
        module: StageModule,
        tables: Sequence[Table],
        device: torch.device,
        loss_sum: LossSum,
        clock: Clock,
    ) -> None:
        self.module = module
        self.device = device
        self.samples = 0  # computed since the process started
        self.operations = Operations()
        self._tables = tables
        self._loss_sum = loss_sum
        self.joining = Joining(self._is_row_wise)
        self._clock = clock
        self._unique = UniqueKeys()
        initial = {**module.initial_parameters(), **module.initial_statistics()}
        self._shapes = {name: tuple(value.shape) for name, value in initial.items()}
        self._bound: StepRun | None = None  # its parameters are those of the module

    @property
    def exchanges_dense(self) -> bool:
        """Whether it has dense parameters or statistics, which commits change."""
        return bool(self.module.parameter_names or self.module.statistics_names)

    def begin(self, *, training: bool) -> None:
        """Prepare for steps of another kind or generation."""
        self.module.train(training)
        self._bound = None
        self.operations.begin()

    def take_tensors(self, arrays: Mapping[str, Array], bfloat16: Collection[str] = ()) -> dict[str, torch.Tensor]:
        """Received arrays as tensors on this device; `bfloat16`: names of those that are bit patterns."""
        return {name: tensor_of(array, self.device, bfloat16=name in bfloat16) for name, array in arrays.items()}

    def take_dense(self, pieces: Mapping[str, Sequence[Array]]) -> dict[str, torch.Tensor]:
        """Received pieces of dense parameters, and statistics, as tensors on this device."""
        return {name: joined(parts, self._shapes[name], self.device) for name, parts in pieces.items()}

    def receive(self, message: Forward, num_servers: int) -> tuple[dict[str, torch.Tensor], LookupBlock, int | None]:
        """Received activations, the micro-batch's lookups, and its largest label.

        Returns:
            The label, and the tensors that are computed with or have gradients, on this device. Ids are not among them.
        """
        short = message.bfloat16
        on_host = {n: host_tensor(a, self.device, bfloat16=n in short) for n, a in message.tensors.items()}
        ids = [self.module.ids(on_host)]
        block = LookupBlock(self.module.sites, self._tables, ids, self._unique, self.device, num_servers)
        needed = {LABEL, *self.module.forward_inputs, *message.differentiable}
        tensors = {n: moved(t, self.device) for n, t in on_host.items() if n in needed}
        if message.training:
            for name in message.differentiable:
                tensors[name].requires_grad_()
        return tensors, block, largest_of(on_host[LABEL])

    def forward(self, work: Work) -> None:
        """Compute the outputs of a micro-batch whose rows and parameters have arrived."""
        run = work.run
        self._clock.switch("lookup")
        work.looked_up = _look_up(work)
        self._clock.switch("forward")
        assert run.leaves is not None
        if self._bound is not run:
            self.module.bind(run.leaves)
            self._bound = run
        self.module.bind_statistics(run.statistics)
        with torch.set_grad_enabled(run.training), self.operations.of(work):
            try:
                work.outputs = self.module.forward(work.inputs, work.looked_up)
            except ValueError as error:
                if not str(error).startswith(_ONE_VALUE):
                    raise
                raise UserError(
                    f"training.globalBatchSize: a worker's part of step {run.step} has {work.micro_batch.size} sample, "
                    "too few for batch normalisation; choose a batch size of which the rest, the last batch of an "
                    "epoch, gives each micro-batch of each worker two samples, or lower training.microBatches"
                ) from error
        if run.training:
            self._note_changes(run, work.micro_batch.size)
        self.samples += work.micro_batch.size

    def _is_row_wise(self, work: Work) -> bool:
        self._bound = None
        return is_row_wise(self.module, self._loss_sum, work.inputs, _look_up(work), work.label)

    def _note_changes(self, run: StepRun, size: int) -> None:
        """Add the changes of statistics by a micro-batch of `size` samples."""
        for name, after in self.module.statistics().items():
            change = (after - run.statistics[name]) * size
            known = run.changes.get(name)
            run.changes[name] = change if known is None else known + change

    def learn(self, work: Work) -> None:
        """Last stage: compute loss and gradients of a micro-batch; gradients are those of the scaled mean loss."""
        loss = self._loss_sum(work.outputs["logits"], work.label, work.largest_label)
        work.run.losses.append(loss.detach())  # a number only at the end of the step: it waits for the device
        self._clock.switch("backward")
        with self.operations.of(work):
            torch.autograd.backward(loss if work.run.factor is None else loss * work.run.factor)
        self.operations.finish(work)

    def score(self, work: Work) -> tuple[torch.Tensor, float]:
        """Last stage, in evaluation: logits of a micro-batch, and its loss summed over samples."""
        logits = work.outputs["logits"]
        with torch.no_grad():
            loss = self._loss_sum(logits, work.label, work.largest_label)
        return logits.detach().cpu(), float(loss)

    def backward(self, work: Work) -> None:
        """Compute the gradients of a micro-batch from those of its outputs."""
        assert work.gradients is not None
        self._clock.switch("backward")
        with self.operations.of(work):
            backward([work.outputs[n] for n in work.gradients], list(work.gradients.values()))
        self.operations.finish(work)

    def backward_lookups(self, work: Work) -> None:
        """Add the gradients of a micro-batch's lookups to those of their rows."""
        self._clock.switch("lookup-backward")
        for part in work.each:
            part.block.backward(part.position)

    def input_gradients(self, work: Work) -> list[dict[str, Array]]:
        """Gradients for the previous stage, of each micro-batch."""
        leaves = {n: t for n, t in work.inputs.items() if t.requires_grad} if work.run.training else {}
        found = arrays_of({n: torch.zeros_like(t) if t.grad is None else t.grad for n, t in leaves.items()})
        if not work.parts:
            return [found]
        ends = list(itertools.accumulate(part.micro_batch.size for part in work.parts))
        return [{n: array[begin:end] for n, array in found.items()} for begin, end in itertools.pairwise([0, *ends])]


def _look_up(work: Work) -> list[torch.Tensor]:
    """The results of the lookups of a micro-batch, or of several, one after the other."""
    found = [part.block.forward(part.position, training=work.run.training) for part in work.each]
    return found[0] if len(found) == 1 else [torch.cat(results) for results in zip(*found, strict=True)]
