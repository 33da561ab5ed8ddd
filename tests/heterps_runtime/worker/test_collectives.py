"""The rendezvous of an all-reduce: it listens on its own address only, and its keys are those of the job."""

from __future__ import annotations

import socket
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from heterps_runtime.errors import PeerLostError
from heterps_runtime.wire.messages import Rendezvous
from heterps_runtime.worker.exchange.collectives import Collectives, Group
from heterps_runtime.worker.exchange.rings import has_own_card

CPU = torch.device("cpu")


def test_the_rendezvous_listens_on_its_address_only() -> None:
    collectives = Collectives("127.0.0.1", 5.0)
    host, port = collectives.store_address.split(":")
    socket.create_connection((host, int(port)), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", int(port)), timeout=5)  # of this machine, too


def begin(member: Collectives, generation: int, rank: int, size: int, store: Collectives, secret: str) -> Group:
    first = Rendezvous(store.store_address, secret)
    return member.begin(generation, 0, rank, size, first, CPU, 0)


def total(group: Group, rank: int, size: int) -> Future[float]:
    """The sum of rank + 1 over the group."""
    return group.submit(lambda: float(sum(group.gather_numbers(rank + 1, rank, size, CPU))))


def join(generation: int, members: list[Collectives], secrets: list[str]) -> list[float]:
    """Form a group, with the secret that each member knows, and return the sum that each gets."""
    size = len(members)
    groups = [begin(member, generation, rank, size, members[0], secrets[rank]) for rank, member in enumerate(members)]
    return [future.result() for future in [total(group, rank, size) for rank, group in enumerate(groups)]]


def test_a_group_needs_the_secret_of_the_rendezvous() -> None:
    members = [Collectives("127.0.0.1", 3.0) for _ in range(2)]
    assert join(1, members, [members[0].store_secret] * 2) == [3.0, 3.0]
    assert members[0].store_secret != members[1].store_secret
    with pytest.raises(PeerLostError, match="could not be formed"):
        join(2, members, [members[0].store_secret, "guessed"])
    for member in members:
        member.leave()


@pytest.mark.parametrize("gone", [0, 1])
def test_a_member_that_is_gone_holds_nothing_up_once_the_next_generation_begins(gone: int) -> None:
    """With a timeout of an hour, only a begun group that is given up can make this test end."""
    members = [Collectives("127.0.0.1", 3600.0) for _ in range(3)]
    store = members[1 - gone]  # of a member that lives
    remaining = [rank for rank in range(3) if rank != gone]
    futures = [total(begin(members[r], 1, r, 3, store, store.store_secret), r, 3) for r in remaining]
    ranks = {rank: number for number, rank in enumerate(remaining)}
    groups = {r: begin(members[r], 2, ranks[r], 2, store, store.store_secret) for r in remaining}
    sums = [total(groups[r], ranks[r], 2) for r in remaining]
    assert [future.result() for future in sums] == [3.0, 3.0]
    assert not any(future.done() for future in futures)
    for member in members:
        member.leave()


def test_an_operation_of_a_closed_group_fails() -> None:
    member = Collectives("127.0.0.1", 3600.0)
    group = begin(member, 1, 0, 1, member, member.store_secret)
    assert total(group, 0, 1).result() == 1.0
    member.leave()
    with pytest.raises(PeerLostError, match="closed"):
        total(group, 0, 1).result()


@pytest.mark.parametrize(("cards", "own"), [(("a", "b", "c"), True), (("a", "b", "a"), False)])
def test_members_find_out_together_whether_each_has_a_card_of_its_own(
    cards: tuple[str, ...], own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=cards[device.index]))
    store = HashStore()
    with ThreadPoolExecutor(len(cards)) as members:
        found = members.map(lambda i: has_own_card(store, i, len(cards), torch.device("cuda", i)), range(len(cards)))
        assert list(found) == [own] * len(cards)
