"""The coordinator's decisions: a state machine over messages, without sockets, threads or clock.

The central rule (docs/protocol.md): a step is committed once, here, when each worker of the generation has reported
that its share is computed and acknowledged by the servers. A lost worker therefore costs the uncommitted step, a
checkpoint is the state at a commit, and a new allocation takes effect at a step that no worker has begun.

`membership`, `steps`, `checkpoints` and `evaluation` each keep one part of the state. This module decides what a change
in one part means for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from heterps_runtime.checkpoint.format import Origin
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import BEGUN_PHASES, FINAL_PHASES, REASON_HANG, REASON_LEAVING, JobPhase, PlanDocument
from heterps_runtime.coordinator.checkpoints import Checkpoints
from heterps_runtime.coordinator.effects import CheckpointRecord, Effects
from heterps_runtime.coordinator.evaluation import Evaluation, Merge
from heterps_runtime.coordinator.journal import Journal
from heterps_runtime.coordinator.membership.gathering import Gathering
from heterps_runtime.coordinator.membership.leaving import Leaving as LeavingMembers
from heterps_runtime.coordinator.membership.liveness import HEARTBEAT_TIMEOUT_SECONDS, Liveness
from heterps_runtime.coordinator.membership.members import Member, Roster, check_plan
from heterps_runtime.coordinator.membership.membership import Membership
from heterps_runtime.coordinator.progress import CHECKPOINT, Progress, non_finite
from heterps_runtime.coordinator.steps import Steps
from heterps_runtime.coordinator.waiting import describe_hang
from heterps_runtime.processes import work
from heterps_runtime.wire.messages import (
    Checkpointed,
    CopiedAhead,
    Damaged,
    Done,
    Evaluate,
    Evaluated,
    Failed,
    FromMember,
    Join,
    Leaving,
    NewAllocation,
    Pulse,
    Ready,
    Shutdown,
)

__all__ = ["CoordinatorCore"]


class CoordinatorCore:
    """State of one job. Each public method is an input; `effects` are the outputs.

    Args:
        config: the job.
        effects: carries out decisions.
        clock: monotonic seconds.
        journal: records events.
        merge_evaluation: merges the metrics of the last stage's workers.
        heartbeat_seconds: silence after which a member is considered lost.
    """

    def __init__(
        self,
        config: RunConfig,
        effects: Effects,
        clock: Callable[[], float],
        journal: Journal,
        merge_evaluation: Merge = lambda messages: {},
        heartbeat_seconds: float = HEARTBEAT_TIMEOUT_SECONDS,
    ) -> None:
        self.config = config
        self._effects = effects
        self.clock = clock
        self.liveness = Liveness(clock, heartbeat_seconds)
        self.membership = Membership(effects, config.pools, config.replication)
        self.gathering = Gathering(self.membership, self._form_generation)
        self.steps = Steps(config)
        self.checkpoints = Checkpoints(effects, journal, config.checkpoint_every)
        self.evaluation = Evaluation(merge_evaluation)
        self._leaving = LeavingMembers()
        self.progress = Progress(config)
        self.phase = JobPhase.PROFILING
        self.resumed_from: int | None = None  # step of the checkpoint that this run resumed from
        self.profiles: dict[str, Any] = {}
        self.journal, self._event = journal, journal.note
        self.error: dict[str, str] | None = None
        self.model_path: str | None = None
        self.stop_requested = self._left = False  # `_left`: the stop is not the controller's

    @property
    def unsaved(self) -> bool:
        """Whether an end now would lose work that can still be saved."""
        return self.phase in BEGUN_PHASES and (self.membership.running or self.membership.forming)

    # --- inputs from the controller -----------------------------------------------------------------------------------

    def set_plan(self, plan: PlanDocument) -> None:
        """Fix stages, workers and servers; a later plan may change their numbers, and some stages.

        Raises:
            ValueError: the plan does not fit the job, cannot take effect while it runs, or the job is over.
        """
        if self.phase in FINAL_PHASES:
            raise ValueError(f"plan: the job is over ({self.phase}); start it again")
        check_plan(plan, self.config.pools, encrypted=self.config.encrypted, replication=self.config.replication)
        self.progress.use(self.config.in_precision(plan.precision))
        if self.membership.roster is not None:
            return self._rescale(self.membership.roster, plan)
        self.membership.roster = roster = Roster(plan)
        self.phase = JobPhase.STARTING
        self.liveness.move()
        self._event("PlanAccepted", f"{len(plan.stages)} stage(s), {len(roster.expected)} processes")
        # Not earlier: a coordinator that the controller has given up gets no plan, so it takes nothing over.
        self._effects.open_checkpoints()

    def checkpoints_opened(self, latest: CheckpointRecord | None) -> None:
        """Note that the checkpoints belong to this run, and which one is the newest valid; None: there is none."""
        if self.phase in FINAL_PHASES:
            return
        self.checkpoints.opened, self.checkpoints.latest = True, latest
        self.liveness.move()
        if self.phase == JobPhase.STARTING:
            self.resumed_from = latest.step if latest else None
            self.progress.resume(latest)
        if latest is None or not latest.num_rows or self._note_rows(latest.num_rows, CHECKPOINT, latest.layout):
            self._form_if_possible()

    def _note_rows(self, number: int, source: str, layout: str) -> bool:
        """Note the size of the data; a job whose data has changed fails, and False is returned."""
        if problem := self.progress.set_rows(number, source, layout):
            self.fail("DataChanged", problem)
        return not problem

    def _rescale(self, roster: Roster, plan: PlanDocument) -> None:
        """Change the number of workers, or prepare other stages; remaining workers keep process, model and caches."""
        if roster.newest_plan == plan or self.phase not in (JobPhase.STARTING, JobPhase.TRAINING):
            return  # a late plan is no error: the remaining work needs no other workers
        retired = self.membership.rescale(plan)
        self._event("Rescaled", f"workers per stage: {[s.pods for s in plan.stages]}; {retired} present ones end")
        if retired:  # new workers are noticed when they join
            self._after_departure("the number of workers changed")
        if not self._take_next_plan() and not self.membership.lineage:
            self._form_if_possible()

    def _take_next_plan(self) -> bool:
        """Change to the next plan, with the state that the members have, once all of its processes are present."""
        changed = self.phase in (JobPhase.STARTING, JobPhase.TRAINING) and self.membership.take_next_plan()
        if changed:
            self._event(*changed)
            self._interrupt("the plan changed")
            self._form_if_possible()
        return bool(changed)

    def set_allocation(self, batches: Sequence[Sequence[int]]) -> int:
        """Change batch sizes; returns the first step that uses them.

        Raises:
            ValueError: the numbers of stages or workers are wrong, the sizes do not add up to the global batch, or the
                job is not training.
        """
        if self.steps.allocation is None or self.phase not in (JobPhase.STARTING, JobPhase.TRAINING):
            raise ValueError(f"allocation: batch sizes can be changed during training; the job is {self.phase}")
        allocation, new = self.steps.change_allocation(batches, self.progress.committed)
        if new:  # also while members set up: their generation was announced with the earlier sizes
            self.membership.tell_workers(NewAllocation(self.membership.generation, allocation))
            self._event("RebalanceApplied", f"batch sizes {batches} from step {allocation.from_step}")
        return allocation.from_step

    def member_lost(self, name: str, reason: str) -> None:
        """Remove a member whose process has ended."""
        if self.membership.member(name) is None or self.phase in FINAL_PHASES:
            return
        waited = self.membership.waits(name)
        self._remove(name, reason)
        if not waited:
            self._after_departure(f"{name} was lost")

    def messages_lost(self, name: str, incarnation: str, reason: str) -> None:
        """Remove a member of which messages may be lost; it is asked to join again if its process lives."""
        if (member := self.membership.member(name)) is not None and member.incarnation == incarnation:
            self.member_lost(name, reason)

    def request_stop(self) -> None:
        """Write a checkpoint, then end all members."""
        if self.phase in FINAL_PHASES or self.stop_requested:
            return
        self.stop_requested = True
        self._event("StopRequested", "ending after a checkpoint")
        if self.phase == JobPhase.TRAINING and self.membership.running:
            self._between_steps()
        elif not self.checkpoints.writing and not (self.phase == JobPhase.TRAINING and self.membership.forming):
            self._finish(JobPhase.STOPPED)  # else: once the members are ready, or the manifest is written

    def leave(self, name: str) -> bool:
        """Note that the coordinator or a member was told to end from outside; returns whether it works on for now.

        What only the coordinator or a server holds goes on elsewhere from a checkpoint, so one is written first.
        """
        if not self.unsaved:
            return False
        if self.membership.member(name) and self.membership.can_spare(name, self._leaving.names):
            self._leaving.note(name, self.clock())
        elif self.phase == JobPhase.TRAINING:
            self._left |= not self.stop_requested
            self._event(REASON_LEAVING, f"{name} was told to end (SIGTERM)")
            self.request_stop()
        return True

    def fail(self, reason: str, message: str) -> None:
        """End the job as failed."""
        if self.phase in FINAL_PHASES:
            return
        self.error = self.journal.worded(reason, message)
        self._event(reason, message, warning=True)
        self._finish(JobPhase.FAILED)

    def tick(self) -> None:
        """Detect lost members and hangs. Must be called more often than every two seconds."""
        self.liveness.tick()
        members = self.membership
        if members.roster is None or self.phase in FINAL_PHASES:
            return
        for name in list(members.roster.present):
            if self.liveness.lost(name):
                self.member_lost(name, f"no heartbeat for {self.liveness.timeout_seconds:g} s")
        for member in self._leaving.due(self.clock(), members.can_spare) if not self.stop_requested else ():
            self._dismiss(member)
        if (hang := describe_hang(self)) is not None:
            self.fail(REASON_HANG, hang)

    # --- inputs from members ------------------------------------------------------------------------------------------

    def handle(self, sender: str, incarnation: str, message: FromMember) -> None:
        """Handle a message of a process. Messages of other generations are ignored.

        Args:
            sender: name of the process.
            incarnation: distinguishes processes of the same name.
            message: its content.

        Raises:
            ProtocolError: no process of this name sends such a message; nothing has changed.
        """
        if self.phase in FINAL_PHASES:
            if isinstance(message, Join):
                self._effects.send([(sender, incarnation)], Shutdown(self.phase))
            return
        if isinstance(message, Join):
            return self._join(sender, incarnation, message)
        if not self.membership.accepts(sender, incarnation, message):
            return
        if self.membership.expects(sender):
            self.liveness.hear(sender)
        match message:
            case Failed(permanent=True):
                self.fail(message.reason, f"{sender}: {message.message}")
            case Failed():  # the controller decides about what is not wrong input
                self._event(message.reason, f"{sender}: {message.message}", warning=True)
            case Pulse():
                if self.membership.pulse(sender, incarnation, message) and work.TOTAL in message.totals:
                    self.liveness.note_work(sender, message.totals[work.TOTAL])
            case Leaving() if self.membership.member(sender) is None or not self.leave(sender):
                self._dismiss(sender)
            case Ready() if member := self.membership.formed(sender, message.generation):
                self._ready(member)
            case CopiedAhead() if self.membership.copied_ahead(sender, message):
                self._take_next_plan()
            case Done() if member := self.membership.formed(sender, message.generation):
                self._report(member, message)
            case Checkpointed() if member := self.membership.formed(sender, message.generation):
                self._checkpointed(member, message)
            case Damaged() if self.membership.formed(sender, message.generation):
                if self.checkpoints.give_up(sender, message):
                    self.liveness.move()
                    del self.membership.planned.present[sender]  # it joins again, without any state
                    self._interrupt("the checkpoint to restore is damaged")
            case Evaluated() if member := self.membership.formed(sender, message.generation):
                self._collect_evaluation(member, message)

    def _join(self, sender: str, incarnation: str, words: Join) -> None:
        if not self.membership.admits(sender, incarnation, words):
            return
        previous, waits = self.membership.member(sender), self.membership.waits(sender)
        if previous is not None:
            again = previous.incarnation == incarnation
            if again and previous.joins == words.joins:
                return  # a repeated join after a reconnect
            if again:
                del self.membership.planned.present[sender]
                self._event("MemberRejoined", f"{sender} joined again")
            else:
                self._remove(sender, "replaced by a new process")
            if not waits:
                self._interrupt(f"{sender} left")
        self.membership.admit(sender, incarnation, words, self.progress.committed)
        self.liveness.hear(sender)
        if words.data is not None:
            if not self._note_rows(words.data.train, sender, words.data.layout):
                return
            self.evaluation.rows = words.data.evaluation
        self.liveness.move()
        settled = self._take_next_plan() or self.membership.waits(sender) or self._form_if_possible()
        if not settled and previous is not None:
            self._wait_for_members()

    def _remove(self, name: str, reason: str) -> None:
        del self.membership.planned.present[name]
        self._leaving.forget(name)
        self._event("MemberLost", f"{name}: {reason}", warning=True)

    def _dismiss(self, name: str) -> None:
        """Let a member end that was told to."""
        if (member := self.membership.member(name)) is not None:
            self.membership.tell(member, Shutdown("it was told to end"))
            self.member_lost(name, "it was told to end (SIGTERM)")

    def _after_departure(self, why: str) -> None:
        self._interrupt(why)
        if self._take_next_plan():
            return
        if self.membership.lineage and self.membership.planned.viable():
            self._form_generation()
        else:
            self._wait_for_members()

    def _interrupt(self, why: str) -> None:
        self.membership.halt()
        self.checkpoints.abandon(why)

    def _wait_for_members(self) -> None:
        if self.stop_requested and not self.checkpoints.writing:
            self._finish(JobPhase.STOPPED)  # not when a replacement has come

    # --- generations --------------------------------------------------------------------------------------------------

    def _form_if_possible(self) -> bool:
        possible = self.checkpoints.opened and self.membership.can_form()
        if possible:
            self._form_generation()
        return possible

    def _form_generation(self) -> None:
        """Announce the present members as a new generation, which continues at the first uncommitted step."""
        self._interrupt("the membership changed")
        must_restore = self.membership.must_restore()
        if must_restore and (self.checkpoints.writing or not self.checkpoints.opened):
            return  # it is being decided which step all members return to
        self.membership.begin_forming()
        if self.gathering.defer():
            return
        self.liveness.move()
        self.progress.stop_clock(self.clock())
        self.evaluation.begin()
        restore = self.checkpoints.go_back(self.progress) if must_restore else None
        allocation = self.steps.begin_generation(self.membership.planned)
        members = self.membership.announce(self.progress, allocation, restore)
        text = f"generation {self.membership.generation}: {members} members, next step {self.progress.committed}"
        self._event("GenerationFormed", text)

    def _ready(self, member: Member) -> None:
        self.liveness.move()
        if not self.membership.ready(member):
            return
        self.progress.start_clock(self.clock())
        if self.phase == JobPhase.STARTING:
            self.phase = JobPhase.TRAINING
            self._event("TrainingStarted", f"at step {self.progress.committed} of {self.progress.total_steps}")
        if self.phase == JobPhase.EVALUATING:
            self._evaluate()
        elif not self._take_next_plan():
            self._between_steps()

    # --- steps --------------------------------------------------------------------------------------------------------

    def _report(self, member: Member, report: Done) -> None:
        if not self.membership.running or self.phase != JobPhase.TRAINING or report.step < self.progress.committed:
            return
        if not self.steps.take(member, report, self.progress.committed):
            return  # a repeated one
        self.liveness.move()
        if report.step == self.progress.committed:
            self._commit_ready_steps()

    def _commit_ready_steps(self) -> None:
        # Not after the last step, nor while a stop waits for its checkpoint.
        while self.membership.running and not self.progress.finished and not self.stop_requested:
            step = self.progress.committed
            if not self.steps.complete(step, self.membership.num_workers):
                return
            reports = self.steps.reported(step)
            fault = non_finite(step, reports, self.checkpoints.step if self.checkpoints.latest else None)
            if fault is not None and not self.progress.may_skip():
                return self.fail(*fault)
            generation = self.membership.generation
            commit = self.progress.commit(generation, reports, self.clock(), skipped=fault is not None)
            self.membership.tell_formed(commit)
            if fault is not None:
                self._event("StepSkipped", f"{fault[1].partition(';')[0]}; the loss scale is {commit.loss_scale:g} now")
            self.steps.committed(step, self.membership.planned)
            joining = self.membership.note_commit() and not self.checkpoints.delays_newcomers(step + 1)
            if joining and not self.progress.finished and not self.stop_requested:
                return self._form_generation()  # a checkpoint that is due begins when all are ready
            if self.progress.finished:
                self.progress.stop_clock(self.clock())
            self._between_steps()

    def _between_steps(self) -> None:
        """After a commit: write a checkpoint if due, stop if requested, finish after the last step."""
        ending, committed = self.stop_requested or self.progress.finished, self.progress.committed
        fresh = committed == self.checkpoints.step  # everything is saved
        if ending and fresh:
            self._after_checkpoint()
        elif (ending or self.checkpoints.due(committed)) and not fresh and not self.checkpoints.writing:
            self._start_checkpoint()

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _start_checkpoint(self) -> None:
        names = [member.name for member in self.membership.planned.writers()]
        origin = Origin(self.progress.committed, self.membership.lineage)
        order = self.checkpoints.begin(self.membership.generation, origin, names, self.progress.describe())
        self.membership.tell_writers(order)

    def _checkpointed(self, member: Member, report: Checkpointed) -> None:
        self.liveness.move()
        member.take_totals(report.totals)
        if error := self.checkpoints.report(member.name, report, self.membership.planned.plan.to_json()):
            self.checkpoint_failed(report.folder, error)

    def manifest_written(self, record: CheckpointRecord) -> None:
        """Note that a checkpoint is valid."""
        self.liveness.move()
        if self.checkpoints.written(record):
            self._after_barrier()

    def checkpoint_failed(self, folder: str, reason: str) -> None:
        """Note that a checkpoint failed: training continues, and the last good one stays."""
        step = self.checkpoints.fail(folder, reason)
        if step is None:
            return
        waited_for = self.membership.running and step == self.progress.committed
        if waited_for and self.stop_requested:
            self._finish(JobPhase.STOPPED)
        elif waited_for and self.progress.finished:
            text = f"training has ended but the model could not be saved: {reason}; {self.checkpoints.kept}"
            self.fail("CheckpointFailed", text)
        elif not waited_for:  # a failed step is not retried at once
            self._after_barrier()

    def _after_barrier(self) -> None:
        """No checkpoint is in progress: continue what waited for it."""
        if self.phase in FINAL_PHASES or self.membership.forming:
            return
        if self.membership.running:
            self._between_steps()
        elif self.stop_requested:
            self._finish(JobPhase.STOPPED)
        elif self.membership.planned.viable():
            self._form_generation()

    def _after_checkpoint(self) -> None:
        if self.stop_requested:
            self._finish(JobPhase.STOPPED)
        elif self.progress.finished and self.phase == JobPhase.TRAINING:
            if self.evaluation.rows:
                self.phase = JobPhase.EVALUATING
                self._evaluate()
            else:
                self._export()

    # --- evaluation and the end ---------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        self.evaluation.begin(worker.name for worker in self.membership.planned.workers_of_stages()[-1])
        self.membership.tell_workers(Evaluate(self.membership.generation, self.evaluation.rows))

    def _collect_evaluation(self, member: Member, message: Evaluated) -> None:
        self.liveness.move()
        if self.evaluation.take(member.name, message) and self.phase == JobPhase.EVALUATING:
            self._event("Evaluated", self.evaluation.describe())
            self._export()

    def _export(self) -> None:
        self.phase = JobPhase.EXPORTING
        self._effects.export()

    def exported(self, path: str) -> None:
        """Note that the model is exported."""
        if self.phase == JobPhase.EXPORTING:
            self.model_path = path
            self._event("ModelExported", path)
            self._finish(JobPhase.SUCCEEDED)

    def _finish(self, phase: JobPhase) -> None:
        self.phase = phase
        self.membership.halt()
        self.progress.stop_clock(self.clock())
        self.membership.tell_present(Shutdown(REASON_LEAVING if self._left and phase == JobPhase.STOPPED else phase))
