"""The coordinator's decisions about another number of parameter servers while the job trains."""

from __future__ import annotations

import pytest

from heterps_runtime.contract import PlanDocument
from heterps_runtime.wire.messages import CopiedAhead, CopyAhead, Generation, Go, Shutdown
from tests.heterps_runtime.helpers.coordinator_world import CARDS, ONE_CPU, World
from tests.heterps_runtime.helpers.jobs import Stage, plan_document


def _submit(world: World, servers: int) -> None:
    world.core.set_plan(PlanDocument.from_json(plan_document(world.stages, servers)))
    world.servers = servers


def _to_servers(world: World) -> Generation:
    return [message for name, message in world.sent if isinstance(message, Generation) and name.startswith("ps")][-1]


@pytest.mark.parametrize("stages", [ONE_CPU, CARDS])
def test_new_servers_copy_from_those_that_hold_the_state(stages: list[Stage]) -> None:
    world = World(stages, 2).begin()
    world.step(3)
    world.sent.clear()
    _submit(world, 4)
    world.join("ps-2")
    world.step()
    assert world.told(Generation) == [], "the members train on until all servers are there"
    world.join("ps-3")
    world.step()
    assert world.told(Generation) == [], "and until these have copied what they can"
    world.copied_ahead()
    announced = _to_servers(world)
    assert announced.servers == ("tcp://ps-0:1", "tcp://ps-1:1", "tcp://ps-2:1", "tcp://ps-3:1")
    assert (announced.held_by, announced.missing) == (("tcp://ps-0:1", "tcp://ps-1:1"), (2, 3))
    assert (announced.restore, announced.committed) == (None, 5)
    world.ready()
    world.step()
    assert world.core.progress.committed == 6
    world.core.member_lost("worker-0-0", "it died")
    world.join("worker-0-0")
    assert _to_servers(world).held_by == (), "the state is divided among the new servers"


def test_servers_that_the_plan_lacks_end_when_all_are_ready() -> None:
    world = World(ONE_CPU, 3).begin()
    world.step(3)
    world.sent.clear()
    _submit(world, 1)
    world.copied_ahead()
    announced = _to_servers(world)
    assert (announced.servers, announced.held_by) == (
        ("tcp://ps-0:1",),
        ("tcp://ps-0:1", "tcp://ps-1:1", "tcp://ps-2:1"),
    )
    assert {"ps-1", "ps-2"} < set(world.told(Generation))
    world.ready("worker-0-0", "worker-0-1", "ps-1", "ps-2")
    assert world.told(Shutdown) == []
    world.ready("ps-0")
    assert world.told(Shutdown) == ["ps-1", "ps-2"]
    assert not {"ps-1", "ps-2"} & set(world.told(Go))
    world.step()
    assert world.core.progress.committed == 4


def test_a_change_that_is_interrupted_begins_again() -> None:
    """Also by a server that has its part of the new division, since another one may not have."""
    world = World(ONE_CPU, 2).begin()
    world.step(3)
    _submit(world, 3)
    world.join("ps-2")
    world.copied_ahead()
    world.ready("ps-0", "ps-2")
    world.core.member_lost("worker-0-1", "it died")
    world.join("worker-0-1")
    announced = _to_servers(world)
    assert (announced.held_by, announced.missing) == (("tcp://ps-0:1", "tcp://ps-1:1"), (2,))
    assert announced.restore is None


def test_a_change_is_given_up_for_a_plan_with_the_servers_of_before() -> None:
    world = World(ONE_CPU, 2).begin()
    world.step(3)
    _submit(world, 3)
    world.join("ps-2")
    world.copied_ahead()
    _submit(world, 2)
    assert world.told(Shutdown) == ["ps-2"]
    announced = _to_servers(world)
    assert (announced.servers, announced.held_by) == (("tcp://ps-0:1", "tcp://ps-1:1"), ())
    assert announced.restore is None


def test_a_change_is_given_up_for_a_plan_with_yet_another_number_of_servers() -> None:
    """What its servers copy is not waited for."""
    world = World(ONE_CPU, 2).begin()
    world.step(3)
    _submit(world, 3)
    world.join("ps-2")
    world.copied_ahead()
    _submit(world, 1)
    announced = _to_servers(world)
    assert (announced.servers, len(announced.held_by), announced.restore) == (("tcp://ps-0:1",), 2, None)


@pytest.mark.parametrize(("divisions", "restores"), [((2, 3), False), ((2,), True), ((3,), False)])
def test_a_server_that_joins_again_after_a_change_says_what_it_has(
    divisions: tuple[int, ...], *, restores: bool
) -> None:
    """It may not have heard that the others are ready; then it has both divisions."""
    world = World(ONE_CPU, 2).begin()
    world.step(3)
    _submit(world, 3)
    world.join("ps-2")
    world.copied_ahead()
    world.ready()
    world.join("ps-1", lineage=world.core.membership.lineage, version=3, divisions=divisions)
    assert (_to_servers(world).restore is not None) == restores


@pytest.mark.parametrize("victim", ["ps-0", "ps-1", "ps-2"])
def test_a_loss_during_a_change_takes_the_job_back(victim: str) -> None:
    world = World(ONE_CPU, 3).begin()
    world.step(3)
    _submit(world, 2)
    world.core.member_lost(victim, "it died")
    if victim != "ps-2":  # the plan does not need it
        world.join(victim)
    announced = _to_servers(world)
    assert announced.restore is not None
    assert (announced.held_by, len(announced.servers)) == ((), 2)
    world.ready(*world.names)
    world.step()
    assert world.core.progress.committed == 1


@pytest.mark.parametrize(("victim", "held_by"), [("ps-1", "tcp://ps-1:1"), ("ps-2", "")])
def test_with_copies_a_loss_during_a_change_costs_nothing(victim: str, held_by: str) -> None:
    world = World(ONE_CPU, 3, replication=2).begin()
    world.step(3)
    _submit(world, 2)
    world.copied_ahead()
    world.core.member_lost(victim, "it died")
    if victim != "ps-2":
        world.join(victim)
    announced = _to_servers(world)
    assert announced.restore is None
    assert (announced.missing, announced.held_by[int(victim[-1])]) == ((int(victim[-1]),), held_by)


def _asked(world: World) -> list[str]:
    """Servers that were told to copy ahead in the generation in force."""
    generation = world.core.membership.generation
    return [n for n, m in world.sent if isinstance(m, CopyAhead) and m.generation == generation]


def test_the_order_to_copy_ahead_names_both_divisions() -> None:
    world = World(ONE_CPU, 2).begin()
    world.step(3)
    _submit(world, 3)
    world.join("ps-2")
    order = world.last(CopyAhead)
    assert _asked(world) == ["ps-0", "ps-1", "ps-2"]
    assert order.servers == ("tcp://ps-0:1", "tcp://ps-1:1", "tcp://ps-2:1")
    assert order.held_by == ("tcp://ps-0:1", "tcp://ps-1:1")


def test_the_plan_changes_when_the_last_server_has_copied_ahead() -> None:
    world = World(ONE_CPU, 3).begin()
    world.step(3)
    _submit(world, 2)
    assert _asked(world) == ["ps-0", "ps-1"], "the third one will not be there"
    world.say("ps-0", CopiedAhead(world.core.membership.generation, 0))
    assert _to_servers(world).held_by == (), "the other one still copies"
    world.say("ps-1", CopiedAhead(world.core.membership.generation, 0))
    assert len(_to_servers(world).held_by) == 3


def _rounds(world: World, *num_rows: int) -> int:
    """Let all servers report some rows in each round; return the number of rounds after which the plan changes."""
    generation = world.core.membership.generation
    for number, rows in enumerate(num_rows, 1):
        world.sent.clear()
        for name in ("ps-0", "ps-1", "ps-2"):
            assert world.core.membership.generation == generation, "not before the last server has reported"
            world.say(name, CopiedAhead(generation, rows if name == "ps-1" else 0))
        if world.core.membership.generation > generation:
            return number
        assert _asked(world) == ["ps-0", "ps-1", "ps-2"], "all begin the next round together"
    raise AssertionError("the plan has not changed")


@pytest.mark.parametrize(
    ("num_rows", "rounds"),
    [
        ((50_000,), 1),  # of a small table: what changes meanwhile is copied in no time
        ((10**9, 10**8, 10**7, 10**6, 90_000), 5),
        ((10**9, 10**8, 6 * 10**7), 3),  # rows change as fast as they are copied
        ((10**9, 0), 2),
    ],
)
def test_what_has_changed_is_copied_in_rounds_while_that_pays(num_rows: tuple[int, ...], rounds: int) -> None:
    world = World(ONE_CPU, 2).begin()
    world.step(3)
    _submit(world, 3)
    world.join("ps-2")
    assert _rounds(world, *num_rows) == rounds


def test_a_server_that_is_replaced_between_rounds_copies_all_and_then_what_has_changed() -> None:
    """Its first round is not taken for one that did not halve what is copied."""
    world = World(ONE_CPU, 2).begin()
    world.step(3)
    _submit(world, 3)
    world.join("ps-2")
    world.copied_ahead(10**9)
    world.copied_ahead(10**6)
    world.core.member_lost("ps-2", "it died")
    world.join("ps-2")
    world.sent.clear()
    world.say("ps-2", CopiedAhead(world.core.membership.generation, 10**9))
    assert _asked(world) == []
    for name in ("ps-0", "ps-1"):  # from the round that has ended for them
        world.say(name, CopiedAhead(world.core.membership.generation, 10**5))
    assert _asked(world) == ["ps-0", "ps-1", "ps-2"]


def test_a_generation_in_between_makes_what_was_copied_ahead_worthless() -> None:
    """Its servers have dropped their notes: the copy begins again when all train again."""
    world = World(ONE_CPU, 2).begin()
    world.step(3)
    _submit(world, 3)
    world.join("ps-2")
    late = CopiedAhead(world.core.membership.generation, 0)
    world.core.member_lost("worker-0-1", "it died")
    world.say("ps-2", late)
    assert _to_servers(world).held_by == ()
    world.ready("worker-0-0", "ps-0", "ps-1")
    world.join("worker-0-1")
    assert _asked(world) == [], "the generation that it takes part in would end the copy"
    world.step()
    world.ready()
    assert _asked(world) == ["ps-0", "ps-1", "ps-2"]
    world.say("ps-2", late)
    world.step()
    assert _to_servers(world).held_by == (), "the late message is of the generation before"
    world.copied_ahead()
    assert len(_to_servers(world).held_by) == 2


def test_a_new_server_that_is_replaced_copies_ahead_again() -> None:
    world = World(ONE_CPU, 2).begin()
    world.step(3)
    _submit(world, 3)
    world.join("ps-2")
    world.core.member_lost("ps-2", "it died")
    world.step()
    world.join("ps-2")
    assert _asked(world) == ["ps-0", "ps-1", "ps-2", "ps-2"]
    assert world.core.progress.committed == 4, "training goes on"
    world.copied_ahead()
    assert len(_to_servers(world).held_by) == 2


def test_a_job_that_stands_still_trains_on_before_it_changes() -> None:
    """Its servers would copy all rows in the pause; if they copy ahead, it lasts no longer than without the change."""
    world = World(CARDS, 2).begin()
    world.step(3)
    _submit(world, 3)
    world.core.member_lost("worker-0-0", "it died")
    world.join("ps-2")
    world.join("worker-0-0")
    assert world.told(CopyAhead) == []
    assert _to_servers(world).held_by == ()
    world.ready()
    assert _asked(world) == ["ps-0", "ps-1", "ps-2"]
    world.copied_ahead()
    assert len(_to_servers(world).held_by) == 2


def test_the_last_process_of_the_plan_may_come_while_members_set_up() -> None:
    world = World(ONE_CPU, 2).begin()
    world.step(3)
    _submit(world, 3)
    world.join("worker-0-1")
    world.sent.clear()
    world.join("ps-2")
    assert world.told(Generation) == [], "what the members set up is not interrupted"
    world.ready()
    assert _asked(world) == ["ps-0", "ps-1", "ps-2"]


def test_a_job_that_restores_a_checkpoint_changes_at_once() -> None:
    """Rows come from the checkpoint, for servers of either plan."""
    world = World(ONE_CPU, 2).begin()
    world.step(3)
    _submit(world, 3)
    world.core.member_lost("ps-1", "it died")
    world.join("ps-2")
    world.join("ps-1")
    assert world.told(CopyAhead) == []
    announced = _to_servers(world)
    assert (announced.restore is not None, len(announced.servers)) == (True, 3)


def test_a_loss_that_the_next_plan_does_not_mind_ends_the_wait() -> None:
    """The server that is lost will not be started again, as the next plan lacks it."""
    world = World(ONE_CPU, 3, replication=2).begin()
    world.step(3)
    _submit(world, 2)
    assert _asked(world) == ["ps-0", "ps-1"]
    world.core.member_lost("ps-2", "it died")
    assert (_to_servers(world).held_by[2], _to_servers(world).restore) == ("", None)


def test_servers_stay_on_their_pool() -> None:
    world = World(ONE_CPU, 2).begin()
    document = plan_document(world.stages, 2)
    document["parameterServer"]["pool"] = "card"
    with pytest.raises(ValueError, match=r"^plan\.parameterServer\.pool: must stay cpu while the job runs"):
        world.core.set_plan(PlanDocument.from_json(document))
