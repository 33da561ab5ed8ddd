"""A campaign: each target in its own process, with progress, until its inputs or its time are used up."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.corpus import CORPUS, load
from tests.fuzz.engine import MEMORY, PROGRESS
from tests.fuzz.target import Target

__all__ = ["Limits", "Outcome", "Processes", "follow", "run_target"]

_SLOWEST_SECONDS = 60  # of one input, until libFuzzer ends the process: a hang
_LONGEST_OUTPUT = 60  # lines of a finding
_INTERRUPTED = 72  # exit code of libFuzzer after SIGTERM
_GRACE_SECONDS = 10.0  # for its last figures
# "#4096	pulse  cov: 210 ft: 411 corp: 35/12Kb lim: 128 exec/s: 2048 rss: 90Mb"
_FIGURES = re.compile(r"#(?P<executed>\d+)\s+(?P<kind>\w+)\s+cov: (?P<coverage>\d+) ft: \d+ corp: (?P<corpus>\d+)/")
_EXECUTED = re.compile(rf"{PROGRESS}: (\d+)")
_FINAL = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
_LAST = "stat::peak_rss_mb:"  # after which libFuzzer prints nothing
_FINDING = re.compile(r"Test unit written to (\S+)")


@dataclass(frozen=True)
class Limits:
    """When a target's run ends.

    Attributes:
        inputs: number of inputs.
        seconds: of the run; 0: no limit.
        seed: of libFuzzer.
    """

    inputs: int
    seconds: int
    seed: int


@dataclass
class Outcome:
    """What a run of one target found.

    Attributes:
        target: its name.
        inputs: executed inputs, without the corpus of earlier runs, which is executed first.
        seconds: since the process was started.
        coverage: reached edges of the instrumented code.
        corpus: inputs that reach all of these.
        memory_mib: largest memory of the process, in MiB.
        finding: file of the input that fails; None: there is none.
        output: the last lines of the process, if it failed.
        interrupted: whether it was ended before its limits.
    """

    target: str
    inputs: int = 0
    seconds: float = 0.0
    coverage: int = 0
    corpus: int = 0
    memory_mib: int = 0
    finding: str | None = None
    output: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def failed(self) -> bool:
        """Whether the run ended with a finding or an error."""
        return bool(self.output)


class Processes:
    """The processes of a campaign, which can be ended at any time, from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self.ended = False

    def start(self, command: list[str], temporary: Path) -> subprocess.Popen[str] | None:
        """Start a process whose output is read line by line, with a folder for temporary files; None after `end`."""
        with self._lock:
            if self.ended:
                return None
            process = subprocess.Popen(
                command,
                cwd=CORPUS.parents[2],
                env={**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,  # a traceback goes to one of them, figures to the other
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C ends the campaign, which then ends this process
            )
            self._running.add(process)
            return process

    def forget(self, process: subprocess.Popen[str]) -> None:
        """Note that a process has ended."""
        with self._lock:
            self._running.discard(process)

    def end(self) -> None:
        """End all processes: they print their last figures, and are killed if that takes too long."""
        with self._lock:
            self.ended = True
            running = list(self._running)
        for process in running:
            process.terminate()
            timer = threading.Timer(_GRACE_SECONDS, process.kill)
            timer.daemon = True
            timer.start()


def run_target(
    target: Target, limits: Limits, folder: Path, processes: Processes, progress: Callable[[Outcome], None]
) -> Outcome:
    """Fuzz a target, and return what was found.

    Args:
        target: the parser.
        limits: when to end.
        folder: for the growing corpus and for findings.
        processes: start the process, and may end it.
        progress: is given the figures from time to time.
    """
    corpus, findings = folder / "corpus" / target.name, folder / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate([*target.seeds(), *load(target)]):
        (corpus / f"seed-{number}").write_bytes(seed)
    known = sum(1 for _ in corpus.iterdir())  # executed first, after an empty one
    command = [
        *(sys.executable, "-m", "tests.fuzz.engine", target.name),
        *(f"-runs={known + 1 + limits.inputs}", f"-seed={limits.seed}", f"-max_len={target.longest}"),
        *(f"-timeout={_SLOWEST_SECONDS}", f"-rss_limit_mb={2048 + MEMORY // 2**20}", "-print_final_stats=1"),
        *(f"-artifact_prefix={findings / target.name}-", str(corpus)),
    ]
    if limits.seconds:
        command.append(f"-max_total_time={limits.seconds}")
    outcome = Outcome(target.name)
    temporary = Path(tempfile.mkdtemp(prefix="heterps-fuzz-"))  # libFuzzer ends a process without any cleaning
    process = processes.start(command, temporary)
    if process is None:
        temporary.rmdir()
        outcome.interrupted = True
        return outcome
    assert process.stdout is not None

    def note(outcome: Outcome) -> None:
        outcome.memory_mib = max(outcome.memory_mib, _peak_mib(process.pid))
        progress(outcome)

    try:
        output = follow(process.stdout, outcome, note)
        code = _exit_code(process)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        processes.forget(process)
        shutil.rmtree(temporary, ignore_errors=True)
    if processes.ended and outcome.finding is None and code in (0, _INTERRUPTED, -9, -15):
        outcome.interrupted = True
    elif code != 0:
        outcome.output = output or (f"exit code {code}",)
    return outcome


def _exit_code(process: subprocess.Popen[str]) -> int:
    """Return the exit code of a process that has printed all its output.

    libFuzzer exits with Python's lock held. A thread of a parser's library that waits for the lock, such as pyarrow's
    for files, then keeps the process from ending.
    """
    try:
        return process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return 0


def follow(lines: Iterable[str], outcome: Outcome, progress: Callable[[Outcome], None]) -> tuple[str, ...]:
    """Read the figures of a process into an outcome, until the last of them; return the last lines of its output.

    Args:
        lines: its output. The process may not end by itself (`_exit_code`).
        outcome: is changed.
        progress: is given the outcome after each change.
    """
    last: list[str] = []
    corpus = 0  # executed before the first mutation
    began = time.monotonic()
    for line in lines:
        if (executed := _EXECUTED.search(line)) is None:
            last = [*last[-_LONGEST_OUTPUT:], line.rstrip()]
        else:
            outcome.inputs = max(outcome.inputs, int(executed[1]) - corpus) if corpus else 0
        if (figures := _FIGURES.search(line)) is not None:
            corpus = int(figures["executed"]) if figures["kind"] == "INITED" else corpus
            outcome.inputs = max(outcome.inputs, int(figures["executed"]) - corpus) if corpus else 0
            outcome.coverage, outcome.corpus = int(figures["coverage"]), int(figures["corpus"])
        elif (final := _FINAL.search(line)) is not None:
            outcome.inputs = max(outcome.inputs, int(final[1]) - corpus) if corpus else 0
        elif (written := _FINDING.search(line)) is not None:
            outcome.finding = written[1]
        elif line.startswith(_LAST):
            break
        elif executed is None:
            continue
        outcome.seconds = time.monotonic() - began
        progress(outcome)
    outcome.seconds = time.monotonic() - began
    return tuple(last)


def _peak_mib(pid: int) -> int:
    """Return the largest memory of a process in MiB; libFuzzer's own figure includes that of the process's parent."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    return 0 if peak is None else int(peak[1]) // 1024
