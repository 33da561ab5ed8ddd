"""Plots of the frontier (the cost of each throughput, by pool) and of price series."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # files only, no window system

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from heterps_operator.formatting import format_money, format_rate
from heterps_planner.model.problem import Problem
from heterps_planner.plans.frontier import FrontierPoint, price_by_pool
from heterps_planner.plans.plan import Plan
from heterps_planner.scenarios.market import Followed

__all__ = ["draw_frontier", "draw_market", "plot_frontier", "plot_market"]

# The palette of Okabe and Ito, which is distinguishable with colour blindness.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#999999")
_CHOSEN = "#000000"
_FLOOR = "#B00020"


def plot_frontier(problem: Problem, points: Sequence[FrontierPoint], plan: Plan | None, path: Path) -> None:
    """Plot the frontier to a file (its extension selects the format).

    Raises:
        OSError: the file cannot be written.
        ValueError: the extension is not a known format.
    """
    draw_frontier(problem, points, plan).savefig(path, dpi=150)


def draw_frontier(problem: Problem, points: Sequence[FrontierPoint], plan: Plan | None) -> Figure:
    """Draw price per hour (by pool) and total cost against throughput.

    Args:
        problem: names, prices, the floor.
        points: the frontier, at least one point, throughput ascending.
        plan: the chosen plan, which is marked.
    """
    assert points
    figure = Figure(figsize=(9, 7), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    x = [point.throughput for point in points]
    paid = [price_by_pool(problem, point.plan) for point in points]
    used = [(i, pool.name) for i, pool in enumerate(problem.pools) if any(p[pool.name] > 0 for p in paid)]
    # A point's price applies up to its throughput: steps rise before the point.
    edges = [0.0, *x]
    bases = [0.0] * len(edges)
    for i, name in used:
        tops = [base + value for base, value in zip(bases, [paid[0][name], *(p[name] for p in paid)], strict=True)]
        colour = _COLOURS[i % len(_COLOURS)]
        top.fill_between(
            edges, bases, tops, step="pre", color=colour, alpha=0.75, linewidth=0, label=f"paid for {name}"
        )
        bases = tops
    top.step(edges, bases, where="pre", color="#333333", linewidth=1.2)
    bottom.plot(x, [point.cost for point in points], color="#333333", linewidth=1.2, marker="o", markersize=3)
    _mark(top, bottom, problem, plan)
    top.set_title(f"What speed costs: the cheapest plan for each throughput ({len(points)} plans)", loc="left")
    top.set_ylabel("price per hour")
    bottom.set_ylabel(f"cost of {_short(problem.samples)} samples")
    bottom.set_xlabel("throughput, samples per second")
    bottom.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    for axes in (top, bottom):
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _money(value)))
        axes.grid(alpha=0.25)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    top.set_xlim(left=0)
    top.legend(loc="upper left", frameon=True, facecolor="white", edgecolor="none", framealpha=0.9)
    return figure


def _mark(top: Axes, bottom: Axes, problem: Problem, plan: Plan | None) -> None:
    """Mark the floor and the chosen plan."""
    floor = problem.min_samples_per_second
    for axes in (top, bottom):
        if floor > 0:
            label = f"required: {format_rate(floor)}" if axes is top else None
            axes.axvline(floor, color=_FLOOR, linestyle="--", linewidth=1.2, label=label)
    if plan is None:
        return
    money = f"{_money(plan.cost_per_hour)}/h, {_money(plan.cost)} in all"
    label = f"chosen: {format_rate(plan.throughput)}, {money}"
    style = {"marker": "*", "markersize": 16, "color": _CHOSEN, "linestyle": "none", "markeredgecolor": "white"}
    top.plot([plan.throughput], [plan.cost_per_hour], label=label, zorder=5, **style)  # type: ignore[arg-type]
    bottom.plot([plan.throughput], [plan.cost], zorder=5, **style)  # type: ignore[arg-type]


def plot_market(followed: Followed, stayed: Followed, path: Path) -> None:
    """Plot a followed price series to a file (its extension selects the format).

    Raises:
        OSError: the file cannot be written.
        ValueError: the extension is not a known format.
    """
    draw_market(followed, stayed).savefig(path, dpi=150)


def draw_market(followed: Followed, stayed: Followed) -> Figure:
    """Draw price per hour and money spent against time, for following prices and for keeping the plan."""
    figure = Figure(figsize=(9, 7), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    for result, name, colour, width in (
        # wide, so that it stays visible below the other line where they coincide
        (stayed, "staying", _COLOURS[1], 4.0),
        (followed, "following", _COLOURS[0], 1.4),
    ):
        times = [step.seconds / 3600 for step in result.steps]
        end = result.seconds / 3600 if result.seconds is not None else times[-1]
        price = [step.cost_per_hour for step in result.steps]
        spent = [0.0]
        for step in result.steps:
            spent.append(spent[-1] + step.spent)
        top.step([*times, end], [*price, price[-1]], where="post", color=colour, linewidth=width, label=name)
        label = f"{name}: {_money(result.cost)}"
        bottom.plot([*times, end], spent, color=colour, linewidth=width, label=label)
        changes = [i for i, step in enumerate(result.steps) if step.decision in ("provision", "move")]
        if changes:
            top.plot(
                [times[i] for i in changes],
                [price[i] for i in changes],
                color=colour,
                marker="o" if result is followed else "x",
                linestyle="none",
                label=f"{name}: plan changed",
            )
    top.set_title("What following the prices is worth", loc="left")
    top.set_ylabel("price per hour")
    bottom.set_ylabel("spent")
    bottom.set_xlabel("hours since training began")
    for axes in (top, bottom):
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _money(value)))
        axes.grid(alpha=0.25)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="best", frameon=True, facecolor="white", edgecolor="none", framealpha=0.9)
    top.set_xlim(left=0)
    return figure


def _money(value: float) -> str:
    """Format an amount; a bare dollar sign would start a formula."""
    return format_money(value).replace("$", r"\$")


def _short(count: float) -> str:
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if count >= size:
            return f"{count / size:.3g} {word}"
    return f"{count:,.0f}"
