"""The coordinator's socket, with real members: one encoding for all, nothing that has arrived is left lying."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import zmq

from heterps_runtime.coordinator import connections
from heterps_runtime.coordinator.connections import MemberConnections
from heterps_runtime.wire.codec import Encoded, encode_for_all
from heterps_runtime.wire.link import member_identity, pulse_identity
from heterps_runtime.wire.messages import FromMember, Go, Message, Probe, Pulse, Ready
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.transport import Connection

SECURITY = LinkSecurity("a token of the tests", encrypted=False)
PATIENCE_SECONDS = 30
NAMES = [f"worker-0-{i}" for i in range(20)]


class Heard:
    """Records what members say, and in which batches."""

    def __init__(self) -> None:
        self.said: list[tuple[str, FromMember]] = []
        self.lost: list[str] = []
        self.batches: list[int] = []
        self.enough = asyncio.Event()
        self.wanted = 0

    @contextmanager
    def together(self) -> Iterator[None]:
        before = len(self.said)
        yield
        if len(self.said) > before:
            self.batches.append(len(self.said) - before)

    def hear(self, sender: str, incarnation: str, message: FromMember) -> None:
        assert incarnation == "1"
        self.said.append((sender, message))
        if len(self.said) >= self.wanted:
            self.enough.set()

    def lose(self, sender: str, incarnation: str, reason: str) -> None:
        self.lost.append(f"{sender}/{incarnation}: {reason}")

    async def wait_for(self, number: int) -> None:
        self.wanted = number
        if len(self.said) < number:
            self.enough.clear()
            await asyncio.wait_for(self.enough.wait(), PATIENCE_SECONDS)


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[MemberConnections, Heard, list[Connection]]]:
    heard = Heard()
    listening = MemberConnections("127.0.0.1", SECURITY, 0, heard)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    address = f"tcp://127.0.0.1:{listening.port}"
    members = [Connection(context, address, member_identity(name, "1"), SECURITY, 1) for name in NAMES]
    listening.start(asyncio.get_running_loop())
    try:
        yield listening, heard, members
    finally:
        listening.stop()
        for member in members:
            member.close()
        context.term()
        listening.close()


def test_a_message_for_many_members_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Message] = []

    def counting(message: Message) -> Encoded:
        if not isinstance(message, Probe):  # sent now and then, also to a busy machine
            encoded.append(message)
        return encode_for_all(message)

    async def run() -> None:
        async with opened() as (listening, heard, members):
            for member in members:
                member.send(Ready(1))
            await heard.wait_for(len(NAMES))
            monkeypatch.setattr(connections, "encode_for_all", counting)
            for generation in (2, 3):
                listening.send([(name, "1") for name in NAMES], Go(generation))
            for member in members:
                received: list[Message | None] = []
                while len(received) < 2:
                    assert member.pollables[0].poll(1000 * PATIENCE_SECONDS)
                    received.append(member.receive())
                assert received == [Go(2), Go(3)], "each with the numbers of its own link"

    asyncio.run(run())
    assert encoded == [Go(2), Go(3)]


def test_all_that_has_arrived_is_heard_in_batches_also_while_the_coordinator_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sending may take the notice of an arrival; no further message then comes to the rescue."""
    monkeypatch.setattr(connections, "_AT_ONCE", 7)
    each = 10

    async def run() -> list[int]:
        async with opened() as (listening, heard, members):
            for member in members:
                member.send(Ready(0))
            await heard.wait_for(len(NAMES))
            for number in range(1, each + 1):
                for member in members:
                    member.send(Ready(number))
                for name in NAMES:
                    listening.send([(name, "1")], Go(number))
                await heard.wait_for(len(NAMES) * (number + 1))
            for name in NAMES:
                assert [m for n, m in heard.said if n == name] == [Ready(number) for number in range(each + 1)]
            assert heard.lost == []
            return heard.batches

    batches = asyncio.run(run())
    assert max(batches) <= 7
    assert sum(batches) == len(NAMES) * (each + 1)


def test_a_socket_for_pulses_is_heard_only_when_it_pulses() -> None:
    async def run() -> list[str]:
        async with opened() as (listening, heard, _):
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            address = f"tcp://127.0.0.1:{listening.port}"
            pulses = Connection(context, address, pulse_identity(NAMES[0], "1"), SECURITY)
            pulses.send(Ready(1))
            pulses.send(Pulse(1, "running", {}))
            await heard.wait_for(1)
            pulses.close()
            context.term()
            assert heard.said == [(NAMES[0], Pulse(1, "running", {}))]
            return heard.lost

    assert asyncio.run(run()) == [f"{NAMES[0]}/1: sent an unexpected 'ready' message"]
