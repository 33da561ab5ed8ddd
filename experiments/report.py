"""Generates docs/experiments.md from the results, so that the two cannot differ."""

from __future__ import annotations

import textwrap
from pathlib import Path

from experiments import report_figures, report_methods, report_own, report_paper, report_sharing
from experiments.report_ledger import write_ledger
from experiments.results import Results

__all__ = ["write_report"]

_HEAD = """# Experiments: what each method costs, and how sure that is

<!-- Written by `make experiments` from the results; do not edit. -->

`make experiments` makes everything here again: the paper's tables 2 and 3 and its figures 4 to 10, then what it does
not have. Each section names the command that makes it alone, its seeds and its rows as CSV, what the paper says, and
why ours differs. `python -m experiments --list` explains the experiments, `--quick` runs a small part of all (not into
this folder), `--tables` prints the two tables below. A run that was stopped goes on where it was.

What each method is: [methods.md](methods.md); the cost model: [planning.md](planning.md). The paper: Liu et al.,
"HeterPS", FGCS 2023; it states percentages and tables, not the heights of its bars.

Measured on {machine}. Times and time limits are processor time of one thread.

The problems: times of the layers on CPU cores are measured, those on accelerators derived from published figures
([models.md](models.md)). T counts all pools. T = 2 is the paper's cluster: 480 cores at 0.04 $/h and 32 V100 at 2.42
$/h. Further pools are other generations, then the same ones as spot and regional offers with a price and a limit of
their own. *Loose* limits are 32 cards of each device (fewer in further regions); with *tight* ones the pools that the
cheapest plan uses have too few units for it, and so have those of the next best.

Every method's plan is provisioned exactly, and compared with the certified optimum of the same problem: a gap is what
the method cost, not what a lucky reference hides.

"""


def write_report(out: Path) -> None:
    """Write experiments.md and its pictures from the CSV files in out/results.

    Raises:
        OSError: a file cannot be written.
    """
    results = Results(out)
    machine = results.machine()
    words = "{processor}, {cores} cores, {memoryGiB} GiB, Python {python}, NumPy {numpy}, on {date}"
    head = _HEAD.format(
        machine=words.format(**machine) if machine else "an unknown machine",
    )
    sections = (
        *report_methods.SUMMARY,
        *report_paper.SECTIONS,
        *report_methods.PAPER,
        *report_figures.SECTIONS,
        *report_methods.OWN,
        *report_sharing.LEARNED,
        *report_own.SECTIONS,
        *report_sharing.SECTIONS,
    )
    text = _wrapped(head + "\n".join(part for section in sections if (part := section(results))))
    out.mkdir(parents=True, exist_ok=True)
    write_ledger(out)
    (out / "experiments.md").write_text(text.rstrip("\n") + "\n")


def _wrapped(text: str) -> str:
    """Wrap paragraphs at 120 characters; keep tables, headings and pictures."""
    return "\n".join(
        line if line.startswith(("|", "#", "!")) else textwrap.fill(line, 120, break_long_words=False)
        for line in text.split("\n")
    )
