"""Units that a job lost to other jobs, as its controller sees them."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from heterps_operator.kubernetes.api import KubernetesApi
from heterps_operator.kubernetes.state import JobState, StoredState
from heterps_operator.state.bill import Bill
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Phase, Status
from tests.heterps_operator.helpers.job_world import World

STAGE = {"name": "stage-0", "pool": "cpu", "firstLayer": 0, "lastLayer": 2, "layers": ["mlp"], "units": 1, "pods": 1}
PLAN = JobPlan.from_json({"stages": [STAGE], "parameterServer": {"pool": "cpu", "replicas": 1, "units": 1}})
NOW = 1_700_000_000.0
JOB, OTHER = "ml/flights", "ml/other"


def remembered(folder: Path, status: Status) -> World:
    """A job of an earlier operator, with two units of the pool cpu, which has no more."""
    world = World(folder)
    spec = world.job["spec"]
    JobState(cast("KubernetesApi", world.server), world.job).save(StoredState(status, Bill(), spec=spec))
    return world


@pytest.mark.parametrize("outcome", [Phase.SUSPENDED, None])
def test_units_are_not_held_by_a_plan_alone(outcome: Phase | None, tmp_path: Path) -> None:
    phase = outcome or Phase.STARTING
    status = Status(
        phase=phase, started=NOW, phase_since=NOW, plan=PLAN, plan_revision=1, outcome=outcome, finished=NOW
    )
    world = remembered(tmp_path, status)
    assert world.cluster.ledger.reserve(OTHER, {"cpu": 2}).granted
    controller = world.controller()
    for _ in range(3):
        controller.turn()
    assert world.cluster.ledger.held("cpu") == 2
    assert world.cluster.ledger.held_by(JOB).get("cpu", 0) == 0
    assert "ml/other has 2 of cpu" in world.condition("Profiled")["message"]


def test_a_job_whose_pods_have_begun_holds_the_rest_of_its_plan(tmp_path: Path) -> None:
    world = remembered(tmp_path, Status(phase=Phase.STARTING, started=NOW, phase_since=NOW, plan=PLAN, plan_revision=1))
    world.cluster.ledger.occupy(JOB, {"cpu": 1})
    world.controller().turn()
    assert world.cluster.ledger.held_by(JOB) == {"cpu": 2}
