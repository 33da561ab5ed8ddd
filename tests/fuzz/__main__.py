"""`python -m tests.fuzz`: fuzz the parsers that read what others send or store."""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.fuzz.bounds import find_excess, measure
from tests.fuzz.campaign import Limits, Outcome, Processes, run_target
from tests.fuzz.corpus import keep, load
from tests.fuzz.record import Count, Record, add, missing, seed_of
from tests.fuzz.target import Target, find, find_all
from tests.fuzz.version import version_of

_FOLDER = Path(__file__).parents[2] / ".cache" / "fuzz"
_SHOW_SECONDS = 30.0  # between two lines of progress, if there is no terminal
_HEAD = f"{'target':24} {'inputs':>10} {'per second':>10} {'coverage':>9} {'corpus':>7} {'MiB':>6}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        targets = [find(name) for name in options.target] if options.target else find_all()
    except LookupError as error:
        known = ", ".join(target.name for target in find_all())
        sys.stderr.write(f"{error}; there are {known}\n")
        return 2
    if options.list:
        sys.stdout.writelines(f"{target.name}\n" for target in targets)
        return 0
    if options.repeat is not None:
        return _repeat(targets, options.repeat)
    if options.keep:
        return _keep(targets)
    if importlib.util.find_spec("atheris") is None:
        sys.stderr.write("atheris is not installed; it exists for Linux on x86-64 with Python 3.11 to 3.13\n")
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells ignore for programs in the background
    record = Record(_FOLDER / "counts.json")
    if options.fresh:
        for target in targets:
            record.keep(target.name, Count(version_of(target)))
    limits = Limits(options.inputs, options.seconds, options.seed)
    return _Campaign(targets, limits, record).run(options.jobs, options.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the parsers of HeterPS.")
    parser.add_argument("--target", nargs="+", metavar="NAME", help="targets (default: all)")
    parser.add_argument("--list", action="store_true", help="print the targets")
    parser.add_argument(
        "--inputs", type=int, default=1_000_000, help="inputs for each target, earlier runs included (default: 1000000)"
    )
    parser.add_argument("--seconds", type=int, default=0, help="limit of this run for each target (default: none)")
    parser.add_argument("--jobs", type=int, default=1, help="targets at the same time (default: 1)")
    parser.add_argument("--fresh", action="store_true", help="count from 0 again")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first run (default: 1)")
    parser.add_argument("--json", type=Path, default=_FOLDER / "report.json", help="the report for programs")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="give this input to the target, and show its cost")
    parser.add_argument("--keep", action="store_true", help="choose the inputs to keep from those of earlier runs")
    return parser


@dataclass
class _Result:
    """What all runs of a target found, and the output of this one if it failed."""

    count: Count
    output: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return bool(self.output) or self.count.finding is not None


class _Campaign:
    """Gives each target the inputs that it has not had yet.

    Args:
        targets: in the order of their runs.
        limits: for each of them.
        record: of earlier runs.
    """

    def __init__(self, targets: Sequence[Target], limits: Limits, record: Record) -> None:
        self._targets = targets
        self._limits = limits
        self._record = record
        self._lock = threading.Lock()  # of the record and the output
        self._processes = Processes()
        self._results = {t.name: _Result(record.count(t.name, version_of(t))) for t in targets}
        self._shown = time.monotonic()

    def run(self, jobs: int, report: Path) -> int:
        """Run until all targets are done or the user ends it; return the exit code."""
        sys.stdout.write(f"{_HEAD}\n")
        with ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(self._run_target, target) for target in self._targets]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException as error:
                self._processes.end()
                if not isinstance(error, KeyboardInterrupt):
                    raise
        return self._report(report)

    def _run_target(self, target: Target) -> None:
        before = self._results[target.name].count
        number = missing(before, self._limits.inputs)
        output: tuple[str, ...] = ()
        if number:
            limits = Limits(number, self._limits.seconds, seed_of(self._limits.seed, before))
            outcome = run_target(target, limits, _FOLDER, self._processes, lambda outcome: self._note(before, outcome))
            if outcome.interrupted and not outcome.inputs:
                return
            output = outcome.output
            self._note(before, outcome, ended=True)
        with self._lock:
            result = self._results[target.name]
            result.output = output
            self._clear()
            sys.stdout.write(f"{_row(target.name, result)}\n")
            sys.stdout.flush()

    def _note(self, before: Count, outcome: Outcome, ended: bool = False) -> None:
        """Show and store the figures of a run."""
        with self._lock:
            result = self._results[outcome.target]
            result.count = add(before, outcome)
            due = time.monotonic() - self._shown > _SHOW_SECONDS
            if due or ended:
                self._record.keep(outcome.target, result.count)
            if sys.stderr.isatty():
                sys.stderr.write(f"\r\x1b[2K{_row(outcome.target, result)}")
            elif due and not ended:
                sys.stderr.write(f"{_row(outcome.target, result)} ...\n")
            if due:
                self._shown = time.monotonic()

    def _clear(self) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[2K")

    def _report(self, report: Path) -> int:
        failed = {name: result for name, result in self._results.items() if result.failed}
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(
            json.dumps(
                {
                    **asdict(self._limits),
                    "interrupted": self._processes.ended,
                    "targets": [
                        {
                            "target": name,
                            **asdict(result.count),
                            "inputsPerSecond": _speed(result.count),
                            "complete": result.count.inputs >= self._limits.inputs,
                            "output": result.output,
                        }
                        for name, result in self._results.items()
                    ],
                },
                indent=1,
            )
        )
        for name, result in failed.items():
            sys.stdout.write("\n".join(["", name, *result.output]) + "\n")
            if result.count.finding:
                sys.stdout.write(f"repeat: python -m tests.fuzz --target {name} --repeat {result.count.finding}\n")
        inputs = sum(result.count.inputs for result in self._results.values())
        complete = sum(result.count.inputs >= self._limits.inputs for result in self._results.values())
        sys.stdout.write(
            f"{complete} of {len(self._results)} targets complete, {inputs} inputs, {len(failed)} failed; "
        )
        sys.stdout.write(f"report: {report}\n")
        if self._processes.ended:
            sys.stdout.write("interrupted: the same command continues\n")
            return 130
        return 1 if failed else 0


def _speed(count: Count) -> int:
    return round(count.inputs / count.seconds) if count.seconds else 0


def _row(name: str, result: _Result) -> str:
    count = result.count
    figures = f"{count.inputs:10} {_speed(count):10} {count.coverage:9} {count.corpus:7} {count.memory_mib:6}"
    return f"{name:24} {figures}{'  FAILED' if result.failed else ''}"


def _repeat(targets: Sequence[Target], file: Path) -> int:
    data = file.read_bytes()
    excess = False
    for target in targets:
        cost = measure(target, data)
        problem = find_excess(target, len(data), cost)
        excess = excess or problem is not None
        words = problem or f"{cost.lines} lines and {cost.memory} bytes of memory, within the limits"
        sys.stdout.write(f"{target.name}: {len(data)} bytes of input: {words}\n")
    return 1 if excess else 0


def _keep(targets: Sequence[Target]) -> int:
    for target in targets:
        found = load(target, _FOLDER / "corpus")
        number = keep(target, [*load(target), *found])
        sys.stdout.write(f"{target.name}: {number} inputs kept of {len(found)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
