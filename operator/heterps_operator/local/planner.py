"""The planner as a child process.

Planning may take minutes and gigabytes, which the control loop cannot afford: it starts `heterps plan --problem` in a
separate process, polls it on every turn, and kills it after its time limit. `heterps run` starts an interpreter for
it; the operator, which plans for many jobs, forks one that has imported the planner (`planner_server`).
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heterps_operator.documents import Json, write_json
from heterps_operator.local.children import Child, Command, ForkServer, Program
from heterps_operator.local.processes import read_last_lines
from heterps_operator.state.plan import PlanOutcome
from heterps_runtime.contract import EXIT_INFEASIBLE, EXIT_OK

__all__ = ["PLANNER_COMMAND", "PlannerAnswer", "PlannerProcess", "planner_program", "planner_server"]

PLANNER_COMMAND = (sys.executable, "-P", "-m", "heterps_operator", "plan")
_FUNCTION = "heterps_operator.cli.command:run_command"
_MODULES = ("heterps_operator.cli.plan", "heterps_operator.cli.plans.jobs", "numpy.random")  # which it imports late
# Several planners run beside each other; a server that is forked must have one thread, too.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# The planner keeps its own time limit; this is slack for starting Python and writing the answer, before it counts as
# hung.
_MARGIN_SECONDS = 30.0
# As Python, numpy and the dynamic loader say that an allocation failed.
_NO_MEMORY = re.compile(r"\bMemoryError\b|Unable to allocate|[Cc]annot allocate memory|failed to map segment")


@dataclass(frozen=True)
class PlannerAnswer:
    """What a planner printed, or why it printed nothing."""

    document: Json = field(default_factory=dict)
    error: str = ""


def planner_program(command: Sequence[str] = PLANNER_COMMAND) -> Command:
    """Return the planner as a program of which each run takes a new interpreter."""
    return Command(command, _ENVIRONMENT)


def planner_server() -> ForkServer:
    """Return the planner as a program that is imported once."""
    return ForkServer(_FUNCTION, first=("plan",), modules=_MODULES, environment=_ENVIRONMENT)


class PlannerProcess:
    """Runs one planner at a time.

    Args:
        folder: folder for the problem, hand-written stages, the plan and messages.
        method: planning method.
        timeout_seconds: time limit of the search itself.
        time_limit: name of the setting that is this time limit, for messages.
        cores: cores of the machine that all processes of the job share; 0: each unit has its own core.
        memory_bytes: limit of the process's address space; None: no limit.
        program: the planner; None: `planner_program`.
        clock: returns seconds, for the time limit.
    """

    def __init__(
        self,
        folder: Path,
        method: str,
        timeout_seconds: float,
        *,
        stages: Sequence[Json] = (),
        time_limit: str = "scheduling.timeoutSeconds",
        cores: float = 0.0,
        memory_bytes: int | None = None,
        program: Program | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._method = method
        self._timeout = timeout_seconds
        self._time_limit = time_limit
        self._stages = list(stages)
        self._cores = cores
        self._memory_bytes = memory_bytes
        self._program = planner_program() if program is None else program
        self._clock = clock
        self._child: Child | None = None
        self._started = 0.0
        self._revision = 1

    @property
    def running(self) -> bool:
        """Whether a planner is running."""
        return self._child is not None

    @property
    def longest_seconds(self) -> float:
        """Seconds after its start at which a process that still runs counts as hung."""
        return self._timeout + _MARGIN_SECONDS

    def start(self, problem: Json, revision: int = 1, stages: Sequence[Json] = ()) -> None:
        """Start planning; no planner may be running.

        Args:
            problem: planning problem.
            revision: revision of the plan, returned with the outcome.
            stages: only provision these; empty: the job's hand-written stages, or else a search.
        """
        assert self._child is None
        self._revision = revision
        given = list(stages) or self._stages
        options = self._write("problem", problem)
        if given:  # a hand-written plan needs no method
            options += self._write("stages", {"stages": given})
        else:
            options += ["--method", self._method]
        if self._cores:
            options += ["--cores", f"{self._cores:g}"]
        self._launch(options)

    def start_line(self, line: Json) -> None:
        """Start planning jobs that wait (docs/cli.md, "A line of jobs"); no planner may be running."""
        assert self._child is None
        self._launch(self._write("line", line))

    def _write(self, name: str, document: Json) -> list[str]:
        """Write a file of the planner's folder; return the option that names it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"{name}.json"
        write_json(file, document)
        return [f"--{name}", str(file)]

    def _launch(self, options: Sequence[str]) -> None:
        options = [*options, "--timeout", f"{self._timeout:g}"]
        self._child = self._program.start(
            [*options, "--output", "json"], self._folder / "plan.json", self._folder / "plan.log", self._memory_bytes
        )
        self._started = self._clock()

    def poll(self) -> PlanOutcome | None:
        """Return the outcome once; None while the planner runs."""
        answer = self.take()
        if answer is None:
            return None
        if answer.error:
            return PlanOutcome(error=answer.error, revision=self._revision)
        try:
            return PlanOutcome.from_json(answer.document, self._revision)
        except ValueError as error:
            return PlanOutcome(error=f"the planner's answer cannot be used: {error}", revision=self._revision)

    def take(self) -> PlannerAnswer | None:
        """Return the answer as it was printed, once; None while the planner runs."""
        if self._child is None:
            return None
        code = self._child.wait()
        expired = self._clock() - self._started > self.longest_seconds
        if code is None and not expired:
            return None
        self.close()
        if code is None or (expired and code < 0):
            text = f"no plan within {self._timeout:g} s ({self._time_limit}); raise it, or use method optimal"
            return PlannerAnswer(error=text)
        if code in (EXIT_OK, EXIT_INFEASIBLE):
            try:
                document = json.loads((self._folder / "plan.json").read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                return PlannerAnswer(error=f"the planner's answer cannot be used: {error}")
            return PlannerAnswer(document)
        lines = read_last_lines(self._folder / "plan.log", 20)
        if self._memory_bytes is not None and any(_NO_MEMORY.search(line) for line in lines):
            text = (
                f"the planner needs more than {self._memory_bytes >> 20} MiB of memory: use fewer pools or layers, or"
            )
            text = f"{text} ask the cluster's administrator to raise --planner-memory-mib of the operator"
            return PlannerAnswer(error=text)
        if not lines:
            return PlannerAnswer(error=f"the planner ended with exit code {code} and no message")
        return PlannerAnswer(error=lines[-1].removeprefix("heterps: "))

    def close(self) -> None:
        """Kill a running planner."""
        if self._child is not None:
            self._child.kill()
            self._child = None
