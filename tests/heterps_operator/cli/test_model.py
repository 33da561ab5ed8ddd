"""`heterps model` on checkpoints as jobs write them, with the real runtime."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from heterps_operator.__main__ import main
from heterps_operator.cli.session import Programs
from heterps_runtime.checkpoint import Storage
from heterps_runtime.checkpoint.manifest import write_manifest
from heterps_runtime.store.initial import EmbeddingInit, initial_rows
from tests.heterps_operator.helpers.in_process import run_tools_in_process
from tests.heterps_runtime.helpers.checkpoint_samples import owner_of, random_groups, write_checkpoint, write_state


@pytest.fixture(autouse=True)
def _few_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One test uses processes as users do; the others are about what the tools do."""
    if request.function is not test_checkpoints_become_models_and_a_delta_makes_the_one_of_the_other:
        run_tools_in_process(monkeypatch)


@pytest.fixture
def storage(job_file: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Checkpoints of the job file's job in its work directory; the latter is in the current folder."""
    monkeypatch.chdir(job_file.parent)
    path = job_file.parent / ".heterps" / "tiny" / "checkpoints"
    path.mkdir(parents=True)
    return Storage.open(path)


def answer(capsys: Any, *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["model", *arguments, "--output", "json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def files_of(folder: str) -> dict[str, bytes]:
    paths = (path for path in Path(folder).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_checkpoints_become_models_and_a_delta_makes_the_one_of_the_other(storage: Storage, capsys: Any) -> None:
    old, new = write_checkpoint(storage, 20), write_checkpoint(storage, 40)
    first = answer(capsys, "export", "job.yaml", "--checkpoint", "20", "--to", "first")
    last = answer(capsys, "export", storage.address, "--to", "last")
    assert (first["checkpoint"], last["checkpoint"]) == (old.folder, new.folder)
    assert (first["model"]["step"], last["model"]["step"]) == (20, 40)
    assert last["bytes"] == sum(map(len, files_of("last").values()))
    assert safetensors.numpy.load_file("first/model.safetensors")["norm.num_batches_tracked"] == 20

    delta = answer(capsys, "delta", "first", "last", "--to", "delta")
    assert (delta["before"], delta["after"]) == (first["model"], last["model"])
    changes = {table["name"]: (table["rows"], table["gone"]) for table in delta["tables"]}
    assert set(changes) == {"user.weight", "item.weight", "place.weight"}
    found = safetensors.numpy.load_file("delta/tables/place.weight.safetensors") if "place.weight" in changes else {}
    assert changes["place.weight"] == (len(found["ids"]), len(found["gone"]))
    assert set(delta["tensors"]) == {"top.weight", "top.bias", "norm.num_batches_tracked"}
    assert delta["unchanged"] == 0

    applied = answer(capsys, "apply", "first", "delta")
    assert (applied["applied"], applied["before"]) == (True, first["model"])
    assert (applied["after"]["identity"], applied["after"]["step"]) == (last["model"]["identity"], 40)
    assert files_of("first") == files_of("last")
    assert not answer(capsys, "apply", "first", "delta")["applied"]


def test_rows_that_were_never_trained_have_the_values_that_training_draws(storage: Storage, capsys: Any) -> None:
    manifest = write_checkpoint(storage, 20)
    answer(capsys, "export", "job.yaml", "--to", "model")
    table = manifest.tables[0]
    trained = random_groups(20)[4][0]
    rest = np.setdiff1d(np.arange(table.num_embeddings), trained[trained >> 48 == 0])
    found = safetensors.numpy.load_file("model/model.safetensors")[table.name]
    init = EmbeddingInit.from_manifest(table.init)
    np.testing.assert_array_equal(found[rest], initial_rows(manifest.seed, table.name, rest, table.dim, init=init))


def test_a_person_reads_what_was_written(storage: Storage, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    for step in (20, 40):
        write_checkpoint(storage, step)
        assert main(["model", "export", "job.yaml", "--to", str(step)]) == 0
    assert "/40: step 40, " in capsys.readouterr().out
    assert main(["model", "delta", "20", "40", "--to", "delta"]) == 0
    text = capsys.readouterr().out
    assert "/delta: from step 20 to step 40, " in text
    assert "user.weight: " in text
    assert "3 tensors that are no tables" in text
    assert "0 tables and tensors are equal in both" in text
    for said in ("/20: from step 20 to step 40", "/20: is the model of step 40 already"):
        assert main(["model", "apply", "20", "delta"]) == 0
        assert said in capsys.readouterr().out


def test_a_newer_export_replaces_an_older_one_and_nothing_else(storage: Storage, tmp_path: Path, capsys: Any) -> None:
    write_checkpoint(storage, 20)
    answer(capsys, "export", "job.yaml", "--to", "model")
    write_checkpoint(storage, 40)
    assert answer(capsys, "export", "job.yaml", "--to", "model")["model"]["step"] == 40
    answer(capsys, "export", "job.yaml", "--to", "other", "--checkpoint", "20")
    answer(capsys, "delta", "other", "model", "--to", "delta")
    Path("other/handler.py").write_text("of the server")
    for arguments, place in (
        (("export", "job.yaml", "--to", "other"), "other"),
        (("apply", "other", "delta"), "other"),
        (("delta", "other", "model", "--to", "model"), "model"),
        (("export", "job.yaml", "--to", storage.address), storage.address),
        (("export", "job.yaml", "--to", "job.yaml"), "job.yaml"),
    ):
        left = files_of(str(tmp_path))
        message = answer(capsys, *arguments, code=2)["failure"]["message"]
        assert "would be replaced, but has other files, such as " in message
        assert Path(place).name in message
        assert files_of(str(tmp_path)) == left


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "job.yaml", "--to", "m", "--checkpoint", "7"], "there is no checkpoint 7; steps with one: 20"),
        (["export", "nowhere", "--to", "m"], "nowhere: there is no valid checkpoint to export"),
        (["delta", "nowhere", "model", "--to", "d"], "nowhere: there is no exported model, as model.json is missing"),
        (["delta", "model", "model", "--to", "d"], "are the same model; there is no delta"),
        (["apply", "model", "nowhere"], "nowhere: there is no delta, as delta.json is missing"),
        (["export", "model", "--to", "m", "--work-directory", "w"], "--work-directory: is for a job file"),
    ],
)
def test_what_is_not_there_is_said(storage: Storage, capsys: Any, arguments: list[str], message: str) -> None:
    write_checkpoint(storage, 20)
    answer(capsys, "export", "job.yaml", "--to", "model")
    assert message in answer(capsys, *arguments, code=2)["failure"]["message"]


def test_a_damaged_checkpoint_is_not_exported_but_another_one_is(storage: Storage, tmp_path: Path, capsys: Any) -> None:
    write_checkpoint(storage, 20)
    damaged = write_checkpoint(storage, 40)
    path = tmp_path / storage.path(damaged.folder) / "rows-1.safetensors"
    contents = path.read_bytes()
    path.write_bytes(contents[:-1] + bytes([contents[-1] ^ 1]))
    message = answer(capsys, "export", "job.yaml", "--to", "model", code=2)["failure"]["message"]
    assert message.startswith(f"{damaged.folder}: cannot be exported, rows-1.safetensors was changed")
    assert message.endswith("name another one with --checkpoint")
    assert not Path("model").exists()
    assert answer(capsys, "export", "job.yaml", "--to", "model", "--checkpoint", "20")["model"]["step"] == 20


def test_a_checkpoint_that_only_has_the_model_of_another_job_is_not_exported(storage: Storage, capsys: Any) -> None:
    folder = "step-000000000.1-00000000"
    manifest = write_checkpoint(storage, 20)
    files = write_state(storage, folder, 0, shards=1)
    begun = replace(manifest, step=0, folder=folder, files=files, imported_from="elsewhere/step-000000009.1-00000000")
    write_manifest(storage, begun, owner_of(storage))
    message = answer(capsys, "export", "job.yaml", "--checkpoint", "0", "--to", "m", code=2)["failure"]["message"]
    assert "this is the model of elsewhere/step-000000009.1-00000000, and not yet one of this job" in message


def test_a_store_that_fails_is_no_bad_input(storage: Storage, capsys: Any) -> None:
    write_checkpoint(storage, 20)
    Path("file").write_text("no folder")
    document = answer(capsys, "export", "job.yaml", "--to", "file/model", code=1)
    assert document["failure"]["reason"] == "StoreError"


def test_a_runtime_that_says_nothing_is_reported(storage: Storage, capsys: Any) -> None:
    programs = Programs(runtime=(sys.executable, "-c", "raise SystemExit(3)"))
    assert main(["model", "export", "job.yaml", "--to", "model"], programs) == 1
    assert "ended with exit code 3" in capsys.readouterr().err
