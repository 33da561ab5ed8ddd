"""`python -m tests.fuzz`: fuzz the parsers that read what others send or store."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.fuzz.bounds import find_excess, measure
from tests.fuzz.campaign import Limits, Outcome, run_target
from tests.fuzz.corpus import keep, load
from tests.fuzz.target import Target, find, find_all

_FOLDER = Path(__file__).parents[2] / ".cache" / "fuzz"
_HEAD = f"{'target':24} {'inputs':>10} {'per second':>10} {'coverage':>9} {'corpus':>7}"


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
    return _run(targets, Limits(options.inputs, options.seconds, options.seed), options.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the parsers of HeterPS.")
    parser.add_argument("--target", nargs="+", metavar="NAME", help="targets (default: all)")
    parser.add_argument("--list", action="store_true", help="print the targets")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="inputs for each target (default: 1000000)")
    parser.add_argument("--seconds", type=int, default=0, help="limit for each target (default: none)")
    parser.add_argument("--seed", type=int, default=1, help="seed (default: 1)")
    parser.add_argument("--json", type=Path, default=_FOLDER / "report.json", help="the report for programs")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="give this input to the target, and show its cost")
    parser.add_argument("--keep", action="store_true", help="choose the inputs to keep from those of earlier runs")
    return parser


def _run(targets: Sequence[Target], limits: Limits, report: Path) -> int:
    outcomes: list[Outcome] = []
    terminal = sys.stderr.isatty()

    def show(outcome: Outcome) -> None:
        if terminal:
            sys.stderr.write(f"\r\x1b[2K{_row(outcome)}")

    interrupted = False
    sys.stdout.write(f"{_HEAD}\n")
    try:
        for target in targets:
            outcomes.append(run_target(target, limits, _FOLDER, show))
            if terminal:
                sys.stderr.write("\r\x1b[2K")
            sys.stdout.write(f"{_row(outcomes[-1])}\n")
            sys.stdout.flush()
    except KeyboardInterrupt:
        interrupted = True
        sys.stderr.write("\ninterrupted\n")
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps({**asdict(limits), "targets": [asdict(outcome) for outcome in outcomes]}, indent=1))
    failed = [outcome for outcome in outcomes if outcome.failed]
    for outcome in failed:
        sys.stdout.write("\n".join(["", outcome.target, *outcome.output]) + "\n")
        if outcome.finding:
            sys.stdout.write(f"repeat: python -m tests.fuzz --target {outcome.target} --repeat {outcome.finding}\n")
    inputs = sum(outcome.inputs for outcome in outcomes)
    sys.stdout.write(f"{len(outcomes)} targets, {inputs} inputs, {len(failed)} failed; report: {report}\n")
    return 130 if interrupted else 1 if failed else 0


def _row(outcome: Outcome) -> str:
    figures = f"{outcome.inputs:10} {outcome.speed:10} {outcome.coverage:9} {outcome.corpus:7}"
    return f"{outcome.target:24} {figures}{'  FAILED' if outcome.failed else ''}"


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
        number = keep(target, [*target.seeds(), *load(target), *found])
        sys.stdout.write(f"{target.name}: {number} inputs kept of {len(found)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
