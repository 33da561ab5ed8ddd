"""`hybrid` and `async`: not the same to the bit, but every sample once and bounded staleness."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps_runtime.ps.shard import Shard

from .jobs import Stage, configuration, run_job

PLANS: dict[str, list[Stage]] = {
    "flights": [("cpu", 5, 2), ("card", 8, 1), ("cpu", 10, 2)],
    "two_tower": [("cpu", 1, 1), ("card", 5, 2), ("cpu", 9, 1)],
    "residual": [("card", 0, 1), ("cpu", 2, 2), ("card", 5, 1)],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("consistency")


@pytest.mark.parametrize("consistency", ["hybrid", "async"])
@pytest.mark.parametrize("model", sorted(PLANS))
def test_relaxed_pipelines_apply_every_sample_once_and_learn(model: str, consistency: str, folder: Path) -> None:
    document = configuration(folder / f"{model}-{consistency}", model, consistency=consistency, steps=40)
    status = run_job(document, PLANS[model], 2)
    assert status["phase"] == "Succeeded", status["error"]
    assert status["committedSteps"] == 40
    # 300 rows in batches of 32: nine whole batches and one of 12 per epoch, four epochs.
    assert status["samples"] == 4 * 300
    assert 0 < status["loss"] < 0.75


@pytest.mark.parametrize(("consistency", "bound"), [("sync", 0), ("hybrid", 4), ("async", 4)])
def test_rows_are_never_staler_than_promised(
    consistency: str, bound: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []  # (step, commits that the server had when the step's gradient came)
    original = Shard.push

    def push(self: Shard, step: int, worker: str, given: object) -> None:
        seen.append((step, self.committed))
        original(self, step, worker, given)  # type: ignore[arg-type]

    monkeypatch.setattr(Shard, "push", push)
    document = configuration(folder / f"stale-{consistency}", consistency=consistency, steps=30)
    status = run_job(document, [("cpu", 5, 2), ("card", 10, 1)], 1)
    assert status["phase"] == "Succeeded", status["error"]
    assert len(seen) == 30 * 3  # each worker once per step
    # A step whose rows lacked more commits than the bound could not have been computed before this version.
    assert all(step - committed <= bound for step, committed in seen)
