"""The section on the learned scheduler taken apart."""

from __future__ import annotations

from collections import Counter

from experiments.ablation import PARTS
from experiments.markdown import BY_THE_MODEL, made_by, scope_of, seconds, spread_text, table
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


SECTIONS = (ablation_section,)
