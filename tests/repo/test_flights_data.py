"""The flights example's data: put in place as a whole, by whichever process is first."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

# By name: for mypy, which also reads predict.py beside it as a program of its own, it is the module `prepare`.
prepare = importlib.import_module("examples.flights.prepare")
ROWS = 40


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the data of a source with few flights."""
    late = pa.array(np.arange(ROWS) % 4 == 0, pa.int8())
    monkeypatch.setattr(prepare, "read_source", dict)
    monkeypatch.setattr(prepare, "build", lambda tables: (pa.table({"late": late}), np.arange(ROWS) < 30))
    return tmp_path / "data"


def test_both_sets_are_written_as_a_whole(output: Path) -> None:
    done = prepare.write(output, "one")
    assert done == prepare.read_marker(output) == {
        "recipe": "one", "train": {"rows": 30, "late": 8 / 30}, "test": {"rows": 10, "late": 0.2}
    }  # fmt: skip
    assert len(list((output / "train").iterdir())) == 4
    assert [path.name for path in output.parent.iterdir()] == ["data"], "nothing is left beside it"


def test_what_another_process_has_put_there_meanwhile_stays(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = prepare.build

    def slow(tables: dict[str, pa.Table]) -> object:
        monkeypatch.setattr(prepare, "build", build)
        prepare.write(output, "one")  # by the other process
        (output / "mine").touch()
        return build(tables)

    monkeypatch.setattr(prepare, "build", slow)
    prepare.write(output, "one")
    assert (output / "mine").exists()
    assert [path.name for path in output.parent.iterdir()] == ["data"]


def test_data_of_another_version_are_replaced(output: Path) -> None:
    prepare.write(output, "one")
    (output / "train" / "old").touch()
    prepare.write(output, "two")
    assert json.loads((output / "prepared.json").read_text())["recipe"] == "two"
    assert not (output / "train" / "old").exists()
