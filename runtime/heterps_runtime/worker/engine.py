"""The steps of one stage: forward, backward, push, report, in whatever order their inputs arrive.

The engine is one thread that reacts to events: batches from the feed, rows and parameters from the servers, activations
from the stage before, gradients from the stage after, commits from the coordinator. It computes at most one micro-batch
between two looks at its sockets. Backward work goes before forward work (1F1B), and a bounded number of micro-batches
is under way per path, so that activation memory is bounded. Requests are sent as early as the consistency allows, so
that communication overlaps computation.

In `sync`, micro-batches are computed in their fixed order, which makes the sums of gradients, and so the whole run,
deterministic. Otherwise they are computed as they come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from heterps_runtime.allocation import Allocation, MicroBatch
from heterps_runtime.config import RunConfig
from heterps_runtime.intake import StageModule
from heterps_runtime.messages import Backward, Done, Forward, FromMember
from heterps_runtime.store.keys import UniqueKeys
from heterps_runtime.worker.choosing import next_backward, next_forward
from heterps_runtime.worker.collectives import Collectives
from heterps_runtime.worker.context import WorkerContext
from heterps_runtime.worker.feed import Feed
from heterps_runtime.worker.gradients import backward
from heterps_runtime.worker.lookups import LookupBlock, TableShape
from heterps_runtime.worker.peers import array_of, tensor_of
from heterps_runtime.worker.runs import LABEL, Clock, Prepared, StepRun, Work
from heterps_runtime.worker.schedule import Schedule
from heterps_runtime.worker.servers import Initialised, Pushed, RowsArrived

__all__ = ["Engine"]

FEED_DEPTH = 2


class Engine:
    """Runs one generation's steps, in training or in evaluation.

    Args:
        config: the job.
        module: this worker's stage of the model.
        tables: shapes of all tables by index.
        device: where to compute.
        context: connections and position of this generation.
        collectives: all-reduce of this stage; unused where the servers hold the dense parameters.
        loss_sum: (logits, label) -> loss summed over samples.
        prepare: (step, this worker's micro-batches, training) -> batch; first stage only; runs in the feed's thread.
        send: says something to the coordinator.
        wake: interrupts the engine's wait from another thread.
        post: hands a function to the engine's thread and wakes it.
        clock: books the time.
    """

    def __init__(
        self,
        config: RunConfig,
        module: StageModule,
        tables: dict[int, TableShape],
        device: torch.device,
        context: WorkerContext,
        collectives: Collectives | None,
        loss_sum: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        prepare: Callable[[int, tuple[MicroBatch, ...], bool], Prepared] | None,
        send: Callable[[FromMember], None],
        wake: Callable[[], None],
        post: Callable[[Callable[[], None]], None],
        clock: Clock,
    ) -> None:
        self.context = context
        self.committed = context.committed
        self.broken = False  # a peer is gone: wait for the next generation
        self._config = config
        self._module = module
        self._tables = tables
        self._device = device
        self._collectives = collectives
        self._loss_sum = loss_sum
        self._prepare = prepare
        self._send = send
        self._wake = wake
        self._post = post
        self._clock = clock
        self._strict = config.consistency == "sync"
        self._dense_names = module.parameter_names
        self._runs: dict[int, StepRun] = {}
        self._requests: dict[int, Callable[[Any], None]] = {}  # pulls under way -> what to do with the answer
        self._schedule = Schedule(
            context.allocation,
            stage=context.stage,
            rank=context.rank,
            batch_size=config.global_batch_size,
            per_worker=config.micro_batches,
            num_rows=context.num_rows,
        )
        self._feed: Feed[Prepared] | None = None
        self._bound: StepRun | None = None
        self._training = True
        self._last_step = context.total  # in evaluation: batches of the evaluation data
        self._on_evaluated: Callable[[], None] = lambda: None
        self._on_scores: Callable[[torch.Tensor, torch.Tensor, float], None] = lambda *_: None
        self._unique = UniqueKeys()  # of this thread; the feed has its own
        self._reported_seconds: dict[str, float] = {}
        self._started = False
        self._early: list[tuple[bytes, Forward]] = []  # activations that came before what they refer to
        self._evaluation_left = 0
        self.samples = 0  # computed by this worker, for its metrics

    # --- inputs -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin (or go on) training at the first uncommitted step."""
        if self.committed < self.context.total:
            self._schedule.train()
            self._begin(self.committed, self.context.total, training=True)
            self._replay_early()

    def start_evaluation(
        self,
        rows: int,
        on_scores: Callable[[torch.Tensor, torch.Tensor, float], None],
        on_evaluated: Callable[[], None],
    ) -> None:
        """Compute the evaluation data without learning from it.

        Args:
            rows: number of rows of the evaluation data.
            on_scores: last stage: called with logits, labels and the loss sum of each micro-batch.
            on_evaluated: called once this worker's share is done.
        """
        self._on_scores, self._on_evaluated = on_scores, on_evaluated
        self._schedule.evaluate(rows)
        steps = self._schedule.num_steps
        self._begin(0, steps, training=False)
        self._evaluation_left = sum(1 for step in range(steps) if self._schedule.mine(step))
        if not self._evaluation_left:
            on_evaluated()
        self._replay_early()

    def commit(self, step: int, batch_size: int) -> None:
        """A step is part of the model now."""
        run = self._runs.pop(step)
        if self.context.replica is not None:
            gradient = torch.zeros(0) if run.flat_gradient is None else run.flat_gradient
            self.context.replica.apply(gradient, batch_size)
        self.committed = step + 1

    def allocate(self, allocation: Allocation) -> None:
        """Batch sizes change at a step that nobody has begun."""
        self._schedule.add(allocation)
        stale = [s for s in self._runs if s >= allocation.from_step]
        assert not any(self._runs[s].num_forwarded for s in stale), "the coordinator announces changes in time"
        for step in stale:
            del self._runs[step]
        if self._feed is not None:
            self._feed.close()
            self._open_feed(max(self._runs, default=self.committed - 1) + 1)
        self._replay_early()

    def work(self) -> bool:
        """Do one piece of work if there is any; returns whether there was."""
        if self.broken:
            return False
        self._open_runs()
        work = next_backward(self._runs, strict=self._strict)
        if work is not None:
            self._clock.switch("backward")
            self._backward(work)
            return True
        last = self.committed + self._ahead() if self._training else self._last_step
        work = next_forward(self._runs, self.context, last, self._parameters_ready, strict=self._strict)
        if work is not None:
            self._forward(work)
            return True
        return False

    def poll(self) -> None:
        """Take everything that has arrived from servers and peers."""
        for event in self.context.servers.poll():
            if isinstance(event, Pushed):
                run = self._runs.get(event.step)
                if run is not None:
                    run.pushed = True
                    self._report(run)
            elif not isinstance(event, Initialised):
                handler = self._requests.pop(event.request, None)
                if handler is not None:
                    handler(event.rows if isinstance(event, RowsArrived) else event.values)
        if self.context.downstream is not None:
            for gradients in self.context.downstream.poll():
                self._take_back(gradients)
        for sender, activation in self.context.upstream.poll(self.context.generation):
            self._take_activation(sender, activation)

    def waiting_for(self) -> str:
        """What the engine waits for, to book the time to it."""
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
        """Drop everything under way."""
        if self._feed is not None:
            self._feed.close()
        self._runs.clear()
        self._requests.clear()

    # --- opening steps ------------------------------------------------------------------------------------------------

    def _begin(self, first: int, last: int, *, training: bool) -> None:
        self._runs.clear()
        self._requests.clear()
        self._training, self._last_step, self._bound, self._started = training, last, None, True
        self._module.train(training)
        if self._feed is not None:
            self._feed.close()
        if self.context.is_first:
            self._open_feed(first)

    def _open_feed(self, first: int) -> None:
        assert self._prepare is not None
        prepare, training = self._prepare, self._training
        self._feed = Feed(
            lambda step: prepare(step, self._schedule.mine(step), training),
            first,
            self._last_step,
            FEED_DEPTH,
            self._wake,
        )

    def _open_runs(self) -> None:
        """Take prepared batches and open the steps that may be asked for."""
        if self._feed is not None:
            while len(self._runs) <= self._ahead() + 1:
                prepared = self._feed.take()
                if prepared is None:
                    return
                self._open_prepared(prepared)
        elif self._training:
            # Later stages ask for the next step's parameters early; the servers answer when the version is there.
            for step in range(self.committed, min(self.committed + 2, self._last_step)):
                if step not in self._runs:
                    self._open(step)

    def _open_prepared(self, prepared: Prepared) -> None:
        run = self._open(prepared.step)
        run.blocks[0] = prepared.block
        for position, (micro, inputs, label) in enumerate(
            zip(prepared.micro_batches, prepared.inputs, prepared.labels, strict=True)
        ):
            run.waiting.append(Work(run, micro, inputs, label, prepared.block, position))
        self._pull_rows(prepared.block, prepared.step)

    def _open(self, step: int) -> StepRun:
        mine = self._schedule.mine(step)
        lag = self._config.max_staleness if self._config.consistency == "async" else 0
        version = max(0, step - lag) if self._training else self.committed
        run = StepRun(step, self._schedule.size(step), self._training, version, len(mine), tuple(m.index for m in mine))
        self._runs[step] = run
        if not self._dense_names:
            run.leaves = {}
        elif self.context.replica is None:
            run.dense_request = self.context.servers.pull_dense(self._dense_names, version)

            def take(values: dict[str, np.ndarray[Any, Any]], run: StepRun = run) -> None:
                run.leaves = {n: tensor_of(v, self._device).requires_grad_(self._training) for n, v in values.items()}

            self._requests[run.dense_request] = take
        if not mine:
            self._finish(run)
        return run

    def _pull_rows(self, block: LookupBlock, step: int) -> None:
        if block.arrived:
            return
        version = max(0, step - self._config.max_staleness) if self._training else self.committed
        self._requests[self.context.servers.pull_rows(block.keys, version)] = block.fill

    def _ahead(self) -> int:
        """Steps that this stage may begin beyond the first uncommitted one."""
        if not self._training or self._config.consistency == "async":
            return self._config.max_staleness
        return 0 if self._dense_names else self._config.max_staleness

    def _parameters_ready(self, run: StepRun) -> bool:
        if run.leaves is None and self.context.replica is not None and self.context.replica.version >= run.version:
            private = self._config.consistency == "async" or not self._training
            run.leaves = self.context.replica.acquire(private=private)
        return run.leaves is not None

    # --- computing ----------------------------------------------------------------------------------------------------

    def _forward(self, work: Work) -> None:
        run = work.run
        self._clock.switch("lookup")
        work.looked_up = work.block.forward(work.position, self._device, training=run.training)
        self._clock.switch("forward")
        assert run.leaves is not None
        if self._bound is not run:
            self._module.bind(run.leaves)
            self._bound = run
        with torch.set_grad_enabled(run.training):
            work.outputs = self._module.forward(work.inputs, work.looked_up)
        run.num_forwarded += 1
        self.samples += work.micro_batch.size
        if self.context.is_last:
            self._last_stage(work)
        else:
            self._send_forward(work)

    def _last_stage(self, work: Work) -> None:
        run = work.run
        logits = work.outputs["logits"]
        if not run.training:
            with torch.no_grad():
                loss = self._loss_sum(logits, work.label)
            self._on_scores(logits.detach().cpu(), work.label.cpu(), float(loss))
            self._finish_work(work)
            return
        loss = self._loss_sum(logits, work.label)
        run.loss_sum += float(loss.detach())
        self._clock.switch("backward")
        torch.autograd.backward(loss)
        self._finish_work(work)

    def _send_forward(self, work: Work) -> None:
        self._clock.switch("send")
        assert self.context.downstream is not None
        tensors = {**{n: work.outputs[n] for n in self._module.outputs}, LABEL: work.label}
        message = Forward(
            generation=self.context.generation,
            step=work.run.step,
            training=work.run.training,
            allocation=self._schedule.allocation(work.run.step).from_step,
            index=work.micro_batch.index,
            tensors={n: array_of(t) for n, t in tensors.items()},
            differentiable=tuple(n for n, t in tensors.items() if t.requires_grad),
        )
        work.run.in_flight[work.micro_batch.index] = work
        worker = work.micro_batch.path[self.context.stage + 1]
        self.context.downstream.send(worker, message)

    def _backward(self, work: Work) -> None:
        assert work.gradients is not None
        backward([work.outputs[n] for n in work.gradients], list(work.gradients.values()))
        self._finish_work(work)

    def _finish_work(self, work: Work) -> None:
        """A micro-batch is through: hand its gradients back and to its rows."""
        run = work.run
        if run.training:
            self._clock.switch("lookup-backward")
            work.block.backward(work.position, work.looked_up)
        if work.sender:
            self._clock.switch("send")
            leaves = {n: t for n, t in work.inputs.items() if t.requires_grad} if run.training else {}
            gradients = {n: array_of(torch.zeros_like(t) if t.grad is None else t.grad) for n, t in leaves.items()}
            back = Backward(self.context.generation, run.step, work.micro_batch.index, gradients)
            self.context.upstream.send(work.sender, back)
        work.outputs, work.looked_up, work.inputs = {}, [], {}
        run.num_finished += 1
        run.remaining -= 1
        if run.remaining == 0:
            self._finish(run)

    # --- ending steps -------------------------------------------------------------------------------------------------

    def _finish(self, run: StepRun) -> None:
        """All of this worker's micro-batches of a step are through: send its gradients away, then prepare another."""
        self._end(run)
        if self._feed is not None:
            self._feed.prepare_next()

    def _end(self, run: StepRun) -> None:
        if not run.training:
            del self._runs[run.step]
            self._evaluation_left -= bool(run.expected)
            if run.expected and not self._evaluation_left:
                self._on_evaluated()
            return
        self._clock.switch("push")
        chunks = [chunk for _, block in sorted(run.blocks.items()) for chunk in block.gradients()]
        run.finite = all(bool(np.isfinite(g.sum())) for _, _, g in chunks)
        dense: dict[str, np.ndarray[Any, Any]] = {}
        if self._dense_names and self.context.replica is None:
            # A worker without samples has pulled parameters that may not be there yet; it adds nothing.
            leaves = run.leaves or {}
            dense = {n: array_of(leaf.grad) for n, leaf in leaves.items() if leaf.grad is not None}
            run.finite = run.finite and all(bool(np.isfinite(g.sum())) for g in dense.values())
        self.context.servers.push(run.step, chunks, dense)
        run.blocks.clear()
        if self.context.replica is not None and self._dense_names:
            self._reduce(run)
        else:
            run.reduced = True

    def _reduce(self, run: StepRun) -> None:
        assert self._collectives is not None
        assert self.context.replica is not None
        leaves = run.leaves if run.leaves is not None else self.context.replica.acquire(private=True)
        parts = [(torch.zeros_like(t) if t.grad is None else t.grad).reshape(-1) for t in leaves.values()]
        flat = torch.cat(parts)
        run.finite = run.finite and bool(torch.isfinite(flat.sum()))
        run.flat_gradient = flat

        def done(error: Exception | None) -> None:
            def finish() -> None:
                if error is not None:
                    self.broken = True
                elif self._runs.get(run.step) is run:
                    run.reduced = True
                    self._report(run)

            self._post(finish)

        self._collectives.all_reduce(run.step, flat, done)

    def _report(self, run: StepRun) -> None:
        """Tell the coordinator once everything of a step has arrived where it must be."""
        if run.reported or not (run.pushed and run.reduced):
            return
        run.reported = True
        self._send(Done(self.context.generation, run.step, run.loss_sum, run.finite, self._figures()))

    def _figures(self) -> dict[str, float]:
        """Seconds per activity since the last report: about one step's worth."""
        now = self._clock.snapshot()
        previous, self._reported_seconds = self._reported_seconds, now
        delta = {name: seconds - previous.get(name, 0.0) for name, seconds in now.items()}
        waits = sum(s for n, s in delta.items() if n.startswith("wait"))
        total = sum(delta.values())
        return {**delta, "step": total, "wait": waits, "compute": total - waits}

    # --- peers --------------------------------------------------------------------------------------------------------

    def _take_activation(self, sender: bytes, message: Forward) -> None:
        step = message.step
        known = self._schedule.knows(message.allocation)
        if not self._started or message.training != self._training or not known:
            # The sender has heard something from the coordinator that is still on its way to us.
            self._early.append((sender, message))
            return
        run = self._runs.get(step) or self._open(step)
        micro = self._schedule.all(step)[message.index]
        tensors = {n: tensor_of(a, self._device) for n, a in message.tensors.items()}
        if self._training:
            for name in message.differentiable:
                tensors[name].requires_grad_()
        block = LookupBlock(self._module.sites, self._tables, [self._module.ids(tensors)], self._unique)
        run.blocks[micro.index] = block
        run.waiting.append(Work(run, micro, tensors, tensors.pop(LABEL), block, 0, sender))
        self._pull_rows(block, step)

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
        work.gradients = {n: tensor_of(a, self._device) for n, a in message.gradients.items()}
        run.returned.append(work)
