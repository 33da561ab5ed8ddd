"""Single messages are lost while their connections last: each loss is noticed, and no sample is lost or doubled."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from heterps_runtime.contract import PATH_PLAN
from heterps_runtime.coordinator import server as coordinator
from heterps_runtime.ps import server as ps
from heterps_runtime.wire import link, sequence
from heterps_runtime.wire.messages import MESSAGES
from heterps_runtime.worker import generation, member
from tests.counting import assert_every_sample_counted
from tests.heterps_runtime.helpers.jobs import (
    Stage,
    ThreadedJob,
    counting_configuration,
    plan_document,
    run_job,
    trained_model,
)
from tests.heterps_runtime.helpers.swallowing import Swallowing

pytestmark = pytest.mark.slow

STEPS = 40
STAGES: list[Stage] = [("cpu", 2, 2)]
NEVER = 100_000  # seconds until a hang: no test waits for it
FAULTS: dict[str, list[tuple[str, ...]]] = {
    "steps": [("ready",), ("go",), ("commit",), ("done",)],
    "checkpoints": [("checkpoint",), ("checkpointed",), ("evaluate",), ("evaluated",)],
    "membership": [("join",), ("commit", "join", "generation"), ("done", "rejoin", "ready"), ("shutdown",)],
    "servers": [("define", "defined"), *((op,) for op in ("pull", "rows", "pull-dense", "dense", "push", "ack"))],
    "stages": [("forward",), ("backward",)],
}
COPIES = ("copy-shard", "shard-state", "copy-rows", "shard-rows")  # between servers
AHEAD = [("copy-ahead",), ("copied-ahead",), *((op,) for op in COPIES)]  # before another number of servers works
# Sent once if asked for, or answered by the end of the process, or followed by the next one.
OTHERS = {"allocation", "damaged", "failed", "leaving", "pulse", "probe"}


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """All intervals at which ends look at their links are shorter than in reality."""
    monkeypatch.setattr(sequence, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr(coordinator, "TICK_SECONDS", 0.1)
    monkeypatch.setattr(link, "PULSE_SECONDS", 0.1)
    for module in (ps, member):
        monkeypatch.setattr(module, "POLL_MILLISECONDS", 100)
    monkeypatch.setattr(generation, "_POLL_MILLISECONDS", 100)


def test_each_message_is_in_a_list() -> None:
    lost = [*itertools.chain(*FAULTS.values()), *AHEAD]
    assert {op for fault in lost for op in fault} | OTHERS == set(MESSAGES)


@pytest.mark.parametrize("group", FAULTS)
@pytest.mark.usefixtures("hurried")
def test_a_message_that_is_lost_ends_its_generation(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Swallowing(FAULTS[group])
    network.tap_listeners(monkeypatch)
    document = counting_configuration(tmp_path / "job", "hybrid", steps=STEPS)
    document["job"]["spec"]["data"]["evaluation"] = document["job"]["spec"]["data"]["train"]
    document["job"]["spec"]["runPolicy"]["hangTimeoutSeconds"] = NEVER
    status = run_job(document, [("cpu", 0, 2), ("cpu", 2, 1)], 2)
    network.close()
    assert not network.remaining, "each message was lost"
    assert_every_sample_counted(trained_model(status), 32, seed=3, steps=STEPS)


@pytest.mark.parametrize("fault", AHEAD)
@pytest.mark.usefixtures("hurried")
def test_a_message_that_is_lost_while_rows_are_copied_ahead_only_delays_the_change(
    fault: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Swallowing([fault])
    network.tap_listeners(monkeypatch)
    document = counting_configuration(tmp_path / "job", "hybrid", steps=STEPS)
    document["job"]["spec"]["parameterServer"]["replication"] = 2  # a server may have to join again
    document["job"]["spec"]["runPolicy"]["hangTimeoutSeconds"] = NEVER
    job = ThreadedJob(document)
    job.start(STAGES, 2, hold_at=5)
    job.credentials.request("PUT", PATH_PLAN, plan_document(STAGES, 3))
    job.start_server(2)
    job.wait(lambda status: any(event["reason"] == "ServersChanged" for event in status["events"]))
    job.hold()
    status = job.wait()
    job.close()
    network.close()
    assert not job.failures, "\n".join(job.failures)
    assert not network.remaining, "the message was lost"
    reasons = [event["reason"] for event in status["events"]]
    assert reasons.count("ServersChanged") == 1
    assert "RolledBack" not in reasons
    assert_every_sample_counted(trained_model(status), 32, seed=3, steps=STEPS)


@pytest.mark.usefixtures("hurried")
def test_a_message_between_servers_that_is_lost_begins_the_copy_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lose: Callable[..., None]
) -> None:
    network = Swallowing([COPIES])
    network.tap_listeners(monkeypatch)
    document = counting_configuration(tmp_path / "job", "hybrid", steps=STEPS)
    document["job"]["spec"]["parameterServer"]["replication"] = 2
    document["job"]["spec"]["runPolicy"]["hangTimeoutSeconds"] = NEVER
    job = ThreadedJob(document)
    job.start(STAGES, 2, hold_at=5)
    lose(job, "ps-1")
    job.hold()
    status = job.wait()
    job.close()
    network.close()
    assert not job.failures, "\n".join(job.failures)
    assert not network.remaining, "each message was lost"
    assert "RolledBack" not in [event["reason"] for event in status["events"]]
    assert_every_sample_counted(trained_model(status), 32, seed=3, steps=STEPS)
