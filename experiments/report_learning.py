"""The sections on the learned scheduler: taken apart, and with measured rewards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from experiments.ablation import PARTS
from experiments.framework import Row
from experiments.markdown import BY_THE_MODEL, count, made_by, percent, scope_of, seconds, spread_text, table
from experiments.report_real import was_run
from experiments.results import MODEL_TITLES, Results, gap_percent
from experiments.tables import group, mean, number, spread

__all__ = ["SECTIONS"]

OPTIMUM_PERCENT = 1e-4  # a smaller gap is rounding


def ablation_section(results: Results) -> str:
    """Learning only, search only, and both."""
    rows = results.rows("ablation")
    if not rows:
        return ""
    cases = group(rows, lambda r: (str(r["model"]), int(number(r, "pools")), str(r["limits"])))
    body = []
    for variant in PARTS:
        mine = [row for row in rows if row["variant"] == variant]
        cells = []
        for model, t, limits in cases:
            here = [r for r in mine if (r["model"], r["pools"], r["limits"]) == (model, t, limits)]
            found = [gap_percent(r) for r in here if r["status"] == "ok"]
            text = spread_text(spread(found)) if found else "none"
            cells.append(text if len(found) == len(here) else f"{text} {len(found)}/{len(here)}")
        optimal = sum(r["status"] == "ok" and gap_percent(r) < OPTIMUM_PERCENT for r in mine)
        work = f"{mean([number(r, 'schedules') for r in mine]):,.0f}"
        time = seconds(mean([number(r, "seconds") for r in mine]))
        body.append([variant, *cells, f"{optimal} of {len(mine)}", work, time])
    head = ["", *(f"{MODEL_TITLES.get(m, m)}, T = {t}, {limits}" for m, t, limits in cases)]
    head += ["finds the optimum", "schedules", "processor time"]
    return "\n".join(
        [
            "## Learning and search, each alone\n",
            made_by("ablation", results.machine("ablation")),
            "`rl-lstm` has two parts: a policy that learns from the cost of its own draws, as algorithm 1 does, and "
            "segment moves that search from these draws ([learned-methods.md](learned-methods.md)). Percent above "
            "the certified optimum, mean and spread over the seeds; `k/n`: k of n runs have a feasible plan. "
            "*Untrained* draws from a policy that never learns, *search only* moves from such draws. The lower rows "
            "take back one change of the learning each. *Schedules* are those whose cost was evaluated, each counted "
            "once, or all draws of algorithm 1.\n",
            table(
                head,
                body,
                rows,
                scope=scope_of(rows, MODEL_TITLES),
                clock=f"for the time, processor time; for gaps {BY_THE_MODEL}",
            ),
            _finding(results),
        ]
    )


def _finding(results: Results) -> str:
    rows = results.rows("ablation", lambda row: row["variant"] == "both (rl-lstm)" and row["status"] == "ok")
    by = Counter(str(row["found_by"]) for row in rows)
    rounds = [number(row, "found_in_round") for row in rows if row["found_by"] == "search"]
    latest = f", in round {max(rounds):.0f} at the latest" if rounds else ""
    return (
        f"In {len(rows)} runs of `rl-lstm` the plan was first found by search in {by['search']}{latest}, and by a draw "
        f"of the policy in {by['learning']}. `heterps plan --method rl-lstm` says the same of each plan (`found by`).\n"
    )


def measured_section(results: Results) -> str:
    """Algorithm 1 with measured rewards."""
    rows = results.rows("measured-learning")
    if not rows:
        return ""
    text = [
        "## Algorithm 1 with measured rewards\n",
        made_by("measured-learning", results.machine("measured-learning")),
    ]
    if not was_run(rows):
        return "\n".join([*text, f"Not run: {rows[0].get('reason')}.\n"])
    body = [
        [
            f"{row['reward']}, seed {row['seed']:g}",
            str(row["plan"]),
            f"{number(row, 'rounds'):.0f}",
            f"{number(row, 'runs'):.0f}",
            seconds(number(row, "seconds")),
            f"{number(row, 'predicted_cost'):.2f}",
            f"{number(row, 'measured_cost'):.2f}",
            f"{100 * number(row, 'measured') / number(row, 'floor') - 100:+.0f} %",
        ]
        for row in rows
    ]
    head = ["reward", "plan", "rounds", "real runs", "time", "$ predicted", "$ measured", "against the floor"]
    floors = " and ".join(f"{floor:,.0f}" for floor in dict.fromkeys(number(row, "floor") for row in rows))
    models = ", ".join(dict.fromkeys(MODEL_TITLES.get(str(row["model"]), str(row["model"])) for row in rows))
    scope = f"{models} on two limited pools, floor {floors} samples/s"
    return "\n".join(
        [
            *text,
            "The paper pre-trains its policy on costs of the cost model and continues, while training runs, on costs "
            'with "the real throughput". Here the corrected algorithm 1, with rounds of four plans, gets either reward '
            "from the same first weights, on the pools of [figure 11](#figure-11-real-runs-of-every-methods-plan). A "
            "measured reward is a run of a few seconds of real processes; each schedule is measured once. The loop "
            "ends after 60 rounds, or in the round in which the tenth real run is made. The answers, and the exact "
            "method's plan, are then trained in fresh and longer runs, from which the costs are: the cheapest of "
            "ten measurements is cheap partly by luck. Costs are dollars for a billion samples.\n",
            table(head, body, rows, scope=scope, clock="wall time"),
            _tried(rows),
            _share(rows),
        ]
    )


def _tried(rows: Sequence[Row]) -> str:
    """Whether the two rewards lead to different plans."""
    answers = group(rows, lambda row: number(row, "seed")).values()
    differ = sum(len({r["plan"] for r in here if r["reward"] in ("measured", "cost model")}) > 1 for here in answers)
    runs = [number(row, "runs") for row in rows if row["reward"] == "measured"]
    few = " With this floor there is only one plan to find." if max(runs) <= 1 else ""
    return f"The two rewards led to different plans in {differ} of {count(len(runs), 'pair')} of loops.{few}\n"


def _share(rows: Sequence[Row]) -> str:
    """Scheduling as a part of training."""
    spent = [number(row, "seconds") for row in rows if row["reward"] == "measured"]
    model = [number(row, "seconds") for row in rows if row["reward"] == "cost model"]
    rates = [number(row, "measured") for row in rows if row["reward"] == "measured"]
    billion = 1e9 / mean(rates)
    return (
        f"Scheduling as a part of training: a billion samples take {billion / 3600:.1f} h at the measured throughput. "
        f"The measured loop ({seconds(mean(spent))}) is {percent(100 * mean(spent) / billion)} % of that, the one with "
        f"the cost model ({seconds(mean(model))}) {percent(100 * mean(model) / billion)} %; the paper states 0.2 to "
        f"1.8 %. The measured loop stays below 1.8 % in trainings of {mean(spent) / 0.018 / 3600:.1f} h and more.\n"
    )


SECTIONS = (ablation_section, measured_section)
