"""Options of the commands on a cluster. Imports only cheap modules, as every command builds this parser."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable

from heterps_operator.errors import UsageError

__all__ = ["add_cluster_commands", "check_name"]

_ROLES = ("coordinator", "ps", "worker", "profile")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def add_cluster_commands(add: Callable[..., ArgumentParser]) -> None:
    """Add submit, status, top, logs, explain, report and cancel to the commands of `heterps`."""
    submit = add("submit", help="train a job on a cluster", description="Check a job file and submit it to a cluster.")
    submit.add_argument("file", metavar="FILE", help="job file (YAML)")
    submit.add_argument("--wait", action="store_true", help="show the job until it ends and exit with its result")
    submit.add_argument("--dry-run", action="store_true", help="validate on the cluster, change nothing")
    submit.add_argument(
        "--code", metavar="SOURCE", help="folder that the job imports from, or git+ADDRESS@REVISION: sets spec.code"
    )
    submit.add_argument(
        "--code-store",
        metavar="URI",
        help="keep the packed folder there (default: a ConfigMap or, if it is too large, spec.checkpoint.path)",
    )
    _add_common(submit, ("text", "json", "yaml"))

    status = add("status", help="list jobs of a cluster, or show one", description="List the jobs, or show one.")
    status.add_argument("job", metavar="JOB", nargs="?", type=_name, help="name of the job (default: all)")
    status.add_argument("--all-namespaces", "-A", action="store_true", help="list the jobs of all namespaces")
    _add_common(status, ("table", "json", "yaml"))

    top = add("top", help="watch a job of a cluster", description="Show stages, workers, throughput and cost, live.")
    top.add_argument("job", metavar="JOB", type=_name, help="name of the job")
    top.add_argument("--once", action="store_true", help="print the current state once and exit (as if piped)")
    _add_common(top, ("table", "json", "yaml"))

    logs = add("logs", help="logs of a job's pods", description="Print the logs of all pods of a job, merged by time.")
    logs.add_argument("job", metavar="JOB", type=_name, help="name of the job")
    logs.add_argument("--role", choices=_ROLES, help="only pods of this role")
    logs.add_argument("--follow", "-f", action="store_true", help="follow the logs until the job ends")
    logs.add_argument("--tail", metavar="N", type=_count, help="only the last N lines of each pod")
    _add_common(logs, ("text", "json"))

    explain = add(
        "explain", help="why a job has its plan", description="Say why a job runs as it does, and what is cheaper."
    )
    explain.add_argument("job", metavar="JOB", type=_name, help="name of the job")
    _add_common(explain, ("table", "json", "yaml"))

    report = add(
        "report", help="write a job's page", description="Write what a job did as one HTML file, to read or to print."
    )
    report.add_argument("job", metavar="JOB", help="name of a job on a cluster, or job file (.yaml) of this machine")
    report.add_argument("--html", metavar="FILE", help="the file to write (default: NAME.html)")
    report.add_argument("--work-directory", metavar="D", help="of a job of this machine (default: .heterps/NAME)")
    _add_common(report, ("text", "json"))

    cancel = add(
        "cancel", help="stop a job on a cluster", description="Stop a job: it writes a checkpoint, then its pods end."
    )
    cancel.add_argument("job", metavar="JOB", type=_name, help="name of the job")
    cancel.add_argument("--delete", action="store_true", help="remove the job and all its objects; checkpoints stay")
    cancel.add_argument("--yes", "-y", action="store_true", help="with --delete: do not ask")
    _add_common(cancel, ("text", "json"))


def _add_common(parser: ArgumentParser, outputs: tuple[str, ...]) -> None:
    parser.add_argument("--output", "-o", choices=outputs, default=outputs[0], help="(default: %(default)s)")
    parser.add_argument("--namespace", "-n", metavar="NS", type=_name, help="(default: that of the context)")
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: the current one)")
    parser.add_argument("--kubeconfig", metavar="FILE", help="(default: $KUBECONFIG, or ~/.kube/config)")


def check_name(text: str) -> str:
    """Return a name of an object, which becomes part of an API path, so that no other characters may get in.

    Raises:
        UsageError: it is no such name.
    """
    if len(text) > 253 or not _NAME.fullmatch(text):
        raise UsageError(f"must be a name of a-z, 0-9, '-' and '.', is {text!r}")
    return text


def _name(text: str) -> str:
    try:
        return check_name(text)
    except UsageError as error:
        raise ArgumentTypeError(str(error)) from error


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise ArgumentTypeError(f"must be a whole number >= 0, is {text!r}")
    return int(text)
