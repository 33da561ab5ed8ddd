"""The steps of a stage: forward, backward, push, report, in the order in which inputs arrive.

The engine runs in one thread and reacts to events: batches of the feed, rows and parameters of the servers, activations
of the previous stage, gradients of the next stage, commits of the coordinator. Between two polls of its sockets, it
computes at most one micro-batch. Backward work precedes forward work (1F1B), and the number of micro-batches in flight
per path is bounded, which bounds the memory of activations. Requests are sent as early as the consistency mode allows,
so that communication overlaps computation.

In `sync`, micro-batches are computed in a fixed order, so that sums of gradients, and the whole run, are reproducible.
Otherwise they are computed as they arrive.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.data.order import BatchOrder, SequentialOrder
from heterps_runtime.errors import ProtocolError
from heterps_runtime.intake import LabelError
from heterps_runtime.partition.allocation import Allocation
from heterps_runtime.wire.messages import Backward, Commit, Evaluated, Forward
from heterps_runtime.worker.rows.servers import Initialised, Pushed
from heterps_runtime.worker.steps.arrivals import (
    MOST_EARLY,
    MOST_STEPS_AHEAD,
    check_activation,
    check_gradients,
)
from heterps_runtime.worker.steps.choosing import next_backward, next_forward
from heterps_runtime.worker.steps.consistency import Reads
from heterps_runtime.worker.steps.context import WorkerContext, WorkerProcess
from heterps_runtime.worker.steps.delivery import Delivery
from heterps_runtime.worker.steps.evaluation import Evaluation
from heterps_runtime.worker.steps.feed import Feed
from heterps_runtime.worker.steps.inputs import Inputs
from heterps_runtime.worker.steps.loss_scales import LossScales
from heterps_runtime.worker.steps.runs import LABEL, Prepared, StepRun, Work
from heterps_runtime.worker.steps.source import BatchSource
from heterps_runtime.worker.steps.stage import Stage
from heterps_runtime.worker.tensors import arrays_of

__all__ = ["Engine"]


class Engine:
    """Runs the steps of a generation, in training or evaluation.

    Args:
        config: the job.
        context: position and connections in the generation.
        stage: this worker's part of the model.
        source: of batches, for the first stage.
        process: outlives the generation.
    """

    def __init__(
        self,
        config: RunConfig,
        context: WorkerContext,
        stage: Stage,
        source: BatchSource | None,
        process: WorkerProcess,
    ) -> None:
        self.context = context
        self.committed = context.committed
        self._config = config
        self._stage = stage
        self._source = source
        self._process = process
        self._clock = process.clock
        self._reads = Reads.of(config)
        self._schedule = context.schedule
        self._inputs = Inputs(context, stage, self._reads)
        self._delivery = Delivery(context, process, dense=stage.exchanges_dense)
        self._runs: dict[int, StepRun] = {}
        self._feed: Feed[Prepared] | None = None
        self._last_step = context.total  # exclusive
        self._evaluation = Evaluation(config)
        self._evaluation_left = 0  # steps of which this worker has a share
        self._started = False
        self._early: list[tuple[bytes, Forward]] = []  # activations that refer to an order not received yet
        ahead = self._reads.steps_ahead(dense=stage.exchanges_dense)
        self._loss_scales = LossScales(context.committed, context.loss_scale, ahead)
        self._taken: dict[int, set[int]] = {}  # micro-batches whose activations have arrived, by step

    # --- inputs -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start or continue training at the first uncommitted step."""
        if self.committed < self.context.total:
            self._begin(self.committed, self.context.total)
            self._replay_early()

    def start_evaluation(self, rows: int) -> None:
        """Compute the metrics of the evaluation data, which has `rows` rows, and report them."""
        self._schedule = self._schedule.evaluating(rows)
        self._evaluation = Evaluation(self._config)
        steps = self._schedule.batches.per_epoch
        self._begin(0, steps)
        self._evaluation_left = sum(1 for step in range(steps) if self._schedule.mine(step))
        if not self._evaluation_left:
            self._report_evaluation()
        self._replay_early()

    def commit(self, order: Commit) -> None:
        """Note the commit of a step."""
        del self._runs[order.step]
        self._taken.pop(order.step, None)
        self._delivery.commit(order)
        self.committed = order.step + 1
        self._loss_scales.commit(order)

    def allocate(self, allocation: Allocation) -> None:
        """Change batch sizes from a step that no worker has begun."""
        self._schedule = self._schedule.adding(allocation)
        stale = [s for s in self._runs if s >= allocation.from_step]
        assert not any(self._runs[s].num_forwarded for s in stale), "the coordinator must announce changes in time"
        for step in stale:
            del self._runs[step]
        if self._feed is not None:
            self._open_feed(max(self._runs, default=self.committed - 1) + 1)
        self._replay_early()

    def work(self) -> bool:
        """Compute one micro-batch if possible; returns whether one was computed."""
        if self._delivery.broken:
            return False
        self._open_runs()
        work = next_backward(self._runs, strict=self._reads.ordered)
        if work is not None:
            self._delivery.reduce_with_backward(work)
            self._stage.backward(work)
            self._finish_work(work)
            return True
        last = self.committed + self._ahead() if self._schedule.training else self._last_step
        ready = self._inputs.parameters_ready
        work = next_forward(self._runs, self.context, last, ready, strict=self._reads.ordered)
        if work is not None:
            self._forward(work)
            return True
        return False

    def poll(self) -> None:
        """Handle messages of servers and peers.

        Raises:
            ProtocolError: one of them is malformed, unexpected or lost, or an activation has arrived before.
        """
        for event in self.context.servers.poll():
            if isinstance(event, Pushed):
                self._delivery.pushed(event.step)
            elif not isinstance(event, Initialised):
                self._inputs.take(event)
        if self.context.downstream is not None:
            for gradients in self.context.downstream.poll():
                self._take_back(gradients)
        for sender, activation in self.context.upstream.poll(self.context.generation):
            self._take_activation(sender, activation)

    def lost(self) -> str:
        """Why this generation can no longer be relied on; empty: it can."""
        if self._delivery.broken:
            return "a member of the stage was lost during an all-reduce"
        if self.context.servers.broke():
            return "the connection to a parameter server broke"
        if self.context.downstream is not None and self.context.downstream.broke():
            return "the connection to the next stage broke"
        return ""

    def probe(self) -> None:
        """Show to servers and peers whether messages to them were lost; call it at least once a second."""
        self.context.servers.probe()
        self.context.upstream.probe()
        if self.context.downstream is not None:
            self.context.downstream.probe()

    def waiting_for(self) -> str:
        """What the engine waits for, as an activity of the clock."""
        if not self._runs:
            return "wait-data" if self.context.is_first else "wait-upstream"
        run = self._runs[min(self._runs)]
        if run.num_finished == len(run.expected):
            return "wait-commit"
        if run.in_flight:
            return "wait-downstream"
        if run.leaves is None and run.dense_request is not None:
            return "wait-dense"
        return "wait-rows" if run.waiting else "wait-upstream"

    def close(self) -> None:
        """Drop all steps, and close the generation's connections."""
        if self._feed is not None:
            self._feed.close()
        self._forget_runs()
        self.context.close()

    # --- opening steps ------------------------------------------------------------------------------------------------

    def _begin(self, first: int, last: int) -> None:
        self._forget_runs()
        self._last_step, self._started = last, True
        self._stage.begin(training=self._schedule.training)
        if self.context.is_first:
            self._open_feed(first)

    def _forget_runs(self) -> None:
        self._runs.clear()
        self._taken.clear()
        self._inputs.clear()
        self._delivery.clear()

    def _open_feed(self, first: int) -> None:
        """Prepare batches from a step on, with the current schedule, which never changes."""
        if self._feed is not None:
            self._feed.close()
        assert self._source is not None
        source, schedule, module, last = self._source, self._schedule, self._stage.module, self._last_step
        servers = self.context.servers.count

        def prepare(step: int) -> Prepared:
            mine = schedule.mine(step)
            return source.prepare(step, last, mine, module, training=schedule.training, num_servers=servers)

        self._feed = Feed(prepare, first, last, self._process.inbox.wake, source.threads)

    def _open_runs(self) -> None:
        """Open the steps whose parameters may be requested."""
        if self._feed is not None:
            while len(self._runs) <= self._ahead() + 1:
                prepared = self._feed.take()
                if prepared is None:
                    return
                self._open_prepared(prepared)
        elif self._schedule.training:
            # Later stages request the next step's parameters early; servers answer once they have the version.
            for step in range(self.committed, min(self.committed + 2, self._last_step)):
                if step not in self._runs:
                    self._open(step)

    def _open_prepared(self, prepared: Prepared) -> None:
        run = self._open(prepared.step)
        run.blocks[0] = prepared.block
        batches = zip(prepared.micro_batches, prepared.inputs, prepared.labels, prepared.largest_labels, strict=True)
        for position, (micro, inputs, label, largest) in enumerate(batches):
            run.waiting.append(Work(run, micro, inputs, label, prepared.block, position, largest_label=largest))
        self._inputs.ask_for_rows(prepared.block, run)

    def _open(self, step: int) -> StepRun:
        training = self._schedule.training
        run = StepRun(
            step=step,
            training=training,
            dense_version=self._reads.dense_version(step) if training else self.committed,
            rows_version=self._reads.rows_version(step) if training else self.committed,
            expected=tuple(m.index for m in self._schedule.mine(step)),
            batch_size=self._schedule.batches.size(step),
        )
        self._runs[step] = run
        self._inputs.ask_for_dense(run)
        if not run.expected:
            self._finish(run)
        return run

    def _ahead(self) -> int:
        """Steps that this stage may start after the first uncommitted one; evaluation changes no parameters."""
        return self._reads.steps_ahead(dense=self._schedule.training and self._stage.exchanges_dense)

    # --- computing ----------------------------------------------------------------------------------------------------

    def _forward(self, work: Work) -> None:
        work = self._joined(work)
        self._stage.forward(work)
        work.run.num_forwarded += len(work.each)
        if not self.context.is_last:
            self._send_forward(work)
            return
        try:
            if work.run.training:
                work.run.loss_scale = self._loss_scales.of(work.run.step)
                self._delivery.reduce_with_backward(work)
                self._stage.learn(work)
            else:
                logits, loss = self._stage.score(work)
                self._evaluation.take(logits, work.label.cpu(), loss)
        except LabelError as error:
            place = self._place(work, error.index)
            raise LabelError(error.index, error.value, error.num_classes, place) from error
        self._finish_work(work)

    def _joined(self, work: Work) -> Work:
        """A micro-batch together with others that wait, where that pays and their order does not matter."""
        if self._reads.ordered or not (self.context.is_last and work.run.training):
            return work
        share = sum(micro.size for micro in self._schedule.mine(work.run.step))
        others = self._stage.joining.take(work, -(-share // self._config.micro_batches))
        return Work.together([work, *others]) if others else work

    def _place(self, work: Work, index: int) -> str:
        """The row of a sample of a micro-batch, for users."""
        training, config, step = work.run.training, self._config, work.run.step
        for part in work.each:
            if index < part.micro_batch.size:
                break
            index -= part.micro_batch.size
        sample = part.micro_batch.start + index
        kind = "training" if training else "evaluation"
        if self._source is not None:
            return f"{self._source.location(step, sample, training=training)} of the {kind} data"
        if config.streams_data:  # only the first stage knows the files
            return f"sample {sample + 1:,} of step {step:,} of the {kind} data"
        rows, batch = self.context.schedule.batches.num_rows, config.global_batch_size
        order = BatchOrder(rows, batch, config.seed) if training else SequentialOrder(rows, batch)
        [row] = order.rows(step, sample, sample + 1)
        return f"row {row + 1:,} of the {kind} data"

    def _send_forward(self, work: Work) -> None:
        self._clock.switch("send")
        assert self.context.downstream is not None
        tensors = {**{n: work.outputs[n] for n in self._stage.module.outputs}, LABEL: work.label}
        message = Forward(
            generation=self.context.generation,
            step=work.run.step,
            training=work.run.training,
            allocation=self._schedule.allocation(work.run.step).from_step,
            index=work.micro_batch.index,
            tensors=arrays_of(tensors),
            differentiable=tuple(n for n, t in tensors.items() if t.requires_grad),
            bfloat16=_bfloat16(tensors),
        )
        work.run.in_flight[work.micro_batch.index] = work
        self.context.downstream.send(work.micro_batch.path[self.context.stage + 1], message)

    def _finish_work(self, work: Work) -> None:
        """Finish micro-batches: add the gradients of their rows, and return those of their inputs."""
        run = work.run
        if run.training:
            self._stage.backward_lookups(work)
        if work.sender:
            self._clock.switch("send")
            for part, gradients in zip(work.each, self._stage.input_gradients(work), strict=True):
                index = part.micro_batch.index
                back = Backward(self.context.generation, run.step, index, gradients, run.loss_scale)
                self.context.upstream.send(part.sender, back)
        work.outputs, work.looked_up, work.inputs = {}, [], {}
        run.num_finished += len(work.each)
        if run.num_finished == len(run.expected):
            self._finish(run)

    def _finish(self, run: StepRun) -> None:
        """Finish this worker's share of a step: deliver its gradients, then prepare another batch."""
        if run.training:
            self._delivery.deliver(run)
        else:
            del self._runs[run.step]
            self._evaluation_left -= bool(run.expected)
            if run.expected and not self._evaluation_left:
                self._report_evaluation()
        if self._feed is not None:
            self._feed.prepare_next()

    def _report_evaluation(self) -> None:
        self._process.link.send(Evaluated(self.context.generation, self._evaluation.results()))

    # --- peers --------------------------------------------------------------------------------------------------------

    def _take_activation(self, sender: bytes, message: Forward) -> None:
        step, training = message.step, self._schedule.training
        if not self._started or message.training != training or not self._schedule.knows(message.allocation):
            # The sender has received an order of the coordinator that has not arrived here yet.
            if len(self._early) == MOST_EARLY:
                raise ProtocolError(f"{MOST_EARLY} activations refer to an order that has not arrived")
            self._early.append((sender, message))
            return
        last = min(self._last_step - 1, self.committed + self._ahead() + MOST_STEPS_AHEAD if training else step)
        if not 0 <= step <= last:
            raise ProtocolError(f"activations of step {step} arrived, the last one is {last}")
        taken = self._taken.setdefault(step, set())
        if message.index in taken or (training and step < self.committed):
            # Computed again, it would take the place of another micro-batch of the step.
            raise ProtocolError(f"the activations of micro-batch {message.index} of step {step} arrived twice")
        micro = check_activation(message, self._schedule.mine(step), self._stage.module.inputs)
        taken.add(message.index)
        run = self._runs.get(step) or self._open(step)
        tensors, block, largest = self._stage.receive(message, self.context.servers.count)
        run.blocks[micro.index] = block
        run.waiting.append(Work(run, micro, tensors, tensors.pop(LABEL), block, 0, sender, largest_label=largest))
        self._inputs.ask_for_rows(block, run)

    def _replay_early(self) -> None:
        early, self._early = self._early, []
        for sender, message in early:
            self._take_activation(sender, message)

    def _take_back(self, message: Backward) -> None:
        run = self._runs.get(message.step)
        work = run.in_flight.pop(message.index, None) if run is not None else None
        if run is None or work is None:
            return
        if not run.training:
            self._finish_work(work)
            return
        check_gradients(message, work.outputs)
        run.loss_scale = message.loss_scale
        work.gradients = self._stage.take_tensors(message.gradients, _bfloat16(work.outputs))
        run.returned.append(work)


def _bfloat16(tensors: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    return tuple(name for name, tensor in tensors.items() if tensor.dtype == torch.bfloat16)
