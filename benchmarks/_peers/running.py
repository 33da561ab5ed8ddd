"""One run of an entrant: its processes, what they print, and what follows from it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from benchmarks._peers.entrants import Entrant
from benchmarks._peers.programs.protocol import Task

from heterps_runtime.cores import processor_seconds
from heterps_runtime.data.evaluation import BinaryMetrics

__all__ = ["EntrantFailedError", "Outcome", "run_entrant"]

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAMS = "benchmarks._peers.programs"
_PATIENCE_SECONDS = 240.0
_TICKS = os.sysconf("SC_CLK_TCK")  # of the kernel's clocks, per second

Outcome = dict[str, Any]


class EntrantFailedError(Exception):
    """A process failed or hangs; the message is for people."""


class _Event(NamedTuple):
    """An object that a process has printed, or its end."""

    process: int  # position
    facts: Mapping[str, Any] | None
    code: int = 0  # of the exit, without facts


def run_entrant(
    entrant: Entrant,
    settings: Mapping[str, Any],
    folder: Path,
    patience: float = _PATIENCE_SECONDS,
    programs: str = _PROGRAMS,
) -> Outcome:
    """Train once, with all processes in process groups of their own, which have ended when this returns or raises.

    Args:
        entrant: to run.
        settings: of the programs; the entrant's own ones come before them.
        folder: empty, for the processes' files.
        patience: seconds without an event after which a process counts as hanging.
        programs: package of the entrant's program.

    Returns:
        `samplesPerSecond`, `samplesPerCpuSecond`, `others` (the share of this machine's cores that other programs used)
        and, if it learns, `logLoss` and `auc`.

    Raises:
        EntrantFailedError: a process failed, hangs, or did not print what it should.
    """
    names = [(role, role.first_index + i) for role in entrant.roles for i in range(role.count)]
    all_settings = {**settings, **entrant.settings, "folder": str(folder), "cluster": _addresses(entrant)}
    (folder / "settings.json").write_text(json.dumps(all_settings))
    events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
    ended: dict[int, float] = {}  # session -> processor seconds
    measured = _Measured(ended)
    with ExitStack() as stack:
        started = []
        for position, (role, index) in enumerate(names):
            command = [_python(entrant), "-m", f"{programs}.{entrant.program}"]
            command += [str(folder / "settings.json"), role.name, str(index)]
            log = folder / f"{role.name}-{index}.log"
            started.append(
                stack.enter_context(_process(command, _variables(entrant, all_settings), log, position, events, ended))
            )
        measured.sessions = started
        awaited = {position for position, (role, _) in enumerate(names) if role.ends}
        while awaited:
            try:
                event = events.get(timeout=patience)
            except queue.Empty:
                raise EntrantFailedError(f"no sign of life for {patience:g} s") from None
            role, index = names[event.process]
            if event.facts is not None:
                measured.take(event.facts)
            elif event.code or not role.ends:
                text = _last_words(folder / f"{role.name}-{index}.log")
                raise EntrantFailedError(f"{role.name} {index} ended with exit code {event.code}: {text}")
            else:
                awaited.discard(event.process)
    return measured.outcome(entrant, Task(all_settings))


class _Measured:
    """What the processes have told, and processor times at those moments.

    Args:
        ended: processor seconds of sessions that have ended, which the kernel forgets.
    """

    def __init__(self, ended: Mapping[int, float]) -> None:
        self._ended = ended
        self.sessions: list[int] = []
        self._begins: list[float] = []
        self._ends: list[float] = []
        self._samples = 0
        self._at_begin = self._at_end = (0.0, 0.0)  # processor seconds of the entrant, and of all that runs here
        self._quality: Mapping[str, Any] = {}

    def take(self, facts: Mapping[str, Any]) -> None:
        """Take an event."""
        if facts["event"] == "begin":
            if not self._begins:
                self._at_begin = self._look()
            self._begins.append(facts["time"])
        elif facts["event"] == "end":
            self._ends.append(facts["time"])
            self._samples += facts["samples"]
            self._at_end = self._look()
        elif facts["event"] == "quality":
            self._quality = facts

    def _look(self) -> tuple[float, float]:
        running = _processor_seconds(self.sessions)  # before those that end meanwhile
        return sum({**running, **self._ended}.values()), _busy_seconds()

    def outcome(self, entrant: Entrant, task: Task) -> Outcome:
        """Sum up."""
        if not self._ends or len(self._ends) != len(self._begins):
            raise EntrantFailedError("it did not print when its steps began and ended")
        seconds = max(self._ends) - min(self._begins)
        own, busy = (after - before for before, after in zip(self._at_begin, self._at_end, strict=True))
        others = max(0.0, busy - own)
        outcome: Outcome = {
            "samplesPerSecond": self._samples / seconds,
            "samplesPerCpuSecond": self._samples / max(own, 1 / _TICKS),  # the kernel counts whole ticks
            "others": others / seconds / (os.cpu_count() or 1),
        }
        if not entrant.learns:
            return outcome
        if "logits" in self._quality:
            metrics = BinaryMetrics()
            metrics.update(np.load(self._quality["logits"]), task.held_out().labels, 0.0)
            return outcome | {"logLoss": metrics.log_loss, "auc": metrics.auc}
        if not self._quality:
            raise EntrantFailedError("it did not print its quality")
        return outcome | {name: self._quality[name] for name in ("logLoss", "auc")}


@contextmanager
def _process(
    command: list[str],
    variables: Mapping[str, str],
    log: Path,
    position: int,
    events: queue.SimpleQueue[_Event],
    ended: dict[int, float],
) -> Iterator[int]:
    """Run a process; yield its pid, which is also its session and its process group. All end with the context."""
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    reader = threading.Thread(target=_read, args=(process.stdout, position, events))
    watcher = threading.Thread(target=_watch, args=(process, reader, position, events, ended))
    reader.start()
    watcher.start()
    try:
        yield process.pid
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # the watcher was faster
                os.killpg(process.pid, signal.SIGKILL)
        watcher.join()


def _read(lines: IO[str], position: int, events: queue.SimpleQueue[_Event]) -> None:
    """Pass on events; other lines, such as warnings of libraries, go to stderr."""
    with lines:
        for line in lines:
            facts = None
            with contextlib.suppress(ValueError):
                facts = json.loads(line)
            if isinstance(facts, dict) and "event" in facts:
                events.put(_Event(position, facts))
            else:
                sys.stderr.write(line)


def _watch(
    process: subprocess.Popen[str],
    reader: threading.Thread,
    position: int,
    events: queue.SimpleQueue[_Event],
    ended: dict[int, float],
) -> None:
    """Tell of a process's end, after all that it has printed."""
    # As long as it is not waited for, no other process can get its group's number.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    ended.update(_processor_seconds([process.pid]))
    os.killpg(process.pid, signal.SIGKILL)  # its children would keep its output open
    code = process.wait()
    reader.join()
    events.put(_Event(position, None, code))


def _python(entrant: Entrant) -> str:
    return str(entrant.environment.install()) if entrant.environment else sys.executable


def _variables(entrant: Entrant, settings: Mapping[str, Any]) -> dict[str, str]:
    paths = [str(_ROOT)]
    if entrant.environment is None:
        paths += filter(None, [os.environ.get("PYTHONPATH")])
    own = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(settings["threads"])}
    return {**own, **entrant.variables}


def _addresses(entrant: Entrant) -> dict[str, list[str]]:
    """Return a free address for each process, by role."""
    with ExitStack() as stack:
        sockets = [
            (role.name, stack.enter_context(socket.create_server(("127.0.0.1", 0))))
            for role in entrant.roles
            for _ in range(role.count)
        ]
        found: dict[str, list[str]] = {role.name: [] for role in entrant.roles}
        for name, opened in sockets:
            found[name].append(f"127.0.0.1:{opened.getsockname()[1]}")
    return found


def _processor_seconds(sessions: list[int]) -> dict[int, float]:
    """Return the processor time of all processes of each of some sessions."""
    found = dict.fromkeys(sessions, 0.0)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            session = int(stat.read_text().rpartition(")")[2].split()[3])
            if session in found:
                found[session] += processor_seconds(int(stat.parent.name))
    return found


def _busy_seconds() -> float:
    """Return the processor time of all that runs on this machine."""
    user, nice, system, _, _, irq, soft_irq, *_ = Path("/proc/stat").read_text().split()[1:]
    return sum(map(int, (user, nice, system, irq, soft_irq))) / _TICKS


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-400:]
