"""A campaign: each target in its own process, with progress, until its inputs or its time are used up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.corpus import CORPUS, load
from tests.fuzz.engine import MEMORY
from tests.fuzz.target import Target

__all__ = ["Limits", "Outcome", "run_target"]

_SLOWEST_SECONDS = 60  # of one input, until libFuzzer ends the process: a hang
_LONGEST_OUTPUT = 60  # lines of a finding
# "#4096	pulse  cov: 210 ft: 411 corp: 35/12Kb lim: 128 exec/s: 2048 rss: 90Mb"
_PROGRESS = re.compile(
    r"#(?P<inputs>\d+)\s+\w+\s+cov: (?P<coverage>\d+) ft: \d+ corp: (?P<corpus>\d+)/\S+.* exec/s: (?P<speed>\d+)"
)
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
        inputs: executed inputs.
        speed: inputs per second.
        coverage: reached edges of the instrumented code.
        corpus: inputs that reach all of these.
        finding: file of the input that fails; None: there is none.
        output: the last lines of the process, if it failed.
    """

    target: str
    inputs: int = 0
    speed: int = 0
    coverage: int = 0
    corpus: int = 0
    finding: str | None = None
    output: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether the run ended with a finding or an error."""
        return bool(self.output)


def run_target(target: Target, limits: Limits, folder: Path, progress: Callable[[Outcome], None]) -> Outcome:
    """Fuzz a target, and return what was found.

    Args:
        target: the parser.
        limits: when to end.
        folder: for the growing corpus and for findings.
        progress: is given the figures from time to time.
    """
    corpus, findings = folder / "corpus" / target.name, folder / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate([*target.seeds(), *load(target)]):
        (corpus / f"seed-{number}").write_bytes(seed)
    command = [
        *(sys.executable, "-m", "tests.fuzz.engine", target.name),
        *(f"-runs={limits.inputs}", f"-seed={limits.seed}", f"-max_len={target.longest}"),
        *(f"-timeout={_SLOWEST_SECONDS}", f"-rss_limit_mb={2048 + MEMORY // 2**20}"),
        *(f"-artifact_prefix={findings / target.name}-", str(corpus)),
    ]
    if limits.seconds:
        command.append(f"-max_total_time={limits.seconds}")
    outcome = Outcome(target.name)
    lines: list[str] = []
    process = subprocess.Popen(
        command,
        cwd=CORPUS.parents[2],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # a traceback goes to one of them, figures to the other
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C ends the campaign, which then ends this process
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines = [*lines[-_LONGEST_OUTPUT:], line.rstrip()]
            if (found := _PROGRESS.search(line)) is not None:
                outcome.inputs, outcome.speed = int(found["inputs"]), int(found["speed"])
                outcome.coverage, outcome.corpus = int(found["coverage"]), int(found["corpus"])
                progress(outcome)
            elif (written := _FINDING.search(line)) is not None:
                outcome.finding = written[1]
        if process.wait() != 0:
            outcome.output = tuple(lines) or (f"exit code {process.returncode}",)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
    return outcome
