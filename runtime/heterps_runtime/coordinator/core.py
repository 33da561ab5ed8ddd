"""The coordinator's decisions: a state machine over messages, without sockets, threads or clock.

The one rule (docs/protocol.md): a step is committed once, here, when every worker of the generation has reported that
its share of the step is computed and acknowledged by the servers. Everything else follows: a lost worker costs the
uncommitted step, a checkpoint is the state at a commit, a new allocation takes effect at a step nobody has begun.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from heterps_runtime.allocation import Allocation
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import FINAL_PHASES, JobPhase, MemberState, PlanDocument
from heterps_runtime.coordinator import generations
from heterps_runtime.coordinator.checkpoints import Checkpoints
from heterps_runtime.coordinator.effects import CheckpointRecord, Effects
from heterps_runtime.coordinator.journal import Journal
from heterps_runtime.coordinator.liveness import HEARTBEAT_TIMEOUT_SECONDS, Liveness
from heterps_runtime.coordinator.members import Member, Roster, check_pools, describe_hang
from heterps_runtime.coordinator.progress import Progress, non_finite
from heterps_runtime.messages import (
    Checkpoint,
    Checkpointed,
    Commit,
    Done,
    Evaluate,
    Evaluated,
    Failed,
    FromCoordinator,
    FromMember,
    Go,
    Join,
    NewAllocation,
    Pulse,
    Ready,
    Rejoin,
    Restore,
    Shutdown,
)

__all__ = ["CoordinatorCore"]


class CoordinatorCore:
    """State of one job. Every public method is one input; `effects` are the outputs.

    Args:
        config: the job.
        effects: carries out what is decided.
        clock: monotonic seconds.
        journal: takes the job's events.
        latest: the checkpoint to go on from.
        resumed_samples, resumed_rows: that it holds.
        merge_evaluation: makes the job's metrics from what the last stage's workers report.
        heartbeat_seconds: silence after which a member counts as lost.
    """

    def __init__(
        self,
        config: RunConfig,
        effects: Effects,
        clock: Callable[[], float],
        journal: Journal,
        latest: CheckpointRecord | None = None,
        resumed_samples: int = 0,
        resumed_rows: int | None = None,
        merge_evaluation: Callable[[Sequence[Evaluated]], dict[str, Any]] = lambda messages: {},
        heartbeat_seconds: float = HEARTBEAT_TIMEOUT_SECONDS,
    ) -> None:
        self.config = config
        self._effects = effects
        self.clock = clock
        self.liveness = Liveness(clock, heartbeat_seconds)
        self._merge_evaluation = merge_evaluation
        self.phase = JobPhase.PROFILING
        self.roster: Roster | None = None
        self.generation = 0
        self.running = False  # `go` has been given for the generation in force
        self._forming = False  # the generation in force has been announced, and nobody of it was lost since
        self._formed: tuple[Member, ...] = ()  # members of the generation in force
        self.lineage = 0  # times that all members took their state from a checkpoint (or from nothing)
        self.allocation: Allocation | None = None
        self._next_allocation: Allocation | None = None
        self._done: dict[int, dict[str, Done]] = {}
        self.checkpoints = Checkpoints(effects, journal, latest)
        self.progress = Progress(config, latest.step if latest else 0, resumed_samples, resumed_rows)
        self.resumed_from = latest.step if latest else None
        self.profiles: dict[str, Any] = {}
        self.notes: dict[str, str] = {}  # what members say that are not there yet
        self.journal = journal
        self._event = journal.note
        self.error: dict[str, str] | None = None
        self.evaluation: dict[str, Any] | None = None
        self._evaluated: dict[str, Evaluated] = {}
        self.evaluation_rows = 0
        self.model_path: str | None = None
        self._stop_asked = False

    # --- inputs from the controller -----------------------------------------------------------------------------------

    def set_plan(self, plan: PlanDocument) -> None:
        """Fix stages, workers and servers; a later plan may change the number of workers.

        Raises:
            ValueError: unknown pools, a later plan that differs in more than workers, or a job that is over.
        """
        if self.phase in FINAL_PHASES:
            raise ValueError(f"plan: the job is over ({self.phase}); start it again")
        check_pools(plan, self.config.pools)
        if self.roster is not None:
            return self._rescale(self.roster, plan)
        self.roster = Roster(plan)
        self.phase = JobPhase.STARTING
        self.liveness.move()
        self._event("PlanAccepted", f"{len(plan.stages)} stage(s), {len(self.roster.expected)} processes")

    def _rescale(self, roster: Roster, plan: PlanDocument) -> None:
        """Change the number of workers; those that stay keep process, model and caches."""
        if roster.plan == plan or self.phase not in (JobPhase.STARTING, JobPhase.TRAINING):
            return  # a plan that comes too late is no fault: what is left to do needs no other workers
        retired = roster.rescale(plan)
        self._event("Rescaled", f"workers per stage: {[s.pods for s in plan.stages]}; {len(retired)} present ones end")
        for member in retired:
            self._tell(member, Shutdown("the plan has no more use for it"))
        if retired:  # newcomers are heard of when they join
            self._after_departure("the number of workers changed")
        if not self.lineage and roster.complete():
            self._form_generation()

    def set_allocation(self, batches: Sequence[Sequence[int]]) -> int:
        """Change batch sizes; returns the first step that uses them.

        Raises:
            ValueError: wrong number of stages or workers, sizes that do not add up to the global batch, or a time at
                which there is nothing to divide.
        """
        if self.allocation is None or self.phase not in (JobPhase.STARTING, JobPhase.TRAINING):
            raise ValueError(f"allocation: batch sizes can be changed during training; the job is {self.phase}")
        generations.check_batches(batches, self.allocation, self.config.global_batch_size)
        # Nobody begins a step later than committed + staleness before the next commit, and commits follow this
        # message on every connection: from here on it is in time for everybody.
        from_step = self.progress.committed + self.config.max_staleness + 2
        if self._next_allocation is not None:
            from_step = max(from_step, self._next_allocation.from_step + 1)  # a step names its allocation
        allocation = Allocation(from_step, tuple(tuple(s) for s in batches))
        # Also while members set up: the generation they set up for has been announced with the sizes before.
        self._next_allocation = allocation
        self._broadcast_workers(NewAllocation(self.generation, allocation))
        self._event("RebalanceApplied", f"batch sizes {[list(s) for s in allocation.batches]} from step {from_step}")
        return from_step

    def member_lost(self, name: str, reason: str) -> None:
        """A process is known to be gone."""
        if self.roster is None or name not in self.roster.present or self.phase in FINAL_PHASES:
            return
        del self.roster.present[name]
        self._event("MemberLost", f"{name}: {reason}", warning=True)
        self._after_departure(f"{name} was lost")

    def request_checkpoint(self) -> None:
        """Write a checkpoint at the next commit."""
        self.checkpoints.asked = True

    def request_stop(self) -> None:
        """Write a checkpoint, then end all members in order."""
        if self.phase in FINAL_PHASES or self._stop_asked:
            return
        self._stop_asked = True
        self._event("StopRequested", "ending after a checkpoint")
        if self.phase == JobPhase.TRAINING and self.running:
            self._between_steps()
        elif not self.checkpoints.writing and not (self.phase == JobPhase.TRAINING and self._forming):
            self._finish(JobPhase.STOPPED)  # else: once the members are ready, or the manifest is written

    def fail(self, reason: str, message: str) -> None:
        """End the job as failed."""
        if self.phase in FINAL_PHASES:
            return
        self.error = {"reason": reason, "message": message}
        self._event(reason, message, warning=True)
        self._finish(JobPhase.FAILED)

    def tick(self) -> None:
        """Look at the clock: lost heartbeats, hangs. To be called more often than every two seconds."""
        self.liveness.tick()
        if self.roster is None or self.phase in FINAL_PHASES:
            return
        for name in list(self.roster.present):
            if self.liveness.lost(name):
                self.member_lost(name, f"no heartbeat for {self.liveness.timeout_seconds:g} s")
        idle = self.liveness.idle_seconds
        if idle > self.config.hang_timeout_seconds:
            at_work, step = self.phase if self.running else None, self.progress.committed
            hang = describe_hang(self.roster, at_work, self._forming, step, self._done.get(step, {}), self._evaluated)
            if hang is not None:
                self.fail("Hang", f"{hang} for {idle:.0f} s (runPolicy.hangTimeoutSeconds)")

    # --- inputs from members ------------------------------------------------------------------------------------------

    def handle(self, sender: str, incarnation: str, message: FromMember) -> None:
        """Take a member's message; messages of other generations are passed over, strangers are told what to do.

        Args:
            sender: name of the process.
            incarnation: tells it from other processes of that name.
            message: what it says.
        """
        if self.phase in FINAL_PHASES:
            # A process that comes (or comes back) after the end is told so.
            if isinstance(message, Join):
                self._effects.send(sender, incarnation, Shutdown(self.phase))
            return
        if isinstance(message, Join):
            self._join(sender, incarnation, message)
            return
        member = self.roster.present.get(sender) if self.roster else None
        if member is not None and member.incarnation != incarnation:
            if isinstance(message, Pulse) and message.joins:
                self._effects.send(sender, incarnation, Shutdown("another process replaced it"))
            return
        self.liveness.hear(sender)
        match message:
            case Failed():
                self._member_failed(sender, message)
            case Pulse():
                if member is None:
                    self._stranger(sender, incarnation, message)
                else:
                    member.message = message.status
                    member.totals.update(message.totals)
            case Ready() | Done() | Checkpointed() | Evaluated():
                if member is not None and message.generation == self.generation:
                    self._take_report(member, message)

    def _take_report(self, member: Member, message: Ready | Done | Checkpointed | Evaluated) -> None:
        """A member of the generation in force has done something."""
        match message:
            case Ready():
                self._ready(member)
            case Done():
                self._report(member, message)
            case Checkpointed():
                self._checkpointed(member, message)
            case Evaluated():
                self._collect_evaluation(member, message)

    def _stranger(self, sender: str, incarnation: str, pulse: Pulse) -> None:
        """A process lives that is no member: it is on its way, or it was given up for lost and is back."""
        self.notes[sender] = pulse.status
        if not pulse.joins or self.roster is None:
            return
        if sender in self.roster.expected:
            self._effects.send(sender, incarnation, Rejoin(pulse.joins))
        else:
            self._send_away(sender, incarnation)

    def _send_away(self, sender: str, incarnation: str) -> None:
        self._effects.send(sender, incarnation, Shutdown(f"the plan has no member {sender}"))

    def _join(self, sender: str, incarnation: str, words: Join) -> None:
        if self.roster is None or sender not in self.roster.expected:
            self._send_away(sender, incarnation)
            return
        member = Member.joining(sender, incarnation, words)
        previous = self.roster.present.get(sender)
        if previous is not None:
            again = previous.incarnation == incarnation
            if again and previous.joins == member.joins:
                return  # a repeated join after a reconnect
            self.member_lost(sender, "joins again" if again else "replaced by a new process")
            self.handle(sender, incarnation, words)  # the loss may have ended the job
            return
        self.roster.present[sender] = member
        self.liveness.hear(sender)
        member.holds_state = bool(self.lineage) and member.state_at == (self.lineage, self.progress.committed)
        if words.data is not None:
            problem = self.progress.set_rows(words.data.train)
            if problem:
                self.fail("DataChanged", problem)
                return
            self.evaluation_rows = words.data.evaluation
        self.liveness.move()
        if self.roster.complete() if not self.lineage else self.roster.viable():
            self._form_generation()

    def _after_departure(self, why: str) -> None:
        assert self.roster is not None
        self.running = self._forming = False
        self.checkpoints.abandon(why)
        if self.lineage and self.roster.viable():
            self._form_generation()
        elif self._stop_asked and not self.checkpoints.writing:
            self._finish(JobPhase.STOPPED)  # nobody waits for a replacement any more

    def _member_failed(self, name: str, failed: Failed) -> None:
        """A process says why it ends; wrong input ends the job, anything else is for the controller to judge."""
        text = f"{name}: {failed.message}"
        if failed.permanent:
            self.fail(failed.reason, text)
        else:
            self._event(failed.reason, text, warning=True)

    # --- generations --------------------------------------------------------------------------------------------------

    def _form_generation(self) -> None:
        """Announce the present members as the new generation; work goes on at the first uncommitted step."""
        assert self.roster is not None
        roster, progress = self.roster, self.progress
        self.checkpoints.abandon("the membership changed")
        must_restore = not self.lineage or not roster.holds_state(self.config.pools)
        if must_restore and self.checkpoints.writing:
            return  # a manifest is being written: it decides to which step everybody goes back
        self.generation += 1
        self.running, self._forming = False, True
        self.liveness.move()
        progress.stop_clock(self.clock())
        self._done.clear()
        self._evaluated.clear()
        restore = None
        if must_restore:
            latest, step = self.checkpoints.latest, self.checkpoints.step
            if step != progress.committed:
                self._event("RolledBack", f"from step {progress.committed} to {step} (checkpoint)", warning=True)
            progress.rewind(step)
            restore = Restore(step, latest.folder if latest else None)
            self.lineage += 1
        kept, self._next_allocation = self._next_allocation or self.allocation, None
        self.allocation = generations.allocate(kept, roster, self.config.global_batch_size)
        members = self._formed = (*roster.all_workers(), *roster.servers())
        for member in members:
            member.state = MemberState.JOINED
            member.holds_state = member.holds_state and not must_restore  # until it is ready again
        announcement = generations.announce_generation(
            roster, progress, self.generation, self.lineage, self.allocation, restore
        )
        for member in members:
            self._tell(member, announcement)
        self._note_batches()
        text = f"generation {self.generation}: {len(members)} members, next step {progress.committed}"
        self._event("GenerationFormed", text)

    def _ready(self, member: Member) -> None:
        member.state = MemberState.READY
        member.holds_state = True
        assert self.roster is not None
        self.liveness.move()
        if not self._forming or any(m.state != MemberState.READY for m in self.roster.present.values()):
            return
        self.running, self._forming = True, False
        self.progress.start_clock(self.clock())
        for formed in self._formed:
            self._tell(formed, Go(self.generation))
        if self.phase == JobPhase.STARTING:
            self.phase = JobPhase.TRAINING
            self._event("TrainingStarted", f"at step {self.progress.committed} of {self.progress.total_steps}")
        if self.phase == JobPhase.EVALUATING:
            self._evaluate()
        else:
            self._between_steps()

    # --- steps --------------------------------------------------------------------------------------------------------

    def _report(self, member: Member, report: Done) -> None:
        if not self.running or self.phase != JobPhase.TRAINING or report.step < self.progress.committed:
            return
        reports = self._done.setdefault(report.step, {})
        if member.name in reports:
            return  # said before
        reports[member.name] = report
        member.observe_step(report.figures)
        self.liveness.move()
        if report.step == self.progress.committed:
            self._commit_ready_steps()

    def _commit_ready_steps(self) -> None:
        assert self.roster is not None
        workers = self.roster.all_workers()
        # Not after the last step, nor once a stop waits for its checkpoint.
        while self.running and not self.progress.finished and not self._stop_asked:
            step = self.progress.committed
            reports = self._done.get(step, {})
            if len(reports) < len(workers):
                return
            fault = non_finite(step, reports, self.checkpoints.step if self.checkpoints.latest else None)
            if fault is not None:
                self.fail(*fault)
                return
            size = self.progress.batch_size(step)
            commit = Commit(self.generation, step, size)
            for member in self._formed:
                self._tell(member, commit)
            del self._done[step]
            loss = math.fsum(r.loss_sum for r in reports.values()) / size
            self.progress.commit(loss, self.clock())
            if self.progress.finished:
                self.progress.stop_clock(self.clock())
            if self._next_allocation and self.progress.committed >= self._next_allocation.from_step:
                self.allocation, self._next_allocation = self._next_allocation, None
                self._note_batches()
            self._between_steps()

    def _between_steps(self) -> None:
        """After a commit: checkpoint when due, stop when asked, finish after the last step."""
        progress = self.progress
        ending = self._stop_asked or progress.finished
        due = self.checkpoints.asked or progress.committed % self.config.checkpoint_every == 0
        fresh = progress.committed == self.checkpoints.step  # nothing that is not saved
        if ending and fresh:
            self._after_checkpoint()
        elif (ending or due) and not fresh and not self.checkpoints.writing:
            self._start_checkpoint()

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _start_checkpoint(self) -> None:
        assert self.roster is not None
        writers = self.roster.servers()
        writers += [self.roster.workers(i)[0] for i in range(len(self.roster.stage_names))]
        step = self.progress.committed
        folder = self.checkpoints.begin(step, [m.name for m in writers], self.progress.describe())
        for member in writers:
            self._tell(member, Checkpoint(self.generation, step, folder))

    def _checkpointed(self, member: Member, report: Checkpointed) -> None:
        assert self.roster is not None
        error = self.checkpoints.report(member.name, report, self.roster.plan.to_json())
        if error:
            self.checkpoint_failed(report.folder, error)

    def manifest_written(self, record: CheckpointRecord) -> None:
        """A checkpoint has become valid."""
        if self.checkpoints.written(record):
            self._after_barrier()

    def checkpoint_failed(self, folder: str, reason: str) -> None:
        """A checkpoint could not be written: training goes on, the last good one stays."""
        step = self.checkpoints.fail(folder, reason)
        if step is None:
            return
        if self.running and step == self.progress.committed and self._stop_asked:
            self._finish(JobPhase.STOPPED)
        elif self.running and step == self.progress.committed and self.progress.finished:
            text = f"training has ended but the model could not be saved: {reason}; {self.checkpoints.kept}"
            self.fail("CheckpointFailed", text)
        elif not self.running or step != self.progress.committed:  # the step that failed is not tried again at once
            self._after_barrier()

    def _after_barrier(self) -> None:
        """No checkpoint is under way any more: go on with what waited for it."""
        assert self.roster is not None
        if self.phase in FINAL_PHASES or self._forming:
            return
        if self.running:
            self._between_steps()
        elif self._stop_asked:
            self._finish(JobPhase.STOPPED)
        elif self.roster.viable():
            self._form_generation()

    def _after_checkpoint(self) -> None:
        if self._stop_asked:
            self._finish(JobPhase.STOPPED)
        elif self.progress.finished and self.phase == JobPhase.TRAINING:
            if self.evaluation_rows:
                self.phase = JobPhase.EVALUATING
                self._evaluate()
            else:
                self._export()

    # --- evaluation and the end ---------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        self._evaluated.clear()
        self._broadcast_workers(Evaluate(self.generation, self.evaluation_rows))

    def _collect_evaluation(self, member: Member, message: Evaluated) -> None:
        assert self.roster is not None
        self.liveness.move()
        self._evaluated[member.name] = message
        last = self.roster.workers(len(self.roster.stage_names) - 1)
        if self.phase == JobPhase.EVALUATING and all(m.name in self._evaluated for m in last):
            self.evaluation = self._merge_evaluation([self._evaluated[m.name] for m in last])
            self._event("Evaluated", ", ".join(f"{k} {v:.5g}" for k, v in self.evaluation.items()))
            self._export()

    def _export(self) -> None:
        assert self.checkpoints.latest is not None
        self.phase = JobPhase.EXPORTING
        self._effects.export(self.checkpoints.latest.step)

    def exported(self, path: str) -> None:
        """The model has been written."""
        if self.phase == JobPhase.EXPORTING:
            self.model_path = path
            self._event("ModelExported", path)
            self._finish(JobPhase.SUCCEEDED)

    def _finish(self, phase: JobPhase) -> None:
        self.phase = phase
        self.running = self._forming = False
        self.progress.stop_clock(self.clock())
        for member in self.roster.present.values() if self.roster else ():
            self._tell(member, Shutdown(phase))

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _tell(self, member: Member, message: FromCoordinator) -> None:
        self._effects.send(member.name, member.incarnation, message)

    def _broadcast_workers(self, message: FromCoordinator) -> None:
        assert self.roster is not None
        for member in self.roster.all_workers():
            self._tell(member, message)

    def _note_batches(self) -> None:
        assert self.roster is not None
        assert self.allocation is not None
        for i, stage in enumerate(self.allocation.batches):
            for member, size in zip(self.roster.workers(i), stage, strict=True):
                member.take_batch_size(size)
