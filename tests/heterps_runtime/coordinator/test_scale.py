"""The coordinator's work does not grow with the square of the number of members. Looks and encodings are counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from heterps_runtime.coordinator.membership.members import Member, Roster
from heterps_runtime.wire.messages import Commit, Evaluate, Generation, Go, NewAllocation, Ready, Shutdown
from tests.heterps_runtime.helpers.coordinator_world import CARDS, TOTAL, World

WORKERS, SERVERS = 60, 4
MANY = [("cpu", 0, WORKERS)]


class Looks(dict[str, Member]):
    """Counts how many members are looked at by going through all, or through many names."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def _each(self, parts: Any) -> Iterator[Any]:
        for part in parts:
            self.count += 1
            yield part

    def __iter__(self) -> Iterator[str]:
        return self._each(super().keys())

    def values(self) -> Any:
        return self._each(super().values())

    def items(self) -> Any:
        return self._each(super().items())

    def __contains__(self, name: object) -> bool:
        self.count += 1
        return super().__contains__(name)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """The present members of the next world."""
    present, take = Looks(), Roster._take

    def taking(roster: Roster, plan: Any) -> None:
        roster.present = present
        take(roster, plan)

    monkeypatch.setattr(Roster, "_take", taking)
    return present


def test_joins_ready_members_and_reports_look_at_no_other_member(looks: Looks) -> None:
    world = World(MANY, SERVERS)
    looks.count = 0
    world.join(*world.names[:-1])
    assert looks.count <= len(world.names), "the last one forms a generation"
    world.join(world.names[-1])
    looks.count = 0
    world.ready(*world.names[:-1])
    for name in world.workers[:-1]:
        world.done(name)
    assert looks.count == 0
    world.ready(world.names[-1])
    looks.count = 0
    for name in world.workers[:-1]:
        world.done(name)
    assert looks.count == 0
    world.done(world.workers[-1])
    assert world.commits == [0]
    assert looks.count == 0, "a commit goes to the members of the generation"


def test_an_order_is_encoded_once_for_all_its_receivers() -> None:
    world = World(MANY, SERVERS, checkpoint_every=1000).begin(evaluation=50)
    assert world.encoded == [Generation, Generation, Go], "workers and servers are told different things"
    everyone = WORKERS + SERVERS
    assert [len(world.told(kind)) for kind in (Generation, Go)] == [everyone, everyone]
    world.step()
    world.core.set_allocation([[32, *[0] * (WORKERS - 1)]])
    assert world.encoded[3:] == [Commit, NewAllocation]
    assert [len(world.told(kind)) for kind in (Commit, NewAllocation)] == [everyone, WORKERS]
    world.step(TOTAL - 1)
    world.save()
    assert world.encoded.count(Evaluate) == 1
    world.core.fail("Test", "over")
    assert world.encoded.count(Shutdown) == 1
    assert len(world.told(Shutdown)) == everyone


def test_an_announcement_says_only_what_its_receivers_need() -> None:
    world = World([("cpu", 0, 3), ("cpu", 1, 2)], 2).begin()
    of = {name: message for name, message in world.sent if isinstance(message, Generation)}
    assert [of[name].workers for name in ("worker-0-1", "worker-1-0", "ps-1")] == [(0, 1, 2), (0, 1), ()]
    assert of["worker-0-1"].next_stage == ("tcp://worker-1-0:1", "tcp://worker-1-1:1")
    assert (of["worker-1-0"].next_stage, of["ps-1"].next_stage) == ((), ())
    assert {message.servers for message in of.values()} == {("tcp://ps-0:1", "tcp://ps-1:1")}
    world.core.member_lost("worker-0-1", "exit code -9")
    assert world.last(Generation).generation == 2
    [told] = [m for n, m in world.sent if n == "worker-0-2" and isinstance(m, Generation) and m.generation == 2]
    assert told.workers == (0, 2), "ranks are those of the present workers"


def test_changes_of_membership_at_the_same_time_form_one_generation() -> None:
    world = World(MANY, SERVERS).begin()
    world.step(2)
    gone, back = world.workers[10:20], world.workers[20:30]
    before = len(world.sent)
    with world.core.gathering.together():
        for name in gone:
            world.core.member_lost(name, "its connection ended")
        with world.core.gathering.together():  # as a process that joins among other messages
            for name in back:
                world.join(name, lineage=1, version=2)
        assert world.sent[before:] == []
        world.done(world.workers[0])  # of the generation before
        world.say(world.workers[0], Ready(1))
    announced = [(n, m.generation) for n, m in world.sent[before:] if isinstance(m, Generation)]
    assert announced == [(n, 2) for n in world.names if n not in gone]
    world.ready()
    world.step()
    assert world.commits == [0, 1, 2]


def test_a_server_that_is_lost_at_the_same_time_as_workers_leaves_nothing_to_announce() -> None:
    world = World(MANY, SERVERS).begin()
    with world.core.gathering.together():
        world.core.member_lost("worker-0-1", "its connection ended")
        world.core.member_lost("ps-1", "its connection ended")
    assert not world.core.membership.forming
    assert len(world.told(Generation)) == WORKERS + SERVERS, "those of the first generation"
    world.join("ps-1")
    assert world.last(Generation).restore is not None, "the rows of the server are gone"


def test_a_stop_among_changes_of_membership_still_waits_for_its_checkpoint() -> None:
    world = World(MANY, SERVERS).begin()
    world.step(2)
    with world.core.gathering.together():
        world.core.member_lost("worker-0-1", "its connection ended")
        world.core.request_stop()
    assert world.core.phase == "Training"
    world.ready()
    world.save()
    assert world.core.phase == "Stopped"
    assert world.core.checkpoints.step == 2


def test_reports_of_an_evaluation_are_merged_once() -> None:
    world = World(CARDS, checkpoint_every=1000).begin(evaluation=50)
    world.step(TOTAL)
    world.save()
    world.evaluated("worker-1-0")
    world.evaluated("worker-1-0")
    assert world.core.evaluation.results is None, "said twice by one"
    world.evaluated("worker-1-1")
    assert world.core.evaluation.results == {"auc": 2.0}


def test_a_member_that_is_lost_before_it_is_ready_keeps_no_other_waiting() -> None:
    world = World(MANY, SERVERS)
    world.join()
    world.ready(*world.names[1:])
    assert not world.core.membership.running
    world.core.member_lost(world.names[0], "exit code 1")
    assert not world.core.membership.running
    world.ready()
    assert world.core.membership.running
    assert isinstance(world.sent[-1][1], Go)
