"""The page of `heterps plan --html`."""

from __future__ import annotations

from heterps_operator.formatting import format_duration, format_money, format_rate
from heterps_operator.page.document import build_document, figures
from heterps_operator.page.html import Markup
from heterps_operator.page.palette import Palette
from heterps_operator.page.sections.frontier import frontier_section
from heterps_operator.page.sections.layers import layers_section
from heterps_operator.page.sections.reasons import Planned, reasons_section
from heterps_operator.page.sections.timeline import predicted_times, timeline_section
from heterps_operator.state.plan import JobPlan

__all__ = ["plan_page"]


def plan_page(name: str, planned: Planned, written: float) -> str:
    """Build the page of a plan that was not carried out yet.

    Args:
        name: the job's or the problem's name.
        planned: the plan and its reasons.
        written: the time of writing, Unix seconds.

    Returns:
        The text of the HTML file.
    """
    problem, plan, explanation = planned.problem, planned.plan, planned.explanation
    palette = Palette(pool.name for pool in problem.pools)
    predicted = predicted_times(problem, plan, explanation)
    sections = [
        _figures(planned),
        layers_section(JobPlan.from_json(plan.to_json()), palette),
        timeline_section(predicted, (), palette, explanation),
        None if planned.frontier is None else frontier_section(problem, plan, planned.frontier, palette),
        reasons_section(planned),
    ]
    return build_document(name, "The cheapest plan that is fast enough", sections, written)


def _figures(planned: Planned) -> Markup:
    problem, plan = planned.problem, planned.plan
    floor = problem.min_samples_per_second
    seconds = problem.samples / plan.throughput
    units = sum(stage.units for stage in plan.stages)
    proof = "optimal" if plan.optimal else f"within {plan.gap:.2%} of the bound"
    return figures(
        [
            ("Throughput, predicted", format_rate(plan.throughput), f"required: {format_rate(floor)}" if floor else ""),
            ("Price", f"{format_money(plan.cost_per_hour)} per hour", f"{units} units in {len(plan.stages)} stages"),
            ("Training", format_money(plan.cost), f"{problem.samples:,.0f} samples in {format_duration(seconds)}"),
            ("Proof", proof, f"method {plan.method}, {plan.seconds:.3f} s"),
        ]
    )
