"""Simulated members of a job: they speak the real protocol over real sockets, and compute nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import zmq

from heterps_runtime.contract import Role, ps_name, worker_name
from heterps_runtime.wire.codec import encode
from heterps_runtime.wire.link import member_identity, pulse_identity
from heterps_runtime.wire.messages import Commit, DataSize, Done, Generation, Go, Join, Message, Pulse, Ready
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.sequence import Stamp
from heterps_runtime.wire.transport import Connection

__all__ = ["Members", "SimulatedMember"]

SOCKETS_PER_MEMBER = 6  # two connections, each with a monitor, which has two ends
PATIENCE_SECONDS = 300.0
PULSE_SECONDS = 1.0
_POLL_MILLISECONDS = 100
_INCARNATION = "0123456789abcdef"
# What a worker of a CPU pool reports: seconds per activity of a step, and what it counts.
_ACTIVITIES = ("lookup", "forward", "backward", "push", "send", "messages", "wait-data", "wait-rows", "wait-commit")
_FIGURES = {name: 0.0123456789 + i for i, name in enumerate((*_ACTIVITIES, "step", "compute", "wait"))}
_TOTALS = dict.fromkeys(("samples", "work", "memory", "operations"), 123456.0) | {"round-trip": 0.0123456789}
_PULSED = _TOTALS | {f"seconds:{name}": 1234.56789 for name in _ACTIVITIES}


@dataclass
class SimulatedMember:
    """A member's two connections to the coordinator, and what it was told last."""

    name: str
    words: Join
    control: Connection
    pulses: Connection
    generation: int = 0
    running: int = 0  # generation that it was told to start
    committed: int = 0  # steps

    @property
    def is_worker(self) -> bool:
        """Whether it reports steps."""
        return self.words.role == Role.WORKER

    def join(self) -> None:
        """Join, or join again with the state of the last commit."""
        self.words = replace(self.words, joins=self.words.joins + 1)
        self.control.renew(self.words.joins)
        version = self.committed if self.generation else -1
        self.control.send(replace(self.words, lineage=min(1, self.generation), version=version))

    def report(self) -> None:
        """Report the next step."""
        self.control.send(Done(self.generation, self.committed, 693.147, finite=True, figures=_FIGURES))

    def pulse(self) -> None:
        """Say that it is alive."""
        self.pulses.send(Pulse(self.words.joins, "running", _PULSED))

    def hear(self, message: Message) -> None:
        """Follow the coordinator as members do; a generation takes no time to set up."""
        match message:
            case Generation():
                self.generation, self.committed = message.generation, message.committed
                self.control.send(Ready(message.generation))
            case Go():
                self.running = message.generation
            case Commit():
                self.committed = message.step + 1


class Members:
    """All members of a job with one stage.

    Args:
        address, security: of the coordinator's socket for messages.
        workers, servers: their numbers.
        pool: of all.
        rows: of the training data.
    """

    def __init__(
        self, address: str, security: LinkSecurity, workers: int, servers: int, *, pool: str, rows: int
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, SOCKETS_PER_MEMBER * (workers + servers) + 10)
        self.all: list[SimulatedMember] = []
        self._first: dict[tuple[type[Message], bool], Message] = {}  # by type, and whether for a worker
        self._away: set[str] = set()
        self._pulsed = time.monotonic()
        self._poller = zmq.Poller()
        self._of: dict[zmq.Socket[bytes], SimulatedMember] = {}
        for i in range(workers + servers):
            worker = i < workers
            index = i if worker else i - workers
            name = worker_name(0, index) if worker else ps_name(index)
            words = Join(
                role=Role.WORKER if worker else Role.PS,
                index=index,
                pool=pool,
                address=f"tcp://10.244.{i // 250}.{i % 250}:41234",
                metrics_port=41235,
                lineage=0,
                version=-1,
                stage=0 if worker else -1,
                data=DataSize(rows, 0) if worker else None,
            )
            identities = member_identity(name, _INCARNATION), pulse_identity(name, _INCARNATION)
            control, pulses = (Connection(self._context, address, identity, security) for identity in identities)
            member = SimulatedMember(name, words, control, pulses)
            self.all.append(member)
            socket = control.pollables[0]
            self._poller.register(socket, zmq.POLLIN)
            self._of[socket] = member

    @property
    def workers(self) -> list[SimulatedMember]:
        """The workers, by index."""
        return [member for member in self.all if member.is_worker]

    def bytes_of(self, kind: type[Message]) -> int:
        """Bytes of the first message of a type that a worker was sent."""
        return sum(map(len, encode(self._first[kind, True], Stamp(1, 1))))

    @property
    def generation(self) -> int:
        """The newest generation that a member was told of."""
        return max(member.generation for member in self.all)

    def away(self, member: SimulatedMember) -> None:
        """Take a member out: `follow` does not wait for it."""
        self._away.add(member.name)

    def back(self, member: SimulatedMember) -> None:
        """Let a member join again."""
        self._away.discard(member.name)
        member.join()

    def follow(self, running: int = 0, committed: int = 0, *, settled: bool = False) -> None:
        """Follow the coordinator until all members run a generation and have a number of commits.

        Args:
            running: number of the generation, or of a newer one.
            committed: steps.
            settled: whether to wait until all run the newest generation.

        They pulse each second meanwhile.

        Raises:
            SystemExit: the coordinator does not go on.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            least = max(running, self.generation) if settled else running
            present = [m for m in self.all if m.name not in self._away]
            if all(m.running >= least and m.committed >= committed for m in present):
                return
            if time.monotonic() > deadline:
                raise SystemExit("the coordinator does not go on")
            if time.monotonic() - self._pulsed >= PULSE_SECONDS:
                self.pulse()
            for socket, _ in self._poller.poll(_POLL_MILLISECONDS):
                member = self._of[socket]
                while (message := member.control.receive()) is not None:
                    self._first.setdefault((type(message), member.is_worker), message)
                    member.hear(message)

    def report(self, members: Iterable[SimulatedMember]) -> None:
        """Let workers report their next step."""
        for member in members:
            member.report()

    def pulse(self, members: Iterable[SimulatedMember] | None = None) -> None:
        """Let members pulse once."""
        for member in self.all if members is None else members:
            member.pulse()
        self._pulsed = time.monotonic()

    def close(self) -> None:
        """Close all connections."""
        for member in self.all:
            member.control.close()
            member.pulses.close()
        self._context.term()
