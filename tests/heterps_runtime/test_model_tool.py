"""What `heterps-runtime model` says of a checkpoint that goes while it is exported."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from heterps_runtime import model_tool
from heterps_runtime.checkpoint import Storage, export_model
from heterps_runtime.checkpoint.retention import retain
from tests.heterps_runtime.helpers.checkpoint_samples import owner_of, write_checkpoint, write_state


def refusal(capsys: pytest.CaptureFixture[str], storage: Storage, to: Path, checkpoint: str | None) -> str:
    options = Namespace(action="export", address=storage.address, checkpoint=checkpoint, to=str(to))
    assert model_tool.run_tool(options) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["reason"] == "BadInput"
    assert not to.exists()
    return str(error["message"])


def test_a_checkpoint_that_the_job_deletes_meanwhile_is_said_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = Storage.open(tmp_path / "checkpoints")
    old = write_checkpoint(storage, 20)

    def meanwhile(*arguments: Any, **options: Any) -> str:
        retain(storage, write_checkpoint(storage, 40), 1, owner_of(storage))
        return export_model(*arguments, **options)

    monkeypatch.setattr(model_tool, "export_model", meanwhile)
    message = refusal(capsys, storage, tmp_path / "model", None)
    assert message.startswith(f"{old.folder}: this checkpoint is not complete, or the job has deleted it meanwhile")
    assert message.endswith("let the job keep more of them (checkpoint.keep)")


def test_a_checkpoint_that_is_being_written_is_not_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = Storage.open(tmp_path / "checkpoints")
    write_checkpoint(storage, 20)
    write_state(storage, "step-000000040.1-00000000", 40, shards=1)
    message = refusal(capsys, storage, tmp_path / "model", "40")
    assert message.startswith("step-000000040.1-00000000: this checkpoint is not complete")
