"""The stored state of a job: valid or reported as damaged."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from heterps_operator.kubernetes.state import StoredState
from heterps_operator.state.bill import Bill
from heterps_operator.state.status import Status
from heterps_operator.state.values import ProcessView
from tests.heterps_operator.helpers.documents import CPU_WORKER, NOW
from tests.heterps_operator.helpers.mutants import MISSING, WRONG, changed, job, paths
from tests.heterps_operator.helpers.states import full_status


def test_every_field_of_a_state_outlives_the_operator() -> None:
    status = full_status()
    usual = [field.name for field in fields(Status) if getattr(status, field.name) == getattr(Status(), field.name)]
    assert usual == [], "the test must set every field"
    assert status.speeds["worker-0-0"].outliers == ((256, 99.5),)
    assert StoredState.from_data(StoredState(status, Bill()).to_data()).status == status


def memory() -> dict[str, str]:
    view = ProcessView(CPU_WORKER, NOW, ended=NOW + 1, exit_code=1, last_lines=("x",), begun=NOW)
    return StoredState(full_status(), Bill(), (view,), (1,), job()["spec"]).to_data()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("name", sorted(memory()))
def test_a_number_that_is_not_finite_is_damage(name: str, number: str) -> None:
    data = memory()
    text = data[name].replace("{", f'{{"later": {number}, ', 1)
    with pytest.raises(ValueError, match=f"a number must be finite, is {number}"):
        StoredState.from_data({**data, name: text})
    StoredState.from_data({**data, name: text.replace(number, "1.5")})  # a field of a later version


@pytest.mark.slow
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
