"""Sections on real runs: the counterparts of figures 11 and 12."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations

from experiments import paper, plots
from experiments.executions import CARD_TRAINING
from experiments.framework import Row
from experiments.frameworks import ON_CARD_SYSTEMS, SYSTEMS
from experiments.markdown import made_by, percent, picture, table
from experiments.plots import Bar, look
from experiments.results import MODEL_TITLES, Results, in_order, methods_in
from experiments.tables import group, number
from experiments.unequal import CARD, CLUSTER, FLOOR_OF_CLUSTER

__all__ = ["SECTIONS", "above_cheapest", "agreement", "measured_against", "speed_text", "speeds_against", "was_run"]

#: Below this, two measured costs are taken as equal: what the same plan differs by from run to run.
_EQUAL = 0.05
_NETWORKS = {"ctrdnn1": "CTRDNN1 (rows of 8, 128 wide)", "ctrdnn2": "CTRDNN2 (rows of 64, 1,024 wide)"}


def was_run(rows: Sequence[Row]) -> bool:
    """Return whether rows are of runs, not a reason why there were none."""
    return bool(rows) and any(row.get("status") != "not run" for row in rows)


def execution_section(results: Results) -> str:
    """Figure 11: real runs of every method's plan."""
    rows = results.rows("figure-11")
    if not rows:
        return ""
    claims = ", ".join(f"{look(name).label} {value:g} %" for name, value in paper.FIGURE_11.items())
    text = [
        "## Figure 11: real runs of every method's plan\n",
        made_by("figure-11", results.machine("figure-11")),
    ]
    if not was_run(rows):
        return "\n".join([*text, f"Not run on this machine: {rows[0].get('reason')}.\n"])
    models = in_order([str(row["model"]) for row in rows])
    text += [_SETTING, _execution_picture(results, rows, models, "figure-11-executions")]
    text += [part for model in models for part in _model(model, [row for row in rows if row["model"] == model])]
    text.append(
        f"The paper finds every method dearer than RL ({claims}). Measured here, dearer than RL-LSTM at most: "
        + ", ".join(f"{look(name).label} {measured_against(rows, name, 'rl-lstm')}" for name in paper.FIGURE_11)
        + ".\n"
    )
    text.append(_found(rows, models))
    return "\n".join(text)


def card_execution_section(results: Results) -> str:
    """Figure 11 on cores and a real card."""
    rows = results.rows("figure-11-card")
    if not rows:
        return ""
    models = in_order([str(row["model"]) for row in rows])
    offers = " and ".join(f"{o.units} at {o.price:g} $/h (`{name}`)" for name, o in CARD.items())
    text = [
        "## Figure 11 on a card\n",
        made_by("figure-11-card", results.machine("figure-11-card")),
        f"The same on a machine with a card: {offers}, a unit of `cpu` being a whole core. The global batch is "
        f"{CARD_TRAINING['globalBatchSize']:,}, the floor again half of what all units together reach. The command "
        "needs a CUDA card and keeps these results on a machine without one.\n",
    ]
    text.append(_execution_picture(results, rows, models, "figure-11-card"))
    for model in models:
        text += _model(model, [row for row in rows if row["model"] == model], ", cores and a card")
    text.append(_found_on_card(rows, models))
    return "\n".join(text)


def _found_on_card(rows: Sequence[Row], models: Sequence[str]) -> str:
    return (
        f"What the runs show. {_verdicts(rows, models)} {_misses(rows)} Those with many workers on cores are furthest "
        "off: profiles are those of one worker alone, and the host of these 16 cores is shared (the profiles note "
        "layers whose times vary by up to 60 %). In both models a card before or behind cores is slower than a card "
        "alone, more so than predicted; why was not measured apart.\n"
    )


def _placed(rows: Sequence[Row]) -> str:
    """Where RL-LSTM's plan is among those that should keep the floor, by measured cost."""
    above, best = above_cheapest(rows)
    dearer = f"is {percent(above)} % dearer than that of {_label(best)}"
    return "is the cheapest that should keep the floor" if "rl-lstm" in best else dearer


def _offers() -> str:
    parts = [
        f"{offer.units} units of {offer.cores:g} cores at {offer.price:g} $/h (`{name}`)"
        for name, offer in CLUSTER.items()
    ]
    return " and ".join(parts)


_SETTING = (
    f"Two pools on one machine: {_offers()}. A unit is one worker or server process; a control group holds it to its "
    "part of a core, so that all units together take less than this machine has. Both pools compute on cores; "
    "workers of `accelerator` keep the dense part and all-reduce it. A core's work costs twice as much there, but of "
    f"the cheap cores there are too few for the floor, {100 * FLOOR_OF_CLUSTER:.0f} % of what all units together "
    "reach. Profiles are measured with whole cores, and their times divided by the limits. So nothing here tells how "
    "the paper's cards would do; it tells whether measured costs rank the methods as predicted ones do.\n\nEach "
    "repeat measures the profile, plans with every method, and trains each distinct plan once, for 6 s after its "
    "warm-up; methods with the same plan share its run. Costs are dollars for a billion samples. A method without a "
    "plan that keeps the floor has the plan for the most tenths of it, marked †; ‡ marks a plan that should keep the "
    "floor and is measured below it. *Ranks*: by predicted and by measured cost.\n"
)


def _label(methods: Sequence[str]) -> str:
    return ", ".join(look(name).label for name in methods)


def _plans(rows: Sequence[Row]) -> dict[tuple[str, ...], list[str]]:
    """Return the methods by what they planned, repeat by repeat; methods without any plan are left out."""
    found: dict[tuple[str, ...], list[str]] = {}
    for method in methods_in(rows):
        mine = sorted((row for row in rows if row["method"] == method), key=lambda row: number(row, "seed"))
        if all(row.get("plan") for row in mine):
            found.setdefault(tuple(str(row["plan"]) for row in mine), []).append(method)
    return found


def _of(rows: Sequence[Row], method: str, name: str) -> list[float]:
    values = [number(row, name) for row in rows if row["method"] == method]
    return [value for value in values if math.isfinite(value)]


def _median_range(values: Sequence[float], form: str) -> str:
    middle, low, high = statistics.median(values), min(values), max(values)
    text = format(middle, form)
    return text if len(values) == 1 else f"{text} ({low:{form}} - {high:{form}})"


def _model(model: str, rows: Sequence[Row], where: str = "") -> list[str]:
    plans = sorted(_plans(rows).items(), key=lambda item: statistics.median(_of(rows, item[1][0], "measured_cost")))
    predicted = [statistics.median(_of(rows, methods[0], "predicted_cost")) for _, methods in plans]
    order = sorted(range(len(plans)), key=lambda i: predicted[i])
    floor = statistics.median(number(row, "floor") for row in rows)
    body = []
    for i, (texts, methods) in enumerate(plans):
        first = methods[0]
        below = statistics.median(_of(rows, first, "measured")) < floor
        missed = any(row["status"] != "ok" for row in rows if row["method"] == first)
        different = len(set(texts))
        body.append(
            [
                _label(methods) + (" †" if missed else " ‡" if below else ""),
                texts[0] + (f" (and {different - 1} other)" if different > 1 else ""),
                f"{statistics.median(_of(rows, first, 'predicted')):,.0f}",
                _median_range(_of(rows, first, "measured"), ",.0f"),
                f"{predicted[i]:.2f}",
                _median_range(_of(rows, first, "measured_cost"), ".2f"),
                f"{1 + order.index(i)} / {1 + i}",
            ]
        )
    head = [
        "methods",
        "plan",
        "samples/s predicted",
        "measured",
        "$ predicted",
        "$ measured",
        "ranks",
    ]
    caption = f"{MODEL_TITLES.get(model, model)}, floor {floor:,.0f} samples/s; medians and ranges of the repeats"
    return [
        f"### {MODEL_TITLES.get(model, model)}{where}\n",
        table(head, body, rows, scope=caption, clock="wall time between commits"),
    ]


def agreement(rows: Sequence[Row]) -> tuple[int, int]:
    """Return of how many pairs of plans, which differ by more than 5 % in measured cost, the cheaper one was predicted.

    Args:
        rows: of one model.

    Returns:
        Pairs that agree, pairs.
    """
    medians = [
        tuple(statistics.median(_of(rows, methods[0], name)) for name in ("predicted_cost", "measured_cost"))
        for methods in _plans(rows).values()
    ]
    pairs = [(a, b) for a, b in combinations(medians, 2) if abs(math.log(a[1] / b[1])) > math.log(1 + _EQUAL)]
    return sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs), len(pairs)


def measured_against(rows: Sequence[Row], method: str, base: str) -> str:
    """Greatest excess of a method's median measured cost over another's in percent, of the models whose floor it keeps.

    Plans keep the floor by prediction; the text says where a method has none that does.
    """
    if not any(row["method"] == method for row in rows):
        return "not run"
    worst, missed = -math.inf, []
    for model in in_order([str(row["model"]) for row in rows]):
        here = [row for row in rows if row["model"] == model]
        mine = [row for row in here if row["method"] == method]
        if not mine or any(row["status"] != "ok" for row in mine):
            missed.append(MODEL_TITLES.get(model, model))
            continue
        ratio = statistics.median(_of(here, method, "measured_cost")) / statistics.median(
            _of(here, base, "measured_cost")
        )
        worst = max(worst, 100 * (ratio - 1))
    note = f"misses the floor of {' and '.join(missed)}"
    if not math.isfinite(worst):
        return note
    return f"{percent(worst)} %" + (f" ({note})" if missed else "")


def above_cheapest(rows: Sequence[Row]) -> tuple[float, list[str]]:
    """Compare RL-LSTM's plan with the plan of least measured cost, of those predicted to keep the floor.

    Args:
        rows: of one model.

    Returns:
        Percent by which it is dearer, and the methods with the cheapest plan.
    """
    kept = [m for m in _plans(rows).values() if all(r["status"] == "ok" for r in rows if r["method"] == m[0])]
    costs = {methods[0]: statistics.median(_of(rows, methods[0], "measured_cost")) for methods in kept}
    best = min(kept, key=lambda methods: costs[methods[0]])
    ours = next(methods for methods in kept if "rl-lstm" in methods)
    return 100 * (costs[ours[0]] / costs[best[0]] - 1), best


def _found(rows: Sequence[Row], models: Sequence[str]) -> str:
    """What the runs show."""
    return f"What the runs show. {_verdicts(rows, models)} {_misses(rows)} {_WHY}\n"


def _verdicts(rows: Sequence[Row], models: Sequence[str]) -> str:
    """Where RL-LSTM's plan is, and how many pairs of plans have the predicted order, by model."""
    texts = []
    for model in models:
        here = [row for row in rows if row["model"] == model]
        same, pairs = agreement(here)
        texts.append(
            f"{MODEL_TITLES.get(model, model)}: RL-LSTM's plan {_placed(here)}; in {same} of {pairs} pairs of plans "
            "the predicted cheaper one is measured to be cheaper."
        )
    return " ".join(texts)


def _misses(rows: Sequence[Row]) -> str:
    """By how much the measured throughput misses the predicted one."""
    errors = {
        single: [
            number(row, "measured") / number(row, "predicted") - 1
            for row in rows
            if math.isfinite(number(row, "measured")) and (row["stages"] == 1) == single
        ]
        for single in (True, False)
    }
    parts = [
        f"plans of {'one stage' if single else 'several stages'} by {_signed(statistics.median(found))} "
        f"({_signed(min(found))} to {_signed(max(found))})"
        for single, found in errors.items()
        if found
    ]
    return f"The measured throughput differs from the predicted one, {' and '.join(parts)}."


_WHY = (
    "The cost model assumes that stages overlap completely. Where a stage with dense parameters precedes another, the "
    "pipeline drains at every step ([profiling.md](profiling.md#limits-of-the-cost-model)), so that such plans are "
    "dearer than predicted. Nor does it know that a limited process stands still for the rest of each period of 10 ms "
    "in which its quota is used up, while others wait for its answer. That must count most where steps are short, as "
    "NCE's are; it was not measured apart."
)


def _signed(ratio: float) -> str:
    return f"{100 * ratio:+.0f} %"


def _execution_picture(results: Results, rows: Sequence[Row], models: Sequence[str], name: str) -> str:
    figure, axes = plots.new_figure(1, len(models), width=12, height=4.4)
    for ax, model in zip(axes, models, strict=True):
        here = [row for row in rows if row["model"] == model]
        plans = sorted(_plans(here).values(), key=lambda m: statistics.median(_of(here, m[0], "measured_cost")))
        for place, methods in enumerate(plans):
            values = _of(here, methods[0], "measured_cost")
            middle = statistics.median(values)
            style = look(methods[0])
            ax.bar(place, middle, 0.62, color=style.colour, hatch=style.hatch, edgecolor="#222222", linewidth=0.4)
            ax.errorbar(
                place, middle, yerr=[[middle - min(values)], [max(values) - middle]], ecolor="#444444", capsize=3
            )  # fmt: skip
            ax.plot(
                place, statistics.median(_of(here, methods[0], "predicted_cost")), marker="D", color="#ffffff",
                markeredgecolor="#000000", markersize=6,
            )  # fmt: skip
        names = [_short(methods, here) for methods in plans]
        ax.set_xticks(range(len(plans)), names, fontsize=7)
        ax.set_title(MODEL_TITLES.get(model, model), loc="left", fontsize=10)
        ax.set_ylabel("dollars for a billion samples")
    figure.suptitle(
        "Cost of every method's plan: measured (bars, with the range of the repeats), predicted (diamonds)",
        x=0.01, ha="left", fontsize=12,
    )  # fmt: skip
    plots.finish(figure, results.images / f"{name}.png")
    return picture("Measured and predicted cost of every method's plan for two models", name)


def _short(methods: Sequence[str], rows: Sequence[Row]) -> str:
    missed = any(row["status"] != "ok" for row in rows if row["method"] == methods[0])
    lines = [look(name).label.replace("heuristic, ", "heur., ").replace("certified ", "") for name in methods]
    return "\n".join(lines) + (" †" if missed else "")


def frameworks_section(results: Results) -> str:
    """Figure 12: HeterPS beside TensorFlow."""
    rows = results.rows("figure-12")
    if not rows:
        return ""
    models = [name for name in _NETWORKS if any(row["model"] == name for row in rows)]
    systems = [name for name in SYSTEMS if any(row["system"] == name for row in rows)]
    body = []
    for model in models:
        cells = []
        for system in systems:
            found = _rates(rows, model, system)
            cells.append(_median_range(found, ",.0f") if found else "-")
        body.append([_NETWORKS[model], *cells, *(_speed(rows, model, system) for system in systems[1:])])
    head = ["", *(f"{s}, samples/s" for s in systems), *(f"HeterPS / {s}" for s in systems[1:])]
    return "\n".join(
        [
            "## Figure 12: throughput beside TensorFlow\n",
            made_by("figure-12", results.machine("figure-12")),
            "CTRDNN with 7 layers in two widths, on the same click log, with the same global batch of 4,096, "
            "optimizers and embedding sizes, in float32, on the same two cores. HeterPS has two workers of one "
            "thread and a parameter server; so has TensorFlow 2.21 as ParameterServerStrategy, with a chief, whose "
            "workers take half a batch each and do not wait for each other. In one process TensorFlow has a thread "
            "for each core and no servers, which HeterPS does not offer. Systems alternate; medians and ranges of "
            "the repeats, ratios within a repeat.\n",
            table(
                head, body, rows, scope="CTRDNN1 and CTRDNN2 on cores",
                clock="wall time between commits, 5 s after the warm-up",
            ),
            _frameworks_picture(results, rows, models, systems),
            "What differs, and why. The paper finds HeterPS-CPU 9.5 times as fast as TensorFlow on CPUs, on four "
            "servers each, and does not say how TensorFlow was set up. Here both have two cores of one machine, so "
            "that no network separates them. CTRDNN2 has 2.8 million dense parameters and wide rows, which HeterPS's "
            "workers exchange with the server in every step. HeterPS also draws a row when its id first occurs, "
            "TensorFlow all rows before the training; the warm-up of 12 steps is a quarter of a pass, so rows are "
            "still drawn while it is measured. How much of the difference either makes was not measured. CTRDNN2 is "
            "nearly all products of matrices, so it shows the libraries. The same command on another EPYC (2026-11-25) "
            "gave it 0.58 times the throughput of TensorFlow's servers and 0.47 times that of its one process: "
            "22,000 samples/s take 370 GFLOP/s, which two cores have with AVX-512 only, and PyTorch's MKL did half of "
            "that there. Since then oneDNN computes HeterPS's products on AMD's processors, as TensorFlow's "
            "([decision 82](decisions/0082-products-in-float32.md)); that EPYC was not there again.\n",
        ]
    )  # fmt: skip


def _rates(rows: Sequence[Row], model: str, system: str) -> list[float]:
    return [number(row, "samples_per_second") for row in rows if (row["model"], row["system"]) == (model, system)]


def _ratios(rows: Sequence[Row], model: str, system: str) -> list[float]:
    """HeterPS's throughput divided by a system's, repeat by repeat."""
    ratios = []
    for here in group([row for row in rows if row["model"] == model], lambda row: number(row, "repeat")).values():
        ours, theirs = _rates(here, model, SYSTEMS[0]), _rates(here, model, system)
        if ours and theirs:
            ratios.append(ours[0] / theirs[0])
    return ratios


def _speed(rows: Sequence[Row], model: str, system: str) -> str:
    ratios = _ratios(rows, model, system)
    return _median_range(ratios, ".2f") if ratios else "-"


def speeds_against(rows: Sequence[Row], system: str) -> dict[str, float]:
    """HeterPS's throughput as a multiple of a system's, median of the repeats, by model; empty if it was not run."""
    found = {model: _ratios(rows, model, system) for model in _NETWORKS}
    return {model: statistics.median(ratios) for model, ratios in found.items() if ratios}


def speed_text(speeds: Mapping[str, float]) -> str:
    """Format what `speeds_against` returns."""
    return f"{' and '.join(f'{speed:.2f} ({model.upper()})' for model, speed in speeds.items())} times"


def _frameworks_picture(results: Results, rows: Sequence[Row], models: Sequence[str], systems: Sequence[str]) -> str:
    figure, axes = plots.new_figure(1, len(models), width=9, height=3.6)
    for ax, model in zip(axes, models, strict=True):
        series = {}
        for system in systems:
            found = _rates(rows, model, system)
            series[system] = [Bar(statistics.median(found), min(found), max(found)) if found else Bar(math.nan)]
        plots.bars(ax, [model.upper()], series, foot=0.0, text=lambda value: f"{value:,.0f}")
        ax.set_ylim(bottom=0)
        ax.set_ylabel("samples per second")
    figure.suptitle("CTRDNN on two cores: HeterPS beside TensorFlow", x=0.01, ha="left", fontsize=12)
    plots.legend(figure, axes)
    plots.finish(figure, results.images / "figure-12-frameworks.png")
    return picture("Throughput of HeterPS and TensorFlow for CTRDNN1 and CTRDNN2", "figure-12-frameworks")


def card_frameworks_section(results: Results) -> str:
    """Figure 12 on cores, a card and both."""
    rows = results.rows("figure-12-card")
    if not rows:
        return ""
    body = []
    models = [name for name in _NETWORKS if any(row["model"] == name for row in rows)]
    for model in models:
        for batch in sorted({int(number(row, "batch")) for row in rows}):
            here = [row for row in rows if row["batch"] == batch]
            found = {system: _rates(here, model, system) for system in ON_CARD_SYSTEMS}
            ours, plain = (found[system] for system in ("HeterPS, card", "PyTorch, card"))
            ratio = f"{statistics.median(ours) / statistics.median(plain):.2f}" if ours and plain else "-"
            rates = [_median_range(found[system], ",.0f") if found[system] else "-" for system in ON_CARD_SYSTEMS]
            body.append([_NETWORKS[model], f"{batch:,}", *rates, ratio])
    head = ["", "batch", *(f"{system}, samples/s" for system in ON_CARD_SYSTEMS), "HeterPS / PyTorch, card"]
    return "\n".join(
        [
            "## Figure 12 on a card\n",
            made_by("figure-12-card", results.machine("figure-12-card")),
            "The same networks and log. HeterPS has eight workers of one core, one worker on the card, or lookups on "
            "eight workers of one core and the other layers on the card; always four parameter servers on cores. The "
            "machine has no network, and TensorFlow with its CUDA libraries was too large to be carried there. PyTorch "
            "stands for it: one process with all tables, dense parameters and optimizers in the card's memory, which "
            "HeterPS's tables need not fit into, batches in pinned memory, float32.\n",
            table(
                head, body, rows, scope="CTRDNN1 and CTRDNN2 on cores and a card",
                clock="wall time between commits, 5 s after the warm-up",
            ),
            _card_picture(results, rows, models),
            f"{_gain(rows, models)}The paper's 3.8 times of TensorFlow on cards is not reproduced: a process that "
            "keeps all rows in the card's memory sends none of them, and HeterPS's worker sends all. The card behind "
            "cores is slower than the card alone, in both networks. The runs preceded two changes: a card's worker has "
            "up to four threads for its batches ([performance.md](performance.md#one-card)), and behind cores it "
            "computes micro-batches together ([decision 69](decisions/0069-micro-batches-together.md)).\n",
        ]
    )  # fmt: skip


def _gain(rows: Sequence[Row], models: Sequence[str]) -> str:
    """A sentence: the throughput of the card as a multiple of that of cores, with the same batch."""
    batch = min(number(row, "batch") for row in rows)
    here = [row for row in rows if row["batch"] == batch]
    gains = {
        model: statistics.median(_rates(here, model, "HeterPS, card"))
        / statistics.median(_rates(here, model, "HeterPS, cores"))
        for model in models
        if _rates(here, model, "HeterPS, card") and _rates(here, model, "HeterPS, cores")
    }
    return f"With the same batch the card trains {speed_text(gains)} as fast as eight cores. " if gains else ""


def _card_picture(results: Results, rows: Sequence[Row], models: Sequence[str]) -> str:
    figure, axes = plots.new_figure(1, len(models), width=11, height=3.8)
    batches = sorted({int(number(row, "batch")) for row in rows})
    for ax, model in zip(axes, models, strict=True):
        series = {}
        for system in ON_CARD_SYSTEMS:
            found = [_rates([row for row in rows if row["batch"] == batch], model, system) for batch in batches]
            thousands = [[rate / 1000 for rate in rates] for rates in found]
            series[system] = [Bar(statistics.median(t), min(t), max(t)) if t else Bar(math.nan) for t in thousands]
        names = [f"{model.upper()}, batch {batch:,}" for batch in batches]
        plots.bars(ax, names, series, foot=0.0, text=lambda value: f"{value:,.0f}")
        ax.set_ylim(bottom=0)
        ax.set_ylabel("thousand samples per second")
    figure.suptitle("CTRDNN on cores, a card and both, beside PyTorch with all rows on the card", x=0.01, ha="left")
    plots.legend(figure, axes)
    plots.finish(figure, results.images / "figure-12-card.png")
    return picture("Throughput on cores, a card and both for CTRDNN1 and CTRDNN2", "figure-12-card")


SECTIONS = (execution_section, card_execution_section, frameworks_section, card_frameworks_section)
