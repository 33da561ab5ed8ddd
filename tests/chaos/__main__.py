"""`python -m tests.chaos`: jobs under faults that are drawn from a seed. docs/testing.md explains it."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.campaign import Outcome, carry_out
from tests.chaos.faults.kinds import KINDS
from tests.chaos.faults.schedule import CONSISTENCIES, Run, draw
from tests.chaos.namespaces import obstacles, run_isolated
from tests.chaos.results import report
from tests.chaos.results.judgement import Judge

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".cache" / "chaos"
_SEEDS = 10**6  # to choose from


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").partition(": ")[2])
    options.add_argument("--seed", type=int, help="of the first run; later runs have the next seeds (default: random)")
    options.add_argument("--runs", type=int, default=1, help="number of jobs (default: %(default)s)")
    options.add_argument("--faults", type=int, default=5, help="per job (default: %(default)s)")
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help="default: all")
    options.add_argument("--consistency", nargs="+", choices=CONSISTENCIES, default=list(CONSISTENCIES))
    options.add_argument("--longest", type=float, default=60.0, help="limit of a fault, seconds (default: %(default)s)")
    options.add_argument("--json", type=Path, default=FOLDER / "report.json", help="report (default: %(default)s)")
    options.add_argument("--plot", type=Path, help="picture of the recovery times")
    options.add_argument("--list", action="store_true", help="only print what would happen")
    return options


def schedule(options: argparse.Namespace, seed: int) -> Run:
    run = draw(seed, options.faults, options.kinds, options.consistency, options.longest)
    say(f"seed {seed}: {run.consistency}, model {run.model}, {run.topology}, {run.steps} steps")
    return run


def replay_command(options: argparse.Namespace) -> str:
    words = ["python -m tests.chaos --seed SEED", f"--faults {options.faults}"]
    if options.kinds != list(KINDS):
        words.append(f"--kinds {' '.join(options.kinds)}")
    if options.consistency != list(CONSISTENCIES):
        words.append(f"--consistency {' '.join(options.consistency)}")
    return " ".join([*words, f"--longest {options.longest:g}"])


def isolated(folder: Path, arguments: Sequence[str]) -> int:
    """Carry out the campaign; called in its namespaces."""
    options = parser().parse_args(arguments)
    judge = Judge(folder)
    outcomes: list[Outcome] = []
    for seed in range(options.seed, options.seed + options.runs):
        run = schedule(options, seed)
        outcome = carry_out(run, folder / str(seed), judge, say)
        outcomes.append(outcome)
        say(f"  {outcome.seconds:6.1f} s  {'; '.join(outcome.problems) or 'succeeded with the right model'}")
        if outcome.problems:
            logs = FOLDER / f"{seed}.log"
            logs.parent.mkdir(parents=True, exist_ok=True)
            logs.write_text(outcome.logs)
            say(f"          output and logs: {logs}")
        shutil.rmtree(folder / str(seed), ignore_errors=True)
        report.write_json(options.json, outcomes)
    say("\n".join(["", *report.table(outcomes, replay_command(options))]))
    if options.plot:
        report.plot(options.plot, outcomes)
    return 1 if any(outcome.problems for outcome in outcomes) else 0


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    if options.seed is None:
        return main([*arguments, f"--seed={random.SystemRandom().randrange(_SEEDS)}"])
    if options.list:
        for seed in range(options.seed, options.seed + options.runs):
            say("\n".join(f"  {fault}" for fault in schedule(options, seed).faults))
        return 0
    if reasons := obstacles():
        say("\n".join(["No campaign can run on this machine:", *reasons]))
        return 2
    return run_isolated("tests.chaos.__main__", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
