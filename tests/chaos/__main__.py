"""`python -m tests.chaos`: jobs under faults that are drawn from a seed. docs/testing.md explains it."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.campaign import Outcome, carry_out
from tests.chaos.cluster.schedule import draw as draw_on_cluster
from tests.chaos.faults.changes import draw_changing
from tests.chaos.faults.clock import can_step
from tests.chaos.faults.kinds import KINDS, ON_CLUSTER, ON_MACHINE, STEPS
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
    options.add_argument("--on", choices=("machine", "cluster"), default="machine", help="default: %(default)s")
    options.add_argument("--seed", type=int, help="of the first run; later runs have the next seeds (default: random)")
    options.add_argument("--runs", type=int, default=1, help="number of jobs (default: %(default)s)")
    options.add_argument("--faults", type=int, default=5, help="per job (default: %(default)s)")
    options.add_argument("--kinds", nargs="+", choices=KINDS, metavar="KIND", help="default: all that exist there")
    options.add_argument("--consistency", nargs="+", choices=CONSISTENCIES, default=list(CONSISTENCIES))
    options.add_argument("--replication", action="store_true", help="jobs with two copies of each row, only")
    options.add_argument(
        "--changes", type=int, default=0, help="of the plan per job, besides its faults (default: %(default)s)"
    )
    options.add_argument("--longest", type=float, default=60.0, help="limit of a fault, seconds (default: %(default)s)")
    options.add_argument("--json", type=Path, default=FOLDER / "report.json", help="report (default: %(default)s)")
    options.add_argument("--plot", type=Path, help="picture of the recovery times")
    options.add_argument("--list", action="store_true", help="only print what would happen")
    options.add_argument("--show", type=Path, nargs="+", metavar="FILE", help="only print earlier reports, as one")
    return options


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments, with the kinds of faults of the place by default."""
    reader = parser()
    options = reader.parse_args(arguments)
    possible = kinds_on(options.on)
    options.kinds = options.kinds or list(possible)
    for kind in options.kinds:
        if kind in STEPS and not can_step():
            reader.error(f"--kinds {kind}: needs a C compiler (apt-get install gcc)")
    if not 0 <= options.changes <= options.faults:
        reader.error(f"--changes {options.changes}: must be at most --faults, {options.faults}, as each precedes one")
    if options.on == "cluster" and (options.changes or options.replication):
        reader.error("--changes, --replication: not on a cluster")
    if wrong := sorted(set(options.kinds) - set(possible)):
        reader.error(f"--kinds {' '.join(wrong)}: not on a {options.on}; there are: {', '.join(possible)}")
    return options


def kinds_on(place: str) -> Sequence[str]:
    """Return the kinds of faults that exist on a `machine` or a `cluster`."""
    return [kind for kind in (ON_CLUSTER if place == "cluster" else ON_MACHINE) if kind not in STEPS or can_step()]


def schedule(options: argparse.Namespace, seed: int) -> Run:
    drawn_from = (options.kinds, options.consistency, options.longest)
    if options.on == "cluster":
        run = draw_on_cluster(seed, options.faults, *drawn_from)
    elif options.changes:
        run = draw_changing(seed, options.faults, options.changes, *drawn_from, replicated=options.replication)
    else:
        run = draw(seed, options.faults, *drawn_from, replicated=options.replication)
    say(f"seed {seed}: {run.consistency}, model {run.model}, {run.topology}, {run.steps} steps")
    return run


def replay_command(options: argparse.Namespace, seed: int) -> str:
    on = " --on cluster" if options.on == "cluster" else ""
    words = [f"python -m tests.chaos{on} --seed {seed}", f"--faults {options.faults}"]
    if options.kinds != list(kinds_on(options.on)):
        words.append(f"--kinds {' '.join(options.kinds)}")
    if options.consistency != list(CONSISTENCIES):
        words.append(f"--consistency {' '.join(options.consistency)}")
    if options.replication:
        words.append("--replication")
    if options.changes:
        words.append(f"--changes {options.changes}")
    return " ".join([*words, f"--longest {options.longest:g}"])


def run_all(options: argparse.Namespace, carry: Callable[[Run], Outcome]) -> int:
    """Carry out the runs, write the reports, and return the exit code."""
    runs: list[dict[str, Any]] = []
    for seed in range(options.seed, options.seed + options.runs):
        outcome = carry(schedule(options, seed))
        runs.append(report.describe(outcome, replay_command(options, seed)))
        say(f"  {outcome.seconds:6.1f} s  {'; '.join(outcome.problems) or 'succeeded with the right model'}")
        if outcome.problems:
            logs = FOLDER / f"{seed}.log"
            logs.parent.mkdir(parents=True, exist_ok=True)
            logs.write_text(outcome.logs)
            say(f"          output and logs: {logs}")
        report.write(options.json, runs)
    say("")
    return show(runs, options.plot)


def show(runs: Sequence[dict[str, Any]], plot: Path | None) -> int:
    """Print and draw the report of runs, and return the exit code."""
    say("\n".join(report.table(runs)))
    if plot:
        report.plot(plot, runs)
    return 1 if any(run["problems"] for run in runs) else 0


def isolated(folder: Path, arguments: Sequence[str]) -> int:
    """Carry out the campaign on one machine; called in its namespaces."""
    judge = Judge(folder)

    def carry(run: Run) -> Outcome:
        outcome = carry_out(run, folder / str(run.seed), judge, say)
        shutil.rmtree(folder / str(run.seed), ignore_errors=True)
        return outcome

    return run_all(options_of(arguments), carry)


def on_cluster(options: argparse.Namespace) -> int:
    """Carry out the campaign on a cluster that is started for it."""
    from tests.chaos.cluster.campaign import started  # loads the operator and its client of the API server
    from tests.cluster.requirements import reasons_against

    if reasons := reasons_against():
        say("\n".join(["No cluster can run on this machine:", *reasons]))
        return 2
    with tempfile.TemporaryDirectory(prefix="heterps-chaos-") as folder:
        Path(folder).chmod(0o755)  # pods mount folders in it
        with started(Path(folder), say) as campaign:
            return run_all(options, campaign.carry_out)


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    if options.show:
        return show(report.read(options.show), options.plot)
    if options.seed is None:
        return main([*arguments, f"--seed={random.SystemRandom().randrange(_SEEDS)}"])
    if options.list:
        for seed in range(options.seed, options.seed + options.runs):
            say("\n".join(f"  {fault}" for fault in schedule(options, seed).faults))
        return 0
    if options.on == "cluster":
        return on_cluster(options)
    if reasons := obstacles():
        say("\n".join(["No campaign can run on this machine:", *reasons]))
        return 2
    return run_isolated("tests.chaos.__main__", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
