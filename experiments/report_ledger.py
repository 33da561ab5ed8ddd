"""The percentages that the HeterPS paper states, beside ours: the generated part of docs/papers.md."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from experiments import paper
from experiments.framework import Row
from experiments.markdown import percent
from experiments.plots import look
from experiments.report_bayesian import with_papers_time
from experiments.report_figures import worst_against
from experiments.report_real import measured_against, was_run
from experiments.results import Results
from experiments.tables import number

__all__ = ["BEGIN", "END", "write_ledger"]

BEGIN, END = "<!-- percentages: written by `make experiments` -->\n", "<!-- end of percentages -->"
_CASES, _PROVISIONING = "`python -m experiments paper-cases`", "`python -m experiments provisioning`"
_LONGER, _EXECUTIONS = "`python -m experiments bayesian-times`", "`python -m experiments figure-11`"
_WHY: Mapping[str, str] = {
    "rl-rnn": "both cells leave the plan to the same search",
    "bayesian": "10 s instead of ten minutes, T = 2 only",
    "genetic": "begins with the plan of each single pool, and provisions exactly",
    "greedy": "pays for a layer as if the model ended there; knows all prices",
    "gpu": "the cheapest of all cards; rows reach a card no faster than its host's cores read them",
    "cpu": "times of cores come from steps of 1,024 samples, the paper's from small batches",
    "heuristic-gpu-first": "the best pair of pools, exactly provisioned",
}
_WHY_MEASURED: Mapping[str, str] = dict.fromkeys(paper.FIGURE_11, "cores with limits instead of cards, two models") | {
    "rl-rnn": "both find the same plan by the same search",
}
_RATIO = {"static-ratio": "StaRatio", "static-server-ratio": "StaPSRatio"}


def write_ledger(out: Path) -> None:
    """Replace the generated part of out/papers.md; nothing if there is no such file.

    Raises:
        ValueError: the file has no marks around the generated part.
        OSError: it cannot be written.
    """
    path = out / "papers.md"
    if not path.is_file():
        return
    text = path.read_text()
    if BEGIN not in text or END not in text.partition(BEGIN)[2]:
        raise ValueError(f"{path}: has no lines {BEGIN.strip()!r} and {END!r}; put the generated part between them")
    head, _, rest = text.partition(BEGIN)
    lines = [
        "| stated (dearer than RL, unless another claim is given) | paper | ours | shown by | why ours differs |",
        "|---|---|---|---|---|",
        *("| " + " | ".join(row) + " |" for row in _rows(Results(out))),
    ]
    path.write_text(head + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2])


def _rows(results: Results) -> Iterator[tuple[str, ...]]:
    provisioning = results.rows("provisioning")
    for rule, theirs in paper.FIGURE_4.items():
        saved = [number(r, "saved_by_exact") for r in provisioning if r["rule"] == rule and r["status"] == "ok"]
        ours = f"{percent(100 * max(saved))} %" if saved else "-"
        why = "the saving depends on the floor, which the paper does not name"
        yield f"figure 4: cheaper than {_RATIO[rule]}, at most", f"{theirs:g} %", ours, _PROVISIONING, why
    cases = with_papers_time(results.rows("paper-cases"), results.rows("bayesian-times"))
    for (low, high), claims in paper.FIGURE_5.items():
        here = [r for r in cases if r["model"] == "matchnet" and low <= number(r, "pools") <= high]
        for method, theirs in claims.items():
            span = f"T = {low}" if low == high else f"T up to {high}"
            yield _row(f"figures 5, 6: {look(method).label}, {span}", theirs, here, method)
    here = [r for r in cases if number(r, "pools") == 2]
    for method, theirs in paper.FIGURE_8.items():
        yield _row(f"figures 8, 9: {look(method).label}", theirs, here, method)
    runs = results.rows("figure-11")
    for method, theirs in paper.FIGURE_11.items():
        ours = measured_against(runs, method, "rl-lstm") if was_run(runs) else "-"
        yield f"figure 11: {look(method).label}", f"{theirs:g} %", ours, _EXECUTIONS, _WHY_MEASURED[method]


def _row(stated: str, theirs: float, rows: Sequence[Row], method: str) -> tuple[str, ...]:
    ours = worst_against(rows, method, "rl-lstm")
    measured = math.isfinite(float(ours.replace(",", "").partition(" ")[0])) if ours[:1].isdigit() else False
    longer = [bool(row.get("papers_time")) for row in rows if row["method"] == method]
    given = bool(longer) and all(longer)  # otherwise the worst may have had less
    command, why = (_LONGER, "the paper's time, not at every T") if given else (_CASES, _WHY[method])
    return stated, f"{theirs:,.1f} %", f"{ours} %" if measured and "(" not in ours else ours, command, why
