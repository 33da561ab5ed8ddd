"""Tables that compare plans: methods, what-ifs, jobs that share pools, changing prices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from heterps_operator.formatting import format_duration, format_money, format_rate
from heterps_planner.model.problem import Problem
from heterps_planner.plans.plan import Infeasible, Plan
from heterps_planner.scenarios.joint import JointPlan
from heterps_planner.scenarios.line import Line, LinePlan
from heterps_planner.scenarios.market import Followed, MarketStep

__all__ = [
    "MethodResult",
    "best_bound",
    "render_joint",
    "render_line",
    "render_market",
    "render_methods",
    "render_what_if",
]

_PADDING = (0, 2, 0, 0)
_ROWS = 40  # ticks shown in a table


@dataclass(frozen=True)
class MethodResult:
    """The result of one method for a problem."""

    method: str
    seconds: float
    plan: Plan | None
    failure: str | None  # why there is no plan
    stopped: bool  # by the time limit or by Ctrl-C

    def to_json(self, bound: float) -> dict[str, Any]:
        """Return the result as a JSON object; `bound` is the best lower bound that any method has proven."""
        plan = self.plan
        return {
            "method": self.method,
            "seconds": self.seconds,
            "stopped": self.stopped,
            "feasible": plan is not None,
            "message": self.failure,
            "cost": None if plan is None else plan.cost,
            "gap": None if plan is None else gap_to(bound, plan),
            "plan": None if plan is None else plan.to_json(),
        }


def best_bound(results: Sequence[MethodResult]) -> float:
    """Return the highest lower bound of all methods; a method that was stopped may have none."""
    return max((result.plan.lower_bound for result in results if result.plan is not None), default=0.0)


def gap_to(bound: float, plan: Plan) -> float:
    """Share of a plan's cost above a lower bound, 0 to 1."""
    gap = 1 - bound / plan.cost if plan.cost > 0 else 0.0
    return gap if gap > 1e-8 else 0.0


def _table(*names: str, title: str | None = None, text: int = 1) -> Table:
    """Return a table without lines; columns after the first `text` ones hold numbers."""
    table = Table(title=title, title_justify="left", box=None, padding=_PADDING, header_style="bold")
    for i, name in enumerate(names):
        table.add_column(name, justify="left" if i < text else "right", overflow="fold")
    return table


def _stages(plan: Plan) -> Text:
    return Text(", ".join(f"{stage.units} {stage.pool}" for stage in plan.stages))


def render_methods(results: Sequence[MethodResult], seconds_per_method: float) -> RenderableType:
    """Render all methods, the cheapest plan first; those without a plan give the reason."""
    table = Table(box=None, padding=_PADDING, header_style="bold")
    table.add_column("method", no_wrap=True)
    for name in ("cost", "above the bound", "per hour", "samples/s", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("units of each stage, or why there is no plan", overflow="fold")
    bound = best_bound(results)
    order = sorted(
        results, key=lambda r: (r.plan is None, 0.0 if r.plan is None else r.plan.cost, r.method != "optimal")
    )
    for result in order:
        seconds = f"{result.seconds:.2f}" + (" (stopped)" if result.stopped else "")
        plan = result.plan
        if plan is None:
            table.add_row(result.method, "", "", "", "", seconds, Text(result.failure or ""), style="dim")
            continue
        above = "optimal" if gap_to(bound, plan) == 0 else f"{plan.cost / bound - 1:.2%}" if bound > 0 else "unknown"
        table.add_row(
            result.method,
            format_money(plan.cost),
            above,
            format_money(plan.cost_per_hour),
            f"{plan.throughput:,.0f}",
            seconds,
            _stages(plan),
        )
    note = f"at most {seconds_per_method:g} s per method (--timeout); the bound is that of the exact method"
    return Group(table, Text(note, style="dim"))


def render_what_if(
    problem: Problem, found: Plan | Infeasible, changed: Problem, other: Plan | Infeasible, settings: Sequence[str]
) -> RenderableType:
    """Render two plans side by side, and the value of the change."""
    table = Table(box=None, padding=_PADDING, header_style="bold")
    table.add_column("", style="bold", no_wrap=True)
    table.add_column("as it is", overflow="fold")
    table.add_column(Text("if " + ", ".join(settings)), overflow="fold")
    table.add_column("change", justify="right", no_wrap=True)
    refused = [plan.message for plan in (found, other) if isinstance(plan, Infeasible)]
    if isinstance(found, Plan) or isinstance(other, Plan):
        for name, left, right, change in _comparison(problem, found, changed, other):
            table.add_row(name, Text(left), Text(right), change)
    parts: list[RenderableType] = [table]
    if isinstance(found, Infeasible):
        parts.append(Text(f"as it is: {refused[0]}"))
    if isinstance(other, Infeasible):
        parts.append(Text(f"if {', '.join(settings)}: {refused[-1]}"))
    if isinstance(found, Plan) and isinstance(other, Plan):
        parts += [Text(), Text(_verdict(found, other))]
    return Group(*parts)


def _verdict(found: Plan, other: Plan) -> str:
    saving = found.cost - other.cost
    if abs(saving) <= 1e-9 * max(found.cost, other.cost):
        return "This would change nothing in what training costs."
    percent = f" ({abs(saving) / found.cost:.1%})" if found.cost > 0 else ""
    return f"This would {'save' if saving > 0 else 'cost'} {format_money(abs(saving))}{percent} of the training."


def _comparison(
    problem: Problem, found: Plan | Infeasible, changed: Problem, other: Plan | Infeasible
) -> list[tuple[str, str, str, str]]:
    """Rows (name, current, changed, difference)."""
    columns = [(problem, found), (changed, other)]

    def both(show: Any) -> tuple[str, str]:
        left, right = (show(p, plan) if isinstance(plan, Plan) else "no plan" for p, plan in columns)
        return left, right

    rows: list[tuple[str, str, str, str]] = []
    for i in range(max(len(plan.stages) for _, plan in columns if isinstance(plan, Plan))):
        texts = both(lambda p, plan, i=i: _stage(plan, i))
        rows.append((f"stage-{i}", *texts, "" if texts[0] == texts[1] else "changed"))
    servers = both(lambda p, plan: f"{plan.parameter_server.units} {plan.parameter_server.pool}")
    rows.append(("servers", *servers, "" if servers[0] == servers[1] else "changed"))
    for name, value, show in (
        ("throughput", lambda plan: plan.throughput, format_rate),
        ("per hour", lambda plan: plan.cost_per_hour, format_money),
        ("cost", lambda plan: plan.cost, format_money),
    ):
        texts = both(lambda p, plan, value=value, show=show: show(value(plan)))
        rows.append((name, *texts, _percent(value, found, other)))
    texts = both(lambda p, plan: format_duration(p.samples / plan.throughput))
    rows.append(("training", *texts, ""))
    texts = both(lambda p, plan: ", ".join(plan.binding_limits) or "none")
    rows.append(("limits that bind", *texts, ""))
    return rows


def _stage(plan: Plan, index: int) -> str:
    if index >= len(plan.stages):
        return "-"
    stage = plan.stages[index]
    layers = stage.layers[0] if len(stage.layers) == 1 else f"{stage.layers[0]} .. {stage.layers[-1]}"
    return f"{stage.units} {stage.pool}: {layers}"


def _percent(value: Any, found: Plan | Infeasible, other: Plan | Infeasible) -> str:
    if not (isinstance(found, Plan) and isinstance(other, Plan)) or value(found) == 0:
        return ""
    change = value(other) / value(found) - 1
    return "the same" if abs(change) < 5e-4 else f"{change:+.1%}"


def render_line(line: Line, found: LinePlan) -> RenderableType:
    """Render which jobs of a line can run at once, and why the others wait."""
    table = _table("job", "stages", "samples/s", "per hour", "cost", text=2)
    for name, plan in found.plans.items():
        figures = f"{plan.throughput:,.0f}", format_money(plan.cost_per_hour), format_money(plan.cost)
        table.add_row(name, _stages(plan), *figures)
    for name, why in found.refused.items():
        table.add_row(name, Text(f"waits: {why}"), "-", "-", "-")
    free = ", ".join(f"{units} {pool}" for pool, units in line.limits.items())
    return Group(table, Text(f"free: {free}"))


def render_joint(problems: Sequence[Problem], names: Sequence[str], joint: JointPlan) -> RenderableType:
    """Render the plans of jobs that share pools, and the cost of sharing."""
    table = _table("job", "stages", "samples/s", "per hour", "cost", "alone", text=2)
    for name, plan in zip(names, joint.plans, strict=True):
        sharing = plan.cost - plan.lower_bound
        alone = "the same" if sharing <= 1e-8 * plan.cost else f"{format_money(plan.lower_bound)}"
        table.add_row(
            name,
            _stages(plan),
            f"{plan.throughput:,.0f}",
            format_money(plan.cost_per_hour),
            format_money(plan.cost),
            alone,
        )
    limits = {pool.name: pool.max_units for problem in problems for pool in problem.pools}
    used = ", ".join(f"{units} of {limits[name]} {name}" for name, units in joint.used_units.items())
    summary = Table.grid(padding=_PADDING)
    summary.add_column(style="bold", no_wrap=True)
    summary.add_column(overflow="fold")
    summary.add_row("cost", f"{format_money(joint.cost)} for all jobs; if each had all pools to itself: "
                    f"{format_money(joint.alone_cost)}")  # fmt: skip
    summary.add_row("one by one", _one_by_one(joint, names))
    proof = "optimal (gap 0): no plans that run at the same time cost less together"
    if not joint.optimal:
        least = format_money(joint.lower_bound)
        saved = f"at most {joint.gap:.2%} of the cost can be saved"
        proof = f"{saved}: no plans that share these pools cost less than {least}"
    summary.add_row("proof", f"{proof}; found in {joint.seconds:.2f} s")
    summary.add_row("units", used)
    return Group(table, Text(), summary)


def _one_by_one(joint: JointPlan, names: Sequence[str]) -> str:
    if joint.sequential_cost is None:
        return "planned one after the other, they fit in none of the orders tried"
    order = ", ".join(names[i] for i in joint.sequential_order)
    saving = joint.sequential_cost - joint.cost
    if saving <= 1e-8 * joint.cost:
        return f"the same, planned in the order {order}"
    return (
        f"{format_money(joint.sequential_cost)} at best ({order}): the joint plan saves {format_money(saving)} "
        f"({saving / joint.sequential_cost:.1%})"
    )


def render_market(followed: Followed, stayed: Followed) -> RenderableType:
    """Render the decisions at each tick, and the value of following the prices."""
    table = _table("time", "following", "units", "per hour", "spent", "staying", "spent", text=3)
    steps = _interesting(followed.steps, stayed.steps)
    other = {step.seconds: step for step in stayed.steps}
    for step in steps[:_ROWS]:
        kept = other.get(step.seconds)
        table.add_row(
            format_duration(step.seconds),
            _decision(step),
            ", ".join(f"{units} {pool}" for pool, units in step.units.items()) or "-",
            format_money(step.cost_per_hour),
            format_money(step.spent),
            "done" if kept is None else _decision(kept),
            "" if kept is None else format_money(kept.spent),
        )
    parts: list[RenderableType] = [table]
    if len(steps) > _ROWS:
        parts.append(Text(f"... and {len(steps) - _ROWS} more (--output json has all)", style="dim"))
    quiet = len(followed.steps) - len(steps)
    if quiet > 0:
        parts.append(Text(f"{quiet} ticks without a change are left out (--output json has all)", style="dim"))
    summary = Table.grid(padding=_PADDING)
    summary.add_column(style="bold", no_wrap=True)
    summary.add_column(overflow="fold")
    summary.add_row("following", _outcome(followed))
    summary.add_row("staying", _outcome(stayed))
    summary.add_row("worth", _worth(followed, stayed))
    planning = sorted(step.planning_seconds for step in followed.steps)
    if planning:
        middle = planning[len(planning) // 2]
        summary.add_row("planning", f"{middle * 1e3:.0f} ms per tick (median), {planning[-1] * 1e3:.0f} ms at most")
    return Group(*parts, Text(), summary)


def _interesting(steps: Sequence[MarketStep], others: Sequence[MarketStep]) -> list[MarketStep]:
    other = {step.seconds: step for step in others}
    return [s for s in steps if s.decision != "stay" or (s.seconds in other and other[s.seconds].decision != "stay")]


def _decision(step: MarketStep) -> str:
    words = {"provision": "other units", "move": "other stages", "wait": "no plan possible"}
    text = words.get(step.decision, step.decision)
    return f"{text} (interrupted)" if step.interrupted else text


def _outcome(followed: Followed) -> str:
    text = f"{format_money(followed.cost)} for {followed.samples:,.0f} samples"
    text += " in " + format_duration(followed.seconds) if followed.seconds is not None else "; training does not end"
    changes, interruptions = followed.num_changes, followed.num_interruptions
    return f"{text}; {changes} change{'s' * (changes != 1)}, {interruptions} interruption{'s' * (interruptions != 1)}"


def _worth(followed: Followed, stayed: Followed) -> str:
    if followed.seconds is None or stayed.seconds is None:
        return "not comparable: not all samples are trained"
    saving = stayed.cost - followed.cost
    if abs(saving) <= 1e-9 * stayed.cost:
        return "the same"
    text = f"{format_money(abs(saving))} ({abs(saving) / stayed.cost:.1%})"
    if saving > 0:
        return f"following saves {text}"
    return f"following costs {text} more: prices recovered before the changes paid off; try --horizon-seconds"
