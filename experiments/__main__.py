"""Run experiments: results as CSV files, pictures, and the document docs/experiments.md.

python -m experiments                     all but bayesian-times; what is done already is not done again
python -m experiments methods --seeds 10  one of them
python -m experiments --quick --out DIR   a small part of everything, to see that it works
python -m experiments --draw              pictures and document only, from the CSV files
python -m experiments --tables            print methods by models, gap and time, from the CSV files
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.framework import ROOT, Progress, Settings, Store, run_experiment
from experiments.machine import describe_machine
from experiments.registry import EXPERIMENTS
from experiments.report import write_report
from experiments.results import Results, read_machines
from experiments.summary import aligned, gap_table, time_table
from experiments.tables import write_csv

__all__ = ["main"]

INTERRUPTED = 130
ONCE = [name for name, experiment in EXPERIMENTS.items() if experiment.once]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _parse(arguments)
    if options.list:
        for experiment in EXPERIMENTS.values():
            print(f"{experiment.name:18} {experiment.subject}")
        return 0
    names = options.names or [name for name in EXPERIMENTS if name not in ONCE]
    out: Path = options.out or (ROOT / ".cache" / "experiments" / "quick" if options.quick else ROOT / "docs")
    if options.tables:
        return _print_tables(out)
    store = Store(options.cache)
    settings = Settings(options.seeds, options.quick)
    progress = Progress(sys.stderr)
    began = time.monotonic()
    try:
        if not options.draw:
            for name in names:
                if lacks := EXPERIMENTS[name].lacking(settings):
                    print(f"{name}: not run, it needs {lacks}; its results stay as they are", file=sys.stderr)
                    if name in options.names:
                        return 1
                    continue
                rows = run_experiment(EXPERIMENTS[name], settings, store, jobs=options.jobs, progress=progress)
                write_csv(out / "results" / f"{name}.csv", rows)
                machines = read_machines(out) | {name: describe_machine(settings.seeds)}
                known = {each: machines[each] for each in EXPERIMENTS if each in machines}
                (out / "results" / "machine.json").write_text(json.dumps(known, indent=1) + "\n")
        write_report(out)
    except KeyboardInterrupt:
        print("\nstopped; finished cells are kept: the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        print(f"error: cannot write the results: {error}", file=sys.stderr)
        return 1
    print(f"{out / 'experiments.md'} written after {time.monotonic() - began:.0f} s", file=sys.stderr)
    return _print_tables(out) if "methods" in names else 0


def _print_tables(out: Path) -> int:
    """Print the two tables of methods by models."""
    results = Results(out)
    if not results.rows("methods"):
        print(f"error: no {out / 'results' / 'methods.csv'}: `python -m experiments methods` makes it", file=sys.stderr)
        return 1
    print("Cost above the certified optimum, percent: mean (worst); k/n: a plan in k of n runs")
    print(aligned(gap_table(results)))
    print("\nProcessor time to a plan: mean (worst)")
    print(aligned(time_table(results)))
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    named = f"of {', '.join(EXPERIMENTS)}; default: all but {', '.join(ONCE)}"
    parser.add_argument("names", nargs="*", metavar="NAME", help=named)
    parser.add_argument("--list", action="store_true", help="say what each experiment measures, and end")
    parser.add_argument("--quick", action="store_true", help="a small part of everything; not into docs/")
    parser.add_argument(
        "--seeds", type=_positive, default=5, help="seeds or repeats per cell (default 5; fewer where a run is long)"
    )
    parser.add_argument("--jobs", type=_positive, default=min(2, os.cpu_count() or 1), help="processes side by side")
    parser.add_argument("--out", type=Path, help="folder for results/, images/experiments/ and experiments.md")
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "experiments", help="where cells are kept")
    parser.add_argument("--draw", action="store_true", help="run nothing: pictures and document from the CSV files")
    parser.add_argument("--tables", action="store_true", help="run nothing: print the two tables, methods by models")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in EXPERIMENTS:
            near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            parser.error(f"no experiment {name!r}{hint} There are: {', '.join(EXPERIMENTS)}")
    return options


def _positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, is {text!r}")
    return value


if __name__ == "__main__":
    sys.exit(main())
