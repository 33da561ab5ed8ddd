"""The process substrate: a job's processes on this machine (Linux).

Safety rules:

- A pid is signalled only while it is certainly ours: a child that was not reaped yet (the waiting thread leaves
  it a zombie until it is marked as ended, under the same lock that signals take), or a leftover of a killed
  `heterps run` whose start time in /proc is the recorded one.
- Every process leads its own session, so a Ctrl-C at the terminal reaches the controller only, and a signal to the
  group also ends processes that it started.
- The kernel kills the children if the controller is killed (guard.py). It watches the *thread* that started them, so
  `start` belongs to the thread that runs the loop.
- Workers and profilers fork from a process that has imported torch (fork_server.py). `start` does not wait for it, so
  that one of them may have no pid yet. It is waited for only when it is marked as ended here, as every child is.
- Waiting uses a pipe, not a `threading.Event`: a signal handler may write to a pipe at any moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heterps_operator.control.environment import process_variables
from heterps_operator.documents import read_json, write_json
from heterps_operator.local.children import Forked, ForkServer, guarded
from heterps_operator.local.fork_server import exit_code
from heterps_operator.state.values import ProcessSpec, ProcessView
from heterps_runtime.clock import steady_time
from heterps_runtime.contract import ENV_CONFIG, ENV_COORDINATOR, ENV_TOKEN, Role

__all__ = ["RUNTIME_COMMAND", "ProcessSubstrate", "end_leftovers", "read_last_lines", "start_identity"]

# -P: the runtime must not import a user's file that shadows a standard module.
RUNTIME_COMMAND = (sys.executable, "-P", "-m", "heterps_runtime")
_RUNTIME_FUNCTION = "heterps_runtime.__main__:main"
_COMPUTING = frozenset({Role.WORKER, Role.PROFILE})  # which import torch
_COMPUTING_MODULES = ("heterps_runtime.worker.main", "heterps_runtime.profiler.measure")
_TAIL_BYTES = 65_536
_LEFTOVER_GRACE_SECONDS = 3.0


def start_identity(pid: int) -> str | None:
    """Return boot and start time, which tell a process from a later one with the same pid; None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
    # proc(5): field 2 is the name in parentheses and may hold spaces; starttime is field 22, state (field 3) the first
    # after the name.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else f"{boot}/{fields[19]}"


def read_last_lines(path: Path, count: int) -> tuple[str, ...]:
    """Return the last non-blank lines of a log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-count:]


def end_leftovers(record: Path, grace_seconds: float = _LEFTOVER_GRACE_SECONDS) -> tuple[str, ...]:
    """End processes left behind by an earlier controller that was killed.

    Args:
        record: file with that controller's pids.
        grace_seconds: time between SIGTERM and SIGKILL, for all processes together.

    Returns:
        Names of the processes that were still running.
    """
    document = read_json(record) or {}
    alive: dict[int, str] = {}  # pidfd -> name
    pids: dict[int, int] = {}
    for entry in document.get("processes", []):
        try:
            descriptor = os.pidfd_open(int(entry["pid"]))
        except (ProcessLookupError, KeyError, ValueError):
            continue
        # Compared after opening: from here on the descriptor refers to this very process.
        if start_identity(int(entry["pid"])) != entry.get("identity"):
            os.close(descriptor)
            continue
        alive[descriptor], pids[descriptor] = str(entry["name"]), int(entry["pid"])
    names = tuple(alive.values())
    deadline = time.monotonic() + grace_seconds
    for number, wait_until in ((signal.SIGTERM, deadline), (signal.SIGKILL, None)):
        for descriptor in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pids[descriptor], number)
        while alive:
            timeout = 5.0 if wait_until is None else max(0.0, wait_until - time.monotonic())
            ended, _, _ = select.select(list(alive), [], [], timeout)
            if not ended:
                break
            for descriptor in ended:
                del alive[descriptor]
                os.close(descriptor)
    for descriptor in alive:
        os.close(descriptor)
    return names


class _Spawned:
    """A child with an interpreter of its own, and the methods of one that is forked."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen

    def pid(self) -> int:
        return self._popen.pid

    def wait(self) -> int | None:
        ended = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        return exit_code(ended)

    def release(self) -> None:
        self._popen.wait()


@dataclass
class _Child:
    view: ProcessView
    process: _Spawned | Forked
    log: Path
    identity: str | None = None
    server: ForkServer | None = None  # which forks it
    watcher: threading.Thread | None = None
    kill_at: float | None = None  # monotonic; None: not asked to end, or already killed


class ProcessSubstrate:
    """Runs a job's processes as children of this one.

    Args:
        work_directory: folder of logs, the ready file and the record of pids.
        configuration: path of the run configuration.
        token: the job's shared secret.
        runtime_command: command line of the runtime, without role and arguments; any but ours gets no fork server.
        port: port of the coordinator; 0: any free port.
        environment: environment of the children.
        clock: Unix seconds.
        tail_lines: log lines shown for an ended process.
    """

    def __init__(
        self,
        work_directory: Path,
        configuration: Path,
        token: str,
        *,
        runtime_command: Sequence[str] = RUNTIME_COMMAND,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], float] = steady_time,
        tail_lines: int = 20,
    ) -> None:
        self._work = work_directory
        self._logs = work_directory / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._record = work_directory / "processes.json"
        self._ready = work_directory / "coordinator.json"
        self._command = tuple(runtime_command)
        self._port = port
        self._clock = clock
        self._tail_lines = tail_lines
        self._environment = {
            "NUMBA_CACHE_DIR": str(work_directory / "cache" / "numba"),
            **(os.environ if environment is None else environment),
            ENV_CONFIG: str(configuration),
            ENV_TOKEN: token,
        }
        self._children: dict[str, _Child] = {}
        self._servers: dict[int, ForkServer] = {}  # by the number of threads, which libraries read on their import
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self.leftovers = end_leftovers(self._record)

    # --- reading ------------------------------------------------------------------------------------------------------

    def processes(self) -> tuple[ProcessView, ...]:
        """The latest process of each name, running or ended."""
        self._escalate()
        with self._lock:
            return tuple(child.view for child in self._children.values())

    def coordinator_address(self) -> str | None:
        """Return the address in the coordinator's ready file, if the running coordinator wrote it."""
        with self._lock:
            child = self._children.get("coordinator")
            if child is None or not child.view.running:
                return None
            pid = child.view.pid
        try:
            document = json.loads(self._ready.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return str(document["http"]) if document.get("pid") == pid else None

    def wait(self, seconds: float) -> None:
        """Wait until a process has ended, until woken, or until the time has passed."""
        with self._lock:
            deadlines = [c.kill_at for c in self._children.values() if c.kill_at is not None and c.view.running]
        if deadlines:
            seconds = min(seconds, max(0.0, min(deadlines) - time.monotonic()))
        select.select([self._wake_read], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def wake(self) -> None:
        """Unblock `wait`; safe in a signal handler and in any thread."""
        # A full pipe wakes too; a closed one has no reader.
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b"\0")

    # --- acting -------------------------------------------------------------------------------------------------------

    def start(self, spec: ProcessSpec) -> None:
        """Start a process of the runtime with its output in `logs/NAME.log`."""
        with self._lock:
            previous = self._children.get(spec.name)
            assert previous is None or not previous.view.running, f"{spec.name} is still running"
        log = self._rotate(spec.name)
        variables = process_variables(spec)
        arguments = list(spec.arguments)
        if spec.role == "coordinator":
            self._ready.unlink(missing_ok=True)
            arguments += ["--host", "127.0.0.1", "--port", str(self._port), "--ready-file", str(self._ready)]
        else:
            address = self.coordinator_address()
            assert address is not None, f"{spec.name} is started before the coordinator listens"
            variables[ENV_COORDINATOR] = address
        view = ProcessView(spec, started=self._clock(), log=str(log))
        with log.open("wb") as output:
            if self._command == RUNTIME_COMMAND and spec.role in _COMPUTING:
                server, title = self._server(spec), [*RUNTIME_COMMAND, *arguments]
                child = _Child(view, server.fork(arguments, output, variables, title), log, server=server)
            else:
                spawned = _Spawned(
                    subprocess.Popen(
                        guarded([*self._command, *arguments]),
                        cwd=self._work,
                        env={**self._environment, **variables},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
                child = _Child(view, spawned, log)
                _identify(child, spawned.pid())
        with self._lock:
            self._children[spec.name] = child
            self._write_record()
        child.watcher = threading.Thread(target=self._watch, args=(child,), name=f"watch {spec.name}", daemon=True)
        child.watcher.start()

    def stop(self, name: str, grace_seconds: float) -> None:
        """Send SIGTERM now and SIGKILL after the grace period; repeated calls have no effect."""
        with self._lock:
            child = self._children.get(name)
            if child is None or not child.view.running or child.view.stopping:
                return
            child.view = replace(child.view, stopping=True)
            child.kill_at = time.monotonic() + grace_seconds
            _signal(child, signal.SIGTERM)

    def kill_all(self) -> None:
        """Kill every process at once; safe in a signal handler only if `start` is not on the stack."""
        with self._lock:
            for child in self._children.values():
                if child.view.running:
                    child.view = replace(child.view, stopping=True)
                    _signal(child, signal.SIGKILL)

    def close(self) -> None:
        """Kill running processes, wait for them, and close the pipe."""
        self.kill_all()
        for child in self._children.values():
            if child.watcher is not None:
                child.watcher.join()
        for server in self._servers.values():
            server.close()
        os.close(self._wake_write)
        os.close(self._wake_read)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _watch(self, child: _Child) -> None:
        """Wait for one child in its own thread."""
        if not child.view.pid:
            pid = child.process.pid()
            with self._lock:
                _identify(child, pid)
                self._write_record()
        code = child.process.wait()
        with self._lock:
            # Still a zombie, so its group id cannot be reused. Kill everything that it started.
            if code is not None and child.view.pid:
                _signal(child, signal.SIGKILL)
            child.process.release()
            child.kill_at = None
            child.view = replace(
                child.view,
                ended=self._clock(),
                exit_code=-signal.SIGKILL if code is None else code,
                last_lines=read_last_lines(child.log, self._tail_lines),
            )
            self._write_record()
        self.wake()

    def _escalate(self) -> None:
        now = time.monotonic()
        with self._lock:
            for child in self._children.values():
                if child.kill_at is not None and child.view.running and child.kill_at <= now:
                    child.kill_at = None
                    _signal(child, signal.SIGKILL)

    def _server(self, spec: ProcessSpec) -> ForkServer:
        """Return the server that forks processes with as many threads as this one."""
        if spec.threads not in self._servers:
            self._servers[spec.threads] = ForkServer(
                _RUNTIME_FUNCTION,
                modules=_COMPUTING_MODULES,
                environment={**self._environment, **process_variables(spec)},
                folder=self._work,
                log=self._logs / f"imports-{spec.threads}.log",
            )
        return self._servers[spec.threads]

    def _write_record(self) -> None:
        """Record the running pids for a later controller's `end_leftovers`; the lock is held."""
        running = [
            {"name": child.view.name, "pid": child.view.pid, "identity": child.identity}
            for child in self._children.values()
            if child.view.running and child.view.pid
        ]
        # Only needed if the kernel did not kill them with us (guard.py), so a full disk must not fail the run.
        with contextlib.suppress(OSError):
            write_json(self._record, {"processes": running})

    def _rotate(self, name: str) -> Path:
        """Rename the previous attempt's log: NAME.1.log is the oldest."""
        log = self._logs / f"{name}.log"
        if log.exists():
            number = 1
            while (aside := self._logs / f"{name}.{number}.log").exists():
                number += 1
            log.rename(aside)
        return log


def _identify(child: _Child, pid: int) -> None:
    child.view, child.identity = replace(child.view, pid=pid), start_identity(pid)


def _signal(child: _Child, number: int) -> None:
    """Send a signal to a child that was not released, and to its group; the substrate's lock is held."""
    if not child.view.pid:
        assert isinstance(child.process, Forked)
        assert child.server is not None
        child.process.kill()  # it has done nothing that it could end in order
        if number == signal.SIGKILL:  # the server's import may hang
            child.server.kill()
        return
    for send in (os.killpg, os.kill):  # it may not lead its group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(child.view.pid, number)
            return
