"""The planner's knowledge of a plan, as pages show it."""

from __future__ import annotations

from dataclasses import dataclass

from heterps_operator.formatting import format_money
from heterps_operator.page.document import facts, section
from heterps_operator.page.html import Content, Markup, data_table
from heterps_operator.terminal.explanation import (
    ALTERNATIVES_LEFT_OUT,
    describe_bottleneck,
    describe_contributions,
    describe_interruptions,
    describe_proof,
    describe_shadow_prices,
)
from heterps_planner.model.problem import Problem
from heterps_planner.plans.explain import Alternative, Explanation
from heterps_planner.plans.frontier import Frontier
from heterps_planner.plans.plan import Plan

__all__ = ["Planned", "reasons_section"]


@dataclass(frozen=True)
class Planned:
    """A plan with everything that the planner can say about it.

    Attributes:
        problem: what was planned.
        plan: the plan.
        explanation: its stages, limits and alternatives.
        frontier: the cheapest plans of other throughputs; None: they were not computed.
        selections: what was chosen beside the stages, and why; titles and sentences.
    """

    problem: Problem
    plan: Plan
    explanation: Explanation
    frontier: Frontier | None = None
    selections: tuple[tuple[str, str], ...] = ()


def reasons_section(planned: Planned) -> Markup:
    """Build the section that says why the plan is this one, and what others would cost."""
    plan, explanation = planned.plan, planned.explanation
    interrupted = describe_interruptions(planned.problem, plan)
    reasons = [
        *([("interruptions", interrupted)] if interrupted else []),
        *planned.selections,
        ("proof", describe_proof(plan)),
        *(("found by", sentence) for sentence in describe_contributions(plan)),
        ("limited by", describe_bottleneck(explanation)),
        *(("limits", sentence) for sentence in describe_shadow_prices(planned.problem, plan)),
        *([] if explanation.complete else [("alternatives", ALTERNATIVES_LEFT_OUT)]),
    ]
    rows = [_row("this plan", plan.cost, plan.cost_per_hour, plan.throughput, "")]
    rows += [_alternative(other) for other in explanation.alternatives]
    return section(
        "Why this plan",
        "Each alternative is the cheapest plan of its kind, so the best is compared with the best.",
        facts(reasons),
        data_table("Alternatives", ("plan", "cost", "per hour", "samples/s", "compared"), rows, numbers=4),
    )


def _alternative(other: Alternative) -> tuple[Content, ...]:
    if other.cost is None or other.cost_per_hour is None or other.throughput is None:
        return (other.name, "", "", "", "not fast enough")
    percent = other.extra_percent
    compared = "" if percent is None else "the same" if abs(percent) < 0.05 else f"{percent:+,.1f} %"
    return _row(other.name, other.cost, other.cost_per_hour, other.throughput, compared)


def _row(name: str, cost: float, per_hour: float, throughput: float, compared: str) -> tuple[Content, ...]:
    return (name, format_money(cost), format_money(per_hour), f"{throughput:,.0f}", compared)
