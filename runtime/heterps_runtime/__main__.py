"""`heterps-runtime ROLE`: the program of a job's pods or local processes.

    coordinator   membership, commits, checkpoints, the job's HTTP interface
    ps            a parameter server
    worker        computes a stage
    profile       measures the model's layers on a pool
    code          brings the job's code (`spec.code`) into a folder, before one of the others starts
    checkpoint    lists, verifies, compares or deletes checkpoints, for `heterps checkpoint`
    model         exports a checkpoint, makes and applies deltas between models, for `heterps model`

The last two need no configuration. That of the others comes from `$HETERPS_CONFIG`, `$HETERPS_COORDINATOR` and
`$HETERPS_TOKEN`. Exit codes: 0 success, 1 transient failure, 2 wrong input (the last line names the remedy), 130 ended
too early, as this process or another one of the job was told to (SIGTERM), 143 ended at SIGTERM at once.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import (
    ENV_CONFIG,
    ENV_TOKEN,
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    DenseExchange,
    Role,
)
from heterps_runtime.errors import HeterpsRuntimeError, UserError
from heterps_runtime.malloc import keep_freed_memory
from heterps_runtime.processes.process import at_termination, end_with_parent, log
from heterps_runtime.wire.ports import Ports

__all__ = ["entry", "main"]

# no roles of a job's processes
_CODE = "code"
_CHECKPOINT = "checkpoint"
_MODEL = "model"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a role; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.parent is not None:
        end_with_parent(options.parent)
    if options.role == _CHECKPOINT:
        with _importing():
            from heterps_runtime.checkpoint.tool import run_tool

        return run_tool(options)
    if options.role == _MODEL:
        with _importing():
            from heterps_runtime import model_tool

        return model_tool.run_tool(options)
    at_termination()  # until it takes part in training, there is nothing to save
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C, the controller ends the job
    try:
        config = _load_config()
        interrupted = _run(options, config)
    except ValueError as error:  # all errors of wrong input are ValueErrors
        if not isinstance(error, HeterpsRuntimeError) and not type(error).__module__.startswith("heterps_runtime"):
            traceback.print_exc()
        log(f"{type(error).__name__}: {error}")
        return EXIT_BAD_INPUT
    except HeterpsRuntimeError as error:
        log(f"{type(error).__name__}: {error}")
        return EXIT_FAILED
    return EXIT_INTERRUPTED if interrupted else EXIT_OK


def entry() -> NoReturn:
    """The command. Ends without waiting for threads and sockets of the finished role."""
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def _importing() -> Iterator[None]:
    """Exempt what modules make on import from garbage collection, which finds nothing in it.

    Torch makes 180,000 objects; to look at them takes a seventh of the time of its import.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def _run(options: argparse.Namespace, config: RunConfig) -> bool:
    """Run the role; returns whether it ended before the job was over."""
    if options.role == _CODE:
        from heterps_runtime.user_code.main import bring_code

        bring_code(config, options.to, options.archive, options.secret)
        return False
    # Each role imports only what it needs: a parameter server never loads torch.
    sys.path[:0] = [p for p in config.python_path if p not in sys.path]
    match Role(options.role):
        case Role.COORDINATOR:
            with _importing():
                from heterps_runtime.coordinator.server import CoordinatorServer

            coordinator = CoordinatorServer(
                config,
                _token(),
                options.host,
                options.port,
                options.ready_file,
                metrics_port=options.metrics_port,
                ports=Ports.from_environment(),
            )
            at_termination(coordinator.leave)
            asyncio.run(coordinator.run())
            return coordinator.interrupted
        case Role.PS:
            with _importing():
                from heterps_runtime.ps.server import ParameterServer
                from heterps_runtime.wire.link import Credentials

            credentials = Credentials.from_environment(encrypted=config.encrypted)
            ports = Ports.from_environment()
            chosen = config.in_precision(options.precision)
            server = ParameterServer(chosen, credentials, options.index, options.pool, options.host, ports)
            at_termination(server.leave)
            server.run()
            return server.interrupted
        case Role.WORKER:
            with _importing():
                from heterps_runtime.wire.link import Credentials
                from heterps_runtime.worker.main import open_worker

            credentials = Credentials.from_environment(encrypted=config.encrypted)
            ports = Ports.from_environment()
            chosen = config.in_precision(options.precision)
            worker = open_worker(
                chosen,
                credentials,
                options.stage,
                options.index,
                options.pool,
                options.host,
                ports,
                options.dense_exchange,
            )
            at_termination(worker.leave)
            keep_freed_memory()  # not what was needed only to begin
            worker.run()
            return worker.interrupted
        case Role.PROFILE:
            with _importing():
                from heterps_runtime.profiler.main import run_profiler

            run_profiler(config, options.pool)
            return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="heterps-runtime", description="Processes of a HeterPS job.")
    parser.add_argument("--parent", type=int, help="id of the parent process; end when it ends")
    roles = parser.add_subparsers(dest="role", required=True)
    coordinator = roles.add_parser(Role.COORDINATOR, help="membership, commits, checkpoints, HTTP")
    coordinator.add_argument("--port", type=int, default=0, help="HTTP port; 0: any free one")
    coordinator.add_argument("--metrics-port", type=int, help="port for /healthz and /metrics alone, never encrypted")
    coordinator.add_argument("--ready-file", type=Path, help="file to write the address to, once it listens")
    ps = roles.add_parser(Role.PS, help="a parameter server")
    worker = roles.add_parser(Role.WORKER, help="computes a stage")
    worker.add_argument("--stage", type=int, required=True)
    worker.add_argument(
        "--dense-exchange",
        type=DenseExchange,
        choices=list(DenseExchange),
        help="of the stage, if it is not that of the pool's device type",
    )
    profile = roles.add_parser(Role.PROFILE, help="measures the model's layers on a pool")
    code = roles.add_parser(_CODE, help="brings the job's code into a folder")
    code.add_argument("--to", type=Path, required=True, help="folder that gets the code")
    code.add_argument("--archive", type=Path, help="file from the job's ConfigMap")
    code.add_argument("--secret", type=Path, help="folder with username and password of the repository")
    _add_actions(roles.add_parser(_CHECKPOINT, help="lists, verifies, compares or deletes checkpoints"))
    _add_model_actions(roles.add_parser(_MODEL, help="exports a checkpoint, makes and applies deltas between models"))
    for role in (ps, worker):
        role.add_argument("--index", type=int, required=True)
        role.add_argument("--precision", help="that was chosen for the job, with training.precision Auto")
    for role in (ps, worker, profile):
        role.add_argument("--pool", required=True)
    for role in (coordinator, ps, worker):
        role.add_argument("--host", default="127.0.0.1", help="IPv4 or IPv6 address to listen on")
    return parser


def _add_actions(parser: argparse.ArgumentParser) -> None:
    """Add the actions on checkpoints; heterps_runtime/checkpoint/tool.py carries them out."""
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("ls", "verify", "diff", "prune"):
        action = actions.add_parser(name)
        action.add_argument("address", help="path or address of the checkpoints")
        if name == "verify":
            action.add_argument("--checkpoint", help="step or folder of the only one to verify")
        if name == "diff":
            action.add_argument("--before", help="step or folder; default: the valid one before the other")
            action.add_argument("--after", help="step or folder; default: the newest valid one")
        if name == "prune":
            action.add_argument("--keep", type=int, required=True, help="number of valid checkpoints that stay")
            action.add_argument("--dry-run", action="store_true", help="only say what would be deleted")


def _add_model_actions(parser: argparse.ArgumentParser) -> None:
    """Add the actions on exported models; heterps_runtime/model_tool.py carries them out."""
    actions = parser.add_subparsers(dest="action", required=True)
    export = actions.add_parser("export")
    export.add_argument("address", help="path or address of the checkpoints")
    export.add_argument("--checkpoint", help="step or folder; default: the newest valid one")
    delta = actions.add_parser("delta")
    delta.add_argument("before", help="path or address of a model")
    delta.add_argument("after", help="path or address of a newer one")
    apply = actions.add_parser("apply")
    apply.add_argument("model", help="path or address of a model")
    apply.add_argument("delta", help="path or address of a delta")
    for action in (export, delta):
        action.add_argument("--to", required=True, help="path or address of what is written")


def _load_config() -> RunConfig:
    path = os.environ.get(ENV_CONFIG)
    if not path:
        raise UserError(f"the environment lacks {ENV_CONFIG}, the path of the run configuration")
    return RunConfig.load(path)


def _token() -> str:
    token = os.environ.get(ENV_TOKEN)
    if not token:
        raise UserError(f"the environment lacks {ENV_TOKEN}, the job's shared secret")
    return token


if __name__ == "__main__":
    entry()
