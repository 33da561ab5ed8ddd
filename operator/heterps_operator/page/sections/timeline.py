"""What each stage does during one step: it computes, sends, and waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heterps_operator.page.charts import bar, chart, label, percent, shortened, ticks, vertical_grid
from heterps_operator.page.document import section
from heterps_operator.page.html import Markup, data_table, element, units_of
from heterps_operator.page.palette import Palette, swatch
from heterps_operator.state.values import CoordinatorView
from heterps_operator.terminal.explanation import describe_bottleneck
from heterps_planner.model.problem import Problem
from heterps_planner.plans.explain import Explanation, StageBudget
from heterps_planner.plans.plan import Plan

__all__ = ["StepTimes", "measured_times", "predicted_times", "timeline_section"]

_LANE_PIXELS = 14
_STAGE_PIXELS = 58
_ROUNDING = 1e-9  # of a step; shorter waits are differences of rounded sums
_PACE = "All stages work at the same time on different micro-batches, so the slowest one sets the pace. "
_LABEL_CHARACTERS = 38  # fit into the plot of a narrow telephone


@dataclass(frozen=True)
class StepTimes:
    """How a stage spends one step.

    Attributes:
        name: the stage.
        pool: its pool.
        units: units of the pool.
        compute: seconds of computing.
        send: seconds of sending to the next stage, which overlaps with computing; None: not measured apart.
        step: seconds of the step.
        share_fixed: the part of computing that more units do not shorten, 0 to 1; None: unknown.
    """

    name: str
    pool: str
    units: int
    compute: float
    send: float | None
    step: float
    share_fixed: float | None = None

    @property
    def wait(self) -> float:
        """Seconds in which the stage neither computes nor sends."""
        rest = self.step - max(self.compute, self.send or 0.0)
        return rest if rest > _ROUNDING * self.step else 0.0


def predicted_times(problem: Problem, plan: Plan, explanation: Explanation) -> list[StepTimes]:
    """Return how the planner expects each stage to spend a step."""
    batch = problem.training_batch_size
    return [_predicted(stage, batch, batch / plan.throughput) for stage in explanation.stages]


def _predicted(stage: StageBudget, batch: int, step: float) -> StepTimes:
    compute = stage.compute_sequential + stage.compute_parallel
    return StepTimes(
        name=stage.name,
        pool=stage.pool,
        units=stage.units,
        compute=compute * batch,
        send=stage.transfer * batch,
        step=step,
        share_fixed=stage.compute_sequential / compute if compute > 0 else 0.0,
    )


def measured_times(view: CoordinatorView, units: Sequence[int]) -> list[StepTimes]:
    """Return how the slowest worker of each stage spent its last steps; empty if that was not measured.

    Args:
        view: the coordinator's status.
        units: of each stage.
    """
    found = []
    for number, count in enumerate(units):
        workers = [member for member in view.members if member.stage == number and member.step_seconds > 0]
        if not workers:
            return []
        slowest = max(workers, key=lambda member: member.compute_seconds)
        found.append(
            StepTimes(
                name=f"stage-{number}",
                pool=slowest.pool,
                units=count,
                compute=slowest.compute_seconds,
                send=None,
                step=slowest.step_seconds,
            )
        )
    return found


def timeline_section(
    predicted: Sequence[StepTimes], measured: Sequence[StepTimes], palette: Palette, explanation: Explanation | None
) -> Markup | None:
    """Build the section; None if there is neither a prediction nor a measurement.

    Args:
        predicted: from `predicted_times`; may be empty.
        measured: from `measured_times`; may be empty.
        palette: fills of the pools.
        explanation: names the bottleneck; None: unknown.
    """
    groups = [("predicted", predicted)] * bool(predicted) + [("measured", measured)] * bool(measured)
    if not groups:
        return None
    # One scale for both plots, so that they can be compared.
    end = max(max(each.step, each.compute, each.send or 0.0) for _, group in groups for each in group)
    single = all(len(group) == 1 for _, group in groups)
    limit = "" if explanation is None else f"The pace is limited by {describe_bottleneck(explanation)}."
    return section(
        "One step, stage by stage",
        (("" if single else _PACE) + limit).rstrip() or None,
        _legend([times for _, group in groups for times in group], palette),
        *(
            part
            for kind, group in groups
            for part in (element("h3", kind.capitalize()), _plot(kind, group, end, palette))
        ),
        _table(groups),
    )


def _legend(times: Sequence[StepTimes], palette: Palette) -> Markup:
    pools = dict.fromkeys(each.pool for each in times)
    items = [element("li", swatch(palette.fill(pool)), f"compute on {pool}") for pool in pools]
    if any(each.send for each in times):
        items.append(element("li", swatch("url(#send)"), "send"))
    items.append(element("li", swatch("url(#wait)"), "wait"))
    return element("ul", *items, class_="legend")


def _plot(kind: str, times: Sequence[StepTimes], end: float, palette: Palette) -> Markup:
    unit, factor = ("s", 1.0) if end >= 1 else ("ms", 1e3) if end >= 1e-3 else ("µs", 1e6)
    height = _STAGE_PIXELS * len(times)
    marks = [(value / factor, f"{value:g}") for value in ticks(end * factor)]
    parts = vertical_grid(end, height, marks, f"{unit} of a step")
    for number, each in enumerate(times):
        top = _STAGE_PIXELS * number + 20
        name = shortened(f"{each.name}: {units_of(each.units, each.pool)}", _LABEL_CHARACTERS)
        parts.append(label(name, "0%", top - 6, css="strong"))
        parts += _lane("compute", top, each.compute, each.step, end, palette.fill(each.pool))
        if each.send:
            parts += _lane("send", top + _LANE_PIXELS + 3, each.send, each.step, end, "url(#send)")
    words = "; ".join(
        f"{each.name} computes {_seconds(each.compute)}, waits {_seconds(each.wait)} of {_seconds(each.step)}"
        for each in times
    )
    return chart(f"{kind.capitalize()} times of a step", words, height, parts)


def _lane(name: str, top: float, busy: float, step: float, end: float, fill: str) -> list[Markup]:
    """One activity of a stage: its time, and the rest of the step, in which it waits."""
    parts = [label(name, "0%", top + 11, "end", shift=-8, css="tick")]
    if step > busy * (1 + _ROUNDING):
        parts.append(bar(percent(busy, end), top, percent(step - busy, end), _LANE_PIXELS, "url(#wait)"))
    return [*parts, bar("0%", top, percent(busy, end), _LANE_PIXELS, fill)]


def _table(groups: Sequence[tuple[str, Sequence[StepTimes]]]) -> Markup:
    rows = [
        (
            each.name if len(groups) == 1 else f"{each.name}, {kind}",
            units_of(each.units, each.pool),
            _seconds(each.compute),
            "" if each.share_fixed is None else f"{each.share_fixed:.0%}",
            "" if each.send is None else _seconds(each.send),
            _seconds(each.wait),
            _seconds(each.step),
        )
        for kind, group in groups
        for each in group
    ]
    head = ("stage", "units", "compute", "fixed part", "send", "wait", "step")
    caption = "Time of a step; the fixed part of computing does not shrink with more units"
    return data_table(caption, head, rows, numbers=5)


def _seconds(value: float) -> str:
    """Format a time of a step in three digits: `1.24 ms`."""
    if value == 0:
        return "0"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"
