"""`heterps submit FILE`: submit a job to a cluster, and optionally follow it."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from rich.status import Status as Spinner

from heterps_operator.cli.cluster.common import cleaned, open_client
from heterps_operator.cli.plans.files import write_document
from heterps_operator.client.client import HeterPSClient, Submitted
from heterps_operator.client.manifests import read_submission
from heterps_operator.client.views import JobView
from heterps_operator.errors import ClusterError, UsageError
from heterps_operator.state.status import Phase
from heterps_operator.terminal.console import Console, make_console
from heterps_operator.terminal.job_tables import describe_end, describe_now
from heterps_runtime.contract import EXIT_INTERRUPTED, EXIT_OK

__all__ = ["submit"]

_LONELY_SECONDS = 20.0  # without a status, before asking whether an operator runs
_NOTES = {
    "kept": " as it is in the cluster; you may not change DevicePools, so the one in the file is not used",
    "unseen": "; you may neither read nor change DevicePools, so the job uses the cluster's pool of this name",
}
_PROGRESS_SECONDS = 10.0  # between two lines of progress in a log


def submit(arguments: Namespace) -> int:
    """Submit the job of the command line; return the exit code.

    Raises:
        ManifestError: the file is invalid.
        ClusterError: the cluster is unreachable or refused the request.
    """
    if arguments.wait and arguments.dry_run:
        raise UsageError("--dry-run: changes nothing, so there is nothing to wait for; leave --wait out")
    submission = read_submission(arguments.file)
    client = open_client(arguments, submission.namespace)
    submitted = client.submit(submission, dry_run=arguments.dry_run)
    # A program reads stdout, so messages go to stderr.
    console = make_console(stderr=arguments.output != "text")
    _say_changes(console, submitted, arguments.dry_run)
    if not arguments.wait:
        if arguments.dry_run:
            write_document(arguments.output, {"items": [cleaned(item) for item in submitted.objects]})
        else:
            write_document(arguments.output, cleaned(submitted.job.document))
            _say(console, f"to watch it: heterps top {submitted.job.name}")
        return EXIT_OK
    try:
        job = _wait(client, submitted.job, console)
    except KeyboardInterrupt:
        name = submitted.job.name
        _say(
            console,
            f"{name} continues in the cluster. To watch it: heterps top {name}; to stop it: heterps cancel {name}",
        )
        return EXIT_INTERRUPTED
    console.print(describe_end(job))
    write_document(arguments.output, cleaned(job.document))
    return job.exit_code


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _say_changes(console: Console, submitted: Submitted, dry_run: bool) -> None:
    for change in submitted.changes:
        text = f"{change.kind} {change.name}: {change.verb}"
        text += _NOTES.get(change.verb, "")
        _say(console, text + (" (dry run)" if dry_run else ""))


def _wait(client: HeterPSClient, submitted: JobView, console: Console) -> JobView:
    """Show the job until it ends."""
    name, told, shown = submitted.name, "", float("-inf")
    spinner: AbstractContextManager[Spinner | None] = (
        console.status(f"{name}: waiting for the operator") if console.is_terminal else nullcontext()
    )
    with spinner as live:
        for job in _versions(client, submitted, console):
            line = describe_now(job)
            if live is not None:
                live.update(f"{name}: {line}")
            news = f"{job.status.phase}: {job.status.message}".removesuffix(": ")
            now = time.monotonic()
            if job.current and news != told and job.status.phase:
                told, shown = news, now
                _say(console, f"{time.strftime('%H:%M:%S')} {news}")
            elif job.current and job.status.phase == Phase.RUNNING and not live and now - shown >= _PROGRESS_SECONDS:
                shown = now
                _say(console, f"{time.strftime('%H:%M:%S')} {line}")
            if job.ended:
                return job
    raise ClusterError("Deleted", f"job {name} was deleted meanwhile")


def _versions(client: HeterPSClient, submitted: JobView, console: Console) -> Iterator[JobView]:
    """Yield versions of the job as they arrive; report once if no operator picks it up."""
    if not submitted.current:
        try:
            first = client.wait(submitted.name, _LONELY_SECONDS, lambda job: job.current)
        except ClusterError as error:
            if error.reason != "Timeout":
                raise
            _say(
                console,
                f"no operator has picked up {submitted.name} in {_LONELY_SECONDS:g} s: is one running, and does it "
                f"watch namespace {submitted.namespace}? (kubectl get pods --all-namespaces "
                "--selector app.kubernetes.io/name=heterps,app.kubernetes.io/component=operator)",
            )
        else:
            yield first
    yield from client.watch(submitted.name)
