"""Processes of a job that fork from one which has imported torch and compiled kernels: each saves three seconds.

Apart from that they are what `python -m PROGRAM` starts: the module runs as `__main__`, with arguments, environment,
signal handlers and an address space of its own, so that a test can kill or stop it.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

_FORKED = multiprocessing.get_context("forkserver")
# They start no thread, which a fork would lose.
_FORKED.set_forkserver_preload(
    ["heterps_runtime.ps.server", "heterps_runtime.worker.main", "tests.heterps_runtime.helpers.warmed"]
)


class MemberProcess:
    """A running process, with the part of `subprocess.Popen`'s interface that tests use.

    Args:
        command: Python's module, and arguments.
        environment: variables besides this process's.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = _FORKED.Process(target=_run, args=(list(command), {**os.environ, **environment}), daemon=True)
        self._process.start()

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for the signal that killed it; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, which must not have been waited for."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code, or raise `subprocess.TimeoutExpired` after `timeout` seconds."""
        self._process.join(timeout)
        code = self.returncode
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return code


def _run(command: list[str], environment: dict[str, str]) -> None:
    """Run a module in the new process, as `python -m` does."""
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = command[1:]
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)
