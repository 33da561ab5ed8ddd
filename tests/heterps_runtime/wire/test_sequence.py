"""Numbers of messages: a gap is reported once, a repeated message is left out, a probe follows the last message."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_runtime.errors import ProtocolError
from heterps_runtime.wire.sequence import PROBE_SECONDS, Numbering, Peers, Stamp


def test_messages_in_order_are_taken() -> None:
    sender, receiver = Numbering(4), Numbering(4)
    assert all(receiver.accept(sender.stamp(0.0)) for _ in range(3))


def test_lost_messages_are_reported_once_with_their_number() -> None:
    receiver = Numbering(4)
    assert receiver.accept(Stamp(4, 0))
    with pytest.raises(ProtocolError, match=r"2 message\(s\) before number 3 of session 4 are lost"):
        receiver.accept(Stamp(4, 3))
    assert receiver.accept(Stamp(4, 4))


def test_the_first_message_of_a_session_may_be_the_lost_one() -> None:
    with pytest.raises(ProtocolError, match=r"1 message\(s\) before number 1"):
        Numbering(4).accept(Stamp(4, 1))
    with pytest.raises(ProtocolError, match=r"1 message\(s\) before number 1"):
        Peers().accept(b"worker-0-0/4", Stamp(4, 1))


def test_a_message_that_arrives_again_is_left_out() -> None:
    receiver = Numbering(4)
    assert [receiver.accept(Stamp(4, number)) for number in (0, 1, 1, 0, 2)] == [True, True, False, False, True]
    with pytest.raises(ProtocolError):
        receiver.accept(Stamp(4, 5))
    assert not receiver.accept(Stamp(4, 3)), "it was reported as lost"


def test_a_probe_is_due_a_second_after_the_last_message_and_not_before_the_first() -> None:
    numbering = Numbering(1)
    assert not numbering.probe_due(100.0), "nothing can be lost"
    numbering.stamp(100.0)
    assert not numbering.probe_due(100.0 + PROBE_SECONDS / 2)
    assert numbering.probe_due(100.0 + PROBE_SECONDS)
    numbering.stamp(101.0)
    assert not numbering.probe_due(101.5)
    numbering.renew(2)
    assert not numbering.probe_due(200.0)


def test_a_session_that_is_over_is_not_checked() -> None:
    receiver = Numbering(4)
    receiver.renew(5)
    assert receiver.accept(Stamp(4, 17))
    assert receiver.accept(Stamp(5, 0))


def test_a_listener_follows_the_session_of_each_peer() -> None:
    peers = Peers()
    assert peers.accept(b"a", Stamp(1, 0))
    assert peers.accept(b"b", Stamp(1, 0))
    assert [peers.stamp(b"a", 0.0) for _ in range(2)] == [Stamp(1, 0), Stamp(1, 1)]
    assert peers.accept(b"a", Stamp(2, 0))
    assert peers.accept(b"a", Stamp(1, 9)), "sent before"
    assert peers.stamp(b"a", 0.0) == Stamp(2, 0)
    assert peers.stamp(b"b", 0.0) == Stamp(1, 0)
    assert peers.probes_due(PROBE_SECONDS) == [b"a", b"b"]


def test_a_peer_that_was_not_heard_gets_what_it_does_not_check() -> None:
    peers, member = Peers(), Numbering(3)
    assert all(member.accept(peers.stamp(b"a", 0.0)) for _ in range(2))
    assert peers.probes_due(100.0) == []


def test_a_listener_forgets_peers_that_are_gone() -> None:
    peers = Peers()
    for name in (b"a/1", b"b/1"):
        peers.accept(name, Stamp(1, 0))
        peers.stamp(name, 0.0)
    peers.forget(b"a/1")
    peers.forget(b"a/1")
    assert peers.probes_due(100.0) == [b"b/1"]
    peers.begin(2)
    assert peers.probes_due(100.0) == []
    assert peers.accept(b"b/1", Stamp(1, 7)), "of a session that is over"
    with pytest.raises(ProtocolError):
        peers.accept(b"b/2", Stamp(2, 1))


@given(st.lists(st.tuples(st.sampled_from(["stamp", "hear", "forget", "wait"]), st.integers(0, 4), st.floats(0, 0.7))))
@settings(deadline=None)
def test_probes_are_due_as_if_all_peers_were_looked_at_each_time(steps: list[tuple[str, int, float]]) -> None:
    peers, now = Peers(), 0.0
    sent: dict[bytes, float] = {}  # time of the last message to each peer
    for action, number, seconds in steps:
        peer, now = b"%d" % number, now + seconds
        if action == "hear":
            peers.accept(peer, Stamp(1, 0))
        elif action == "forget":
            peers.forget(peer)
            sent.pop(peer, None)
        elif action == "stamp" and peers.stamp(peer, now).session:
            sent[peer] = now
        due = peers.probes_due(now)
        assert due == sorted(peer for peer, time in sent.items() if now - time >= PROBE_SECONDS)
        for peer in due:
            peers.stamp(peer, now)
            sent[peer] = now


def test_peers_are_not_looked_at_until_a_probe_may_be_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each end asks after each message."""
    peers, looks, probe_due = Peers(), [0], Numbering.probe_due

    def counting(numbering: Numbering, now: float) -> bool:
        looks[0] += 1
        return probe_due(numbering, now)

    monkeypatch.setattr(Numbering, "probe_due", counting)
    names = [b"%d" % number for number in range(100)]
    for name in names:
        peers.accept(name, Stamp(1, 0))
    for number in range(1000):
        for name in names[:5]:
            peers.stamp(name, 0.01 * number)
        peers.probes_due(0.01 * number)
    assert looks[0] <= 12 * len(names), "about once a second in ten seconds"
