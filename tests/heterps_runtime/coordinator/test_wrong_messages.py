"""Messages that no member of this version sends cost their sender the membership, or nothing: never the job."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from heterps_operator.loop.coordinator_answers import read_status
from heterps_runtime.contract import JobPhase, Role
from heterps_runtime.coordinator.figures import describe_job
from heterps_runtime.coordinator.words import as_reason, take_figures
from heterps_runtime.data.evaluation import BinaryMetrics, Metrics
from heterps_runtime.errors import ProtocolError
from heterps_runtime.wire.messages import DataSize, Done, Failed, Join, Pulse, Ready
from tests.heterps_runtime.helpers.coordinator_world import ONE_CPU, World


def _join(role: Role, index: int, pool: str = "cpu", stage: int = 0) -> Join:
    return Join(role, index, pool, "tcp://h:1", 0, 0, -1, stage=stage)


def _done(world: World, figures: dict[str, float], step: int = 0) -> Done:
    return Done(world.core.membership.generation, step, 1.0, True, figures)


@pytest.mark.parametrize(
    "words", [_join(Role.WORKER, 1), _join(Role.PS, 0), _join(Role.PS, 0, stage=-1), _join(Role.WORKER, 0, "x" * 300)]
)
def test_a_process_joins_by_its_own_name_only(words: Join) -> None:
    world = World(ONE_CPU)
    with pytest.raises(ProtocolError, match="joined as"):
        world.say("worker-0-0", words)
    assert world.core.membership.member("worker-0-0") is None


@pytest.mark.parametrize(
    ("address", "store_address"),
    [
        ("", ""), ("127.0.0.1:1", ""), ("ipc:///tmp/socket", ""), ("tcp://127.0.0.1", ""), ("tcp://127.0.0.1:0", ""),
        ("tcp://127.0.0.1:65536", ""), ("tcp://::1:80", ""), ("tcp://127.0.0.1;10.0.0.1:1", ""), ("tcp://a b:1", ""),
        ("tcp://127.0.0.1:1", "127.0.0.1"), ("tcp://127.0.0.1:1", "tcp://127.0.0.1:1"),
    ],
)  # fmt: skip
def test_a_process_whose_address_is_none_does_not_join(address: str, store_address: str) -> None:
    """The other members would fail when they connect to it."""
    world = World(ONE_CPU)
    words = replace(_join(Role.WORKER, 0), address=address, store_address=store_address)
    with pytest.raises(ProtocolError, match="joined with the addresses"):
        world.say("worker-0-0", words)
    assert world.core.membership.member("worker-0-0") is None


@pytest.mark.parametrize("host", ["10.0.0.1", "[fd00::1]", "[fe80::1%eth0]", "job-ps-0.team_a.svc"])
def test_a_process_may_have_any_kind_of_address(host: str) -> None:
    world = World(ONE_CPU)
    world.say("worker-0-0", replace(_join(Role.WORKER, 0), address=f"tcp://{host}:1", store_address=f"{host}:2"))
    assert world.core.membership.member("worker-0-0") is not None


def test_only_workers_report_steps_and_only_those_that_they_can_have_begun() -> None:
    world = World(ONE_CPU).begin()
    for name, step in (("ps-0", 0), ("worker-0-0", 2), ("worker-0-0", 10**12)):
        with pytest.raises(ProtocolError, match="done message"):
            world.say(name, _done(world, {}, step))
    world.done("worker-0-0")
    assert world.commits == []
    world.done("worker-0-1")
    assert world.commits == [0]


def test_a_process_outside_of_the_generation_is_not_counted_as_a_member_with_its_state() -> None:
    world = World(ONE_CPU, servers=2, replication=2).begin()
    world.core.member_lost("ps-1", "NodeLost")
    world.ready()
    world.join("ps-1")  # forms a generation in which it copies the state
    world.core.member_lost("ps-1", "NodeLost")
    with world.core.gathering.together():
        world.join("ps-1")
        world.say("ps-1", Ready(world.core.membership.generation))
        member = world.core.membership.member("ps-1")
        assert member is not None
        assert not member.holds_state


def test_losses_whose_sum_is_no_number_are_not_finite() -> None:
    world = World(ONE_CPU).begin()
    for name in world.workers:
        world.done(name, loss=1.7e308)
    assert world.core.phase == JobPhase.FAILED
    assert world.core.error is not None
    assert world.core.error["reason"] == "NaNLoss"


@pytest.mark.parametrize(
    "say",
    [
        lambda world: world.say("worker-0-0", Failed("_Überlauf.Fehler", "file \udcff", False)),
        lambda world: world.say("worker-0-0", Failed("_", "\udcff", True)),
        lambda world: world.say("worker-0-0", Pulse(1, "reads \udcff", {})),
        lambda world: world.say("ps-0", Pulse(1, "ready", {"rows": float("inf"), "bytes": -1.0})),
        lambda world: world.say("worker-0-0", _done(world, {"step": float("nan"), "compute": -3.0})),
    ],
)
def test_the_controller_can_read_the_status_whatever_a_member_says(say: Callable[[World], None]) -> None:
    world = World(ONE_CPU).begin()
    say(world)
    read_status(json.loads(json.dumps(describe_job(world.core, world.config, 0.0))))


def test_what_is_kept_of_unknown_processes_and_names_of_figures_does_not_grow() -> None:
    world = World(ONE_CPU).begin()
    for number in range(200):
        world.say(f"stranger-{number}", Pulse(0, "here", {}))
        world.say("worker-0-0", Pulse(1, "computing", {f"figure-{number}": 1.0, "memory": float(number)}))
    member = world.core.membership.member("worker-0-0")
    assert member is not None
    assert len(member.totals) == 64
    assert member.totals["memory"] == 199.0
    assert not world.core.membership.notes
    assert world.core.liveness.silent_seconds("stranger-0") is None


def test_figures_are_finite_and_reasons_are_words() -> None:
    given = {"a": 1.0, "b": float("nan"), "c": -1.0, "d": float("inf"), "e": 0.0, "\udcff": 1.0}
    assert take_figures({}, given) == {"a": 1.0, "e": 0.0}
    assert [as_reason(text) for text in ("NaNLoss", "_Private_", "1:é", "x" * 200)] == [
        "NaNLoss", "Private", "Error", "x" * 128,
    ]  # fmt: skip


@pytest.mark.parametrize(("train", "evaluation"), [(0, 0), (-1, 0), (2**63, 0), (1, -1)])
def test_numbers_of_rows_are_possible_ones(train: int, evaluation: int) -> None:
    with pytest.raises(ValueError, match="rows of training data"):
        DataSize(train, evaluation)


@pytest.mark.parametrize(
    "change",
    [
        {"samples": np.array([-1])},
        {"samples": np.array([], np.int64)},
        {"keys": np.array([1.0])},
        {"negatives": np.array([1, 2, 3])},
        {"shift": np.array([200])},
        {"more": np.array([1])},
    ],
)
def test_metrics_of_another_form_are_refused_before_they_are_added(change: dict[str, Any]) -> None:
    given = BinaryMetrics()
    given.update(np.array([0.5, -1.0]), np.array([1, 0]), 1.0)
    merged = BinaryMetrics()
    with pytest.raises(ValueError, match="metrics"):
        merged.merge(given.to_arrays() | change)
    assert merged.samples == 0
    merged.merge(given.to_arrays())
    assert merged.results() == given.results()


def test_a_loss_that_is_infinite_is_undefined_in_the_status() -> None:
    metrics = Metrics()
    metrics.update(np.array([1.0]), np.array([1.0]), float("inf"))
    assert metrics.results() == {"samples": 1, "loss": None}
