"""`heterps-runtime ROLE`: the program of a job's pods or local processes.

    coordinator   membership, commits, checkpoints, the job's HTTP interface
    ps            a parameter server
    worker        computes a stage
    profile       measures the model's layers on a pool

Configuration comes from `$HETERPS_CONFIG`, `$HETERPS_COORDINATOR` and `$HETERPS_TOKEN`. Exit codes: 0 success, 1
transient failure, 2 wrong input (the last line names the remedy), 143 ended by SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import ENV_CONFIG, ENV_TOKEN, EXIT_BAD_INPUT, EXIT_FAILED, EXIT_OK, Role
from heterps_runtime.errors import HeterpsRuntimeError, UserError
from heterps_runtime.process import end_with_parent, log

__all__ = ["entry", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a role; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.parent is not None:
        end_with_parent(options.parent)
    signal.signal(signal.SIGTERM, _terminate)  # there is nothing to save: uncommitted steps are repeated
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C, the controller ends the job
    try:
        config = _load_config()
        _run(options, config)
    except ValueError as error:  # all errors of wrong input are ValueErrors
        if not isinstance(error, HeterpsRuntimeError) and not type(error).__module__.startswith("heterps_runtime"):
            traceback.print_exc()
        log(f"{type(error).__name__}: {error}")
        return EXIT_BAD_INPUT
    except HeterpsRuntimeError as error:
        log(f"{type(error).__name__}: {error}")
        return EXIT_FAILED
    return EXIT_OK


def entry() -> NoReturn:
    """The command. Ends without waiting for threads and sockets of the finished role."""
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(options: argparse.Namespace, config: RunConfig) -> None:
    # Each role imports only what it needs: a parameter server never loads torch.
    sys.path[:0] = [p for p in config.python_path if p not in sys.path]
    match Role(options.role):
        case Role.COORDINATOR:
            from heterps_runtime.coordinator.server import CoordinatorServer

            server = CoordinatorServer(
                config,
                _token(),
                options.host,
                options.port,
                options.ready_file,
                metrics_port=options.metrics_port,
            )
            asyncio.run(server.run())
        case Role.PS:
            from heterps_runtime.ps.server import ParameterServer
            from heterps_runtime.wire.link import Credentials

            credentials = Credentials.from_environment(encrypted=config.encrypted)
            ParameterServer(config, credentials, options.index, options.pool, options.host).run()
        case Role.WORKER:
            from heterps_runtime.wire.link import Credentials
            from heterps_runtime.worker.main import run_worker

            credentials = Credentials.from_environment(encrypted=config.encrypted)
            run_worker(config, credentials, options.stage, options.index, options.pool, options.host)
        case Role.PROFILE:
            from heterps_runtime.profiler.main import run_profiler

            run_profiler(config, options.pool)


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
    profile = roles.add_parser(Role.PROFILE, help="measures the model's layers on a pool")
    for role in (ps, worker):
        role.add_argument("--index", type=int, required=True)
    for role in (ps, worker, profile):
        role.add_argument("--pool", required=True)
    for role in (coordinator, ps, worker):
        role.add_argument("--host", default="127.0.0.1", help="address to listen on")
    return parser


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


def _terminate(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    entry()
