"""Generates docs/experiments.md from the results, so that the two cannot differ."""

from __future__ import annotations

import textwrap
from pathlib import Path

from experiments import (
    report_bayesian,
    report_brief,
    report_figures,
    report_images,
    report_inputs,
    report_learning,
    report_methods,
    report_own,
    report_paper,
    report_real,
    report_sharing,
)
from experiments.report_ledger import write_ledger
from experiments.results import Results, read_machines

__all__ = ["write_report"]

_HEAD = """# Experiments: what each method costs, and how sure that is

<!-- Written by `make experiments` from the results; do not edit. -->

"""
_INTRODUCTION = """## How to read and repeat this

`make experiments` makes everything here again: the HeterPS paper's tables 2 and 3 and its figures 4 to 12, BalanceNet's
rule, then what the papers do not have. Each section names the command that makes it alone, its rows as CSV and the
machine; each table its scope, seeds and clock. `python -m experiments --list` explains the experiments, `--quick` runs
a small part of all (not into this folder), `--tables` prints the two tables of methods by models. All of it takes
about 45 minutes on two cores, and image-nodes more than an hour besides. A run that was stopped goes on where it was.

What each method is: [methods.md](methods.md); the cost model: [planning.md](planning.md). "The paper" is Liu et al.,
"HeterPS", FGCS 2023; it states percentages and tables, not the heights of its bars.

The problems: T counts all pools. T = 2 is the paper's cluster: 480 cores at 0.04 $/h and 32 V100 at 2.42 $/h. Further
pools are other generations, then the same ones as spot and regional offers with a price and a limit of their own.
*Loose* limits are 32 cards of each device (fewer in further regions); with *tight* ones the pools that the cheapest
plan uses have too few units for it, and so have those of the next best. The *paper's own cases* have cards of one kind
at several prices.

Every method's plan is provisioned exactly, and compared with the certified optimum of the same problem: a gap is what
the method cost, not what a lucky reference hides. `rl-lstm` and `rl-rnn` learn and search; which of the two finds their
plans is [measured](#learning-and-search-each-alone).
"""


def write_report(out: Path) -> None:
    """Write experiments.md and its pictures from the CSV files in out/results.

    Raises:
        OSError: a file cannot be written.
    """
    results = Results(out)
    sections = (
        *report_brief.SECTIONS,
        _introduction,
        *report_inputs.SECTIONS,
        *report_methods.SUMMARY,
        *report_paper.SECTIONS,
        *report_methods.PAPER,
        *report_figures.SECTIONS,
        *report_bayesian.SECTIONS,
        *report_real.SECTIONS,
        *report_methods.OWN,
        *report_sharing.LEARNED,
        *report_learning.SECTIONS,
        *report_inputs.DERIVED,
        *report_own.SECTIONS,
        *report_sharing.SECTIONS,
        *report_images.SECTIONS,
    )
    text = _wrapped(_HEAD + "\n".join(part for section in sections if (part := section(results))))
    out.mkdir(parents=True, exist_ok=True)
    write_ledger(out)
    (out / "experiments.md").write_text(text.rstrip("\n") + "\n")


def _introduction(results: Results) -> str:
    return _INTRODUCTION if read_machines(results.out) else ""


def _wrapped(text: str) -> str:
    """Wrap paragraphs at 120 characters; keep tables, headings, pictures and captions, each a line of its own."""
    return "\n".join(
        line
        if line.startswith(("|", "#", "!"))
        else textwrap.fill(line, 120, break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n")
    )
