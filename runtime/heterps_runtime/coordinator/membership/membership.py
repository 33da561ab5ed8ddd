"""The members of a job, and the generations that they form."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from heterps_runtime.config import PoolConfig
from heterps_runtime.contract import MOST_PROCESSES, MemberState, PlanDocument, Role, ps_name, worker_name
from heterps_runtime.coordinator.effects import Effects
from heterps_runtime.coordinator.membership.copy_rounds import CopyRounds
from heterps_runtime.coordinator.membership.members import Member, Roster
from heterps_runtime.coordinator.progress import Progress
from heterps_runtime.coordinator.words import as_text
from heterps_runtime.errors import ProtocolError
from heterps_runtime.partition.allocation import Allocation
from heterps_runtime.wire.host_port import split_host_port
from heterps_runtime.wire.messages import (
    CopiedAhead,
    CopyAhead,
    FromCoordinator,
    Generation,
    Go,
    Join,
    Pulse,
    Rejoin,
    Rendezvous,
    Restore,
    Shutdown,
)

__all__ = ["Membership"]

_HOST = re.compile(r"[\w.:%-]+", re.ASCII)  # ZeroMQ takes `;` for the end of a source address


class Membership:
    """The processes of a plan, and the generation in force.

    Args:
        effects: sends messages.
        pools: of the job, by name.
        replication: number of servers that hold each row.
    """

    def __init__(self, effects: Effects, pools: Mapping[str, PoolConfig], replication: int = 1) -> None:
        self._effects = effects
        self._pools = pools
        self._replication = replication
        self.roster: Roster | None = None  # None until there is a plan
        self.generation = 0
        self.num_workers = 0  # of the generation in force
        self.lineage = 0  # number of times that all members restored a checkpoint, or started from scratch
        self.running = False  # whether the generation in force was told to go
        self.forming = False  # whether the generation in force is setting up
        self.notes: dict[str, str] = {}  # status of processes that are not members
        self._formed: tuple[Member, ...] = ()  # members of the generation in force
        self._setting_up: set[str] = set()  # names of those that are not ready
        self._rounds = CopyRounds()
        self._newcomers: list[str] = []  # names of those that have joined since, and wait for the next one
        self._announced = True  # whether the members of the generation know of it

    @property
    def planned(self) -> Roster:
        """The roster; there must be a plan."""
        assert self.roster is not None, "there must be a plan"
        return self.roster

    # --- processes come and go ----------------------------------------------------------------------------------------

    def member(self, name: str) -> Member | None:
        """The present member of this name, if any."""
        return self.roster.present.get(name) if self.roster is not None else None

    def formed(self, name: str, generation: int) -> Member | None:
        """The member of this name, if it takes part in this generation, the latest; other reports are ignored."""
        member = self.member(name)
        return member if member is not None and member.generation == generation == self.generation else None

    def accepts(self, sender: str, incarnation: str, message: object) -> bool:
        """Whether to handle a process's messages. A replaced process is ignored, and told to end when it pulses."""
        member = self.member(sender)
        if member is None or member.incarnation == incarnation:
            return True
        if isinstance(message, Pulse) and message.joins:
            self._effects.send([(sender, incarnation)], Shutdown("another process replaced it"))
        return False

    def pulse(self, sender: str, incarnation: str, pulse: Pulse) -> bool:
        """Note that a process is alive; returns whether it is a member."""
        member = self.member(sender)
        if member is not None:
            member.message = as_text(pulse.status)
            member.take_totals(pulse.totals)
            return True
        # It has not joined yet, or was considered lost and is back.
        if self.expects(sender) or (self.roster is None and len(self.notes) < MOST_PROCESSES):
            self.notes[sender] = as_text(pulse.status)
        if pulse.joins and self.roster is not None:
            if self.roster.expects(sender):
                self._effects.send([(sender, incarnation)], Rejoin(pulse.joins))
            else:
                self.send_away(sender, incarnation)
        return False

    def expects(self, sender: str) -> bool:
        """Whether the plan has a member of this name."""
        return self.roster is not None and self.roster.expects(sender)

    def admits(self, sender: str, incarnation: str, words: Join) -> bool:
        """Whether a process may join; one that is not in the plan is told to end.

        Raises:
            ProtocolError: what it says of itself contradicts its name, it is on an unknown pool, or others cannot
                connect to what it calls its address.
        """
        if not self.expects(sender):
            self.send_away(sender, incarnation)
            return False
        stage, index = words.stage, words.index
        name = worker_name(stage, index) if words.role == Role.WORKER else ps_name(index) if stage == -1 else ""
        if name != sender or words.pool not in self._pools:
            raise ProtocolError(f"joined as {words.role} {words.index} of stage {words.stage} on pool {words.pool!r}")
        _check_addresses(words)
        return True

    def send_away(self, sender: str, incarnation: str) -> None:
        """Tell a process that is not in the plan to end."""
        self._effects.send([(sender, incarnation)], Shutdown(f"the plan has no member {sender}"))

    def admit(self, sender: str, incarnation: str, words: Join, committed: int) -> None:
        """Admit a process as a member, from the next generation on.

        While others train or set up, that is not formed before the next commit, which it would take from them.

        Args:
            sender: name of the process.
            incarnation: distinguishes processes of the same name.
            words: its join.
            committed: steps that are part of the model.
        """
        member = Member.joining(sender, incarnation, words)
        member.holds_state = bool(self.lineage) and member.state_at == (self.lineage, committed)
        member.waits = self.running or self.forming
        if member.waits:
            self._newcomers.append(sender)
        self.planned.present[sender] = member

    def waits(self, name: str) -> bool:
        """Whether a process of this name has no part in the generation in force, but one in the next, or its plan."""
        member = self.member(name)
        return (self.expects(name) and not self.planned.takes_part(name)) or (member is not None and member.waits)

    @property
    def _has_newcomers(self) -> bool:
        """Whether members of the plan wait for the next generation."""
        return any(self.planned.takes_part(member.name) for member in self._present_newcomers())

    def _present_newcomers(self) -> Iterator[Member]:
        return filter(None, map(self.member, self._newcomers))

    def note_commit(self) -> bool:
        """Note that a step is committed; returns whether members of the plan wait for another generation."""
        for member in self._present_newcomers():
            member.holds_state = False  # if it had that of the commit before
        return self._has_newcomers

    def rescale(self, plan: PlanDocument) -> int:
        """Change the number of workers, or prepare other stages; returns how many members of the generation end.

        Raises:
            ValueError: see `Roster.rescale`.
        """
        retired = self.planned.rescale(plan, self._pools)
        self._retire(retired)
        return sum(member in self._formed for member in retired)

    def take_next_plan(self) -> tuple[str, str] | None:
        """Change to the next plan if all of its processes are present; returns the reason and message of an event.

        If the members train, or can with the state that they have, servers first copy ahead what they can.
        """
        if self.planned.next_complete and self._copies_first():
            return None
        before, retired = self.planned.plan, self.planned.take_next_plan()
        if retired is None:
            return None
        self._retire(retired)
        return _change(before, self.planned.plan, len(retired))

    def _copies_first(self) -> bool:
        """Whether servers copy rows that the next plan gives them, or will when the members train again."""
        servers = self.planned.next_servers()
        if not servers:
            return False
        if self.running:  # a generation with newcomers would end the copy
            return self._has_newcomers or self._copy_ahead(servers)
        # A change that is under way is given up for the next plan.
        return self.can_form() and not self.must_restore() and not self.planned.divides

    def _copy_ahead(self, servers: list[Member]) -> bool:
        """Tell servers to copy rows that the next plan gives them; returns whether some of them still do.

        When all have, they are told again while it pays, to copy what has changed since.
        """
        sources = self.planned.sources()
        told = [server for server in servers if server.ahead_in != self.generation]
        if told:
            self._rounds = CopyRounds()  # these copy all
        elif not any(server.copies_ahead for server in servers) and self._rounds.another_pays():
            told = servers
        for server in told:
            server.ahead_in, server.copies_ahead = self.generation, True
        if told:
            addresses, held_by = (tuple(server.address for server in each) for each in (servers, sources))
            self._tell_all(told, CopyAhead(self.generation, addresses, held_by))
        return any(server.copies_ahead for server in servers)

    def copied_ahead(self, name: str, copied: CopiedAhead) -> bool:
        """Note that a server has copied ahead what it can; returns whether that was asked for in this generation."""
        server = self.member(name)
        if server is None or not server.copies_ahead or not copied.generation == self.generation == server.ahead_in:
            return False
        server.copies_ahead = False
        self._rounds.note(copied.num_rows)
        return True

    def _retire(self, members: Iterable[Member]) -> None:
        for member in members:
            self.tell(member, Shutdown("the plan no longer needs it"))

    # --- generations --------------------------------------------------------------------------------------------------

    def can_form(self) -> bool:
        """Whether the present members can form a generation: at first all of the plan, later a viable set."""
        return self.planned.viable() if self.lineage else self.planned.complete()

    def must_restore(self) -> bool:
        """Whether state of the last commit is missing, so that all members must restore a checkpoint."""
        return not self.lineage or not self.planned.holds_state(self._pools, self._replication)

    def can_spare(self, name: str, leaving: Collection[str] = ()) -> bool:
        """Whether a member may end without a checkpoint: others go on with its work, and hold what it holds.

        Args:
            name: of the member.
            leaving: names of servers that will end, too.
        """
        member = self.member(name)
        if member is None or member.is_worker:
            return True
        return self.running and self.planned.holds_state(self._pools, self._replication, {name, *leaving})

    def begin_forming(self) -> None:
        """End the generation in force, whose reports no longer count; `announce` says who forms the next one."""
        self.generation += self._announced
        self._announced = False
        self.running, self.forming = False, True

    def announce(self, progress: Progress, allocation: Allocation, restore: Restore | None) -> int:
        """Announce the present members as the generation that forms; returns their number.

        A message is as long as the longest stage, and encoded once per stage.

        Args:
            progress: of the job.
            allocation: batch sizes at the start.
            restore: state for all members to restore; None: they keep theirs.
        """
        assert progress.total_steps is not None, "a worker of the first stage has reported the number of rows"
        assert progress.num_rows is not None
        roster, stages = self.planned, self.planned.workers_of_stages()
        self._announced = True
        self.lineage += restore is not None
        if restore is not None:
            self._retire(roster.divided())
        servers = roster.servers()
        sources = {server.index: server for server in roster.sources()} if roster.divides else {}
        leaving = [server for index, server in sources.items() if index >= len(servers)]
        self._formed = (*itertools.chain(*stages), *servers, *leaving)
        self.num_workers = sum(map(len, stages))
        self._setting_up = {member.name for member in self._formed}
        for member in self._formed:
            member.state, member.generation = MemberState.JOINED, self.generation
            member.holds_state = member.holds_state and restore is None  # otherwise not until it is ready
            member.divisions = tuple(number for number in member.divisions if number == roster.division)
        for_servers = Generation(
            generation=self.generation,
            lineage=self.lineage,
            committed=progress.committed,
            total=progress.total_steps,
            num_rows=progress.num_rows,
            plan=roster.plan,
            workers=(),
            rendezvous=None,
            next_stage=(),
            servers=tuple(server.address for server in servers),
            allocation=allocation,
            restore=restore,
            earlier_steps=progress.earlier_steps,
            loss_scale=progress.scale,
            # Nothing is asked of a server that is not there, since it is missing.
            held_by=tuple(sources[i].address if i in sources else "" for i in range(roster.division) if sources),
            missing=() if restore else self._missing(servers),
        )
        for workers, following in zip(stages, [*stages[1:], []], strict=True):
            for_stage = replace(
                for_servers,
                workers=tuple(worker.index for worker in workers),
                rendezvous=Rendezvous(workers[0].store_address, workers[0].store_secret),
                next_stage=tuple(worker.address for worker in following),
            )
            self._tell_all(workers, for_stage)
        self._tell_all((*servers, *leaving), for_servers)
        return len(self._formed)

    def _missing(self, servers: Iterable[Member]) -> tuple[int, ...]:
        """Indices of servers of the generation, and of those before, that lack their part of the state."""
        holding = {server.index for server in self.planned.sources() if self.planned.has_part(server)}
        needed = {*range(self.planned.division), *(server.index for server in servers)}
        return tuple(sorted(needed - holding))

    @property
    def setting_up(self) -> list[str]:
        """Names of the members of the generation that are not ready."""
        return [member.name for member in self._formed if member.name in self._setting_up]

    def ready(self, member: Member) -> bool:
        """Note that a member is ready; if it is the last one, tell all to go and return True."""
        member.state = MemberState.READY
        member.holds_state = True
        if not member.is_worker:
            member.divisions = (*member.divisions, len(self.planned.server_names))
        self._setting_up.discard(member.name)
        if not self.forming or self._setting_up:
            return False
        self.running, self.forming = True, False
        self._end_division()
        self.tell_formed(Go(self.generation))
        return True

    def _end_division(self) -> None:
        """The servers of the generation have all of the state, in their division; others are not needed any more."""
        retired = self.planned.divided()
        self._retire(retired)
        self._formed = tuple(member for member in self._formed if member not in retired)
        for server in self.planned.servers():
            server.divisions = (self.planned.division,)

    def halt(self) -> None:
        """Stop the generation in force: all present members can take part in the next one."""
        self.running = self.forming = False
        for member in self._present_newcomers():
            member.waits = False
        self._newcomers.clear()

    # --- messages to members ------------------------------------------------------------------------------------------

    def tell(self, member: Member, message: FromCoordinator) -> None:
        """Send a message to one member."""
        self._effects.send([member.process], message)

    def tell_formed(self, message: FromCoordinator) -> None:
        """Send a message to all members of the generation in force."""
        self._tell_all(self._formed, message)

    def tell_workers(self, message: FromCoordinator) -> None:
        """Send a message to all present workers."""
        self._tell_all(self.planned.all_workers(), message)

    def tell_writers(self, message: FromCoordinator) -> None:
        """Send a message to the members that write a checkpoint."""
        self._tell_all(self.planned.writers(), message)

    def tell_present(self, message: FromCoordinator) -> None:
        """Send a message to all present members."""
        self._tell_all(self.roster.present.values() if self.roster is not None else (), message)

    def _tell_all(self, members: Iterable[Member], message: FromCoordinator) -> None:
        self._effects.send([member.process for member in members], message)


def _check_addresses(words: Join) -> None:
    """Check that sockets accept the addresses that a process gives for others to connect to."""
    scheme, _, place = words.address.rpartition("://")
    places = [place, words.store_address] if words.store_address else [place]
    try:
        usable = scheme == "tcp" and all(port and _HOST.fullmatch(host) for host, port in map(split_host_port, places))
    except ValueError:
        usable = False
    if not usable:
        raise ProtocolError(f"joined with the addresses {words.address!r} and {words.store_address!r}")


def _change(before: PlanDocument, plan: PlanDocument, num_ending: int) -> tuple[str, str]:
    """What a plan changes, as the reason and the message of an event."""
    stages = [[f"{s.firstLayer} - {s.lastLayer} on {s.pool}" for s in p.stages] for p in (before, plan)]
    servers = [p.parameterServer.replicas for p in (before, plan)]
    texts = [f"{num_ending} present worker(s) end"] if num_ending else []
    if servers[0] != servers[1]:
        texts.insert(0, f"{servers[0]} parameter server(s) become {servers[1]}")
    if stages[0] == stages[1]:
        return "ServersChanged", "; ".join(texts)
    return "StagesChanged", "; ".join([f"{len(stages[0])} stage(s) become layers {', '.join(stages[1])}", *texts])
