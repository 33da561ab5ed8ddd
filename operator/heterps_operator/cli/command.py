"""The command line: its options, and what runs them."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from importlib import metadata

from heterps_operator.cli.options.checkpoint import add_checkpoint_options
from heterps_operator.cli.options.cluster import add_cluster_commands
from heterps_operator.cli.options.model import add_model_options
from heterps_operator.cli.options.operator import add_operator_options
from heterps_operator.cli.options.plan import add_plan_options
from heterps_operator.cli.session import Programs
from heterps_operator.errors import ClusterError, HeterpsError, StoreError
from heterps_operator.state.status import Failure
from heterps_operator.terminal.refusal import write_refusal
from heterps_planner.errors import PlannerError
from heterps_runtime.contract import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INTERRUPTED

__all__ = ["run_command"]

# cluster errors, not errors of the command line
_PASSING = frozenset({"Unreachable", "Timeout", "Deleted", "ServerError"})


def run_command(arguments: Sequence[str] | None = None, programs: Programs | None = None) -> int:
    """Run a command line.

    Args:
        arguments: command-line arguments without the program name; None: `sys.argv[1:]`.
        programs: programs that commands start; None: the runtime and the planner of this installation.

    Returns:
        The exit code (docs/cli.md).
    """
    options = _parser().parse_args(arguments)
    try:
        return _dispatch(options, programs or Programs())
    except ClusterError as error:
        code = EXIT_FAILED if error.reason in _PASSING else EXIT_BAD_INPUT
        return _refuse(options, error.reason, str(error), code)
    except StoreError as error:
        return _refuse(options, "StoreError", str(error), EXIT_FAILED)
    except (HeterpsError, PlannerError) as error:
        return _refuse(options, "BadInput", str(error), EXIT_BAD_INPUT)
    except OSError as error:  # a full disk, too many processes; the error names the file, if one is at fault
        return _refuse(options, "SystemError", str(error), EXIT_FAILED)
    except KeyboardInterrupt:  # outside the control loop no process is left to stop
        return EXIT_INTERRUPTED


def _refuse(options: Namespace, reason: str, message: str, code: int) -> int:
    """Report why nothing was done, as a document too if a program reads stdout."""
    sys.stderr.write(f"heterps: {message}\n")
    if options.output == "json":
        write_refusal(Failure(reason, message).to_json(), code)
    return code


def _dispatch(options: Namespace, programs: Programs) -> int:
    # Imported lazily: a planner's child process starts faster without displays and plots.
    match options.command:
        case "run":
            from heterps_operator.cli.run import run

            return run(options, programs)
        case "plan":
            from heterps_operator.cli.plan import plan

            return plan(options, programs)
        case "profile":
            from heterps_operator.cli.profile import profile

            return profile(options, programs)
        case "checkpoint":
            from heterps_operator.cli.checkpoint import checkpoint

            return checkpoint(options, programs)
        case "model":
            from heterps_operator.cli.model import model

            return model(options, programs)
        case "operator":
            from heterps_operator.cli.operator import operator

            return operator(options)
        case "submit":
            from heterps_operator.cli.cluster.submit import submit

            return submit(options)
        case "status":
            from heterps_operator.cli.cluster.status import status

            return status(options)
        case "top":
            from heterps_operator.cli.cluster.top import top

            return top(options)
        case "logs":
            from heterps_operator.cli.cluster.logs import logs

            return logs(options)
        case "report":
            from heterps_operator.cli.report import report

            return report(options)
        case "explain":
            from heterps_operator.cli.cluster.explain import explain

            return explain(options)
        case _:
            from heterps_operator.cli.cluster.cancel import cancel

            return cancel(options)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="heterps",
        description="Train recommendation models on the cheapest mix of hardware that is fast enough.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"heterps {metadata.version('heterps')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    run = commands.add_parser(
        "run", help="train a job on this machine", description="Profile, plan and train a job on this machine."
    )
    _add_job(run)
    run.add_argument("--output", choices=("text", "json"), default="text", help="how to report (default: text)")
    run.add_argument("--fresh", action="store_true", help="start over, discarding earlier progress and checkpoints")
    run.add_argument("--port", type=_port, default=0, help="port of the coordinator (default: any free one)")
    run.add_argument("--refresh-profile", action="store_true", help="measure the layers again and replan")

    plan = commands.add_parser(
        "plan", help="find the cheapest plan", description="Find the cheapest plan that is fast enough, and say why."
    )
    _add_job(plan, optional=True)
    add_plan_options(plan)

    profile = commands.add_parser(
        "profile", help="measure a job's layers", description="Measure the model's layers on every pool of a job."
    )
    _add_job(profile)
    profile.add_argument("--output", choices=("table", "json"), default="table", help="(default: table)")
    profile.add_argument("--to", metavar="FILE", help="write the planning problem to this file")
    profile.add_argument("--cached", action="store_true", help="measure only what no earlier run has measured")

    add_checkpoint_options(
        commands.add_parser(
            "checkpoint",
            help="list, verify, compare or delete checkpoints",
            description="List, verify, compare or delete the checkpoints of a job, wherever they are stored.",
        )
    )

    add_model_options(
        commands.add_parser(
            "model",
            help="export checkpoints as models, make and apply deltas",
            description="Export checkpoints as models for serving, and bring models up to date by what changed.",
        )
    )

    add_cluster_commands(commands.add_parser)

    add_operator_options(
        commands.add_parser(
            "operator",
            help="manage the jobs of a cluster",
            description="Manage the HeterPSJobs of a Kubernetes cluster until SIGTERM. Usually run by the Helm chart.",
        )
    )
    return parser


def _add_job(parser: ArgumentParser, optional: bool = False) -> None:
    parser.add_argument("job", metavar="JOB", nargs="?" if optional else None, help="job file (YAML)")
    parser.add_argument("--work-directory", metavar="D", help="for state, logs, checkpoints (default: .heterps/NAME)")
    parser.add_argument("--quiet", action="store_true", help="show only the result")
    parser.add_argument("--verbose", action="store_true", help="show every process")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise ArgumentTypeError(f"must be a port, 0 to 65535, is {text!r}")
    return int(text)
