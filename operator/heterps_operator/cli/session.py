"""Shared by every command on a job: the manifest, its work directory, and one run of the control loop."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from heterps_operator.api.job import JobSpec
from heterps_operator.api.manifest import load_manifest
from heterps_operator.cli.signals import ends_in_order
from heterps_operator.documents import Json
from heterps_operator.errors import UsageError
from heterps_operator.local.planner import PLANNER_COMMAND, PlannerProcess, planner_program
from heterps_operator.local.processes import RUNTIME_COMMAND, ProcessSubstrate
from heterps_operator.local.profiles import ProfileCache
from heterps_operator.local.workspace import Workspace, work_directory
from heterps_operator.loop.control_loop import ControlLoop
from heterps_operator.state.bill import Bill
from heterps_operator.state.status import Status
from heterps_operator.terminal.display import Display
from heterps_planner.methods import METHODS
from heterps_runtime.cores import usable_cores

__all__ = ["JOB_FILES", "Programs", "Session", "drive", "open_session"]

JOB_FILES = (".yaml", ".yml")  # what tells a job file from other arguments


@dataclass(frozen=True)
class Programs:
    """Programs that a session starts, and the cores of this machine; tests replace them."""

    runtime: Sequence[str] = RUNTIME_COMMAND
    planner: Sequence[str] = PLANNER_COMMAND
    cores: Callable[[], float] = usable_cores


@dataclass(frozen=True)
class Session:
    """A job that is ready to run."""

    job: JobSpec
    path: str  # of the manifest, as given by the user
    workspace: Workspace
    configuration: dict[str, Any]
    cache: ProfileCache
    programs: Programs = field(default_factory=Programs)

    @property
    def checkpoints(self) -> str:
        """Path of the job's checkpoints."""
        path = (self.configuration["job"]["spec"].get("checkpoint") or {}).get("path")
        return str(path or self.workspace.path / "checkpoints")

    def cached_profiles(self) -> dict[str, Any]:
        """Profiles of earlier runs that are still valid."""
        return self.cache.load([pool.name for pool in self.job.pools])


@dataclass(frozen=True)
class Driven:
    """Result of a run of the loop."""

    status: Status
    bill: Bill
    interrupted: bool
    profiles: dict[str, Json]


def open_session(path: str, folder: str | None, programs: Programs, goal: str | None = None) -> Session:
    """Read a job file and open its work directory.

    Args:
        path: path of the manifest.
        folder: work directory of the job; None: see `work_directory`.
        programs: programs to start.
        goal: see `JobSpec.goal`.

    Raises:
        HeterpsError: the manifest or the directory cannot be used.
    """
    manifest = load_manifest(path)
    _check_method(manifest.job["spec"], path)
    job = JobSpec.from_manifests(manifest.job, manifest.pools, goal)
    workspace = Workspace(work_directory(job.name, folder))
    configuration = manifest.run_configuration(workspace.path)
    cache = ProfileCache(workspace.profiles, configuration)
    return Session(job, path, workspace, configuration, cache, programs)


def _check_method(spec: Json, path: str) -> None:
    """Reject a method that the API allows but this version lacks, before anything is measured."""
    method = (spec.get("scheduling") or {}).get("method")
    if method is not None and method not in METHODS:
        choices = ", ".join(METHODS)
        raise UsageError(f"{path}: spec.scheduling.method: must be one of {choices} in this version, is {method!r}")


def drive(
    session: Session,
    display: Display,
    *,
    profiles: Mapping[str, Json],
    status: Status | None = None,
    bill: Bill | None = None,
    save: Callable[[Status, Bill], None] = lambda status, bill: None,
    port: int = 0,
) -> Driven:
    """Run the control loop until the job is in a final phase; Ctrl-C stops it with a checkpoint.

    Args:
        session: the job; its lock must be held.
        display: shows every turn.
        profiles: profiles of pools that need no measurement.
        status: status to resume from.
        bill: costs so far.
        save: stores status and bill.
        port: port of the coordinator; 0: any free port.

    Raises:
        UsageError: the port is taken.
    """
    _check_port(port)
    workspace = session.workspace
    workspace.write_configuration(session.configuration)
    token = workspace.new_token()
    substrate = ProcessSubstrate(
        workspace.path, workspace.configuration, token, runtime_command=session.programs.runtime, port=port
    )
    if substrate.leftovers:
        display.say(f"ended processes that an earlier run left behind: {', '.join(substrate.leftovers)}")
    planner = PlannerProcess(
        workspace.path / "plan",
        session.job.method,
        session.job.planner_timeout_seconds,
        stages=session.job.stages_by_hand,
        cores=session.programs.cores(),
        program=planner_program(session.programs.planner),
    )
    loop = ControlLoop(
        session.job,
        substrate,
        planner,
        session.cache,
        token=token,
        save=save,
        known_profiles=profiles,
        status=status,
        bill=bill,
    )
    with ends_in_order(loop.request_stop), display:  # a second signal kills the processes
        loop.run(display)
    return Driven(loop.status, loop.bill, loop.stop_requested, loop.profiles)


def _check_port(port: int) -> None:
    """Check the port before anything starts; the coordinator would fail only seconds later."""
    if port == 0:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            fix = "choose another, or leave the option out for any free one"
            raise UsageError(f"--port {port}: cannot listen on it ({error.strerror}); {fix}") from error
