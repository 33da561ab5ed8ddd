"""`python -m tests.soak`: one long job under a fault every few seconds, whose processes must not grow.

The job counts its samples (counting.py). After the time it is stopped as by Ctrl-C, and the model of its last
checkpoint must have each sample as often as the order of samples says. docs/testing.md explains how to read the result.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from heterps_runtime.checkpoint import Storage, export_model, find_latest, take_over
from heterps_runtime.contract import EXIT_INTERRUPTED
from tests.chaos.faults.clock import can_step
from tests.chaos.faults.kinds import ON_MACHINE, STEPS
from tests.chaos.faults.peers import processes
from tests.chaos.faults.schedule import CONSISTENCIES, draw_endless
from tests.chaos.job import ChaosJob
from tests.chaos.namespaces import obstacles, run_isolated
from tests.chaos.results.judgement import left_behind, wrong_model
from tests.chaos.results.report import plot_usage
from tests.chaos.results.usage import Growth, Sample, growths, sample
from tests.chaos.scene import Scene

_SAMPLE_SECONDS = 5.0
_LEAST_SAMPLES = 24  # of a process that is judged: two minutes of life
_STOP_SECONDS = 180.0
_ENDLESS = 16 * 10**6  # steps, whole epochs
# Faults after which a job goes on within seconds: it has to work most of the time, or there is nothing that could grow.
_USUAL = tuple(
    kind
    for kind in ("stop", "delay", "slow", "partition", "disk-full", "disk-error", "disk-torn", "disk-slow", "clock")
    if kind not in STEPS or can_step()
)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").partition(": ")[2])
    options.add_argument("--minutes", type=float, default=60.0, help="default: %(default)s")
    options.add_argument("--seed", type=int, help="of the faults (default: random)")
    options.add_argument("--every", type=float, default=10.0, help="seconds between faults (default: %(default)s)")
    options.add_argument(
        "--kinds", nargs="+", choices=ON_MACHINE, default=_USUAL, metavar="KIND", help="default: %(default)s"
    )
    options.add_argument("--consistency", choices=CONSISTENCIES, default="hybrid", help="default: %(default)s")
    options.add_argument("--longest", type=float, default=3.0, help="limit of a fault, seconds (default: %(default)s)")
    options.add_argument("--plot", type=Path, help="picture of memory, threads, files and sockets")
    return options


def isolated(folder: Path, arguments: Sequence[str]) -> int:
    """Carry out the soak; called in its namespaces."""
    options = parser().parse_args(arguments)
    faults = int(options.minutes * 60 / options.every)
    run = draw_endless(options.seed, faults, options.kinds, options.consistency, _ENDLESS, options.longest)
    say(f"seed {run.seed}: {run.consistency}, {run.topology}, for {options.minutes:g} minutes")
    scene = Scene(run, folder / "soak", say, pause_seconds=options.every)
    samples: list[Sample] = []
    code = watch(scene, 60 * options.minutes, samples.extend)
    scene.job.stop()
    deadline = scene.seconds + _STOP_SECONDS
    while code is None and scene.seconds < deadline:
        code = scene.turn()
    scene.end()
    problems = problems_of(scene.job, folder, code)
    grown = growths(samples, _LEAST_SAMPLES)
    say("\n".join(["", *table(grown)]))
    problems += [f"{g.process}: {g.figure.name} has grown by {g.total:.1f}" for g in grown if not g.flat]
    problems += [] if grown else ["no process lived long enough to be judged"]
    say("\n".join(problems) or f"{len(scene.director.incidents)} faults; every sample counted, and nothing has grown")
    if options.plot:
        plot_usage(options.plot, samples)
    scene.close()
    return 1 if problems else 0


def watch(scene: Scene, seconds: float, take: Callable[[list[Sample]], None]) -> int | None:
    """Let the job run for a time and sample its processes; returns its exit code if it ends before."""
    due = 0.0
    while scene.seconds < seconds:
        if scene.seconds >= due:
            take(sample(scene.seconds, processes()))
            due = scene.seconds + _SAMPLE_SECONDS
        code = scene.turn()
        if code is not None:
            return code
    return None


def problems_of(job: ChaosJob, folder: Path, code: int | None) -> list[str]:
    """Return what is wrong with a stopped job."""
    if code != EXIT_INTERRUPTED:
        return [f"heterps run ended with {code}: {job.output}\n{job.real.logs()}"]
    storage = Storage.open(job.files / "checkpoints")
    manifest, _ = find_latest(storage)
    if manifest is None:
        return ["there is no checkpoint"]

    owner = take_over(storage, "soak", time.time())
    export_model(
        storage,
        manifest,
        folder / "model",
        owner=owner,
        initial_rows=lambda table, ids: np.zeros((len(ids), table.dim)),
    )
    return wrong_model(load_file(folder / "model" / "model.safetensors"), manifest.step, None) + left_behind(job)


def table(grown: Sequence[Growth]) -> list[str]:
    """Return how each figure of each process grew."""
    lines = [f"{'process':14} {'figure':14} {'growth per hour':>16} {'in all':>8}"]
    for g in grown:
        flat = "flat" if g.flat else "GROWS"
        lines.append(f"{g.process:14} {g.figure.name:14} {g.per_hour:16.2f} {g.total:8.2f}   {flat}")
    return lines


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    if options.seed is None:
        return main([*arguments, f"--seed={random.SystemRandom().randrange(10**6)}"])
    if reasons := obstacles():
        say("\n".join(["No soak can run on this machine:", *reasons]))
        return 2
    return run_isolated("tests.soak", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
