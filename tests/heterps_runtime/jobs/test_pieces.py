"""Dense parameters in pieces on any number of servers: the same model, whatever happens to the servers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heterps_runtime.checkpoint import CheckpointManifest, Storage, find_latest, read_manifest
from heterps_runtime.checkpoint.format import TensorFile
from heterps_runtime.checkpoint.tool import run_tool
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_STOP, JobPhase
from heterps_runtime.partition import pieces
from heterps_runtime.worker.steps import stage
from heterps_runtime.worker.tensors import joined
from tests.heterps_runtime.helpers.jobs import Stage, ThreadedJob, configuration, run_job, trained_model
from tests.heterps_runtime.helpers.plain_torch import train
from tests.same_model import TOLERANCE, assert_same_model, difference

LAST = 10  # last layer of models.Flights
STEPS = 60
ONE: list[Stage] = [("cpu", LAST, 2)]
TWO: list[Stage] = [("cpu", 7, 2), ("cpu", LAST, 1)]
CUT = "mlp.2.weight"  # 49,152 elements, three of the smallest pieces
CLOSE = 1e-12  # with these models; `tests/same_model.py` says why other processors may be further off


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pieces")


def wide(work: Path, **training: Any) -> dict[str, Any]:
    """A job whose largest matrix is cut, for processes of its own, too; its optimizer is Adam."""
    document = configuration(work, steps=STEPS, **training)
    document["job"]["spec"]["model"]["arguments"] = {"hidden": [256, 192]}
    return document


@pytest.fixture(scope="module")
def reference(folder: Path) -> dict[str, Any]:
    """What plain PyTorch trains in one go."""
    return train(RunConfig.from_json(wide(folder / "reference")), torch.float64)


def assert_close(trained: dict[str, Any], expected: dict[str, Any]) -> None:
    assert_same_model(trained, expected)
    assert max(difference(trained[n], v) for n, v in expected.items() if v.dtype == np.float64) <= CLOSE


def newest(document: dict[str, Any]) -> tuple[Storage, CheckpointManifest]:
    storage = Storage.open(Path(document["workDirectory"], "checkpoints"))
    manifest, skipped = find_latest(storage)
    assert manifest is not None
    assert not skipped
    return storage, manifest


def elements(storage: Storage, manifest: CheckpointManifest) -> dict[str, dict[str, int]]:
    """Elements of each dense array in each file."""
    found = {}
    for entry in manifest.files_of("dense"):
        with TensorFile(storage, manifest.path_of(entry)) as file:
            found[entry.name] = {n.removeprefix("dense/"): int(np.prod(s.shape)) for n, s in file.specs.items()}
    return found


def run(document: dict[str, Any], stages: Sequence[Stage], servers: int, stop_after: int | None = None) -> Any:
    """Run a job to its end, or stop it after some steps; returns its status."""
    job = ThreadedJob(document)
    job.start(stages, servers, hold_at=stop_after)
    if stop_after is not None:
        job.credentials.request("POST", PATH_STOP)
    status = job.wait()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    return status


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_any_number_of_servers_trains_the_same_model_bit_for_bit(
    optimizer: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "SMALLEST_PIECE", 4)
    dense = {"name": "adam", "learningRate": "0.01"}
    if optimizer == "momentum":
        dense = {"name": "sgd", "learningRate": "0.05", "momentum": "0.9"}
    both = {"dense": dense, "sparse": {"name": "adagrad", "learningRate": "0.1"}}
    models = []
    for servers in range(1, 6):
        document = configuration(folder / f"{optimizer}-{servers}", optimizer=both)
        models.append(trained_model(run_job(document, TWO, servers)))
        files = elements(*newest(document))
        assert len(files) == servers
        sizes = [sum(file.values()) for file in files.values()]
        assert max(sizes) - min(sizes) <= 2 * 4 * 3 + len(models[0])
    config = RunConfig.from_json(configuration(folder / f"{optimizer}-1", optimizer=both))
    assert_same_model(models[0], train(config, torch.float64))
    for model in models[1:]:
        assert model.keys() == models[0].keys()
        for name, values in models[0].items():
            assert np.array_equal(model[name], values), name


def test_pieces_that_are_exchanged_are_noticed(
    folder: Path, reference: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "joined", lambda parts, *rest: joined(parts[::-1], *rest))
    trained = trained_model(run(wide(folder / "exchanged"), ONE, 2))
    assert difference(trained[CUT], reference[CUT]) > 1e6 * TOLERANCE


def test_another_number_of_servers_goes_on_with_the_pieces_of_the_one_before(
    folder: Path, reference: dict[str, Any]
) -> None:
    document = wide(folder / "other-numbers")
    seen = []
    for servers, stages, stop_after in ((2, ONE, 10), (5, TWO, 25), (3, [("card", LAST, 1)], 40)):
        status = run(document, stages, servers, stop_after)
        assert status["phase"] == JobPhase.STOPPED
        files = elements(*newest(document))
        seen.append(sorted(file[f"{CUT}::exp_avg"] for file in files.values() if CUT in file))
    assert seen == [[24_576] * 2, [16_384] * 3, [49_152]]
    status = run(document, TWO, 4)
    assert status["resumedFromStep"] == 40
    assert_close(trained_model(status), reference)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["ps-1", "worker-0-1"])
def test_a_member_that_is_killed_costs_the_model_nothing(victim: str, folder: Path, reference: dict[str, Any]) -> None:
    job = ThreadedJob(wide(folder / f"killed-{victim}"))
    process = job.start(ONE, 3, as_process=victim, hold_at=15)
    assert process is not None
    job.kill(process, victim)
    job.start_process(victim, ONE)
    job.wait_for_member(victim)  # or training is over before it takes part
    job.hold()
    status = job.wait()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    assert "MemberLost" in {event["reason"] for event in status["events"]}
    assert_close(trained_model(status), reference)


def tool(storage: Storage, capsys: pytest.CaptureFixture[str], action: str, **options: Any) -> dict[str, Any]:
    """What `heterps checkpoint` is told by the runtime."""
    capsys.readouterr()
    assert run_tool(argparse.Namespace(action=action, address=storage.address, **options)) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_checkpoints_with_pieces_are_verified_compared_exported_and_imported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = wide(folder / "tools")
    model = trained_model(run(document, ONE, 3))
    storage, manifest = newest(document)
    assert [CUT in file for file in elements(storage, manifest).values()] == [True] * 3
    found = tool(storage, capsys, "verify", checkpoint=None)["checkpoints"]
    assert {one["health"] for one in found} == {"Valid"}
    steps = sorted(one["step"] for one in found)
    changes = tool(storage, capsys, "diff", before=str(steps[-2]), after=str(steps[-1]))["arrays"]
    sizes = {change["name"]: (change["elements"], change["changed"]) for change in changes}
    assert {n: sizes[n][0] for n in model if n in sizes} == {n: v.size for n, v in model.items() if n in sizes}
    assert sizes[CUT][0] == sizes[f"{CUT}::exp_avg"][0] == 49_152
    assert sizes[CUT][1] > 16_384, "more than one piece"
    path = storage.path(manifest.path_of(manifest.files_of("dense")[0]))
    content = bytearray(Path(path).read_bytes())
    content[-1] ^= 1
    Path(path).write_bytes(content)
    found = tool(storage, capsys, "verify", checkpoint=None)["checkpoints"]
    assert {one["step"]: one["health"] for one in found}[steps[-1]] == "Damaged"
    content[-1] ^= 1
    Path(path).write_bytes(content)

    slow = {"name": "adam", "learningRate": "0.000000000001"}
    for servers, stages in ((2, ONE), (1, [("cpu", 7, 1), ("card", LAST, 1)])):
        other = wide(folder / f"imported-{servers}", optimizer={"dense": slow, "sparse": slow})
        other["job"]["spec"]["training"]["steps"] = 2
        other["job"]["spec"]["model"]["initFrom"] = {"path": storage.address}
        begun = trained_model(run(other, stages, servers))
        assert max(difference(begun[n], v) for n, v in model.items() if v.dtype == np.float64) < 1e-9
    assert read_manifest(storage, manifest.folder) == manifest
