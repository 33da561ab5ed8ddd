"""`heterps cancel JOB`: stop a job with a checkpoint, or delete it."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from heterps_operator.cli.cluster.common import open_client
from heterps_operator.errors import UsageError
from heterps_operator.terminal.console import make_console
from heterps_runtime.contract import EXIT_OK

__all__ = ["cancel"]


def cancel(arguments: Namespace) -> int:
    """Stop or delete the job of the command line; return the exit code.

    Raises:
        ClusterError: there is no such job, or the cluster refused the request.
    """
    client, name = open_client(arguments), arguments.job
    if not arguments.delete:
        job = client.get(name)
        if job.ended:
            text = f"{name} has already ended ({job.status.phase}); heterps cancel {name} --delete removes it"
        elif job.suspended:
            text = f"{name} is already stopping"
        else:
            client.suspend(name)
            text = (
                f"{name}: stopping; it writes a checkpoint, then its pods end. heterps submit with its file resumes it"
            )
        return _report(arguments, "suspend", text)
    client.get(name)
    if not arguments.yes and not _confirmed(f"Delete job {name} in namespace {client.namespace}?"):
        return _report(arguments, "nothing", f"{name} is unchanged")
    client.delete(name)
    text = f"{name} is deleted; its pods end now. Checkpoints remain in spec.checkpoint.path"
    return _report(arguments, "delete", text)


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("--delete: cannot ask for confirmation without a terminal; add --yes")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _report(arguments: Namespace, done: str, text: str) -> int:
    if arguments.output == "json":
        sys.stdout.write(
            json.dumps({"version": 1, "job": arguments.job, "done": done, "message": text}, indent=2) + "\n"
        )
    else:
        make_console().print(text, markup=False, highlight=False, soft_wrap=True)
    return EXIT_OK
