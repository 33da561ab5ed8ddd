"""Tables and sentences that explain a plan, without multipliers."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from heterps_operator.control.machine import describe_cores, describe_shortage
from heterps_operator.formatting import format_duration, format_money, format_rate
from heterps_operator.state.selection import describe_selection
from heterps_planner.model.problem import Problem
from heterps_planner.plans.explain import Explanation
from heterps_planner.plans.plan import Plan

__all__ = [
    "ALTERNATIVES_LEFT_OUT",
    "describe_contributions",
    "describe_interruptions",
    "describe_margin",
    "describe_proof",
    "describe_selections",
    "describe_shadow_prices",
    "render_plan",
]

ALTERNATIVES_LEFT_OUT = "some are left out: the search was stopped"
_PADDING = (0, 2, 0, 0)


def render_plan(
    problem: Problem,
    plan: Plan,
    explanation: Explanation,
    *,
    without_margin: float | None = None,
) -> RenderableType:
    """Render the output of `heterps plan`.

    Args:
        problem: the planning problem.
        plan: its plan.
        explanation: its reasons.
        without_margin: cost in dollars of the cheapest plan that trusts the profile, if this one does not.
    """
    seconds = problem.samples / plan.throughput * (1 + plan.lost_time)
    summary = Table.grid(padding=_PADDING)
    summary.add_column(style="bold", no_wrap=True)
    summary.add_column(overflow="fold")
    floor = f", the floor is {format_rate(problem.min_samples_per_second)}" if problem.min_samples_per_second else ""
    summary.add_row("throughput", f"{format_rate(plan.throughput)} predicted{floor}")
    summary.add_row(
        "cost",
        f"{format_money(plan.cost)} for {problem.samples:,.0f} samples: {format_money(plan.cost_per_hour)}/h "
        f"for {format_duration(seconds)}",
    )
    if sentence := describe_interruptions(problem, plan):
        summary.add_row("interruptions", sentence)
    summary.add_row("proof", describe_proof(plan))
    for sentence in describe_contributions(plan):
        summary.add_row("found by", sentence)
    if plan.machine is not None:
        shortage = describe_shortage(plan.machine, plan.throughput, problem.min_samples_per_second)
        summary.add_row("machine", shortage or describe_cores(plan.machine))
    for title, sentence in describe_selections(plan):
        summary.add_row(title, sentence)
    if plan.robust is not None:
        summary.add_row("margin", describe_margin(plan, without_margin))
    summary.add_row("limited by", describe_bottleneck(explanation))
    for sentence in describe_shadow_prices(problem, plan):
        summary.add_row("limits", sentence)
    if not explanation.complete:
        summary.add_row("alternatives", ALTERNATIVES_LEFT_OUT)
    parts: list[RenderableType] = [_stages(plan, explanation), Text(), summary]
    if explanation.alternatives:
        parts += [Text(), _alternatives(plan, explanation)]
    return Group(*parts)


def describe_interruptions(problem: Problem, plan: Plan) -> str:
    """Describe what interruptions are expected to cost; empty: no unit of the plan is interrupted."""
    if not plan.lost_time:
        return ""
    rates = {pool.name: pool.interruptions_per_unit_hour for pool in problem.pools}
    units = sum(rates[stage.pool] * stage.units for stage in plan.stages)
    if problem.parameter_server is not None:
        units += rates[plan.parameter_server.pool] * plan.parameter_server.units
    lost = plan.cost * plan.lost_time / (1 + plan.lost_time)
    return f"{units:.3g} per hour are expected to cost {plan.lost_time:.2%} of the time and {format_money(lost)}"


def describe_selections(plan: Plan) -> list[tuple[str, str]]:
    """Describe what was chosen, with the figures of each candidate; one title and sentence per choice."""
    chosen = (("precision", plan.precision), ("dense exchange", plan.dense_exchange))
    return [(title, describe_selection(selection)) for title, selection in chosen if selection is not None]


def describe_proof(plan: Plan) -> str:
    """Describe how good a plan is, and the proof."""
    if plan.machine is not None and plan.throughput < plan.machine.throughput_on_pools:
        return (
            f"no plan that is fast enough with a core for each unit costs less than {format_money(plan.lower_bound)}; "
            f"sharing this machine's cores makes this one more expensive (found in {plan.seconds:.3f} s)"
        )
    if plan.optimal:
        return f"optimal (gap 0): no plan that is fast enough costs less; found in {plan.seconds:.3f} s"
    return (
        f"at most {plan.gap:.2%} of the cost can be saved: no plan that is fast enough costs less than "
        f"{format_money(plan.lower_bound)} (method {plan.method}, {plan.seconds:.3f} s)"
    )


def describe_contributions(plan: Plan) -> list[str]:
    """Describe which part of a learned method found the plan; empty for other methods."""
    if plan.learned is None:
        return []
    parts = plan.learned
    names = {
        "learning": "learning (a draw from the network)",
        "search": "search (segment moves)",
        "start": "neither learning nor search: all layers on one pool",
    }
    when = f", in round {parts.found_in_round} of {parts.num_rounds}" if parts.found_in_round else ""
    costs = []
    for name, number, cost in (
        ("learning", parts.num_drawn, parts.drawn_cost),
        ("search", parts.num_searched, parts.searched_cost),
    ):
        cheapest = "none feasible" if cost is None else f"the cheapest {format_money(cost)}"
        costs.append(f"{number:,} schedules by {name}, {cheapest}")
    return [f"{names[parts.found_by]}{when}", "; ".join(costs)]


def describe_bottleneck(explanation: Explanation) -> str:
    """Describe what limits the throughput."""
    if explanation.bottleneck == "parameterServer":
        return "the parameter servers"
    if explanation.bottleneck == "machine":
        return "the cores of this machine"
    stage = next(s for s in explanation.stages if s.name == explanation.bottleneck)
    compute = stage.compute_sequential + stage.compute_parallel
    if stage.transfer > compute + stage.bubble:
        return f"{stage.name} on {stage.pool}, by sending its output to the next stage"
    fixed = stage.compute_sequential / compute
    text = f"{stage.name} on {stage.pool}, by computing ({fixed:.0%} of it does not shrink with more units)"
    if stage.bubble > 0:
        text += f" and waiting for other stages ({stage.bubble * stage.throughput:.0%} of a step)"
    return text


def describe_margin(plan: Plan, without_margin: float | None) -> str:
    """Describe the guarantee of a plan that allows for profile errors, and its cost."""
    assert plan.robust is not None
    robust = plan.robust
    chance = "more than 99%" if robust.confidence > 0.99 else f"{robust.confidence:.0%}"  # never certain
    text = (
        f"even if each measured time is off by {robust.error:.0%}, the floor is kept with a probability of "
        f"{chance}; {format_rate(robust.expected_throughput)} if the profile is right"
    )
    if without_margin is None or without_margin <= 0:
        return text
    return (
        f"{text}. A plan that trusts the profile costs {format_money(without_margin)}: the margin is "
        f"{plan.cost / without_margin - 1:+.1%}, if times are as long as it allows for"
    )


def describe_shadow_prices(problem: Problem, plan: Plan) -> list[str]:
    """Describe the value of one more pod of each limited pool."""
    if not plan.binding_limits and plan.limits_examined:
        return ["none binds: more units of any pool would not make training cheaper"]
    hours = problem.samples / plan.throughput / 3600
    sentences = []
    for pool in plan.binding_limits:
        size = problem.pools[problem.pool_index(pool)].units_per_pod
        saving = plan.shadow_prices.get(pool, 0.0) * size
        what = f"one more {pool}" if size == 1 else f"one more pod of {size} {pool}"
        sentences.append(
            f"{what} is worth {format_money(saving)}/h, {format_money(saving * hours)} over the training: "
            f"the limit of {pool} binds"
        )
    if not plan.limits_examined:
        sentences.append("not all examined: the search was stopped")
    return sentences


def _stages(plan: Plan, explanation: Explanation) -> Table:
    table = Table(box=None, padding=_PADDING, header_style="bold")
    for name in ("stage", "layers", "pool"):
        table.add_column(name, no_wrap=name != "layers", overflow="fold")
    for name in ("units", "samples/s alone", "busy", "share of cost"):
        table.add_column(name, justify="right", no_wrap=True)
    for stage, budget in zip(plan.stages, explanation.stages, strict=True):
        table.add_row(
            stage.name,
            Text(", ".join(stage.layers)),
            stage.pool,
            str(stage.units),
            f"{budget.throughput:,.0f}",
            f"{budget.busy_fraction:.0%}",
            f"{budget.cost_share:.0%}",
        )
    servers = plan.parameter_server
    rest = max(0.0, 1.0 - sum(budget.cost_share for budget in explanation.stages))
    table.add_row("servers", f"{servers.replicas} shard(s)", servers.pool, str(servers.units), "", "", f"{rest:.0%}")
    return table


def _alternatives(plan: Plan, explanation: Explanation) -> Table:
    title = "the cheapest plan of each other kind"
    table = Table(title=title, title_justify="left", box=None, padding=_PADDING, header_style="bold")
    table.add_column("plan", overflow="fold")
    for name in ("cost", "per hour", "samples/s", "compared"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row(
        "this plan",
        format_money(plan.cost),
        format_money(plan.cost_per_hour),
        f"{plan.throughput:,.0f}",
        "",
        style="bold",
    )
    for other in explanation.alternatives:
        if other.cost is None or other.cost_per_hour is None or other.throughput is None:
            table.add_row(Text(other.name), "", "", "", "not fast enough", style="dim")
            continue
        percent = other.extra_percent
        compared = "" if percent is None else "the same" if abs(percent) < 0.05 else f"{percent:+,.1f} %"
        table.add_row(
            Text(other.name),
            format_money(other.cost),
            format_money(other.cost_per_hour),
            f"{other.throughput:,.0f}",
            compared,
        )
    return table
