"""The results of a campaign: a table for people, JSON for programs, a plot.

All are made of documents, one for each run, so that the reports of several campaigns can be shown as one.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.chaos.campaign import Outcome
from tests.chaos.faults.kinds import KINDS
from tests.chaos.results.usage import FIGURES, Sample

__all__ = ["describe", "plot", "plot_usage", "read", "recoveries", "table", "write"]

Json = dict[str, Any]


def recoveries(runs: Sequence[Json]) -> dict[str, list[float]]:
    """Return the recovery times in seconds by kind of fault, of faults that had a target in runs without problems."""
    found: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for incident in run["faults"]:
            if incident["done"] and incident["recoverySeconds"] is not None and not run["problems"]:
                found[incident["fault"]["kind"]].append(incident["recoverySeconds"])
    return {kind: found[kind] for kind in KINDS if kind in found}


def table(runs: Sequence[Json]) -> list[str]:
    """Return the lines of the report."""
    lines = [f"{'fault':14} {'number':>6} {'median s':>9} {'worst s':>8}   what it is"]
    for kind, seconds in recoveries(runs).items():
        middle, worst = statistics.median(seconds), max(seconds)
        lines.append(f"{kind:14} {len(seconds):6} {middle:9.1f} {worst:8.1f}   {KINDS[kind].what}")
    failed = [run for run in runs if run["problems"]]
    incidents = sum(bool(incident["done"]) for run in runs for incident in run["faults"])
    lines.append(f"{len(runs)} jobs, {incidents} faults, {len(failed)} jobs failed")
    for run in failed:
        lines += [f"seed {run['seed']}: {'; '.join(run['problems'])}", f"  to replay it: {run['replay']}"]
    return lines


def write(path: Path, runs: Sequence[Json]) -> None:
    """Write the documents of runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(runs, indent=1) + "\n")


def read(paths: Sequence[Path]) -> list[Json]:
    """Return the documents of the runs in several reports."""
    return [run for path in paths for run in json.loads(path.read_text())]


def describe(outcome: Outcome, replay: str) -> Json:
    """Return the document of a run, its faults and its problems.

    Args:
        outcome: of the run.
        replay: the command that repeats it.
    """
    incidents = [
        {
            "fault": asdict(incident.fault),
            "at": asdict(incident.at),
            "done": incident.done,
            "recoverySeconds": incident.recovery.seconds,
        }
        for incident in outcome.incidents
    ]
    run = outcome.run
    return {
        "seed": run.seed,
        "consistency": run.consistency,
        "model": run.model,
        "processes": str(run.topology),
        "steps": run.steps,
        "seconds": outcome.seconds,
        "limitSeconds": run.limit_seconds,
        "faults": incidents,
        "problems": list(outcome.problems),
        "replay": replay,
    }


def plot(path: Path, runs: Sequence[Json]) -> None:
    """Draw each recovery time, by kind of fault, on a logarithmic scale."""
    from matplotlib.figure import Figure

    found = recoveries(runs)
    figure = Figure(figsize=(8, 1 + 0.4 * max(1, len(found))), layout="constrained")
    axes = figure.subplots()
    for row, seconds in enumerate(found.values()):
        axes.plot([max(value, 0.01) for value in seconds], [row] * len(seconds), "o", alpha=0.5, color="C0")
        axes.plot([max(statistics.median(seconds), 0.01)], [row], "|", markersize=16, color="C1")
    axes.set_xscale("log")
    axes.set_xlabel("seconds until steps were committed again (the bar is the median)")
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    figure.savefig(path)


def plot_usage(path: Path, samples: Sequence[Sample]) -> None:
    """Draw each figure over time, a line for each process."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9, 10), layout="constrained")
    axes = picture.subplots(len(FIGURES), sharex=True)
    lives = sorted({(each.process, each.pid) for each in samples})
    names = sorted({name for name, _ in lives})
    for place, (figure, axis) in enumerate(zip(FIGURES, axes, strict=True)):
        for process, pid in lives:
            points = [(s.seconds / 60, s.values[place]) for s in samples if (s.process, s.pid) == (process, pid)]
            axis.plot(*zip(*points, strict=True), color=f"C{names.index(process)}", label=process)
        axis.set_ylabel(figure.name)
    found = dict(zip(*axes[0].get_legend_handles_labels()[::-1], strict=True))  # one entry per name
    axes[0].legend(found.values(), found.keys(), ncols=4, fontsize="small")
    axes[-1].set_xlabel("minutes")
    picture.savefig(path)
