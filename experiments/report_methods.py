"""Sections on the methods: the gap table, and the counterparts of table 3 and figures 5 to 10."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from experiments import paper, plots
from experiments.clusters import POOL_COUNTS
from experiments.framework import Row
from experiments.markdown import (
    BY_THE_MODEL,
    PROCESSOR_TIME,
    made_by,
    percent,
    picture,
    scope_of,
    seconds,
    spread_text,
    table,
)
from experiments.methods import budget_of
from experiments.plots import Bar, look
from experiments.results import MODEL_TITLES, Results, bar_of, gap_percent, in_order, methods_in
from experiments.summary import gap_table, time_table
from experiments.tables import mean, number, spread
from experiments.trials import SEEDLESS

__all__ = ["OWN", "PAPER", "SUMMARY", "bars_of"]


def bars_of(
    rows: Sequence[Row],
    methods: Sequence[str],
    groups: Sequence[Callable[[Row], bool]],
    value: Callable[[Row], float],
    *,
    whatever: bool = False,
) -> dict[str, list[Bar]]:
    """One bar per method and group, of the feasible rows, or of all `whatever` came out."""

    def bar(rows: Sequence[Row]) -> Bar:
        return Bar(*spread([value(row) for row in rows])) if whatever else bar_of(rows, value)

    return {
        method: [bar([r for r in rows if r["method"] == method and keep(r)]) for keep in groups] for method in methods
    }


def summary_section(results: Results) -> str:
    """The whole grid in two tables."""
    rows = results.rows("methods", lambda row: row["kind"] == "devices")
    if not rows:
        return ""
    counts = sorted({int(number(row, "pools")) for row in rows})
    scope = f"{scope_of(rows, MODEL_TITLES)}; a method that was given less has it beside its name"
    return "\n".join(
        [
            "## In short: methods by models\n",
            made_by("methods", results.machine("methods")) + "`python -m experiments --tables` prints both tables.\n",
            "Cost above the certified optimum in percent, mean (worst) over "
            f"T = {', '.join(map(str, counts))}, both kinds of limits and the seeds; `k/n`: a plan was found in k of n "
            "runs, all of which have one; `none`: in none.\n",
            table(*gap_table(results), rows, scope=scope, clock=BY_THE_MODEL),
            "Processor time to a plan, or to giving up, mean (worst):\n",
            table(*time_table(results), rows, scope=scope, clock=PROCESSOR_TIME),
            _budgets(rows),
        ]
    )


def gap_section(results: Results) -> str:
    """Gap to the certified optimum: methods x models, for all pool counts and limits."""
    rows = results.rows("methods", lambda row: row["kind"] == "devices")
    if not rows:
        return ""
    methods = [name for name in methods_in(rows) if name != "optimal"]
    models = in_order([str(row["model"]) for row in rows])
    counts = sorted({int(number(row, "pools")) for row in rows})
    text = [
        "## How far each method is from the certified optimum\n",
        made_by("methods", results.machine("methods")),
        "Percent above the optimum: mean over the seeds, in parentheses the least and the greatest; `none`: the method "
        "found no feasible plan in its time although one exists; `k/n`: feasible in k of n runs; `-`: not run.\n",
        _gap_picture(results, rows, methods, models, counts),
    ]
    for limits in ("loose", "tight"):
        body = []
        for t in counts:
            for model in models:
                cells = []
                for method in methods:
                    found = [
                        r
                        for r in rows
                        if r["method"] == method and r["model"] == model and r["pools"] == t and r["limits"] == limits
                    ]
                    cells.append(_gap_cell(found))
                body.append([f"T = {t}, {MODEL_TITLES.get(model, model)}", *cells])
        here = [row for row in rows if row["limits"] == limits]
        head = ["", *(look(m).label for m in methods)]
        caption = scope_of(here, MODEL_TITLES)
        text += [f"### {limits.capitalize()} limits\n", table(head, body, here, scope=caption, clock=BY_THE_MODEL)]
    return "\n".join(text)


def _gap_cell(rows: Sequence[Row]) -> str:
    if not rows:
        return "-"
    feasible = [gap_percent(row) for row in rows if row["status"] == "ok"]
    if not feasible:
        return "none"
    share = "" if len(feasible) == len(rows) else f" {len(feasible)}/{len(rows)}"
    return spread_text(spread(feasible)) + share


def _gap_picture(
    results: Results, rows: Sequence[Row], methods: Sequence[str], models: Sequence[str], counts: Sequence[int]
) -> str:
    columns = [(model, t) for model in models for t in counts]
    figure, axes = plots.new_figure(2, 1, width=0.55 * len(columns) + 2.5, height=0.6 * len(methods) + 2.2)
    for ax, limits in zip(axes, ("loose", "tight"), strict=True):
        groups = [
            lambda row, m=model, t=t, limits=limits: (row["model"], row["pools"], row["limits"]) == (m, t, limits)
            for model, t in columns
        ]
        values = bars_of(rows, methods, groups, gap_percent)
        labels = [look(method).label for method in methods]
        plots.heat_table(ax, labels, [str(t) for _, t in columns], list(values.values()), percent)
        for j, model in enumerate(models):
            if j:
                ax.axvline(j * len(counts) - 0.5, color="#000000", linewidth=1.2)
            title = MODEL_TITLES.get(model, model)
            ax.text((j + 0.5) * len(counts) - 0.5, -0.62, title, ha="center", va="bottom", fontsize=9)
        ax.set_ylabel(f"{limits} limits", fontsize=10)
    axes[-1].set_xlabel("pools T")
    figure.suptitle(_gap_title(rows), x=0.01, ha="left", fontsize=12)
    figure.supxlabel(
        "Percent above the certified optimum, mean over the seeds; darker: dearer; none: no plan found in most runs; "
        "white: not run",
        fontsize=8.5,
    )  # fmt: skip
    plots.finish(figure, results.images / "gap-by-pools.png")
    return picture("Cost above the certified optimum by method, model, number of pools and limits", "gap-by-pools")


def _gap_title(rows: Sequence[Row]) -> str:
    """The finding: the gap of the learned methods, and the best of the others."""
    means = {
        name: spread([gap_percent(r) for r in rows if r["method"] == name and r["status"] == "ok"])[0]
        for name in methods_in(rows)
        if name != "optimal" and all(r["status"] == "ok" for r in rows if r["method"] == name)
    }
    if not means:
        return "Only the exact method finds a plan every time"
    exact = [look(name).label for name, gap in means.items() if gap < 5e-5]
    others = [f"{look(name).label} {percent(gap)} %" for name, gap in means.items() if gap >= 5e-5]
    found = f"{' and '.join(exact)} found the optimum in every run.\n" if exact else ""
    return f"{found}Above it on average, with a plan in every run: {', '.join(others) or 'none'}"


def _budgets(rows: Sequence[Row]) -> str:
    parts = []
    for method in methods_in(rows):
        budget = budget_of(method)
        seeds = {row["seed"] for row in rows if row["method"] == method}
        scope = (
            "" if len(budget.pool_counts) == len(POOL_COUNTS) else f", T = {', '.join(map(str, budget.pool_counts))}"
        )
        scope += "" if len(budget.limits) == 2 else f", {budget.limits[0]} limits"
        runs = "no random numbers" if method in SEEDLESS else f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
        parts.append(f"{look(method).label} {budget.seconds:g} s, {runs}{scope}")
    return f"Time allowed per run (most end earlier, by themselves), and runs: {'; '.join(parts)}.\n"


def time_section(results: Results) -> str:
    """Scheduling time, compared with table 3 of the paper."""
    rows = results.rows("methods", lambda row: row["kind"] == "devices" and row["limits"] == "loose")
    if not rows:
        return ""
    methods = methods_in(rows)
    body = []
    for (model, t), theirs in paper.TABLE_3.items():
        here = [row for row in rows if row["model"] == model and row["pools"] == t]
        if not here:
            continue
        cells = []
        for method in methods:
            mean, _, _ = spread([number(r, "seconds") for r in here if r["method"] == method])
            published = theirs.get("heuristic" if method.startswith("heuristic") else method)
            beside = f" / {published:g}" if published is not None else ""
            cells.append((seconds(mean) + beside) if math.isfinite(mean) else "-" + beside)
        body.append([f"{MODEL_TITLES[model]}, T = {t}", *cells])
    models = in_order([str(row["model"]) for row in rows])
    counts = sorted({int(number(row, "pools")) for row in rows})
    figure, axes = plots.new_figure(1, len(models), width=3.0 * len(models) + 1.6, height=4.4)
    values = [number(row, "seconds") for row in rows]
    for j, (ax, model) in enumerate(zip(axes, models, strict=True)):
        here = [row for row in rows if row["model"] == model]
        groups = [lambda row, t=t: row["pools"] == t for t in counts]
        series = bars_of(here, methods, groups, lambda row: number(row, "seconds"), whatever=True)
        plots.lines(ax, [math.log2(t) for t in counts], series)
        ax.set_yscale("log")
        ax.set_ylim(min(values) / 1.5, max(values) * 1.5)
        ax.set_xticks([math.log2(t) for t in counts], [str(t) for t in counts])
        ax.set_title(MODEL_TITLES.get(model, model), loc="left", fontsize=10)
        ax.set_xlabel("pools T")
        if j == 0:
            ax.set_ylabel("processor time to an answer, seconds")
        else:
            ax.set_yticklabels([])
        if j == len(models) - 1:
            ends = {m: found[-1].value for m, found in series.items() if math.isfinite(found[-1].value)}
            plots.name_ends(ax, math.log2(counts[-1]), ends)
        for method, found in series.items():
            if j == 0 and math.isfinite(found[0].value) and not math.isfinite(found[-1].value):
                plots.name_point(ax, math.log2(counts[0]), found[0].value, method)
    exact = max(number(row, "seconds") for row in rows if row["method"] == "optimal")
    search = max(number(row, "seconds") for row in rows if row["method"] in ("rl-lstm", "rl-rnn", "genetic"))
    figure.suptitle(
        f"The exact method needs {seconds(exact)} at most, for up to {counts[-1]} pools; learning and genetic search "
        f"up to {seconds(search)}",
        x=0.01, ha="left", fontsize=12,
    )  # fmt: skip
    figure.supxlabel("Band: spread over the seeds. A method without a plan is timed until it says so.", fontsize=8.5)
    plots.finish(figure, results.images / "table-3-time.png")
    return "\n".join(
        [
            "## Table 3: scheduling time\n",
            made_by("methods", results.machine("methods")),
            "Ours with loose limits, and behind the stroke the paper's seconds for the same model and number of "
            "types.\n",
            table(
                ["", *(look(m).label for m in methods)],
                body,
                rows,
                scope="the paper's rows, loose limits",
                clock=f"{PROCESSOR_TIME}; the paper does not say which its is",
            ),
            picture("Seconds to a plan by method, model and number of pools", "table-3-time"),
            _share_of_training(results),
            "What differs, and why. The paper's times depend on its implementation and machine, and disagree with "
            "each other: its learned scheduler takes 17 s for CTRDNN in table 2 and 58 s in table 3. Ours is a small "
            "network in NumPy whose plans are costed in batches, and ends when its plan no longer changes. It grows "
            "little with the number of types, the paper's not at all. The heuristics are slower than the paper's "
            "because they try all pairs of pools. What carries over: Bayesian optimisation is the slowest, then "
            "learning and genetic search, then the rest. The exact method, which the paper does not have, is faster "
            "than all that search, so that learning has to be justified by something else than cost or time.\n",
        ]
    )


def _share_of_training(results: Results) -> str:
    """RL-LSTM's scheduling time as a share of the training time that its plan predicts."""
    runs = results.rows("paper-cases", lambda r: (r["method"], r["pools"], r["status"]) == ("rl-lstm", 2, "ok"))
    shares = []
    for model in in_order([str(row["model"]) for row in runs]):
        mine = [row for row in runs if row["model"] == model]
        training = mean([3600 * number(row, "cost") / number(row, "price_per_hour") for row in mine])
        share = 100 * mean([number(row, "seconds") for row in mine]) / training
        shares.append(f"{MODEL_TITLES.get(model, model)} {share:.2f} %")
    return (
        "The paper's scheduling takes 0.2 to 1.8 % of the training time. RL-LSTM's, of the time that its plan "
        f"predicts for 4.2 billion samples on the paper's cluster: {', '.join(shares)} (`python -m experiments "
        "paper-cases`). That is no measurement of training: the paper does not say how many samples its training "
        "times are for.\n"
    )


SUMMARY = (summary_section,)
PAPER = (time_section,)
OWN = (gap_section,)
