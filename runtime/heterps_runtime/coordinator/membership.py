"""Who takes part in a job, and the generations that they form."""

from __future__ import annotations

from collections.abc import Mapping

from heterps_runtime.allocation import Allocation
from heterps_runtime.config import PoolConfig
from heterps_runtime.contract import MemberState, PlanDocument
from heterps_runtime.coordinator.effects import Effects
from heterps_runtime.coordinator.members import Member, Roster
from heterps_runtime.coordinator.progress import Progress
from heterps_runtime.wire.messages import FromCoordinator, Generation, Go, Join, Peer, Pulse, Rejoin, Restore, Shutdown

__all__ = ["Membership"]


class Membership:
    """The processes of a plan, and the generation in force.

    Args:
        effects: carries messages.
        pools: of the job, by name.
    """

    def __init__(self, effects: Effects, pools: Mapping[str, PoolConfig]) -> None:
        self._effects = effects
        self._pools = pools
        self.roster: Roster | None = None  # None until there is a plan
        self.generation = 0
        self.lineage = 0  # times that all members took their state from a checkpoint (or from nothing)
        self.running = False  # `go` has been given for the generation in force
        self.forming = False  # the generation in force has been announced, and no member of it was lost since
        self.notes: dict[str, str] = {}  # what processes say that are not members yet
        self._formed: tuple[Member, ...] = ()  # members of the generation in force

    @property
    def planned(self) -> Roster:
        """The roster, once there is a plan."""
        assert self.roster is not None, "there is a plan"
        return self.roster

    # --- processes come and go ----------------------------------------------------------------------------------------

    def member(self, name: str) -> Member | None:
        """The member of this name, None if there is none now."""
        return self.roster.present.get(name) if self.roster is not None else None

    def heeds(self, sender: str, incarnation: str, message: object) -> bool:
        """Whether a process may speak; one that another has replaced may not, and is told so when it pulses."""
        member = self.member(sender)
        if member is None or member.incarnation == incarnation:
            return True
        if isinstance(message, Pulse) and message.joins:
            self._effects.send(sender, incarnation, Shutdown("another process replaced it"))
        return False

    def pulse(self, sender: str, incarnation: str, pulse: Pulse) -> None:
        """A process is alive."""
        member = self.member(sender)
        if member is not None:
            member.message = pulse.status
            member.totals.update(pulse.totals)
            return
        # It is on its way, or it was given up for lost and is back.
        self.notes[sender] = pulse.status
        if not pulse.joins or self.roster is None:
            return
        if sender in self.roster.expected:
            self._effects.send(sender, incarnation, Rejoin(pulse.joins))
        else:
            self.send_away(sender, incarnation)

    def expects(self, sender: str) -> bool:
        """Whether the plan has a member of this name."""
        return self.roster is not None and sender in self.roster.expected

    def send_away(self, sender: str, incarnation: str) -> None:
        """Tell a process to end that the plan does not know."""
        self._effects.send(sender, incarnation, Shutdown(f"the plan has no member {sender}"))

    def admit(self, sender: str, incarnation: str, words: Join, committed: int) -> None:
        """A process has joined; it is a member from now on, and of the next generation.

        Args:
            sender: name of the process.
            incarnation: tells it from other processes of that name.
            words: with which it joins.
            committed: steps that are part of the model.
        """
        member = Member.joining(sender, incarnation, words)
        member.holds_state = bool(self.lineage) and member.state_at == (self.lineage, committed)
        self.planned.present[sender] = member

    def rescale(self, plan: PlanDocument) -> int:
        """Take over a plan that differs in the number of workers; returns how many members it has no use for.

        Raises:
            ValueError: the plan differs in more.
        """
        retired = self.planned.rescale(plan)
        for member in retired:
            self.tell(member, Shutdown("the plan has no more use for it"))
        return len(retired)

    # --- generations --------------------------------------------------------------------------------------------------

    def can_form(self) -> bool:
        """Whether the members that are there can work: at first all of the plan, later a viable set."""
        return self.planned.viable() if self.lineage else self.planned.complete()

    def must_restore(self) -> bool:
        """Whether the members lack the state of the last commit, and all must go back to a checkpoint."""
        return not self.lineage or not self.planned.holds_state(self._pools)

    def announce(self, progress: Progress, allocation: Allocation, restore: Restore | None) -> int:
        """Announce the members that are there as the new generation; returns how many they are.

        Args:
            progress: where work goes on; knows the size of the data.
            allocation: batch sizes at its start.
            restore: the state that all members return to, None if they keep theirs.
        """
        assert progress.total_steps is not None, "a worker of the first stage is there, and has said how many rows"
        assert progress.num_rows is not None
        roster = self.planned
        self.generation += 1
        self.running, self.forming = False, True
        self.lineage += restore is not None
        self._formed = (*roster.all_workers(), *roster.servers())
        announcement = Generation(
            generation=self.generation,
            lineage=self.lineage,
            committed=progress.committed,
            total=progress.total_steps,
            num_rows=progress.num_rows,
            plan=roster.plan,
            stages=tuple(tuple(map(_peer, roster.workers(i))) for i in range(len(roster.stage_names))),
            servers=tuple(map(_peer, roster.servers())),
            allocation=allocation,
            restore=restore,
        )
        for member in self._formed:
            member.state = MemberState.JOINED
            member.holds_state = member.holds_state and restore is None  # until it is ready again
            self.tell(member, announcement)
        return len(self._formed)

    def ready(self, member: Member) -> bool:
        """A member is set up; returns whether it was the last one, and all have been told to go."""
        member.state = MemberState.READY
        member.holds_state = True
        if not self.forming or any(m.state != MemberState.READY for m in self.planned.present.values()):
            return False
        self.running, self.forming = True, False
        self.tell_formed(Go(self.generation))
        return True

    def halt(self) -> None:
        """The generation in force can work no more."""
        self.running = self.forming = False

    # --- words to members ---------------------------------------------------------------------------------------------

    def tell(self, member: Member, message: FromCoordinator) -> None:
        """Say something to one member."""
        self._effects.send(member.name, member.incarnation, message)

    def tell_formed(self, message: FromCoordinator) -> None:
        """Say something to all members of the generation in force."""
        for member in self._formed:
            self.tell(member, message)

    def tell_workers(self, message: FromCoordinator) -> None:
        """Say something to all workers that are there."""
        for member in self.planned.all_workers():
            self.tell(member, message)

    def tell_present(self, message: FromCoordinator) -> None:
        """Say something to all members that are there."""
        for member in self.roster.present.values() if self.roster is not None else ():
            self.tell(member, message)


def _peer(member: Member) -> Peer:
    return Peer(member.name, member.address, member.store_address)
