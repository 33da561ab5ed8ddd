"""`heterps-runtime code`: from ConfigMaps, storages and repositories into a folder."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heterps_runtime.__main__ import main
from heterps_runtime.contract import ENV_CONFIG, EXIT_BAD_INPUT, EXIT_FAILED, EXIT_OK
from heterps_runtime.user_code.errors import CodeError, CodeUnreachableError
from heterps_runtime.user_code.repository import Revision, fetch_revision

FIXTURE = Path(__file__).parents[2] / "fixtures" / "v1" / "run-configuration.json"


def packed(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{name}.py", text)
    return buffer.getvalue()


class Bringing:
    """Runs the command for one `spec.code`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.to = folder / "to"
        self.to.mkdir()
        self._folder, self._capsys = folder, capsys
        monkeypatch.setenv(ENV_CONFIG, str(folder / "run.json"))

    def __call__(self, code: dict[str, Any] | None, *options: str) -> tuple[int, str]:
        document = json.loads(FIXTURE.read_text())
        document["job"]["spec"]["code"] = code
        (self._folder / "run.json").write_text(json.dumps(document))
        exit_code = main(["code", "--to", str(self.to), *options])
        return exit_code, self._capsys.readouterr().err.strip().splitlines()[-1]

    @property
    def files(self) -> dict[str, str]:
        found = (path for path in sorted(self.to.rglob("*")) if path.is_file())
        return {str(path.relative_to(self.to)): path.read_text() for path in found}


@pytest.fixture
def bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bringing:
    return Bringing(tmp_path, monkeypatch, capsys)


def in_map(data: bytes, path: Path) -> dict[str, Any]:
    path.write_bytes(data)
    return {"configMap": {"name": "heterps-code-1", "sha256": hashlib.sha256(data).hexdigest()}}


def test_the_file_of_a_config_map_is_unpacked(bring: Bringing, tmp_path: Path) -> None:
    file = tmp_path / "code.zip"
    code = in_map(packed(model="x = 1"), file)
    code_ended, said = bring(code, "--archive", str(file))
    assert (code_ended, bring.files) == (EXIT_OK, {"model.py": "x = 1"})
    assert said.endswith("code: 1 file(s) from ConfigMap heterps-code-1")


def test_what_an_earlier_attempt_left_is_removed(bring: Bringing, tmp_path: Path) -> None:
    (bring.to / "old").mkdir()
    (bring.to / "old" / "model.py").write_text("")
    (bring.to / "model.py").write_text("half")
    (bring.to / "link").symlink_to(tmp_path)
    file = tmp_path / "code.zip"
    assert bring(in_map(packed(model="x = 1"), file), "--archive", str(file))[0] == EXIT_OK
    assert bring.files == {"model.py": "x = 1"}
    assert file.exists()


def test_another_archive_than_the_job_names_is_not_unpacked(bring: Bringing, tmp_path: Path) -> None:
    file = tmp_path / "code.zip"
    code = in_map(packed(model="x = 1"), file)
    file.write_bytes(packed(model="import os"))
    exit_code, said = bring(code, "--archive", str(file))
    assert exit_code == EXIT_BAD_INPUT
    assert f"but the job names {code['configMap']['sha256']}: it is damaged or was replaced" in said
    assert list(bring.to.iterdir()) == []


def test_a_missing_archive_says_what_to_do(bring: Bringing, tmp_path: Path) -> None:
    file = tmp_path / "code.zip"
    code = in_map(packed(model=""), file)
    file.unlink()
    exit_code, said = bring(code, "--archive", str(file))
    assert (exit_code, "submit the code again" in said) == (EXIT_BAD_INPUT, True)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_an_archive_of_a_storage_is_unpacked(bring: Bringing, tmp_path: Path, scheme: str) -> None:
    data = packed(model="x = 1", other="y = 2")
    (tmp_path / "store.zip").write_bytes(data)
    code = {"archive": {"uri": f"{scheme}{tmp_path}/store.zip", "sha256": hashlib.sha256(data).hexdigest()}}
    assert bring(code)[0] == EXIT_OK
    assert bring.files == {"model.py": "x = 1", "other.py": "y = 2"}


def test_an_archive_that_is_not_there_is_told(bring: Bringing, tmp_path: Path) -> None:
    exit_code, said = bring({"archive": {"uri": f"file://{tmp_path}/none.zip", "sha256": "0" * 64}})
    assert exit_code == EXIT_BAD_INPUT
    assert f"there is nothing at {tmp_path}/none.zip; submit the code again" in said


def test_a_job_without_code_is_told(bring: Bringing) -> None:
    exit_code, said = bring(None)
    assert (exit_code, "the job has no spec.code" in said) == (EXIT_BAD_INPUT, True)


def test_code_of_a_kind_that_a_later_version_brings_is_told(bring: Bringing) -> None:
    exit_code, said = bring({"oci": {}})
    assert (exit_code, "knows configMap, archive and git, not oci" in said) == (EXIT_BAD_INPUT, True)


def test_a_folder_that_cannot_be_written_may_be_tried_again(bring: Bringing, tmp_path: Path) -> None:
    file = tmp_path / "code.zip"
    code = in_map(packed(model=""), file)
    bring.to.rmdir()
    exit_code, said = bring(code, "--archive", str(file))
    assert (exit_code, "cannot be written" in said) == (EXIT_FAILED, True)


def test_the_command_loads_no_torch(bring: Bringing, tmp_path: Path) -> None:
    file = tmp_path / "code.zip"
    bring(in_map(packed(model=""), file), "--archive", str(file))
    program = (
        "import sys; from heterps_runtime.__main__ import main; assert main(sys.argv[1:]) == 0; "
        "assert not {'torch', 'numba', 'pyarrow', 'zmq'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", program, "code", "--to", str(bring.to), "--archive", str(file)]
    subprocess.run(command, check=True, env={**os.environ, ENV_CONFIG: str(tmp_path / "run.json")})


# --- git --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two commits; the second one has the tag v2."""
    folder = tmp_path / "repository"
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for key in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{key}_NAME", "Ann")
        monkeypatch.setenv(f"GIT_{key}_EMAIL", "ann@example.com")
    git("init", "--quiet", "--initial-branch=main", str(folder))
    (folder / "training").mkdir()
    (folder / "training" / "model.py").write_text("x = 1")
    (folder / "setup.py").write_text("")
    commit(folder, "one")
    (folder / "training" / "model.py").write_text("x = 2")
    (folder / "training" / "same.py").symlink_to("model.py")
    commit(folder, "two")
    git("-C", str(folder), "tag", "--annotate", "--message=two", "v2")
    return folder


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, message: str) -> None:
    git("-C", str(folder), "add", ".")
    git("-C", str(folder), "commit", "--quiet", f"--message={message}")


def test_a_commit_is_fetched_and_nothing_else(bring: Bringing, repository: Path) -> None:
    old = git("-C", str(repository), "rev-parse", "HEAD~1")
    assert bring({"git": {"repository": f"file://{repository}", "revision": old}})[0] == EXIT_OK
    assert bring.files == {"setup.py": "", "training/model.py": "x = 1"}


def test_a_folder_of_a_repository_becomes_the_root(bring: Bringing, repository: Path) -> None:
    new = git("-C", str(repository), "rev-parse", "HEAD")
    code = {"git": {"repository": f"file://{repository}", "revision": new, "path": "training"}}
    exit_code, said = bring(code)
    assert (exit_code, bring.files) == (EXIT_OK, {"model.py": "x = 2", "same.py": "x = 2"})
    assert said.endswith(f"code: 1 file(s) from file://{repository} at {new}, training")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"revision": "0" * 40}, "cannot be fetched: "),
        ({"path": "nothing"}, "check that spec.code.git.path is a folder of that revision"),
        ({"repository": "file:///nothing/at/all"}, "check repository and revision"),
        ({"repository": "ext::touch /tmp/x"}, "check repository and revision"),
    ],
)
def test_what_a_repository_does_not_have_is_told(
    bring: Bringing, repository: Path, change: dict[str, str], words: str
) -> None:
    head = git("-C", str(repository), "rev-parse", "HEAD")
    code = {"git": {"repository": f"file://{repository}", "revision": head, **change}}
    exit_code, said = bring(code)
    assert (exit_code, words in said) == (EXIT_BAD_INPUT, True), said


def test_a_tag_is_no_commit(bring: Bringing, repository: Path) -> None:
    tag, head = (git("-C", str(repository), "rev-parse", name) for name in ("v2", "HEAD"))
    exit_code, said = bring({"git": {"repository": f"file://{repository}", "revision": tag}})
    assert (exit_code, f"{tag} is no commit; name the commit {head}" in said) == (EXIT_BAD_INPUT, True)


def test_an_image_without_git_says_so(bring: Bringing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    exit_code, said = bring({"git": {"repository": "https://git.example.com/r", "revision": "0" * 40}})
    assert (exit_code, "the image has no git; use one that has (spec.image)" in said) == (EXIT_BAD_INPUT, True)


class Asked(http.server.BaseHTTPRequestHandler):
    """A server that refuses everything, and notes with which credentials it was asked."""

    answers = (401,)
    headers_seen: list[str | None] = []  # noqa: RUF012  # of the class, as http.server makes an instance per request

    def do_GET(self) -> None:
        Asked.headers_seen.append(self.headers["Authorization"])
        self.send_response(Asked.answers[0])
        self.send_header("WWW-Authenticate", "Basic")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Asked) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


def secret_with(folder: Path, **keys: str) -> Path:
    folder.mkdir()
    for key, value in keys.items():
        (folder / key).write_text(value)
    return folder


def test_credentials_of_a_secret_are_sent_to_the_repository_only(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = secret_with(tmp_path / "secret", username="ann", password="to:ken\n")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(Asked, "headers_seen", [])
    with pytest.raises(CodeError, match=r"Secret with username and password \(a token\)") as refused:
        fetch_revision(Revision(f"{server}/r", "0" * 40), tmp_path / "a.zip", tmp_path / "scratch", secret)
    assert set(Asked.headers_seen) == {"Basic " + base64.b64encode(b"ann:to:ken").decode()}
    assert "to:ken" not in str(refused.value)
    settings = tmp_path / "scratch" / "gitconfig"
    assert settings.stat().st_mode & 0o077 == 0


def test_a_repository_without_its_credentials_asks_for_a_secret(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Asked, "headers_seen", [])
    with pytest.raises(CodeError, match=r"name a Secret with username and password"):
        fetch_revision(Revision(f"{server}/r", "0" * 40), tmp_path / "a.zip", tmp_path)
    assert set(Asked.headers_seen) == {None}


def test_a_server_that_fails_may_be_asked_again(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Asked, "answers", (503,))
    with pytest.raises(CodeUnreachableError, match="cannot be fetched now"):
        fetch_revision(Revision(f"{server}/r", "0" * 40), tmp_path / "a.zip", tmp_path)


def test_a_secret_without_a_password_names_the_key(tmp_path: Path) -> None:
    secret = secret_with(tmp_path / "secret", username="ann")
    (tmp_path / "scratch").mkdir()
    with pytest.raises(CodeError, match="has no usable key password"):
        fetch_revision(Revision("https://h/r", "0" * 40), tmp_path / "a.zip", tmp_path / "scratch", secret)


def test_a_revision_that_is_too_large_is_given_up(
    bring: Bringing, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterps_runtime.user_code.repository.CODE_MOST_ARCHIVE_BYTES", 4096)
    (repository / "data.bin").write_bytes(os.urandom(20_000))
    commit(repository, "data")
    head = git("-C", str(repository), "rev-parse", "HEAD")
    exit_code, said = bring({"git": {"repository": f"file://{repository}", "revision": head}})
    assert (exit_code, "more than 4096 bytes: keep data out of the repository" in said) == (EXIT_BAD_INPUT, True), said
