"""A revision of a git repository as users name it, `git+ADDRESS@REVISION#subdirectory=PATH`, as in pip.

Pods get a commit's full id, so that all of them run the same code. A tag or branch is looked up once, here, with the
user's own git and its credentials.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from heterps_operator.errors import UsageError

__all__ = ["PREFIX", "NamedRevision", "ls_remote", "read_revision", "resolve"]

PREFIX = "git+"
_FORM = re.compile(
    r"git\+(?P<repository>(?:https?://[A-Za-z0-9.-]+(?::[0-9]{1,5})?|file://)/[^?#@]*)"
    r"@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/+-]*)(?:#subdirectory=(?P<path>[A-Za-z0-9_.+@=/-]+))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SECONDS = 60.0
_EXAMPLE = "git+https://git.example.com/team/models@v1.2#subdirectory=training"


@dataclass(frozen=True)
class NamedRevision:
    """A revision as users name it."""

    repository: str
    revision: str  # commit, tag or branch
    path: str | None


def read_revision(text: str) -> NamedRevision:
    """Read `git+ADDRESS@REVISION[#subdirectory=PATH]`.

    Raises:
        UsageError: it is of another form.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        fix = "without user and password" if "@" in text.partition("://")[2].partition("/")[0] else "with a revision"
        raise UsageError(f"--code: {PREFIX}... must be of the form {_EXAMPLE}, {fix}")
    return NamedRevision(found["repository"], found["revision"], found["path"])


def resolve(named: NamedRevision, ask: Callable[[str, str], str] | None = None) -> dict[str, Any]:
    """Return `spec.code` with the commit of a revision.

    Args:
        named: the revision.
        ask: returns the lines of `git ls-remote` for a repository and a revision; None: runs it.

    Raises:
        UsageError: there is no such revision, or git cannot tell.
    """
    commit: str | None = named.revision
    if not _COMMIT.fullmatch(named.revision):
        commit = _commit_of(named.revision, (ask or ls_remote)(named.repository, named.revision))
    if commit is None:
        text = f"--code: {named.repository} has no tag or branch {named.revision}"
        raise UsageError(f"{text}; correct it, or give the full id of a commit")
    git = {"repository": named.repository, "revision": commit}
    return {"git": git if named.path is None else {**git, "path": named.path.strip("/")}}


def ls_remote(repository: str, revision: str) -> str:
    """Return what `git ls-remote` prints of a revision.

    Raises:
        UsageError: it fails, with its words.
    """
    program = shutil.which("git")
    fix = "give the full id of a commit (40 digits) instead"
    if program is None:
        raise UsageError(f"--code: {revision} cannot be looked up without git; install it, or {fix}")
    command = [program, "ls-remote", "--", repository, revision, f"{revision}^{{}}"]
    environment = {**os.environ, "GIT_ALLOW_PROTOCOL": "https:http:file", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"--code: {repository} does not answer within {_SECONDS:g} s; {fix}") from error
    if done.returncode:
        words = "; ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
        raise UsageError(f"--code: {repository} cannot be read: {words}; check the address, or {fix}")
    return done.stdout


def _commit_of(revision: str, lines: str) -> str | None:
    """Return the commit of a tag or, without one, of a branch; that of an annotated tag stands in a line of its own."""
    found = {ref: commit for line in lines.splitlines() if line.count("\t") == 1 for commit, ref in [line.split("\t")]}
    for ref in (f"refs/tags/{revision}^{{}}", f"refs/tags/{revision}", f"refs/heads/{revision}", revision):
        if _COMMIT.fullmatch(found.get(ref, "")):
            return found[ref]
    return None
