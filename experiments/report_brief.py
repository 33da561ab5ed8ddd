"""The first half page of the document: what was claimed, what holds here, what does not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from experiments import paper
from experiments.derived import AS_DERIVED
from experiments.framework import Row
from experiments.frameworks import SYSTEMS
from experiments.image_phases import CLAIRVOYANT
from experiments.markdown import percent, seconds
from experiments.plots import look
from experiments.report_images import step_ratios
from experiments.report_inputs import CLAIMS
from experiments.report_learning import OPTIMUM_PERCENT
from experiments.report_real import above_cheapest, agreement, speed_text, speeds_against, was_run
from experiments.results import MODEL_TITLES, Results, gap_percent
from experiments.tables import group, number

__all__ = ["SECTIONS"]

_MOSTLY, _CHANCE = 0.8, 0.6  # shares of pairs in the predicted order, of which half agree by chance
_NEEDED = ("methods", "paper-cases", "ablation", "derived-times", "provisioning", "balancing", "image-nodes")


def brief_section(results: Results) -> str:
    """What was claimed, what holds, what does not; nothing before all of it has been run."""
    if any(not results.rows(name) for name in _NEEDED):
        return ""
    lines = ["| claimed | here | holds |", "|---|---|---|"]
    lines += [f"| {claim} | {ours} | {verdict} |" for claim, ours, verdict in _rows(results)]
    return "\n".join(
        [
            "## In a hurry: what was claimed, what holds, what does not\n",
            "\n".join(lines) + "\n",
            "Costs follow from the cost model: times on cores are measured, those on cards derived from data sheets "
            "([what the results rest on](#what-the-results-rest-on)). [papers.md](papers.md) has every claim of both "
            "papers, one by one.\n",
        ]
    )


def _rows(results: Results) -> Iterator[tuple[str, str, str]]:
    grid = results.rows("methods")
    learned = [row for row in grid if row["method"] == "rl-lstm"]
    exact = [number(row, "seconds") for row in grid if row["method"] == "optimal"]
    yield (
        "RL-LSTM finds the cheapest plans",
        f"the certified optimum in {_optimal(learned)} runs. But so does the search beside the learning: "
        f"{_parts(results)}",
        "yes, though not by learning",
    )
    cases = results.rows("paper-cases")
    best = max(value for values in paper.FIGURE_5.values() for name, value in values.items() if name == "genetic")
    yield (
        f"other methods cost far more (genetic up to {best:,.0f} %, greedy the same)",
        f"at most, {_above(cases, ('bayesian', 'genetic', 'greedy', 'heuristic'))}",
        "in direction, not in size",
    )
    yield (
        "cores and cards together are cheaper than either alone",
        f"{_either(cases)}; {_survives(results, 'the cheapest plan is on cores and cards')}",
        "yes, not for NCE",
    )
    ratios = f"{_saved(results, 'static-ratio')} % and {_saved(results, 'static-server-ratio')} %"
    yield (
        "provisioning saves up to 57.9 % against StaRatio, 48.3 % against StaPSRatio",
        f"exact provisioning saves up to {ratios}; up to {_saved(results, 'newton')} % against the paper's own rule",
        "yes",
    )
    yield (
        "RL schedules in 12 to 89 s",
        f"in {seconds(max(number(row, 'seconds') for row in learned))} at most. The exact method, with proof: "
        f"{seconds(max(exact))} at most, up to 64 pools",
        "yes, and it is not needed",
    )
    yield (
        "real runs rank the methods the same (figure 11)",
        *_ranked(results),
    )
    yield (
        "9.5 times TensorFlow's throughput on CPUs, up to 14.5 times with accelerators (figure 12)",
        *_faster(results),
    )
    rows = results.rows("balancing")
    yield (
        "BalanceNet updates weights faster than equal and random division",
        f"in simulation {_lost(rows, 'BalanceNet, renormalised')} % slower than the best division of unequal workers, "
        f"an equal division {_lost(rows, 'even')} %, this controller {_lost(rows, 'controller')} %. On four real "
        f"workers with unequal cores, {_real(results, 'bno')} times the best division's step with its image models, "
        f"an equal division {_real(results, 'equal')}, this controller {_real(results, 'optimal')}",
        "hardly better than equal",
    )  # fmt: skip


def _real(results: Results, policy: str) -> str:
    return step_ratios(results.rows("image-nodes"), "unequal cores", policy, CLAIRVOYANT)


def _ranked(results: Results) -> tuple[str, str]:
    """How many pairs of plans have the predicted order, by model, and the verdict."""
    rows = results.rows("figure-11")
    if not was_run(rows):
        return "not run on this machine", "not shown"
    counts = {str(model): agreement(here) for model, here in group(rows, lambda row: row["model"]).items()}
    texts = [f"{same} of {pairs} pairs of plans ({MODEL_TITLES[model]})" for model, (same, pairs) in counts.items()]
    share = sum(same for same, _ in counts.values()) / max(1, sum(pairs for _, pairs in counts.values()))
    verdict = "mostly" if share >= _MOSTLY else "in part" if share > _CHANCE else "no"
    dearer = {model: above_cheapest(here)[0] for model, here in group(rows, lambda row: str(row["model"])).items()}
    above = " and ".join(f"{percent(value)} % ({MODEL_TITLES[model]})" for model, value in dearer.items())
    text = f"on cores with limits the plan predicted to be cheaper is so in {' and '.join(texts)}"
    text += f"; RL-LSTM's is {above} above the cheapest measured; "
    return text + _ranked_on_card(results), f"{verdict}, on cores"


def _ranked_on_card(results: Results) -> str:
    rows = results.rows("figure-11-card")
    if not rows:
        return "on cards not shown"
    of_models = group(rows, lambda row: row["model"]).values()
    same, pairs = map(sum, zip(*(agreement(here) for here in of_models), strict=True))
    above = max(above_cheapest(here)[0] for here in of_models)
    return f"with a card in {same} of {pairs} pairs, RL-LSTM's at most {percent(above)} % above"


def _faster(results: Results) -> tuple[str, str]:
    """HeterPS's throughput beside TensorFlow's, and the verdict."""
    rows = results.rows("figure-12")
    found = {name: speeds_against(rows, name) for name in SYSTEMS[1:]}
    texts = [f"{speed_text(speeds)} that of {name}" for name, speeds in found.items() if speeds]
    if not texts:
        return "not run on this machine", "not shown"
    models = {model for speeds in found.values() for model in speeds}
    faster = [m.upper() for m in sorted(models) if all(speeds.get(m, math.inf) > 1 for speeds in found.values())]
    text = f"on two cores {', '.join(texts)}; {_on_card(results)}"
    if len(faster) == len(models):
        return text, "in direction, not in size"
    return text, f"in direction for {' and '.join(faster)} only" if faster else "no"


def _on_card(results: Results) -> str:
    """HeterPS's throughput beside PyTorch's on the same card."""
    cells = group(results.rows("figure-12-card"), lambda row: (row["model"], row["batch"], row["repeat"])).values()
    ratios = [
        found["HeterPS, card"] / found["PyTorch, card"]
        for found in ({row["system"]: number(row, "samples_per_second") for row in cell} for cell in cells)
    ]
    if not ratios:
        return "on cards not shown"
    return f"on a card {min(ratios):.2f} to {max(ratios):.2f} times that of PyTorch with all rows in its memory"


def _optimal(rows: Sequence[Row]) -> str:
    found = sum(row["status"] == "ok" and gap_percent(row) < OPTIMUM_PERCENT for row in rows)
    return f"{found} of {len(rows)}"


def _parts(results: Results) -> str:
    rows = results.rows("ablation")
    names = ("search only", "learning only", "algorithm 1 corrected", "algorithm 1 as printed")
    return ", ".join(f"{name} {_optimal([r for r in rows if r['variant'] == name])}" for name in names)


def _above(rows: Sequence[Row], methods: Sequence[str]) -> str:
    """The greatest excess over the optimum by method, of the runs with a plan."""
    gaps = {m: [gap_percent(r) for r in rows if r["method"] == m and r["status"] == "ok"] for m in methods}
    return ", ".join(f"{look(m).label} {percent(max(found))} %" for m, found in gaps.items() if found)


def _either(rows: Sequence[Row]) -> str:
    """How much cores alone and cards alone cost above the optimum, on the paper's cluster."""
    texts = []
    for method in ("cpu", "gpu"):
        here = [row for row in rows if row["method"] == method and row["pools"] == 2]
        gaps = [gap_percent(row) for row in here if row["status"] == "ok"]
        missed = len(here) - len(gaps)
        text = f"{look(method).label} costs {percent(min(gaps))} to {percent(max(gaps))} % more" if gaps else "no plan"
        texts.append(text + (f" (too slow for {missed} of {len(here)} models)" if missed else ""))
    return ", ".join(texts)


def _survives(results: Results, text: str) -> str:
    """In how many worlds with other derived numbers a conclusion has the same answer, on the paper's cluster."""
    [claim] = [claim for claim in CLAIMS if claim.text == text]
    same = total = 0
    for here in group(results.rows("derived-times", lambda r: r["pools"] == 2), lambda r: str(r["model"])).values():
        worlds = group(here, lambda r: (str(r["world"]), int(number(r, "seed"))))
        base = claim.holds(next(rows for (world, _), rows in worlds.items() if world == AS_DERIVED))
        answers = [claim.holds(rows) == base for (world, _), rows in worlds.items() if world != AS_DERIVED]
        same, total = same + sum(answers), total + len(answers)
    return f"the same answer in {same} of {total} worlds with derived numbers varied by 30 %"


def _saved(results: Results, rule: str) -> str:
    rows = [row for row in results.rows("provisioning") if row["rule"] == rule and row["status"] == "ok"]
    return percent(100 * max((number(row, "saved_by_exact") for row in rows), default=math.nan))


def _lost(rows: Sequence[Row], policy: str) -> str:
    """Mean regret of a policy in the scenarios with eight unequal workers; the range of the scenarios' means."""
    here = [r for r in rows if (r["policy"], r["workers"]) == (policy, 8) and r["scenario"] != "equal workers"]
    means = [
        sum(number(r, "regret_percent") for r in each) / len(each)
        for each in group(here, lambda r: str(r["scenario"])).values()
    ]
    return f"{percent(min(means))} to {percent(max(means))}"


SECTIONS = (brief_section,)
