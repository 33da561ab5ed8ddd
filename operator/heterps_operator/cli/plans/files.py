"""Input and output files of `heterps plan`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from heterps_operator.documents import Json
from heterps_operator.errors import UsageError
from heterps_planner.model.problem import Problem
from heterps_planner.plans.frontier import FrontierPoint

__all__ = ["read_json", "read_text", "write_document", "write_frontier"]


def read_text(name: str, option: str) -> str:
    """Read a file that an option names.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{option} {name}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{option} {name}: is not UTF-8 text") from error


def read_json(name: str, option: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        UsageError: the file cannot be read, or is not a JSON object.
    """
    try:
        document = json.loads(read_text(name, option))
    except (ValueError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{option} {name}: is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise UsageError(f"{option} {name}: must hold a JSON object")
    return document


def write_document(output: str, document: Json) -> None:
    """Print a document in the given format; print nothing if a table was requested."""
    if output == "json":
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    elif output == "yaml":
        sys.stdout.write(yaml.safe_dump(dict(document), sort_keys=False))


def write_frontier(problem: Problem, points: Sequence[FrontierPoint], path: Path) -> None:
    """Write the frontier as CSV: one line per plan, with the units of each pool and the stages.

    Raises:
        OSError: the file cannot be written.
    """
    pools = [pool.name for pool in problem.pools]
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        units = [f"{name} units" for name in pools]
        table.writerow(["samplesPerSecond", "costPerHour", "cost", *units, "parameterServerUnits", "stages"])
        for point in points:
            used = dict.fromkeys(pools, 0)
            for stage in point.plan.stages:
                used[stage.pool] += stage.units
            stages = " | ".join(f"{s.layers[0]}..{s.layers[-1]} on {s.units} {s.pool}" for s in point.plan.stages)
            servers = point.plan.parameter_server.units
            row = [point.throughput, point.cost_per_hour, point.cost]
            table.writerow([*(f"{value:.9g}" for value in row), *used.values(), servers, stages])
