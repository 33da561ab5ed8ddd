"""The rendezvous of an all-reduce: it listens on its own address only, and its keys are those of the job."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from heterps_runtime.errors import PeerLostError
from heterps_runtime.wire.messages import Peer
from heterps_runtime.worker.exchange.collectives import Collectives

CPU = torch.device("cpu")


def test_the_rendezvous_listens_on_its_address_only() -> None:
    collectives = Collectives("127.0.0.1", 5.0)
    host, port = collectives.store_address.split(":")
    socket.create_connection((host, int(port)), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", int(port)), timeout=5)  # of this machine, too


def join(members: list[Collectives], secrets: list[str]) -> list[float]:
    """Form a group, one member per thread and with the secret that each knows, and return the sum that each gets."""

    def run(rank: int) -> float:
        first = Peer("worker-0-0", "", members[0].store_address, secrets[rank])
        members[rank].join(1, 0, rank, len(members), first, CPU, 0)
        return float(sum(members[rank].gather_numbers(rank + 1, rank, len(members), CPU)))

    with ThreadPoolExecutor(len(members)) as pool:
        return [f.result() for f in [pool.submit(run, rank) for rank in range(len(members))]]


def test_a_group_needs_the_secret_of_the_rendezvous() -> None:
    members = [Collectives("127.0.0.1", 3.0) for _ in range(2)]
    assert join(members, [members[0].store_secret] * 2) == [3.0, 3.0]
    assert members[0].store_secret != members[1].store_secret
    with pytest.raises(PeerLostError, match="could not be formed"):
        join(members, [members[0].store_secret, "guessed"])
    for member in members:
        member.leave()
