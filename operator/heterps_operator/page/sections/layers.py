"""The layers of the model, grouped by stage and coloured by pool."""

from __future__ import annotations

from heterps_operator.page.document import section
from heterps_operator.page.html import Markup, element, join, units_of
from heterps_operator.page.palette import Palette, swatch
from heterps_operator.state.plan import JobPlan
from heterps_runtime.contract import StageDocument

__all__ = ["layers_section"]


def layers_section(plan: JobPlan, palette: Palette) -> Markup:
    """Build the section that shows which layers run on which pool."""
    count = sum(len(stage.layers) for stage in plan.stages)
    stages = len(plan.stages)
    summary = (
        f"{_plural(count, 'layer')} in {_plural(stages, 'stage')}. Samples pass from stage to stage; "
        f"{_plural(plan.servers.replicas, 'parameter server')} on {plan.servers.pool} "
        f"{'holds' if plan.servers.replicas == 1 else 'hold'} the rows."
    )
    used = (stage.pool for stage in plan.stages)
    groups = [_stage(stage, palette) for stage in plan.stages]
    return section(
        "Layers by pool",
        summary,
        palette.legend(dict.fromkeys((*used, plan.servers.pool))),
        element("ol", join(groups), class_="stages"),
    )


def _stage(stage: StageDocument, palette: Palette) -> Markup:
    fill = palette.fill(stage.pool)
    layers = (element("li", swatch(fill), name) for name in stage.layers)
    workers = _plural(stage.pods, "worker")
    title = element("h3", stage.name, " ", element("small", f"{units_of(stage.units, stage.pool)}, {workers}"))
    return element("li", title, element("ol", join(layers), class_="layers"))


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
