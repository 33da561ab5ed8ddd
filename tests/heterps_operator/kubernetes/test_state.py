"""The stored state of a job: valid or reported as damaged."""

from __future__ import annotations

import json

import pytest

from heterps_operator.kubernetes.state import StoredState
from heterps_operator.state.bill import Bill
from heterps_operator.state.status import Condition, Failure, Phase, Status
from heterps_operator.state.values import ProcessView
from tests.heterps_operator.helpers.documents import CPU_WORKER, NOW
from tests.heterps_operator.helpers.mutants import MISSING, WRONG, changed, job, paths
from tests.heterps_operator.helpers.world import JOB_PLAN


def memory() -> dict[str, str]:
    condition = Condition("Planned", "True", "PlanComputed", "x", NOW)
    failure = Failure("x", "x", last_lines=("x",))
    status = Status(
        Phase.RUNNING, NOW, NOW, conditions=(condition,), plan=JOB_PLAN, attempts={"ps-0": 2}, failure=failure,
        gang=("ps-0",), planned_with={"cpu": 4}, not_before={"": 1.0}, restarts={"ps-0": 1},
        result={"committedSteps": 1},
    )  # fmt: skip
    view = ProcessView(CPU_WORKER, NOW, ended=NOW + 1, exit_code=1, last_lines=("x",), begun=NOW)
    return StoredState(status, Bill(), (view,), (1,), job()["spec"]).to_data()


@pytest.mark.parametrize("name", sorted(memory()))
def test_a_state_is_read_as_what_it_is_or_called_damaged(name: str) -> None:
    data = memory()
    assert StoredState.from_data(data).to_data() == data
    good, damaged, taken = json.loads(data[name]), 0, 0
    for path in paths(good):
        for value in WRONG:
            if value is MISSING and not path:
                continue
            text = json.dumps(changed(good, path, value))
            try:
                found = StoredState.from_data({**data, name: text})
            except ValueError:
                damaged += 1
                continue
            taken += 1
            found.to_data()
            for view in found.processes:
                assert isinstance(view.spec.units, int)
                assert isinstance(view.name, str)
            assert isinstance(found.status.phase, str)
            assert found.status.failures >= 0 or isinstance(found.status.failures, int)
    assert damaged >= 50
    assert taken >= 1
    for text in ("", "{", "[" * 100_000, "7", "null"):
        with pytest.raises(ValueError, match=r"state|status|bill|must be|Expecting"):
            StoredState.from_data({**data, name: text})
