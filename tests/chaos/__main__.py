"""`python -m tests.chaos`: jobs under faults that are drawn from a seed."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.campaign import carry_out
from tests.chaos.judgement import Judge
from tests.chaos.kinds import KINDS
from tests.chaos.namespaces import obstacles, run_isolated
from tests.chaos.schedule import CONSISTENCIES, draw


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").partition(": ")[2])
    options.add_argument("--seed", type=int, help="of the first run; the next ones have the numbers after it")
    options.add_argument("--runs", type=int, default=1, help="default: %(default)s")
    options.add_argument("--faults", type=int, default=5, help="per run (default: %(default)s)")
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="default: all")
    options.add_argument("--consistency", nargs="+", choices=CONSISTENCIES, default=list(CONSISTENCIES))
    options.add_argument("--longest", type=float, default=60.0, help="seconds of a fault (default: %(default)s)")
    options.add_argument("--list", action="store_true", help="print the schedules only")
    return options


def isolated(folder: Path, arguments: Sequence[str]) -> int:
    """Carry out the campaign, in its namespaces."""
    options = parser().parse_args(arguments)
    judge, failed = Judge(folder), 0
    for seed in range(options.seed, options.seed + options.runs):
        run = draw(seed, options.faults, options.kinds, options.consistency, options.longest)
        say(f"seed {seed}: {run.consistency}, {run.model}, {run.topology}, {run.steps} steps")
        outcome = carry_out(run, folder / str(seed), judge, say)
        for incident in outcome.incidents:
            say(f"  recovered in {incident.recovery.seconds:5.1f} s: {incident.fault} [{incident.at}]")
        say(f"  {outcome.seconds:.0f} s; {'; '.join(outcome.problems) or 'all is well'}")
        if outcome.problems:
            say(outcome.logs)
            failed += 1
    return 1 if failed else 0


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    if options.seed is None:
        seed = random.SystemRandom().randrange(10**6)
        return main([*arguments, f"--seed={seed}"])
    if options.list:
        for seed in range(options.seed, options.seed + options.runs):
            run = draw(seed, options.faults, options.kinds, options.consistency, options.longest)
            say(f"seed {seed}: {run.consistency}, {run.model}, {run.topology}, {run.steps} steps")
            for fault in run.faults:
                say(f"  {fault}")
        return 0
    if reasons := obstacles():
        say("\n".join(["No campaign can run on this machine:", *reasons]))
        return 2
    return run_isolated("tests.chaos.__main__", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
