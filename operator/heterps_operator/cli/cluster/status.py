"""`heterps status [JOB]`: all jobs in a table, or one in detail."""

from __future__ import annotations

from argparse import Namespace

from heterps_operator.cli.cluster.common import cleaned, open_client
from heterps_operator.cli.plans.files import write_document
from heterps_operator.errors import UsageError
from heterps_operator.terminal.console import make_console
from heterps_operator.terminal.job_tables import render_job, render_jobs
from heterps_runtime.contract import EXIT_OK

__all__ = ["status"]


def status(arguments: Namespace) -> int:
    """Show the job or jobs of the command line; return the exit code.

    Raises:
        ClusterError: the cluster is unreachable or refused the request.
    """
    if arguments.job is not None and arguments.all_namespaces:
        raise UsageError("--all-namespaces: lists jobs; leave it out, or the job's name")
    client = open_client(arguments)
    console = make_console()
    if arguments.job is not None:
        job = client.get(arguments.job)
        if arguments.output == "table":
            console.print(render_job(job))
        write_document(arguments.output, cleaned(job.document))
        return EXIT_OK
    jobs = client.jobs(all_namespaces=arguments.all_namespaces)
    if arguments.output == "table":
        if jobs:
            console.print(render_jobs(jobs, namespaces=arguments.all_namespaces))
        else:
            where = "any namespace" if arguments.all_namespaces else f"namespace {client.namespace}"
            text = f"there are no jobs in {where}; heterps submit FILE creates one"
            make_console(stderr=True).print(text, markup=False, highlight=False)
    write_document(arguments.output, {"items": [cleaned(job.document) for job in jobs]})
    return EXIT_OK
