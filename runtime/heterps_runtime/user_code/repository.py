"""A revision of a git repository as a zip archive, fetched by the image's own `git`.

Only that commit is fetched, without its history and without submodules. git checks all contents against the commit's
id, so the id is the digest. No shell is involved, nothing is checked out, no hook or filter of the repository runs.
"""

from __future__ import annotations

import base64
import os
import resource
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from heterps_runtime.contract import CODE_MOST_ARCHIVE_BYTES
from heterps_runtime.user_code.errors import CodeError, CodeUnreachableError

__all__ = ["Revision", "fetch_revision"]

_PROTOCOLS = ("https", "http", "file")
_SLOW = (1000, 60)  # bytes per second, and for how many seconds, until git gives a connection up
_MOST_LINES = 3  # of git's own words in a message
# What git says of servers that do not answer (now); everything else stays wrong however often it is tried.
_TEMPORARY = (
    "could not resolve host",
    "couldn't resolve host",
    "failed to connect",
    "couldn't connect",
    "connection refused",
    "connection reset",
    "timed out",
    "timeout",
    "too slow",
    "early eof",
    "rpc failed",
    "unexpected disconnect",
    "the remote end hung up",
    "returned error: 429",
    "returned error: 5",
)


@dataclass(frozen=True)
class Revision:
    """`spec.code.git`."""

    repository: str
    commit: str  # full id
    path: str = ""  # folder in the repository; "": its root

    def __str__(self) -> str:
        return f"{self.repository} at {self.commit}" + (f", {self.path}" if self.path else "")


def fetch_revision(wanted: Revision, archive: Path, scratch: Path, secret: Path | None = None) -> None:
    """Write a revision's files to a zip archive.

    Args:
        wanted: the revision.
        archive: the new file.
        scratch: an empty folder that no other user can read.
        secret: folder with the files `username` and `password`; None: no credentials.

    Raises:
        CodeError: there is no git, no such repository, revision or folder, or the credentials are wrong.
        CodeUnreachableError: the server does not answer.
    """
    program = shutil.which("git")
    if program is None:
        raise CodeError(
            "spec.code.git: the image has no git; use one that has (spec.image), or submit the files with "
            "heterps submit --code FOLDER"
        )
    repository, settings = scratch / "repository", scratch / "gitconfig"
    _write_private(settings, _settings(wanted.repository, secret))
    git = _Git(program, repository, settings, wanted)
    git.run("init", "--quiet", "--bare", str(repository))
    git.run("fetch", "--quiet", "--depth=1", "--no-tags", "--", wanted.repository, wanted.commit)
    found = git.run("rev-parse", "--verify", "--quiet", "FETCH_HEAD^{commit}").strip()
    if found != wanted.commit:
        raise CodeError(f"spec.code.git.revision: {wanted.commit} is no commit; name the commit {found}")
    tree = f"{wanted.commit}:{wanted.path}" if wanted.path else wanted.commit
    git.run("archive", "--format=zip", f"--output={archive}", tree)


@dataclass(frozen=True)
class _Git:
    """git, in a repository of its own."""

    program: str
    repository: Path
    settings: Path
    wanted: Revision

    def run(self, *arguments: str) -> str:
        """Run a subcommand; return what it prints."""
        environment = {
            **os.environ,
            "GIT_ALLOW_PROTOCOL": ":".join(_PROTOCOLS),
            "GIT_CONFIG_GLOBAL": str(self.settings),
            "GIT_TERMINAL_PROMPT": "0",
            "HOME": str(self.settings.parent),
            "LC_ALL": "C",
        }
        command: Sequence[str] = [self.program, f"--git-dir={self.repository}", *arguments]
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            preexec_fn=_bound_files,
        )
        if done.returncode:
            raise self._failed(arguments[0], done)
        return done.stdout

    def _failed(self, what: str, done: subprocess.CompletedProcess[str]) -> Exception:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()][:_MOST_LINES]
        words = "; ".join(lines) or f"git {what} ended with exit code {done.returncode}"
        low = done.stderr.lower()
        if any(word in low for word in _TEMPORARY):
            return CodeUnreachableError(f"spec.code.git: {self.wanted} cannot be fetched now: {words}")
        fix = "check repository and revision"
        if "username" in low or "authentication failed" in low or "returned error: 403" in low:
            fix = "name a Secret with username and password (a token) in spec.code.git.secretName, or correct it"
        elif "file size limit" in low or "file too large" in low or done.returncode < 0:
            fix = f"the revision has more than {CODE_MOST_ARCHIVE_BYTES} bytes: keep data out of the repository"
        elif what == "archive":
            fix = "check that spec.code.git.path is a folder of that revision"
        return CodeError(f"spec.code.git: {self.wanted} cannot be fetched: {words}; {fix}")


def _settings(repository: str, secret: Path | None) -> str:
    """Return git's settings: credentials are in this file only, never in arguments or variables of processes."""
    speed, seconds = _SLOW
    lines = [
        "[transfer]",
        "fsckObjects = true",
        "[safe]",
        "directory = *",  # a repository on a volume may belong to another user; only its objects are read
        "[http]",
        f"lowSpeedLimit = {speed}",
        f"lowSpeedTime = {seconds}",
    ]
    parts = urlsplit(repository)
    if secret is not None and parts.scheme in ("http", "https"):
        pair = f"{_secret_text(secret, 'username')}:{_secret_text(secret, 'password')}"
        header = base64.b64encode(pair.encode()).decode()
        host = parts.netloc.replace("\\", "").replace('"', "")
        lines += [f'[http "{parts.scheme}://{host}/"]', f'extraHeader = "Authorization: Basic {header}"']
    return "\n".join([*lines, ""])


def _secret_text(secret: Path, key: str) -> str:
    try:
        return (secret / key).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CodeError(
            f"spec.code.git.secretName: the Secret has no usable key {key} ({error}); create it with "
            "kubectl create secret generic NAME --type=kubernetes.io/basic-auth --from-literal=username=USER "
            "--from-literal=password=TOKEN"
        ) from error


def _write_private(path: Path, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _bound_files() -> None:
    """Limit the files that git writes; a full volume would evict the pod again and again."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (CODE_MOST_ARCHIVE_BYTES, CODE_MOST_ARCHIVE_BYTES))
