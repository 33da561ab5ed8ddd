"""Sections beyond the paper: the cost of profile errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from experiments import plots
from experiments.framework import Row
from experiments.markdown import BY_THE_MODEL, made_by, percent, picture, scope_of, table
from experiments.plots import Bar
from experiments.results import MODEL_TITLES, Results, in_order
from experiments.tables import group, mean, number, spread

__all__ = ["SECTIONS"]


def _by_seed(rows: Sequence[Row], value: Callable[[Row], float | None]) -> Bar:
    """Mean of the seeds' means, and their spread."""
    means = []
    for here in group(rows, lambda row: row["seed"]).values():
        values = [v for row in here if (v := value(row)) is not None]
        means.append(mean(values))
    shown = spread(means)
    return Bar(*shown, missing="" if math.isfinite(shown[0]) else "no plan")


def _missed(name: str) -> Callable[[Row], float | None]:
    return lambda row: None if row.get(name) is None else 100.0 * (not row[name])


def _value(name: str) -> Callable[[Row], float | None]:
    return lambda row: None if row.get(name) is None else number(row, name)


def robustness_section(results: Results) -> str:
    """Regret and missed floors against the error of the profile."""
    rows = results.rows("robustness")
    if not rows:
        return ""
    errors = sorted({number(row, "error") for row in rows})
    missed = {
        "plan as it is": _missed("plain_keeps_floor"),
        "provisioned again": _missed("reprovisioned_feasible"),
        "plan with margins": _missed("robust_keeps_floor"),
    }
    extra = {
        "plan as it is": _value("plain_extra_percent"),
        "provisioned again": _value("reprovisioned_regret_percent"),
        "plan with margins": _value("robust_extra_percent"),
    }
    figure, axes = plots.new_figure(1, 2, width=12, height=4.6)
    for ax, measures, title in (
        (axes[0], missed, "How often the floor is missed"),
        (axes[1], extra, "What training costs above the true optimum"),
    ):
        series = {
            name: [_by_seed([r for r in rows if r["error"] == error], value) for error in errors]
            for name, value in measures.items()
        }
        plots.bars(ax, [f"{100 * error:g} %" for error in errors], series, foot=0.0, text=percent)
        ax.set_title(title, loc="left", fontsize=10)
        ax.set_xlabel("error of the measured times (sigma)")
    axes[0].set_ylabel("worlds that miss the floor, %")
    axes[1].set_ylabel("extra cost, %")
    tenth = [r for r in rows if number(r, "error") == errors[len(errors) // 2]]
    kept, again, margins = (
        _by_seed(tenth, measure).value for measure in (missed["plan as it is"], *list(extra.values())[1:])
    )
    figure.suptitle(
        f"Times wrong by {100 * number(tenth[0], 'error'):g} %: {percent(kept)} % of the plans miss the floor; "
        f"provisioned again they cost {percent(again)} % too much, with margins {percent(margins)} %",
        x=0.01, ha="left", fontsize=12,
    )  # fmt: skip
    plots.legend(figure, axes, columns=3, note="× no plan has room for such margins; whisker: spread over the seeds")
    plots.finish(figure, results.images / "robustness.png")
    body = []
    for model in in_order([str(row["model"]) for row in rows]):
        for error in errors:
            here = [r for r in rows if r["model"] == model and r["error"] == error]
            values = [_by_seed(here, measure).value for measure in (*missed.values(), *extra.values())]
            unplanned = 100 * mean([float(not r["robust_planned"]) for r in here])
            label = f"{MODEL_TITLES.get(model, model)}, {100 * error:g} %"
            body.append([label, *(percent(value) for value in values), percent(unplanned)])
    head = [
        "model, error", "missed: as it is", "provisioned again", "margins", "extra: as it is", "provisioned again",
        "margins", "no plan with margins",
    ]  # fmt: skip
    return "\n".join(
        [
            "## What an error of the profile costs\n",
            made_by("robustness", results.machine("robustness")),
            "Every measured time is wrong by a lognormal factor of its own, in 10 worlds per seed with 2 and with 16 "
            "pools. *As it is*: the plan made from wrong times runs in the true world. *Provisioned again*: its stages "
            "get the units that the true times ask for, as the control loop does it once it has measured. *Margins*: "
            "it was planned for just this error. All in percent; a plan that misses the floor may well be cheap, so "
            "that the two sides belong together. The paper has no such experiment.\n",
            picture("Missed floors and extra cost against the error of the profile", "robustness"),
            table(head, body, rows, scope=f"{scope_of(rows, MODEL_TITLES)}; 10 worlds per seed", clock=BY_THE_MODEL),
        ]
    )


SECTIONS = (robustness_section,)
