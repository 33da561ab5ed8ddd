"""Sections on learning, batches, several jobs and changing prices."""

from __future__ import annotations

import math

from experiments import plots
from experiments.markdown import (
    BY_THE_MODEL,
    PROCESSOR_TIME,
    SIMULATED,
    count,
    made_by,
    percent,
    picture,
    scope_of,
    seconds,
    spread_text,
    table,
)
from experiments.plots import Bar
from experiments.results import MODEL_TITLES, Results, bar_of, gap_percent
from experiments.tables import group, mean, number, spread

__all__ = ["LEARNED", "SECTIONS"]

_VARIANT_TITLES = {
    "printed": "as printed",
    "sign": "+ sign (13)",
    "layers": "+ all layers (14)",
    "baseline": "+ baseline (15)",
    "own plans": "+ own plans (16)",
    "best plan": "+ best plan (16)",
}


def errata_section(results: Results) -> str:
    """Algorithm 1, literally and corrected."""
    rows = results.rows("errata")
    if not rows:
        return ""
    learned = results.rows(
        "methods", lambda r: (r["kind"], r["limits"], r["method"]) == ("devices", "loose", "rl-lstm")
    )
    body = []
    for (model, t), here in group(rows, lambda r: (str(r["model"]), int(number(r, "pools")))).items():
        cells = []
        for variant in _VARIANT_TITLES:
            runs = [r for r in here if r["variant"] == variant]
            feasible = [gap_percent(r) for r in runs if r["status"] == "ok"]
            text = spread_text(spread(feasible)) if feasible else "none"
            cells.append(text if len(feasible) == len(runs) else f"{text} {len(feasible)}/{len(runs)}")
        rest = [r for r in learned if (r["model"], r["pools"]) == (model, t)]
        ours = spread_text(spread([gap_percent(r) for r in rest if r["status"] == "ok"]))
        body.append([f"{MODEL_TITLES.get(model, model)}, T = {t}", *cells, ours])
    return "\n".join(
        [
            "## The learned scheduler as printed, and corrected\n",
            made_by("errata", results.machine("errata")),
            "Algorithm 1 of the paper, 300 rounds of 32 plans, with its errata corrected one after the other "
            "([errata.md](errata.md)): percent above the certified optimum of the plan that it ends with, mean and "
            "spread over the seeds; `k/n`: k of n runs end with a feasible plan. The last column is the method "
            "`rl-lstm`, which changes more ([methods.md](methods.md)).\n",
            table(
                ["", *_VARIANT_TITLES.values(), "rl-lstm"],
                body,
                rows,
                scope=f"{scope_of(rows, MODEL_TITLES)}; loose limits",
                clock=BY_THE_MODEL,
            ),
        ]
    )


def transfer_section(results: Results) -> str:
    """The policy on unseen clusters and models."""
    rows = results.rows("transfer")
    if not rows:
        return ""
    counts = sorted({int(number(row, "pools")) for row in rows})
    stages = ("first answer", "after repair")
    series = {
        f"{stage}, {limits} limits": [
            bar_of(
                [r for r in rows if (r["stage"], r["limits"], r["pools"]) == (stage, limits, t)],
                gap_percent,
            )
            for t in counts
        ]
        for stage in stages
        for limits in ("loose", "tight")
    }
    figure, axes = plots.new_figure(width=12, height=4.4)
    plots.bars(axes[0], [f"T = {t}" for t in counts], series, foot=0.0, text=percent)
    plots.percent_axis(axes[0])
    axes[0].set_ylabel("cost above the optimum")
    means = [
        percent(mean([gap_percent(r) for r in rows if r["stage"] == stage and r["status"] == "ok"])) for stage in stages
    ]
    figure.suptitle(
        f"A policy on models and clusters that it has never seen: {means[0]} % above the optimum at first, "
        f"{means[1]} % after repair",
        x=0.01, ha="left", fontsize=12,
    )  # fmt: skip
    plots.legend(figure, axes, columns=4, note="× mostly infeasible; whisker: spread over models and clusters")
    plots.finish(figure, results.images / "transfer.png")
    body = []
    for t in counts:
        for limits in ("loose", "tight"):
            cells = []
            for stage in stages:
                here = [r for r in rows if (r["stage"], r["limits"], r["pools"]) == (stage, limits, t)]
                feasible = [r for r in here if r["status"] == "ok"]
                cells += [
                    spread_text(spread([gap_percent(r) for r in feasible])),
                    f"{len(feasible)} of {len(here)}",
                    seconds(mean([number(r, "seconds") for r in here])),
                ]
            body.append([f"T = {t}, {limits}", *cells])
    head = ["", "first answer, %", "feasible", "time", "after repair, %", "feasible", "time"]
    return "\n".join(
        [
            "## A policy that transfers\n",
            made_by("transfer", results.machine("transfer")),
            "The shipped policy was trained on random jobs and clusters, on none of these. Percent above the optimum, "
            "mean and spread over the four models and the clusters, one per seed (with two pools they are all the "
            "same). The paper says that its trained LSTM answers in less than 2 ms for other input data, not how good "
            "the answers are, and its features show neither speed nor price of a pool (erratum 17), so that it cannot "
            "be used on another cluster.\n",
            picture("Cost above the optimum of the policy's first answer and after repair", "transfer"),
            table(head, body, rows, scope=scope_of(rows, MODEL_TITLES), clock=PROCESSOR_TIME),
        ]
    )


def balancing_section(results: Results) -> str:
    """Policies that divide a batch."""
    rows = [row for row in results.rows("balancing") if row["policy"] != "optimum"]
    if not rows:
        return ""
    policies = list(dict.fromkeys(str(row["policy"]) for row in rows))
    eight = [row for row in rows if row["workers"] == 8]
    scenarios = list(dict.fromkeys(str(row["scenario"]) for row in eight))

    def bar(scenario: str, policy: str) -> Bar:
        here = [number(r, "time_ratio") for r in eight if (r["scenario"], r["policy"]) == (scenario, policy)]
        return Bar(*spread(here))

    figure, axes = plots.new_figure(width=12, height=4.8)
    labels = [_wrapped(scenario) for scenario in scenarios]
    series = {p: [bar(s, p) for s in scenarios] for p in policies}
    plots.bars(axes[0], labels, series, foot=1.0, text=lambda value: f"{value:.2f}")
    plots.times_axis(axes[0], (1, 1.5, 2, 3, 5, 10, 20))
    axes[0].set_ylim(0.97, 1.25 * max(bar.high for values in series.values() for bar in values))
    axes[0].tick_params(axis="x", labelsize=8)
    axes[0].set_ylabel("training time / optimum")
    worst = max(bar.value for bar in series["controller"])
    figure.suptitle(
        f"Eight workers of one stage: the controller loses {percent(100 * (worst - 1))} % at most "
        "against an optimum that knows all speeds",
        x=0.01, ha="left", fontsize=12,
    )  # fmt: skip
    plots.legend(figure, axes, columns=5, note="whisker: spread over the seeds")
    plots.finish(figure, results.images / "balancing.png")
    body = []
    for (scenario, workers), here in group(rows, lambda r: (str(r["scenario"]), int(number(r, "workers")))).items():
        cells = []
        for policy in policies:
            runs = [r for r in here if r["policy"] == policy]
            cells.append(spread_text(spread([number(r, "regret_percent") for r in runs])))
        changes = mean([number(r, "changes") for r in here if r["policy"] == "controller"])
        body.append([f"{scenario}; {workers} workers", *cells, f"{changes:.0f}"])
    return "\n".join(
        [
            "## Batch balancing\n",
            made_by("balancing", results.machine("balancing")),
            "Percent of time lost against an optimum that knows all speeds, but not the noise, beforehand: mean and "
            "spread over the seeds, in simulation ([balancing.md](balancing.md)). Workers are 1 to 4 times as slow as "
            "the fastest, unless the scenario says otherwise.\n",
            picture("Training time of each balancing policy divided by the optimum", "balancing"),
            table(
                ["scenario", *policies, "changes by the controller"],
                body,
                rows,
                scope="one stage; 600 steps",
                clock=SIMULATED,
            ),
        ]
    )


def _wrapped(text: str) -> str:
    words = text.split()
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) > 16:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def jobs_section(results: Results) -> str:
    """Several jobs on the same pools."""
    rows = results.rows("joint-jobs")
    if not rows:
        return ""
    body = []
    for (jobs, share), here in group(rows, lambda r: (str(r["jobs"]), number(r, "share"))).items():
        planned = [r for r in here if r["status"] == "ok"]
        ordered = [r for r in planned if r.get("sequential_cost") is not None]
        saved = [100 * (1 - number(r, "cost") / number(r, "sequential_cost")) for r in ordered]
        alone = [100 * (number(r, "cost") / number(r, "alone_cost") - 1) for r in planned]
        titles = " + ".join(MODEL_TITLES.get(job, job) for job in jobs.split("+"))
        body.append(
            [
                f"{titles}, {100 * share:g} % of the units",
                f"{len(planned)} of {len(here)}",
                f"{len(ordered)} of {len(here)}",
                spread_text(spread(saved)),
                spread_text(spread(alone)),
                percent(max((number(r, "gap_percent") for r in planned), default=math.nan)),
                seconds(mean([number(r, "seconds") for r in here])),
            ]
        )
    head = [
        "jobs", "planned together", "some order works", "saved against the best order, %", "above all alone, %",
        "largest proven gap, %", "time",
    ]  # fmt: skip
    return "\n".join(
        [
            "## Several jobs on the same pools\n",
            made_by("joint-jobs", results.machine("joint-jobs")),
            "Four pools, of which the jobs get a part of the loose limits; one cluster per seed. Planned together they "
            "never cost more than in the best order of planning one after the other; `above all alone` is what it "
            "costs that they have to share ([planning-beyond.md](planning-beyond.md)); `largest proven gap` is how "
            "far a joint plan may at most be from the best joint plan.\n",
            table(head, body, rows, scope="T = 4; a part of the loose limits", clock=PROCESSOR_TIME),
        ]
    )


def market_section(results: Results) -> str:
    """Changing prices."""
    rows = results.rows("market")
    if not rows:
        return ""
    body = []
    for (model, t), here in group(rows, lambda r: (str(r["model"]), int(number(r, "pools")))).items():
        body.append(
            [
                f"{MODEL_TITLES.get(model, model)}, T = {t}",
                spread_text(spread([number(r, "saved_percent") for r in here])),
                f"{mean([number(r, 'follow_changes') for r in here]):.1f}",
                f"{mean([number(r, 'stay_changes') for r in here]):.1f}",
                seconds(mean([number(r, "follow_planning_milliseconds") for r in here]) / 1000),
            ]
        )
    head = ["", "saved by following, %", "changes, following", "changes, staying", "planning per hour"]
    hours = int(max(number(row, "hours") for row in rows))
    return "\n".join(
        [
            "## Prices that change\n",
            made_by("market", results.machine("market")),
            f"{hours} hours; every hour the cards' prices move (a random walk around the list price), and now and then "
            "one pool's cards are taken away for an hour. A change stops training for 60 s, and a new pod is paid 120 "
            "s before it trains. *Following* plans again every hour and changes where it pays within four hours; "
            "*staying* changes only when the plan is no longer possible, and does not come back to a pool that it had "
            "to leave, which is why so much is saved with few pools. Mean and spread over the seeds; below zero: "
            "prices went back too soon for a change to pay.\n",
            table(head, body, rows, scope=scope_of(rows, MODEL_TITLES), clock=f"{SIMULATED}; planning: wall time"),
        ]
    )


LEARNED = (errata_section, transfer_section)


def rule_section(results: Results) -> str:
    """BalanceNet's rule as printed."""
    rows = results.rows("balancenet-rule")
    if not rows:
        return ""
    body = [
        [
            f"{row['case']}, {count(int(number(row, 'nodes')), 'node')}",
            str(row["rule"]),
            f"{row['smallest']}" if row["smallest"] == row["largest"] else f"{row['smallest']} to {row['largest']}",
            f"{number(row, 'sum_ratio'):.2f}",
            f"{number(row, 'time_ratio'):.2f}",
        ]
        for row in rows
    ]
    return "\n".join(
        [
            "### BalanceNet's rule\n",
            made_by("balancenet-rule", results.machine("balancenet-rule")),
            "Batch sizes of the rule as printed, their sum divided by B, which a rule that conserves the batch keeps "
            "at 1, and the time of a step divided by the least one for the same samples "
            "([balancing.md](balancing.md)).\n",
            table(
                ["case", "rule", "batch sizes", "sum / B", "step time / least"],
                body,
                rows,
                scope="B = 256",
                clock="none, times follow from the batch sizes and speeds",
            ),
        ]
    )


SECTIONS = (balancing_section, rule_section, jobs_section, market_section)
