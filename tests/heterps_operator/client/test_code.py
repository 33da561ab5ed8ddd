"""Code of a submission: where it is kept, who owns it, and what users are told."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.__main__ import main
from heterps_operator.api.schema import load_schemas
from heterps_operator.client import code as client_code
from heterps_operator.client.client import HeterPSClient
from heterps_operator.client.code import bring_code, missing_module
from heterps_operator.client.revisions import NamedRevision, ls_remote, read_revision, resolve
from heterps_operator.errors import ClusterError, UsageError
from tests.heterps_operator.helpers.fake_server import FakeServer, for_cluster, forbidden

JOB = "/apis/heterps.io/v1alpha1/namespaces/team/heterpsjobs/tiny"
MAPS = "/api/v1/namespaces/team/configmaps"
HEAD = "2fd4e1c67a2d28fced849ee1bb76e7391b93eb12"


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def client(server: FakeServer) -> HeterPSClient:
    return HeterPSClient(server, "team", pause=lambda seconds: None)


@pytest.fixture
def job_file(job_file: Path) -> Path:
    return for_cluster(job_file)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "code"
    made.mkdir()
    (made / "ctr.py").write_text("x = 1")
    return made


def random_file(folder: Path, size: int) -> Path:
    (folder / "weights.bin").write_bytes(os.urandom(size))
    return folder


def test_a_small_folder_becomes_an_immutable_config_map_that_the_job_owns(
    client: HeterPSClient, server: FakeServer, job_file: Path, folder: Path
) -> None:
    submitted = client.submit(job_file, code=folder)
    spec = server.objects[JOB]["spec"]["code"]["configMap"]
    stored = server.objects[f"{MAPS}/{spec['name']}"]
    assert spec["name"] == f"heterps-code-{spec['sha256'][:32]}"
    assert stored["immutable"] is True
    assert stored["metadata"]["ownerReferences"] == [
        {"apiVersion": "heterps.io/v1alpha1", "kind": "HeterPSJob", "name": "tiny", "uid": "uid-tiny"}
    ]
    with zipfile.ZipFile(io.BytesIO(b64decode(stored["binaryData"]["code.zip"]))) as archive:
        assert archive.namelist() == ["ctr.py"]
    assert [(c.kind, c.verb) for c in submitted.changes if c.kind == "ConfigMap"] == [("ConfigMap", "created")]
    again = client.submit(job_file, code=folder)
    assert {change.verb for change in again.changes} == {"unchanged"}


def test_the_code_is_there_before_the_job(
    client: HeterPSClient, server: FakeServer, job_file: Path, folder: Path
) -> None:
    server.refusals["apply"] = [forbidden("patch", "configmaps", "team")]
    with pytest.raises(ClusterError, match="ClusterRole heterps-editor allows it"):
        client.submit(job_file, code=folder)
    assert JOB not in server.objects


@pytest.mark.parametrize(
    ("entrypoint", "lacks"),
    [("ctr:Ctr", False), ("ctr.deep:Ctr", False), ("lib.model:build", False), ("model:build", True), ("ct:Ctr", True)],
)
def test_a_folder_that_lacks_the_model_is_noted(folder: Path, entrypoint: str, lacks: bool) -> None:
    (folder / "lib").mkdir()
    (folder / "lib" / "model.py").write_text("")
    note = missing_module(bring_code(folder, "/c"), entrypoint)
    assert (note is not None) == lacks
    assert note is None or f"has no module {entrypoint.partition(':')[0]}, which spec.model.entrypoint" in note
    assert missing_module(bring_code(f"git+https://h/r@{HEAD}", "/c"), entrypoint) is None


def test_a_dry_run_keeps_nothing(
    client: HeterPSClient, server: FakeServer, job_file: Path, folder: Path, tmp_path: Path
) -> None:
    client.submit(job_file, code=folder, dry_run=True)
    client.submit(job_file, code=folder, code_store=str(tmp_path / "store"), dry_run=True)
    assert server.objects == {}
    assert not (tmp_path / "store").exists()


def test_a_store_keeps_an_archive_under_its_digest_and_once(
    client: HeterPSClient, server: FakeServer, job_file: Path, folder: Path, tmp_path: Path
) -> None:
    store = f"file://{tmp_path}/store"
    submitted = client.submit(job_file, code=folder, code_store=store)
    spec = server.objects[JOB]["spec"]["code"]["archive"]
    file = tmp_path / "store" / "code" / f"{spec['sha256']}.zip"
    assert spec["uri"] == f"file://{file}"
    assert submitted.changes[0].verb == "created"
    before = file.stat()
    assert client.submit(job_file, code=folder, code_store=store).changes[0].verb == "unchanged"
    assert file.stat() == before
    file.write_bytes(b"half")
    assert client.submit(job_file, code=folder, code_store=store).changes[0].verb == "created"
    assert [path for path in server.objects if path.startswith(MAPS)] == []


def test_larger_code_goes_below_the_checkpoints(folder: Path) -> None:
    brought = bring_code(random_file(folder, 1 << 20), "s3://bucket/flights/?region=eu-central-1")
    uri = brought.spec["archive"]["uri"]
    assert uri == f"s3://bucket/flights/code/{brought.spec['archive']['sha256']}.zip?region=eu-central-1"


@pytest.mark.parametrize("path", ["/data/checkpoints", "file:///data/checkpoints"])
def test_larger_code_without_a_store_names_the_biggest_files(folder: Path, path: str) -> None:
    with pytest.raises(
        UsageError, match=r"the biggest files are weights\.bin \(1\.0 MB\), ctr\.py.*--code-store s3://"
    ):
        bring_code(random_file(folder, 1 << 20), path)


@pytest.mark.parametrize("store", ["store", "./store"])
def test_a_store_is_an_address_that_pods_know(folder: Path, store: str) -> None:
    with pytest.raises(UsageError, match="must be an address such as s3://bucket/folder, or an absolute path"):
        bring_code(folder, "s3://bucket/c", store)


def test_a_store_that_refuses_is_told(client: HeterPSClient, job_file: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(ClusterError, match=r"uploading code to .*/store/code/.*\.zip: could not .*; check the address"):
        client.submit(job_file, code=folder, code_store=str(tmp_path / "store"))
    with pytest.raises(ClusterError, match="credentials do not belong into an address"):
        client.submit(job_file, code=folder, code_store="s3://KEY:SECRET@bucket/code")


def test_packing_and_uploading_load_no_torch(folder: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from heterps_operator.client.code import bring_code, upload; "
        "upload(bring_code(sys.argv[1], '/x', sys.argv[2])); assert 'pyarrow' in sys.modules; "
        "assert not {'torch', 'numba', 'zmq'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(folder), str(tmp_path / "store")], check=True)


def test_a_client_without_pyarrow_says_what_to_install(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought = bring_code(folder, "/x", str(tmp_path / "store"))
    monkeypatch.setitem(sys.modules, "heterps_runtime.storage", None)
    with pytest.raises(ClusterError, match="needs pyarrow: pip install pyarrow"):
        client_code.upload(brought)


# --- repositories -----------------------------------------------------------------------------------------------------


def test_a_revision_is_read_as_pip_reads_it() -> None:
    assert read_revision("git+https://h:3000/team/models.git@v1.2#subdirectory=a/b") == NamedRevision(
        "https://h:3000/team/models.git", "v1.2", "a/b"
    )
    assert read_revision("git+file:///r@feature/x") == NamedRevision("file:///r", "feature/x", None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("git+https://h/r", "with a revision"),
        ("git+https://h/r@", "with a revision"),
        ("git+https://h/r@--upload-pack=x", "with a revision"),
        ("git+https://token@h/r@v1", "without user and password"),
        ("git+ext::sh -c id@v1", "with a revision"),
        ("git+ssh://git@h/r@v1", "without user and password"),
    ],
)
def test_a_revision_of_another_form_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"must be of the form git.*{words}"):
        read_revision(text)


@pytest.mark.parametrize(
    ("lines", "commit"),
    [
        (f"{'a' * 40}\trefs/tags/v2\n{HEAD}\trefs/tags/v2^{{}}\n{'b' * 40}\trefs/heads/v2\n", HEAD),
        (f"{'b' * 40}\trefs/heads/v2\n{HEAD}\trefs/tags/v2\n", HEAD),
        (f"{'a' * 40}\trefs/heads/old/v2\n{HEAD}\trefs/heads/v2\n", HEAD),
    ],
)
def test_a_tag_or_branch_becomes_its_commit(lines: str, commit: str) -> None:
    named = NamedRevision("https://h/r", "v2", "a")
    assert resolve(named, lambda repository, revision: lines)["git"] == {
        "repository": "https://h/r", "revision": commit, "path": "a",
    }  # fmt: skip


@pytest.mark.parametrize("lines", ["", f"{HEAD}\trefs/heads/other/v2\n", "nonsense\trefs/tags/v2\n", "\t\t\n"])
def test_an_unknown_tag_is_told(lines: str) -> None:
    with pytest.raises(UsageError, match="has no tag or branch v2; correct it, or give the full id of a commit"):
        resolve(NamedRevision("https://h/r", "v2", None), lambda repository, revision: lines)


def test_a_commit_is_not_looked_up() -> None:
    def never(repository: str, revision: str) -> str:
        raise AssertionError

    assert resolve(NamedRevision("https://h/r", HEAD, None), never) == {
        "git": {"repository": "https://h/r", "revision": HEAD}
    }


def test_a_repository_is_asked_by_the_users_own_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{key}_NAME", "Ann")
        monkeypatch.setenv(f"GIT_{key}_EMAIL", "ann@example.com")
    run = ["git", "-C", str(tmp_path)]
    subprocess.run([*run, "init", "--quiet", "--initial-branch=main"], check=True)
    subprocess.run([*run, "commit", "--quiet", "--allow-empty", "--message=one"], check=True)
    subprocess.run([*run, "tag", "--annotate", "--message=one", "v1"], check=True)
    head = subprocess.run([*run, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert resolve(read_revision(f"git+file://{tmp_path}@v1"))["git"]["revision"] == head
    with pytest.raises(UsageError, match=r"cannot be read: .*check the address, or give the full id"):
        ls_remote(f"file://{tmp_path}/nothing", "v1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="cannot be looked up without git; install it"):
        ls_remote(f"file://{tmp_path}", "v1")


def test_a_repository_keeps_its_code_itself(client: HeterPSClient, server: FakeServer, job_file: Path) -> None:
    source = f"git+https://git.example.com/r@{HEAD}"
    client.submit(job_file, code=source)
    assert server.objects[JOB]["spec"]["code"] == {"git": {"repository": "https://git.example.com/r", "revision": HEAD}}
    with pytest.raises(UsageError, match="--code-store: is for folders"):
        client.submit(job_file, code=source, code_store="s3://b/c")


@pytest.mark.parametrize(("address", "kept"), [("https://h/r", True), ("https://other/r", False)])
def test_a_secret_stays_with_its_repository(
    client: HeterPSClient, server: FakeServer, job_file: Path, folder: Path, address: str, kept: bool
) -> None:
    git = f"{{repository: https://h/r, revision: {'a' * 40}, secretName: token}}"
    job_file.write_text(f"{job_file.read_text()}  code: {{git: {git}}}\n")
    client.submit(job_file, code=f"git+{address}@{HEAD}")
    written = server.objects[JOB]["spec"]["code"]["git"]
    assert (written["revision"], written.get("secretName")) == (HEAD, "token" if kept else None)
    server.objects.clear()
    client.submit(job_file, code=folder)
    assert list(server.objects[JOB]["spec"]["code"]) == ["configMap"]


def test_every_form_of_code_is_valid_in_a_job(folder: Path, job_file: Path, client: HeterPSClient) -> None:
    schema = load_schemas()["HeterPSJob"]
    job = dict(client.submit(job_file, dry_run=True).job.document)
    forms: list[Any] = [
        bring_code(folder, "/c"),
        bring_code(folder, "/c", "s3://b/c"),
        bring_code(f"git+https://h/r@{HEAD}#subdirectory=a", "/c"),
    ]
    for form in forms:
        value = {
            "apiVersion": job["apiVersion"], "kind": job["kind"], "metadata": {"name": "tiny"},
            "spec": {**job["spec"], "code": form.spec},
        }  # fmt: skip
        assert schema.faults(schema.with_defaults(value)) == []


def test_the_command_says_what_it_did(
    server: FakeServer,
    job_file: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "heterps_operator.cli.cluster.submit.open_client",
        lambda arguments, namespace: HeterPSClient(server, "team", pause=lambda seconds: None),
    )
    assert main(["submit", str(job_file), "--code", str(folder)]) == 0
    out = capsys.readouterr().out
    name = server.objects[JOB]["spec"]["code"]["configMap"]["name"]
    assert f"ConfigMap {name}: created" in out
    assert "note: --code" in out
    assert main(["submit", str(job_file), "--code", str(folder), "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"]["code"]["configMap"]["name"] == name
    assert main(["submit", str(job_file), "--code-store", "s3://b/c"]) == 2
    assert "--code-store: says where the code of --code is kept" in capsys.readouterr().err
