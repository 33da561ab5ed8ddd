"""Which versions of parameters a step reads in each consistency mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps_runtime.config import RunConfig
from heterps_runtime.worker.steps.consistency import Reads
from tests.heterps_runtime.helpers.jobs import configuration


@pytest.mark.parametrize(
    ("consistency", "warmup", "dense", "rows"),
    [
        ("sync", 3, [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6]),
        ("hybrid", 0, [0, 1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 1, 2]),
        ("hybrid", 3, [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 2, 2, 2, 2]),
        ("async", 1, [0, 0, 0, 0, 0, 1, 2], [0, 0, 0, 0, 0, 1, 2]),
        ("async", 4, [0, 1, 2, 3, 3, 3, 3], [0, 1, 2, 3, 3, 3, 3]),
    ],
)
def test_parameters_may_be_stale_after_the_warm_up(
    consistency: str, warmup: int, dense: list[int], rows: list[int], tmp_path: Path
) -> None:
    document = configuration(tmp_path, consistency=consistency, stalenessWarmupSteps=warmup)
    reads = Reads.of(RunConfig.from_json(document))
    assert [reads.dense_version(step) for step in range(7)] == dense
    assert [reads.rows_version(step) for step in range(7)] == rows


def test_a_configuration_of_an_earlier_release_has_no_warm_up(tmp_path: Path) -> None:
    document = configuration(tmp_path, consistency="hybrid")
    assert "stalenessWarmupSteps" not in document["job"]["spec"]["training"]
    assert Reads.of(RunConfig.from_json(document)).warmup == 0
