"""The section on Bayesian optimisation with the paper's time, and its rows in place of those with ten seconds."""

from __future__ import annotations

from collections.abc import Sequence

from experiments import paper
from experiments.framework import Row
from experiments.markdown import PROCESSOR_TIME, made_by, percent, seconds, table
from experiments.results import MODEL_TITLES, Results, gap_percent
from experiments.tables import number

__all__ = ["SECTIONS", "with_papers_time"]


def with_papers_time(cases: Sequence[Row], longer: Sequence[Row]) -> list[Row]:
    """Return the rows of `paper-cases` with those of `bayesian-times`, marked, in place of the shorter runs."""
    known = {(row["method"], row["model"], row["pools"]) for row in longer}
    kept = [row for row in cases if (row["method"], row["model"], row["pools"]) not in known]
    return kept + [row | {"papers_time": True} for row in longer]


def bayesian_section(results: Results) -> str:
    """Bayesian optimisation with the time that the paper's took."""
    rows = results.rows("bayesian-times")
    if not rows:
        return ""
    short = results.rows("paper-cases", lambda row: row["method"] == "bayesian")
    body = []
    for row in rows:
        case = (str(row["model"]), int(number(row, "pools")))
        before = [r for r in short if (r["model"], r["pools"]) == case]
        body.append(
            [
                f"{MODEL_TITLES.get(case[0], case[0])}, T = {case[1]}",
                f"{paper.TABLE_3[case]['bayesian']:,.0f}",
                seconds(number(row, "seconds")),
                _gap(row),
                _gap(before[0]) if before else "not run",
            ]
        )
    return "\n".join(
        [
            "## Bayesian optimisation with the paper's time\n",
            made_by("bayesian-times", results.machine("bayesian-times")),
            "The paper's Bayesian optimisation took up to 1,042 s; elsewhere in this document it has 10 s. Here it "
            "has the paper's time of each case, on the paper's own cases. The product's method also ends after 60 "
            "proposals of its model; here only the time ends it, or that it has seen every schedule. The command "
            "takes up to an hour and is not part of `make experiments`. Percent above the certified optimum:\n",
            table(
                ["", "paper, s", "ours", "with this time, %", "with 10 s, %"],
                body,
                rows,
                scope="the paper's own cases; loose limits",
                clock=PROCESSOR_TIME,
            ),
        ]
    )


def _gap(row: Row) -> str:
    return percent(gap_percent(row)) if row["status"] == "ok" else str(row["status"])


SECTIONS = (bayesian_section,)
