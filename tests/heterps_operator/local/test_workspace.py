"""The work directory: consistent state, a lock, a secret, and the effect of --fresh."""

from __future__ import annotations

import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from heterps_operator.documents import read_json, write_json
from heterps_operator.errors import StateError, WorkspaceError
from heterps_operator.local.workspace import Workspace, fingerprints
from heterps_operator.state.bill import Bill
from heterps_operator.state.status import Status
from tests.heterps_operator.helpers.world import World


def test_the_status_of_a_running_job_survives_its_file(tmp_path: Path) -> None:
    workspace, world = Workspace(tmp_path / "w"), World().training()
    workspace.save(world.status, Bill(), {"training": "a", "planning": "b"})
    assert workspace.load() == (world.status, Bill(), {"training": "a", "planning": "b"})


def test_a_run_of_a_release_with_fewer_fields_goes_on() -> None:
    job = {
        "model": {},
        "training": {"seed": 1},
        "pools": [],
        "data": {"train": "a", "dense": ["x"], "cache": {"maxBytes": "1Gi"}},
    }

    def prints(**data: object) -> dict[str, str]:
        return fingerprints({"job": {"spec": {**job, "data": {**job["data"], **data}}}, "pools": []})  # type: ignore[dict-item]

    assert prints(tensors=[]) == prints()
    later = {**job, "training": {"seed": 1, "stalenessWarmupSteps": 20}}
    assert fingerprints({"job": {"spec": later}, "pools": []}) == prints(), "an earlier release had no warm-up"
    later = {**job, "training": {"seed": 2}}
    assert fingerprints({"job": {"spec": later}, "pools": []})["training"] != prints()["training"]
    assert prints(tensors=[{"name": "image"}])["training"] != prints()["training"]
    assert prints(access="Cached", windowRows=5) == prints()
    streamed = [prints(access="Streamed", windowRows=rows)["training"] for rows in (5, 6)]
    assert len({*streamed, prints()["training"]}) == 3


def test_no_state_is_no_error(tmp_path: Path) -> None:
    assert Workspace(tmp_path / "w").load() is None


@pytest.mark.parametrize(
    "text", ["{", "[]", "[" * 10_000, '{"status": {}}', '{"status": 3, "bill": 4, "fingerprints": 5}']
)
def test_a_damaged_state_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(StateError, match="--fresh"):
        Workspace(tmp_path).load()


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_json(path, {"step": 1})
    with pytest.raises(TypeError):
        write_json(path, {"step": object()})
    assert read_json(path) == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_a_renamed_file_is_flushed_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    write_json(tmp_path / "state.json", {"step": 1})
    assert len(flushed) == 2
    assert flushed[-1] == str(tmp_path)


def test_the_token_is_for_this_user_only_and_new_for_every_run(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    first, second = workspace.new_token(), workspace.new_token()
    assert first != second
    assert (tmp_path / "token").read_text() == second
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


def _try_lock(path: Path) -> str:
    try:
        with Workspace(path).locked():
            return "locked"
    except WorkspaceError as error:
        return str(error)


def test_a_second_controller_of_the_same_job_is_refused(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        with Workspace(tmp_path).locked():
            assert "is already running this job" in pool.apply(_try_lock, (tmp_path,))
        assert pool.apply(_try_lock, (tmp_path,)) == "locked"


def test_fresh_keeps_caches_and_removes_the_rest(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    for name in ("checkpoints/step-10", "cache/profiles", "logs"):
        (tmp_path / name).mkdir(parents=True)
    workspace.save(Status(), Bill(), {})
    workspace.clear(str(tmp_path / "checkpoints"))
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


@pytest.mark.parametrize("where", ["outside", "s3://bucket/checkpoints"])
def test_fresh_removes_nothing_outside(tmp_path: Path, where: str) -> None:
    outside = tmp_path / "outside"
    (outside / "step-10").mkdir(parents=True)
    path = where if "://" in where else str(outside)
    with pytest.raises(WorkspaceError, match="remove them yourself"):
        Workspace(tmp_path / "w").clear(path)
    assert (outside / "step-10").exists()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkspaceError, match="cannot be created"):
        Workspace(tmp_path / "file" / "w")
