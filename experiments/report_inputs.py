"""What the results rest on: how noisy the profiles are, and which conclusions survive other derived numbers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from experiments.clusters import FLOOR_OF_CLUSTER, FLOOR_OF_PROFILE, PAPER_MODELS
from experiments.derived import AS_DERIVED, COMPARED, SPREAD
from experiments.devices import load_profile
from experiments.framework import Row
from experiments.markdown import BY_THE_MODEL, made_by, percent, scope_of, table
from experiments.plots import look
from experiments.results import MODEL_TITLES, Results, gap_percent
from experiments.tables import group, number, spread
from heterps_planner.model.problem import Problem

__all__ = ["CLAIMS", "SECTIONS", "Claim", "noise_of"]

PROFILER_LIMIT = 0.05  # spread at which the profiler measures a layer again, and then reports it (NOISY)
_MODELS = (*PAPER_MODELS, "ctrdnn-8", "ctrdnn-12", "ctrdnn-20")


class Noise(NamedTuple):
    """Spread of the measured layers of a profile."""

    num_layers: int
    num_noisy: int  # above the profiler's limit
    median: float  # interquartile range / median of a layer
    worst: float


def noise_of(problem: Problem) -> Noise:
    """Return how noisy the measured times of a profile are."""
    spreads = [layer.pools["cpu"].spread for layer in problem.layers]
    return Noise(len(spreads), sum(s > PROFILER_LIMIT for s in spreads), statistics.median(spreads), max(spreads))


def inputs_section(results: Results) -> str:
    """What is measured, derived and assumed, and the noise of what is measured."""
    if not results.rows("methods"):
        return ""
    body = []
    for name in _MODELS:
        problem, noise = load_profile(name), noise_of(load_profile(name))
        body.append(
            [
                MODEL_TITLES[name],
                str(problem.provenance["date"]),
                f"{noise.num_noisy} of {noise.num_layers}",
                f"{100 * noise.median:.0f} %",
                f"{100 * noise.worst:.0f} %",
                f"{problem.min_samples_per_second:,.0f}",
                f"{100 * _reached(problem):.0f} %",
            ]
        )
    noises = [noise_of(load_profile(name)) for name in _MODELS]
    measured = load_profile(_MODELS[0]).provenance["measured"]  # all at the same time
    machine, repeats = measured["machineSpread"], measured["profiles"]
    noisy, layers = sum(n.num_noisy for n in noises), sum(n.num_layers for n in noises)
    head = [
        "model", "measured on", "layers above the limit", "spread, median", "spread, worst", "floor, samples/s",
        "cores reach",
    ]  # fmt: skip
    return "\n".join(
        [
            "## What the results rest on\n",
            "`python -m experiments.measure_profiles` measures the layers; [models.md](models.md) has the source of "
            "each number. **Measured**: computing on one core, overhead of a stage, cost of servers. **Derived** "
            "from data sheets: computing on cards and on other cores, transfers. **Assumed**: the parallel fractions "
            "(alpha), one constant for cores and one for cards, and half of a card's peak arithmetic. The cost "
            "model, the search for the number of servers included, is the product's; these profiles say what servers "
            "cost, not how long workers wait for them.\n",
            f"The profiler takes {100 * PROFILER_LIMIT:.0f} % as its limit of a layer's spread (interquartile range "
            "over median), measures above it again, and reports what stays above. Nothing else ran; a product of "
            f"matrices, repeated between the profiles, varied by {100 * machine:.0f} %. But the "
            f"processes of a job share two cores of a virtual machine: {noisy} of {layers} layers stayed above. So "
            f"each number is the median of {repeats} profiles, taken in turns with those of the other models. The "
            "costs below are those of the stored profiles and not of any exact machine; methods are compared on the "
            "same numbers, and "
            "[below](#what-an-error-of-the-profile-costs) is what such errors cost.\n",
            "The floor is half of what the whole cluster reaches, rounded down to two digits. The paper's own cases "
            f"take {FLOOR_OF_PROFILE:g} of it for every model, {100 * FLOOR_OF_CLUSTER * FLOOR_OF_PROFILE:.0f} % of "
            f"the cluster. The paper gives no floors. {_too_slow_alone()} *Cores reach*: what all "
            "480 cores reach of what the whole cluster reaches.\n",
            table(
                head, body, [], scope=f"{len(_MODELS)} stored profiles", clock="wall time of the profiler, medians"
            ),
        ]
    )  # fmt: skip


def _reached(problem: Problem) -> float:
    """What all cores reach of what the whole cluster reaches."""
    shares = problem.provenance["floor"]
    return float(shares["samplesPerSecondAllCores"] / shares["samplesPerSecondCluster"])


def _too_slow_alone() -> str:
    """Which models' cores alone miss the floor of the paper's own cases, beside the paper's figure 10."""
    share = FLOOR_OF_CLUSTER * FLOOR_OF_PROFILE
    missed = [MODEL_TITLES[name] for name in PAPER_MODELS if _reached(load_profile(name)) < share]
    return f"The cores alone miss it for {' and '.join(missed) or 'no model'}; in the paper's figure 10 for CTRDNN."


class Claim(NamedTuple):
    """A conclusion, tested in one world of one model."""

    text: str
    holds: Callable[[Sequence[Row]], bool]  # of the rows of all methods in that world


def _of(rows: Sequence[Row], method: str) -> Row:
    return next(row for row in rows if row["method"] == method)


def _dearer(rows: Sequence[Row], method: str) -> bool:
    row = _of(rows, method)
    return row["status"] != "ok" or gap_percent(row) > 1e-4


#: In the order of the table.
CLAIMS = (
    Claim("the cheapest plan is on cores and cards", lambda rows: _of(rows, "optimal")["hardware"] == "both"),
    Claim("cores alone reach the floor", lambda rows: _of(rows, "cpu")["status"] == "ok"),
    Claim("cores alone are dearer, or too slow", lambda rows: _dearer(rows, "cpu")),
    Claim("cards alone are dearer, or too slow", lambda rows: _dearer(rows, "gpu")),
    Claim("RL-LSTM finds the optimum", lambda rows: not _dearer(rows, "rl-lstm")),
    Claim("genetic search finds the optimum", lambda rows: not _dearer(rows, "genetic")),
    Claim("greedy is dearer", lambda rows: _dearer(rows, "greedy")),
    Claim("the heuristic (CPU first) is dearer", lambda rows: _dearer(rows, "heuristic")),
)


def derived_section(results: Results) -> str:
    """Conclusions with other derived numbers."""
    rows = results.rows("derived-times")
    if not rows:
        return ""
    problems = group(rows, lambda r: (int(number(r, "pools")), str(r["model"])))
    claims, costs = [], []
    for claim in CLAIMS:
        cells = []
        for here in problems.values():
            worlds = group(here, lambda r: (str(r["world"]), int(number(r, "seed"))))
            base = claim.holds(next(found for (world, _), found in worlds.items() if world == AS_DERIVED))
            others = [claim.holds(found) for (world, _), found in worlds.items() if world != AS_DERIVED]
            same = sum(found == base for found in others)
            cells.append(f"{'yes' if base else 'no'}, {same} of {len(others)}")
        claims.append([claim.text, *cells])
    for method in COMPARED[1:]:
        cells = []
        for here in problems.values():
            mine = [r for r in here if r["method"] == method]
            nominal = next(r for r in mine if r["world"] == AS_DERIVED)
            varied = [r for r in mine if r["world"] != AS_DERIVED]
            gaps = [gap_percent(r) for r in varied if r["status"] == "ok"]
            _, low, high = spread(gaps)
            text = percent(gap_percent(nominal)) if nominal["status"] == "ok" else "none"
            text += f" ({percent(low)}-{percent(high)})" if gaps and percent(low) != percent(high) else ""
            cells.append(text + (f" {len(gaps)}/{len(varied)}" if 0 < len(gaps) < len(varied) else ""))
        costs.append([look(method).label, *cells])
    head = [f"{MODEL_TITLES.get(model, model)}, T = {t}" for t, model in problems]
    scope = (
        f"{scope_of(rows, MODEL_TITLES)}; T = 2: the paper's own cases; derived numbers varied by {100 * SPREAD:.0f} %"
    )
    return "\n".join(
        [
            f"## What survives if derived numbers are wrong by {100 * SPREAD:.0f} %\n",
            made_by("derived-times", results.machine("derived-times")),
            f"The worlds: computing on all devices other than the measured core {100 * SPREAD:.0f} % faster; "
            f"{100 * SPREAD:.0f} % slower; and each computing time, transfer and sequential fraction times a factor "
            "of its own, drawn between 0.7 and 1.3, two worlds for each seed. The floor stays, and every method "
            "plans with the varied numbers. Each cell says whether a conclusion holds with the numbers as derived, "
            "and in how many of the other worlds the answer is the same.\n",
            table(["", *head], claims, rows, scope=scope, clock=BY_THE_MODEL),
            "Percent above the certified optimum with the numbers as derived, and in parentheses the range over the "
            "other worlds; `none`: no plan; `k/n`: a plan in k of n other worlds.\n",
            table(["", *head], costs, rows, scope=scope, clock=BY_THE_MODEL),
        ]
    )  # fmt: skip


SECTIONS = (inputs_section,)
DERIVED = (derived_section,)
