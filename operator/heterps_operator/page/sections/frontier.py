"""The price of every throughput, with the chosen plan."""

from __future__ import annotations

from collections.abc import Sequence

from heterps_operator.formatting import format_money, format_rate
from heterps_operator.page.charts import bar, chart, label, line, percent, short_number, ticks, vertical_grid
from heterps_operator.page.document import section
from heterps_operator.page.html import Markup, data_table, element, units_of
from heterps_operator.page.palette import Palette, marker, swatch
from heterps_planner.model.problem import Problem
from heterps_planner.plans.frontier import Frontier, FrontierPoint, price_by_pool
from heterps_planner.plans.plan import Plan

__all__ = ["frontier_section"]

_PRICE_PIXELS = 230
_COST_PIXELS = 110
_ROWS = 12  # of the table
_ROOM = 1.06  # of the plots beyond the last plan


def frontier_section(problem: Problem, plan: Plan, found: Frontier, palette: Palette) -> Markup | None:
    """Build the section; None if no plan of the frontier is known."""
    points = found.points
    if not points:
        return None
    end = _ROOM * max(points[-1].throughput, plan.throughput, problem.min_samples_per_second)
    used = [pool for pool in palette.pools if any(price_by_pool(problem, p.plan).get(pool) for p in points)]
    missing = (
        "" if found.complete else " Some plans between these are missing: the search was stopped, or there are more."
    )
    summary = (
        "The cheapest plan for each throughput. The price per hour rises in steps; what the whole training costs may "
        f"fall with the throughput, because it takes less time.{missing}"
    )
    axis = f"cost of {problem.samples:,.0f} samples"
    return section(
        "What speed costs",
        summary,
        _legend(problem, palette, used),
        element("h3", "Price per hour, by pool"),
        _price(problem, plan, points, palette, used, end),
        element("h3", axis.capitalize()),
        _cost(problem, plan, points, end),
        _table(plan, points),
    )


def _legend(problem: Problem, palette: Palette, used: Sequence[str]) -> Markup:
    items = [element("li", swatch(palette.fill(pool)), f"paid for {pool}") for pool in used]
    items.append(element("li", marker("chosen"), "the chosen plan"))
    if problem.min_samples_per_second > 0:
        required = f"required: {format_rate(problem.min_samples_per_second)}"
        items.append(element("li", marker("floor"), required))
    return element("ul", *items, class_="legend")


def _price(
    problem: Problem, plan: Plan, points: Sequence[FrontierPoint], palette: Palette, used: Sequence[str], end: float
) -> Markup:
    """Draw the staircase: a plan's price applies from the throughput of the plan before it to its own."""
    top = _ROOM * max(*(point.cost_per_hour for point in points), plan.cost_per_hour)
    parts = _axes(end, top, _PRICE_PIXELS)
    before, height_before = 0.0, float(_PRICE_PIXELS)
    for point in points:
        left, width = percent(before, end), percent(point.throughput - before, end)
        floor = float(_PRICE_PIXELS)
        paid = price_by_pool(problem, point.plan)
        for pool in used:
            height = _PRICE_PIXELS * paid[pool] / top
            if height > 0:
                floor -= height
                parts.append(bar(left, floor, width, height, palette.fill(pool), "stack"))
        parts.append(line(left, height_before, left, floor, "outline"))
        parts.append(line(left, floor, percent(point.throughput, end), floor, "outline"))
        before, height_before = point.throughput, floor
    parts += _marks(problem, plan.throughput, _PRICE_PIXELS * (1 - plan.cost_per_hour / top), end, _PRICE_PIXELS)
    chosen = f"{format_money(plan.cost_per_hour)} per hour at {format_rate(plan.throughput)}"
    return chart("Price per hour against throughput", f"The chosen plan: {chosen}.", _PRICE_PIXELS, parts)


def _cost(problem: Problem, plan: Plan, points: Sequence[FrontierPoint], end: float) -> Markup:
    top = _ROOM * max(*(point.cost for point in points), plan.cost)
    parts = _axes(end, top, _COST_PIXELS)
    for point in points:
        y = _COST_PIXELS * (1 - point.cost / top)
        parts.append(element("circle", cx=percent(point.throughput, end), cy=f"{y:.2f}", r="2.5", class_="point"))
    parts += _marks(problem, plan.throughput, _COST_PIXELS * (1 - plan.cost / top), end, _COST_PIXELS)
    cheapest = min(points, key=lambda point: point.cost)
    words = (
        f"The chosen plan costs {format_money(plan.cost)}; the cheapest costs {format_money(cheapest.cost)} "
        f"at {format_rate(cheapest.throughput)}."
    )
    return chart("Cost of the training against throughput", words, _COST_PIXELS, parts)


def _axes(end: float, top: float, height: float) -> list[Markup]:
    parts = []
    for value in ticks(top):
        y = height * (1 - value / top)
        parts += [line("0%", y, "100%", y, "grid"), label(_dollars(value), "0%", y + 4, "end", -6, "tick")]
    marks = [(value, short_number(value)) for value in ticks(end)]
    return [*parts, *vertical_grid(end, height, marks, "samples per second")]


def _marks(problem: Problem, throughput: float, y: float, end: float, height: float) -> list[Markup]:
    floor = problem.min_samples_per_second
    x = percent(floor, end)
    required = [line(x, 0, x, height, "floor")] if floor > 0 else []
    return [*required, element("circle", cx=percent(throughput, end), cy=f"{y:.2f}", r="6.5", class_="chosen")]


def _table(plan: Plan, points: Sequence[FrontierPoint]) -> Markup:
    """The chosen plan among some of the frontier, the first and the last included."""
    rows = [(p.throughput, p.cost_per_hour, p.cost, p.plan) for p in _thinned(points)]
    rows = [row for row in rows if abs(row[0] / plan.throughput - 1) > 1e-6]
    rows.append((plan.throughput, plan.cost_per_hour, plan.cost, plan))
    cells = (
        (
            ", ".join(units_of(stage.units, stage.pool) for stage in each.stages)
            + (": chosen" if each is plan else ""),
            f"{throughput:,.0f}",
            format_money(per_hour),
            format_money(cost),
        )
        for throughput, per_hour, cost, each in sorted(rows, key=lambda row: row[0])
    )
    shown = "" if len(points) <= _ROWS else f", {len(rows)} of {len(points)}"
    head = ("units of each stage", "samples/s", "per hour", "in all")
    return data_table(f"The cheapest plans{shown}", head, cells, numbers=3)


def _units(plan: Plan) -> str:
    return ", ".join(units_of(stage.units, stage.pool) for stage in plan.stages)


def _thinned(points: Sequence[FrontierPoint]) -> list[FrontierPoint]:
    if len(points) <= _ROWS:
        return list(points)
    last = len(points) - 1
    return [points[round(i * last / (_ROWS - 1))] for i in range(_ROWS)]


def _dollars(value: float) -> str:
    """Format a tick of a price axis: `$0`, `$2.5`, `$40`, `$2e-05`."""
    return f"${value:.3g}" if value < 10_000 else f"${short_number(value)}"
