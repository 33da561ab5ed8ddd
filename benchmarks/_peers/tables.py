"""Tables of the bench."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks._peers.entrants import CEILING, HETERPS, Entrant
from benchmarks._peers.rounds import FAILURE, Cell
from benchmarks._ratios import ratios, spread

__all__ = ["agreement", "table"]

Rounds = Sequence[Mapping[str, Mapping[str, Any]]]  # outcomes by entrant

LOSS_TOLERANCE = 0.002  # of held-out log losses
AUC_TOLERANCE = 0.001  # between the precisions of an entrant


def table(cell: Cell, entrants: Sequence[Entrant], rounds: Rounds) -> Iterator[str]:
    """Yield the lines of a cell's table, and the notes below it.

    Ratios are of two figures of one round; rounds in which one of the two failed have none.
    """
    yield (
        f"| {cell} | samples/s, median (min - max) | {HETERPS} / this, within a round "
        f"| this / {CEILING}, within a round | samples per processor second | held-out log loss | AUC |"
    )
    yield "|---|---|---|---|---|---|---|"
    for entrant in entrants:
        yield "| " + " | ".join(_row(entrant, rounds)) + " |"
    yield ""
    for entrant in entrants:
        if entrant.differs:
            yield f"- {entrant.name}: {entrant.differs}."
        failed = [o[entrant.name][FAILURE] for o in rounds if FAILURE in o[entrant.name]]
        if failed:
            yield f"- {entrant.name} failed in {len(failed)} of {len(rounds)} rounds: {failed[-1]}"
    others = [o["others"] for outcomes in rounds for o in outcomes.values() if FAILURE not in o]
    if others:
        yield f"- Other programs used {spread([100 * share for share in others], '.0f')} % of the cores meanwhile."


def _row(entrant: Entrant, rounds: Rounds) -> list[str]:
    def figures(name: str, key: str) -> list[float | None]:
        return [outcomes.get(name, {}).get(key) for outcomes in rounds]

    def median(key: str, form: str) -> str:
        known = [figure for figure in figures(entrant.name, key) if figure is not None]
        return format(statistics.median(known), form) if known else ""

    rates = figures(entrant.name, "samplesPerSecond")
    if not any(rates):
        return [entrant.name, "failed", *[""] * 5]
    ours, ceiling = (figures(name, "samplesPerSecond") for name in (HETERPS, CEILING))
    return [
        entrant.name,
        spread([rate for rate in rates if rate is not None], ",.0f"),
        "1" if entrant.name == HETERPS else spread(ratios(ours, rates), ".2f"),
        "1" if entrant.name == CEILING else spread(ratios(rates, ceiling), ".2f"),
        median("samplesPerCpuSecond", ",.0f"),
        median("logLoss", ".4f"),
        median("auc", ".4f"),
    ]


def agreement(entrants: Sequence[Entrant], by_precision: Mapping[str, Rounds]) -> Iterator[str]:
    """Yield what shows whether all entrants of a model learn the same, or which ones do not.

    Args:
        entrants: of the model.
        by_precision: rounds by precision.
    """
    medians: dict[str, dict[str, dict[str, float]]] = {"logLoss": {}, "auc": {}}
    for precision, rounds in by_precision.items():
        for key, found in medians.items():
            of_precision = found.setdefault(precision, {})
            for entrant in entrants:
                known = [o[entrant.name][key] for o in rounds if key in o.get(entrant.name, {})]
                if known:
                    of_precision[entrant.name] = statistics.median(known)
    for precision, losses in medians["logLoss"].items():
        if len(losses) > 1:
            middle = statistics.median(losses.values())
            far = [
                f"{name} ({loss - middle:+.4f})" for name, loss in losses.items() if abs(loss - middle) > LOSS_TOLERANCE
            ]
            yield f"Held-out log losses in {precision}: {_verdict(far, LOSS_TOLERANCE, 'of their median')}"
    full, short = (medians["auc"].get(precision, {}) for precision in ("fp32", "bf16"))
    both = [name for name in full if name in short]
    if both:
        far = [
            f"{name} ({short[name] - full[name]:+.4f})"
            for name in both
            if abs(short[name] - full[name]) > AUC_TOLERANCE
        ]
        yield f"AUC in bf16: {_verdict(far, AUC_TOLERANCE, 'of that in fp32')}"


def _verdict(far: Sequence[str], tolerance: float, of: str) -> str:
    return f"all within {tolerance:g} {of}" + (f", except {', '.join(far)}." if far else ".")
