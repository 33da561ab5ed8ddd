"""What HeterPS is for, on one screen: the paper's four models on the paper's cluster, planned in a second.

python -m experiments.headline

Each model gets its cheapest plan on cores and cards together, beside its cheapest plan on cores alone and on cards
alone. `make demo` ends with it. The problems are the profiles of docs/models.md, floors included, so that
`heterps plan --problem experiments/profiles/MODEL.json` explains each of them in full.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from experiments.clusters import PAPER_MODELS
from experiments.devices import load_profile
from experiments.results import MODEL_TITLES
from heterps_operator.formatting import format_duration, format_money, format_rate
from heterps_planner.model.cost_model import cost_of_training
from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import Segments, build_segments
from heterps_planner.planning import plan
from heterps_planner.plans.plan import Infeasible, Plan
from heterps_planner.search.points import Choice
from heterps_planner.search.sweep import minimise

__all__ = ["Headline", "cheapest_mixed", "headline", "main", "screen"]

_LABEL = 18  # columns of the names of the plans
_LEAST, _MOST = 72, 120  # columns of the text
_KEEP = "\N{NO-BREAK SPACE}"
_MOST_LAYERS = 3  # of a stage that are named one by one


@dataclass(frozen=True)
class Headline:
    """The three plans of a model; an `Infeasible` says what its kind of hardware can reach."""

    title: str
    problem: Problem
    mixed: Choice
    mixed_cost: float  # dollars for all samples
    cores: Plan | Infeasible
    cards: Plan | Infeasible


def headline(model: str) -> Headline:
    """Plan a model of the paper on the paper's cluster.

    Args:
        model: one of PAPER_MODELS.

    Raises:
        ValueError: there is no such profile, or no plan on cores and cards together.
    """
    problem = load_profile(model)
    mixed = cheapest_mixed(problem, build_segments(problem))
    if mixed is None:
        raise ValueError(f"{model}: no plan on cores and cards reaches {problem.min_samples_per_second:g} samples/s")
    cost = cost_of_training(problem.samples, mixed.throughput, mixed.price)
    return Headline(MODEL_TITLES[model], problem, mixed, cost, plan(problem, "cpu"), plan(problem, "gpu"))


def cheapest_mixed(problem: Problem, segments: Segments) -> Choice | None:
    """Return the cheapest plan whose stages are on CPU pools and on others; None if there is none.

    The optimum, if it is of that kind. Otherwise the cheapest of the optima with one layer forced on each side, which
    together cover all such plans.
    """
    is_cpu = np.array([pool.device_type == "CPU" for pool in problem.pools])
    best = minimise(segments).choice
    if best is None or len({bool(is_cpu[pool]) for _, _, pool in best.stages}) == 2:
        return best
    layers = np.arange(segments.num_layers)
    covers = (layers[:, None, None] <= layers) & (layers <= layers[:, None])  # [first, last, layer]
    found = None
    for core, card in itertools.permutations(range(segments.num_layers), 2):
        allowed = np.ones(segments.seq_LLT.shape, dtype=bool)
        allowed[:, :, ~is_cpu] &= ~covers[:, :, core, None]
        allowed[:, :, is_cpu] &= ~covers[:, :, card, None]
        choice = minimise(segments.restricted(allowed)).choice
        if choice is not None and (found is None or _rate(choice) < _rate(found)):
            found = choice
    return found


def _lines(found: Headline, width: int) -> Iterator[str]:
    """Render one model.

    Args:
        found: its plans.
        width: columns.
    """
    problem = found.problem
    best = min([found.mixed_cost, *(p.cost for p in (found.cores, found.cards) if isinstance(p, Plan))])
    yield f"{found.title}: {len(problem.layers)} layers, at least {format_rate(problem.min_samples_per_second)}"
    cost = _cost(problem, found.mixed_cost, best, found.mixed.throughput)
    yield from _entry("cores and cards", "; ".join((cost, *_stages(problem, found.mixed))), width)
    for kind, pool, other in (("cores", problem.pools[0], found.cores), ("cards", problem.pools[1], found.cards)):
        if isinstance(other, Plan):
            servers = other.parameter_server
            text = f"{_cost(problem, other.cost, best, other.throughput)}; {other.stages[0].units}{_KEEP}{pool.name}:"
            text += f"{_KEEP}all{_KEEP}layers; {servers.units}{_KEEP}{servers.pool}:{_KEEP}parameter{_KEEP}servers"
        else:
            text = f"too slow: all {pool.max_units} {pool.name} reach {format_rate(other.best_throughput)}"
        yield from _entry(f"{kind} only", text, width)
    yield from _entry("why", _reason(problem, found.mixed), width)


def _entry(label: str, text: str, width: int) -> list[str]:
    indent = " " * _LABEL
    wrapped = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    wrapped[0] = f"  {label}".ljust(_LABEL) + wrapped[0][_LABEL:]
    return [line.replace(_KEEP, " ") for line in wrapped]


def _cost(problem: Problem, cost: float, best: float, throughput: float) -> str:
    note = "cheapest" if cost <= best * (1 + 1e-9) else f"{cost / best:.1f} times"
    return f"{format_money(cost):>6}  {note:9}  {format_duration(problem.samples / throughput)}"


def _stages(problem: Problem, choice: Choice) -> Iterator[str]:
    for (first, last, pool), pods in zip(choice.stages, choice.pods, strict=True):
        names = [layer.name for layer in problem.layers[first : last + 1]]
        shown = ", ".join(names) if len(names) <= _MOST_LAYERS else f"{names[0]} .. {names[-1]}"
        yield f"{pods}{_KEEP}{problem.pools[pool].name}:{_KEEP}{shown}"
    assert problem.parameter_server is not None
    yield f"{choice.server_pods}{_KEEP}{problem.parameter_server.pool}:{_KEEP}parameter{_KEEP}servers"


def _reason(problem: Problem, choice: Choice) -> str:
    """What the stages of a mixed plan would take on the other kind of hardware, at the same throughput."""
    segments = build_segments(problem)
    need = segments.pods(np.array([choice.throughput]))[0]
    parts = []
    for pool, other in ((0, 1), (1, 0)):
        stages = [(stage, pods) for stage, pods in zip(choice.stages, choice.pods, strict=True) if stage[2] == pool]
        here = sum(pods for _, pods in stages)
        there = sum(float(need[first, last, other]) for (first, last, _), _ in stages)
        if there > segments.limit_T[other]:  # infinite: no number of units is enough for a stage
            instead = f"more than all {segments.limit_T[other]:.0f} {problem.pools[other].name}"
        else:
            instead = _units(problem, other, there)
        parts.append(f"{_units(problem, pool, here)} would take {instead}")
    return f"the layers on {parts[0]}, those on {parts[1]}"


def _units(problem: Problem, pool: int, units: float) -> str:
    price = units * problem.pools[pool].price_per_unit_hour
    return f"{units:.0f} {problem.pools[pool].name} (${price:,.2f}/h)"


def _rate(choice: Choice) -> float:
    return choice.price / choice.throughput


def screen(width: int) -> str:
    """Return the whole screen.

    Args:
        width: columns.
    """
    found = [headline(model) for model in PAPER_MODELS]
    cores, cards = found[0].problem.pools
    head = (
        f"What HeterPS is for: the four models of its paper on the paper's cluster, {cores.max_units} cores at "
        f"${cores.price_per_unit_hour:.2f}/h and {cards.max_units} V100 at ${cards.price_per_unit_hour:.2f}/h. Each "
        f"trains on {found[0].problem.samples / 1e9:.1f} billion samples, at least half as fast as the whole cluster "
        "could. Times are measured on a core, and derived from data sheets for a V100 (docs/models.md)."
    )
    foot = "Each plan is the proven cheapest of its kind. One of them in full:"
    parts = [
        textwrap.wrap(head, width),
        *(_lines(each, width) for each in found),
        [*textwrap.wrap(foot, width), "  .venv/bin/heterps plan --problem experiments/profiles/matchnet.json"],
    ]
    return "\n\n".join("\n".join(part) for part in parts)


def main() -> int:
    """Print the screen, as wide as the terminal is, or 80 columns wide in a pipe."""
    print(screen(min(max(shutil.get_terminal_size().columns, _LEAST), _MOST)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
