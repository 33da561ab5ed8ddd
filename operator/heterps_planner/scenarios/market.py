"""Following a market: replanning at every change of prices or limits, and the savings.

A tick changes fields of the problem from its time on (`what_if` names them), permanently. Two policies see the same
ticks: one calls `migration.plan_from` at every tick; the other keeps its plan until it is impossible (an interruption:
a limit has dropped below the plan's use, or the ceiling is exceeded), and only then changes. Neither knows the future:
a change has to pay at current prices, on the remaining samples or on those of the next `horizon_seconds`. What
interruptions cost is not counted, as in `migration`.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from heterps_planner.errors import ProblemError
from heterps_planner.model.fields import check_number
from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import build_segments
from heterps_planner.planning import plan as plan_afresh
from heterps_planner.plans.plan import Infeasible, Plan
from heterps_planner.scenarios.migration import Move, plan_from, running_choice
from heterps_planner.scenarios.what_if import change
from heterps_planner.search.sweep import Multipliers

__all__ = ["MAX_TICKS", "Followed", "MarketStep", "Tick", "follow", "read_ticks"]

MAX_TICKS = 100_000
_SECONDS = "seconds"


@dataclass(frozen=True)
class Tick:
    """Changes at one point in time."""

    seconds: float  # since training began
    settings: tuple[tuple[str, Any], ...]  # field and value, as in `what_if.change`


@dataclass(frozen=True)
class MarketStep:
    """The actions of a policy between two ticks."""

    seconds: float  # time of the tick
    decision: str  # "start", "stay", "provision", "move", "wait" (no plan is possible) or "done"
    interrupted: bool  # the running plan became impossible
    throughput: float  # samples per second while training
    cost_per_hour: float  # dollars
    spent: float  # dollars until the next tick, including changes
    samples: float  # trained until the next tick
    units: dict[str, int]  # units of the stages, by pool
    planning_seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the step as a JSON object."""
        return {
            "seconds": self.seconds,
            "decision": self.decision,
            "interrupted": self.interrupted,
            "throughput": self.throughput,
            "costPerHour": self.cost_per_hour,
            "spent": self.spent,
            "samples": self.samples,
            "units": dict(self.units),
            "planningSeconds": self.planning_seconds,
        }


@dataclass(frozen=True)
class Followed:
    """Outcome of a policy."""

    steps: tuple[MarketStep, ...]  # one per tick, until training was done
    cost: float  # dollars
    samples: float  # trained
    seconds: float | None  # until all samples were trained; None: never, as no plan is possible any more

    @property
    def num_changes(self) -> int:
        """Number of changes of the plan."""
        return sum(step.decision in ("provision", "move") for step in self.steps)

    @property
    def num_interruptions(self) -> int:
        """Number of times the running plan became impossible."""
        return sum(step.interrupted for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as a JSON object."""
        return {
            "cost": self.cost,
            "samples": self.samples,
            "seconds": self.seconds,
            "changes": self.num_changes,
            "interruptions": self.num_interruptions,
            "steps": [step.to_json() for step in self.steps],
        }


def read_ticks(text: str) -> tuple[Tick, ...]:
    """Parse a price series.

    Args:
        text: CSV with a column `seconds` and one per field (`v100.pricePerUnitHour`), an empty cell meaning no change;
            or a JSON list of objects with these keys.

    Raises:
        ProblemError: the text is neither, or the seconds are missing or do not increase.
    """
    stripped = text.lstrip("\ufeff \t\r\n")
    rows = _json_rows(stripped) if stripped.startswith("[") else _csv_rows(stripped)
    if not rows:
        raise ProblemError("prices", "there are no ticks; the first line names the columns, then one line per tick")
    if len(rows) > MAX_TICKS:
        raise ProblemError("prices", f"must be at most {MAX_TICKS} ticks, are {len(rows)}")
    ticks: list[Tick] = []
    for i, row in enumerate(rows):
        if _SECONDS not in row:
            raise ProblemError(f"prices[{i}].{_SECONDS}", "is missing")
        seconds = check_number(f"prices[{i}].{_SECONDS}", row[_SECONDS], least=0)
        if ticks and seconds <= ticks[-1].seconds:
            raise ProblemError(f"prices[{i}].{_SECONDS}", f"must be above the tick before, is {seconds:g}")
        ticks.append(Tick(seconds, tuple((name, value) for name, value in row.items() if name != _SECONDS)))
    return tuple(ticks)


def _json_rows(text: str) -> list[dict[str, Any]]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProblemError("prices", f"is not JSON ({error})") from error
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ProblemError(f"prices[{i}]", f"must be an object, is {row!r}")
    return list(rows)


def _csv_rows(text: str) -> list[dict[str, Any]]:
    reader = csv.reader(io.StringIO(text))
    try:
        return _table_rows(reader)
    except csv.Error as error:
        raise ProblemError("prices", f"line {reader.line_num} is not CSV ({error})") from error


def _table_rows(reader: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    header: list[str] = []
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue
        if not header:
            header = [cell.strip() for cell in cells]
            continue
        where = f"prices[{len(rows)}]"
        if len(cells) != len(header):
            raise ProblemError(
                where, f"line {reader.line_num} has {len(cells)} cells, the first line has {len(header)}"
            )
        row: dict[str, Any] = {}
        for name, cell in zip(header, cells, strict=True):
            if cell.strip():
                row[name] = _number(f"{where}.{name}", cell.strip())
        rows.append(row)
    return rows


def _number(path: str, cell: str) -> float | int:
    try:
        return int(cell)
    except ValueError:
        pass
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ProblemError(path, f"must be a number, is {cell!r}")
    return value


def follow(
    problem: Problem,
    ticks: Sequence[Tick],
    *,
    moves: bool,
    restart_seconds: float,
    pod_start_seconds: float,
    horizon_seconds: float | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[float], None] = lambda fraction: None,
    clock: Callable[[], float] = time.monotonic,
) -> Followed:
    """Simulate training over a price series.

    Args:
        problem: the problem before the first tick, with the `samples` to train on.
        ticks: changes, with increasing seconds.
        moves: whether the plan may change while it is still possible.
        restart_seconds: seconds for which a change stops all training.
        pod_start_seconds: paid seconds before a new pod takes part, at the start of training too.
        horizon_seconds: time within which a change has to pay; None: the rest of training.
        should_stop: once it returns True, each plan is kept as long as it is possible.
        progress: called with the fraction of the ticks done.
        clock: returns seconds; only differences matter.

    Raises:
        ProblemError: a tick's field or value is invalid, or a number is out of range.
    """
    restart = check_number("restartSeconds", restart_seconds, least=0, most=1e9)
    start = check_number("podStartSeconds", pod_start_seconds, least=0, most=1e9)
    if horizon_seconds is not None:
        check_number("horizonSeconds", horizon_seconds, above=0, most=1e12)
    worlds = [(seconds, world.without_interruptions()) for seconds, world in _worlds(problem, ticks)]
    left, spent, now = problem.samples, 0.0, 0.0
    running: Plan | None = None
    steps: list[MarketStep] = []
    multipliers: Multipliers = []
    for i, ((begin, world), (end, _)) in enumerate(itertools.pairwise([*worlds, (math.inf, problem)])):
        progress((i + 1) / len(worlds))
        began = clock()
        world = replace(world, samples=left)
        once, wait, decision, interrupted = 0.0, 0.0, "stay", False
        possible = running is not None and running_choice(world, build_segments(world), running) is not None
        if running is not None and (not possible or (moves and not should_stop())):
            amortised = left if horizon_seconds is None else min(left, running.throughput * horizon_seconds)
            move = plan_from(
                world,
                running,
                restart_seconds=restart,
                pod_start_seconds=start,
                samples_left=amortised,
                should_stop=should_stop if possible else lambda: False,
                multipliers=multipliers,
            )
            interrupted = not possible
            decision, running, once, wait = _take(move, restart)
        elif running is None:
            found = plan_afresh(world)
            if isinstance(found, Plan):
                decision, running, once = "start", found, found.cost_per_hour * start / 3600
        if running is None:
            steps.append(MarketStep(begin, "wait", interrupted, 0.0, 0.0, 0.0, 0.0, {}, clock() - began))
            now = end
            continue
        choice = running_choice(world, build_segments(world), running)
        assert choice is not None, "a plan that was just made, or is possible"
        training = min(max(end - begin - wait, 0.0), left / choice.throughput)
        cost = once + choice.price * training / 3600
        samples = min(left, choice.throughput * training)
        units = {stage.pool: 0 for stage in running.stages}
        for stage in running.stages:
            units[stage.pool] += stage.units
        steps.append(
            MarketStep(
                begin, decision, interrupted, choice.throughput, choice.price, cost, samples, units, clock() - began
            )
        )
        spent += cost
        left -= samples
        now = begin + wait + training
        if left <= problem.samples * 1e-12:
            break
    done = left <= problem.samples * 1e-12
    return Followed(tuple(steps), spent, problem.samples - left, now if done else None)


def _take(move: Move | Infeasible, restart: float) -> tuple[str, Plan | None, float, float]:
    """Return decision, plan, dollars of the change and seconds without training."""
    if isinstance(move, Infeasible):
        return "wait", None, 0.0, 0.0
    return move.decision, move.plan, move.switch_cost, 0.0 if move.decision == "stay" else restart


def _worlds(problem: Problem, ticks: Sequence[Tick]) -> list[tuple[float, Problem]]:
    """Return the problem at each time; the first starts at 0."""
    worlds = [] if ticks and ticks[0].seconds == 0 else [(0.0, problem)]
    for i, tick in enumerate(ticks):
        try:
            problem = change(problem, tick.settings)
        except ProblemError as error:
            raise ProblemError(f"prices[{i}].{error.path}", error.complaint) from error
        worlds.append((tick.seconds, problem))
    return worlds
