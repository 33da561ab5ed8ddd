"""Servers that compute with several threads train the model of plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.cores import THREADS
from heterps_runtime.store import team
from tests.heterps_runtime.helpers.jobs import configuration, run_job, trained_model
from tests.heterps_runtime.helpers.plain_torch import train
from tests.same_model import assert_same_model


def test_the_model_is_that_of_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared: set[int] = set()
    each = team.Team.each

    def sharing(self: team.Team, parts: int, work: Callable[[int], Any]) -> list[Any]:
        shared.add(parts)
        return each(self, parts, work)

    monkeypatch.setattr(team.Team, "each", sharing)
    monkeypatch.setattr(team, "_LEAST_ROWS", 1)
    monkeypatch.setattr(team, "_LEAST_ELEMENTS", 1)
    monkeypatch.setenv(THREADS, "3")
    document = configuration(tmp_path / "job", rows=1000, steps=12)
    status = run_job(document, [("cpu", 4, 2), ("cpu", 10, 1)], servers=2)
    assert 3 in shared
    assert_same_model(trained_model(status), train(RunConfig.from_json(document), torch.float64))
