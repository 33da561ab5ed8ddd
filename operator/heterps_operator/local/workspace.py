"""A job's folder on this machine: `.heterps/JOB/`.

state.json       status and bill (state.py)        coordinator.json  where the coordinator listens
run.json         the run configuration             processes.json    pids, for ending leftovers
token            the job's secret, mode 0600       lock              held by the `heterps run` at work
logs/            one file per process and attempt  plan/             problem, plan and log of the planner
checkpoints/     unless the manifest says another  cache/            profiles and compiled kernels, kept by --fresh
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heterps_operator.addresses import redacted
from heterps_operator.documents import Json, read_json, write_json
from heterps_operator.errors import StateError, WorkspaceError
from heterps_operator.state.bill import Bill
from heterps_operator.state.status import Status

__all__ = ["Workspace", "fingerprints", "work_directory"]

_KEPT_BY_FRESH = frozenset({"cache", "lock"})


def work_directory(job: str, given: str | None) -> Path:
    """Return the folder of a job: the given one, or `.heterps/JOB` in the current directory."""
    return Path(given) if given else Path(".heterps") / job


class Workspace:
    """Paths and files of one job's work directory.

    Args:
        path: the directory; created if missing.

    Raises:
        WorkspaceError: the directory cannot be created or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WorkspaceError(f"work directory {path}: cannot be created ({error.strerror})") from error
        if not os.access(self.path, os.W_OK):
            raise WorkspaceError(f"work directory {path}: cannot be written; choose another with --work-directory")
        self.configuration = self.path / "run.json"
        self.profiles = self.path / "cache" / "profiles"
        self._state = self.path / "state.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the job: two controllers of one job would kill each other's processes.

        Raises:
            WorkspaceError: another process holds the lock.
        """
        with (self.path / "lock").open("a+", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise WorkspaceError(f"{self.path}: process {holder} is already running this job") from error
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def clear(self, checkpoints: str) -> None:
        """Delete everything except caches, to start the job over.

        Args:
            checkpoints: path of the job's checkpoints.

        Raises:
            WorkspaceError: they are outside this directory, where nothing is deleted without asking.
        """
        folder = Path(checkpoints)
        inside = "://" not in checkpoints and folder.absolute().is_relative_to(self.path)
        if not inside and ("://" in checkpoints or (folder.is_dir() and any(folder.iterdir()))):
            raise WorkspaceError(
                f"--fresh: the checkpoints are outside {self.path}, in {redacted(checkpoints)}: remove them yourself, "
                "or name another checkpoint.path"
            )
        for entry in self.path.iterdir():
            if entry.name in _KEPT_BY_FRESH:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def write_configuration(self, configuration: Json) -> None:
        """Write the configuration that the job's processes read."""
        write_json(self.configuration, configuration)

    def new_token(self) -> str:
        """Generate the secret of this run and store it readable only by this user."""
        token = secrets.token_urlsafe(32)
        path = self.path / "token"
        path.unlink(missing_ok=True)  # an existing file would keep its mode
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token)
        return token

    def load(self) -> tuple[Status, Bill, dict[str, str]] | None:
        """Return the state of an earlier run: status, bill and fingerprints; None if there is none.

        Raises:
            StateError: the file is damaged.
        """
        document = read_json(self._state)
        if document is None:
            return None
        try:
            status, bill = Status.from_json(document["status"]), Bill.from_json(document["bill"])
            return status, bill, {str(k): str(v) for k, v in document["fingerprints"].items()}
        except (KeyError, AttributeError, ValueError) as error:
            raise StateError(f"{self._state}: is damaged ({error}); start over with --fresh") from error

    def save(self, status: Status, bill: Bill, prints: Json) -> None:
        """Store the state for a later run."""
        document = {"version": 1, "status": status.to_json(), "bill": bill.to_json(), "fingerprints": dict(prints)}
        write_json(self._state, document)


def fingerprints(configuration: Json) -> dict[str, str]:
    """Digests that a state depends on: one of the inputs of the trained model, one of the inputs of the plan."""
    job: dict[str, Any] = dict(configuration["job"]["spec"])
    # Without fields that a job does not use: a later release has more of them, and goes on with the same state.
    unused = {"cache"} if job["data"].get("access") == "Streamed" else {"cache", "access", "windowRows"}
    data = {key: value for key, value in job["data"].items() if key not in unused and (key, value) != ("tensors", [])}
    # The warm-up of the staleness, too: an earlier release had none, and what it trained goes on.
    training = {key: value for key, value in job["training"].items() if key != "stalenessWarmupSteps"}
    model = [job["model"], data, training]
    plan = [
        job.get("objective"),
        job.get("scheduling"),
        job["pools"],
        job.get("parameterServer"),
        configuration["pools"],
    ]
    return {"training": _digest(model), "planning": _digest(plan)}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
