"""`heterps report JOB`: the page of a job, on a cluster or on this machine."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from dataclasses import dataclass, replace

from heterps_operator.api.job import JobSpec
from heterps_operator.api.manifest import load_manifest
from heterps_operator.cli.cluster.common import open_client
from heterps_operator.cli.options.cluster import check_name
from heterps_operator.cli.options.plan import PAGES, check_target
from heterps_operator.cli.plans.pages import write_page
from heterps_operator.cli.plans.reasons import find_reasons
from heterps_operator.cli.session import JOB_FILES
from heterps_operator.control.choices import as_chosen
from heterps_operator.control.problem import build_problem
from heterps_operator.documents import Json
from heterps_operator.errors import ClusterError, ManifestError, UsageError
from heterps_operator.local.profiles import ProfileCache
from heterps_operator.local.workspace import Workspace, work_directory
from heterps_operator.page.report_page import report_page
from heterps_operator.page.sections.reasons import Planned
from heterps_operator.state.bill import Bill
from heterps_operator.state.selection import describe_selection
from heterps_operator.state.status import Status
from heterps_operator.terminal.console import make_console
from heterps_operator.terminal.report import build_report
from heterps_planner.plans.frontier import frontier
from heterps_runtime.contract import EXIT_OK

__all__ = ["report"]

_SECONDS = 10.0  # for the alternatives, and for the frontier
_MOST_POINTS = 200  # of the frontier; more would not be seen apart
_OF_A_CLUSTER = ("namespace", "context", "kubeconfig")  # options


@dataclass(frozen=True)
class _Job:
    """What is stored of a job.

    Attributes:
        spec: what it was asked to do.
        status: its status.
        bill: its costs.
        problem: its planning problem, or why there is none.
        where: its namespace or its work directory.
        logs: where its logs are.
    """

    spec: JobSpec
    status: Status
    bill: Bill
    problem: Json | str
    where: str
    logs: str


def report(arguments: Namespace) -> int:
    """Write the page of the job of the command line; return the exit code.

    Raises:
        HeterpsError: the job has not run, or the page cannot be written.
    """
    if arguments.html is not None:
        check_target("--html", arguments.html, PAGES)
    here = arguments.job.endswith(JOB_FILES)
    if not here and arguments.work_directory is not None:
        raise UsageError("--work-directory: is for a job of this machine; name its job file (.yaml), or leave it out")
    given = [name for name in _OF_A_CLUSTER if getattr(arguments, name) is not None]
    if here and given:
        raise UsageError(f"--{given[0]}: is for a job on a cluster; name the job without .yaml, or leave it out")
    job = _on_this_machine(arguments) if here else _on_a_cluster(arguments)
    document = build_report(job.spec, job.status, job.bill, interrupted=False, logs=job.logs)
    page = report_page(document, job.status, _planned(job), job.where, time.time())
    target = arguments.html or f"{job.spec.name}.html"
    write_page(page, target)
    if arguments.output == "json":
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        make_console().print(f"{job.spec.name}: report written to {target}", markup=False, highlight=False)
    return EXIT_OK


def _on_this_machine(arguments: Namespace) -> _Job:
    manifest = load_manifest(arguments.job)
    spec = JobSpec.from_manifests(manifest.job, manifest.pools)
    folder = work_directory(spec.name, arguments.work_directory)
    workspace = Workspace(folder) if folder.is_dir() else None
    loaded = None if workspace is None else workspace.load()
    if workspace is None or loaded is None:
        fix = f"heterps run {arguments.job} starts one; --work-directory names another folder"
        raise UsageError(f"{folder}: there is no run of job {spec.name} here; {fix}")
    status, bill, _ = loaded
    cache = ProfileCache(workspace.profiles, manifest.run_configuration(workspace.path))
    profiles = cache.load([pool.name for pool in spec.pools])
    problem: Json | str
    if missing := [pool.name for pool in spec.pools if pool.name not in profiles]:
        problem = f"there is no profile of pool {', '.join(missing)}"
    else:
        problem = _problem(as_chosen(spec, status), profiles)
    return _Job(spec, status, bill, problem, str(folder), str(workspace.path / "logs"))


def _problem(job: JobSpec, profiles: Json) -> Json | str:
    try:
        return build_problem(job, profiles)
    except ValueError as error:
        return str(error)


def _on_a_cluster(arguments: Namespace) -> _Job:
    name = check_name(arguments.job)
    client = open_client(arguments)
    job, memory = client.get(name), client.state(name)
    manifest = None if memory is None else memory.manifest(job.document)
    if memory is None or manifest is None:
        raise UsageError(f"job {name}: no operator has begun with it, so there is nothing to report yet")
    problem: Json | str
    try:
        problem = client.problem(name)
    except (ClusterError, ManifestError, ValueError) as error:
        problem = str(error)
    spec = JobSpec.from_manifests(manifest.job, manifest.pools)
    return _Job(spec, memory.status, memory.bill, problem, f"namespace {job.namespace}", f"heterps logs {name}")


def _planned(job: _Job) -> Planned | str:
    """What the planner says about the job's plan, or why it says nothing."""
    if job.status.plan is None:
        return "there is no plan yet"
    if isinstance(job.problem, str):
        return job.problem
    try:
        found = find_reasons(job.problem, job.status.plan.document, time.monotonic() + _SECONDS)
    except ValueError as error:
        return str(error)
    deadline = time.monotonic() + _SECONDS
    whole = frontier(
        replace(found.free_problem, min_samples_per_second=0.0), _MOST_POINTS, lambda: time.monotonic() >= deadline
    )
    chosen = (("precision", job.status.choice), ("dense exchange", job.status.plan.dense_exchange))
    selections = tuple((title, describe_selection(selection)) for title, selection in chosen if selection is not None)
    return Planned(found.problem, found.plan, found.explanation, whole, selections)
