"""The benchmark of copies of rows, with few of them."""

from __future__ import annotations

import pytest
from benchmarks.replication import measure_copies


def test_all_rows_of_a_shard_are_copied_in_every_round(capsys: pytest.CaptureFixture[str]) -> None:
    measure_copies(rows=2000, rounds=1)
    assert "| 2,000 | " in capsys.readouterr().out
