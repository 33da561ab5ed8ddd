"""Section on BalanceNet's experiment: four image models on four real workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from experiments import paper, plots
from experiments.balanced_job import MIN_GAIN_PERCENT
from experiments.framework import Row
from experiments.image_accuracy import LEVEL
from experiments.image_data import BATCHES, MODELS
from experiments.image_phases import CLAIRVOYANT, CORES, POLICIES, SCENARIOS, SHARES, TRANSFER_SECONDS
from experiments.markdown import made_by, picture, seconds, table
from experiments.plots import Bar
from experiments.results import Results
from experiments.tables import number

__all__ = ["SECTIONS", "step_ratios"]

_TITLES = {
    "equal": "equal",
    "random": "random",
    "bno": "BalanceNet",
    "optimal": "optimal (HeterPS)",
    CLAIRVOYANT: "clairvoyant",
}
_CLOCK = "wall clock, whole steps"
_WORKERS = 4


def images_section(results: Results) -> str:
    """BalanceNet's figures 3 to 7, on unequal workers too."""
    rows = results.rows("image-nodes")
    if not rows:
        return ""
    accuracy = results.rows("image-accuracy")
    _draw(results, rows)
    return "\n".join(
        [
            "## BalanceNet's image models on four real workers\n",
            made_by("image-nodes", results.machine("image-nodes")),
            _setting(),
            picture("Step time of each policy, divided by the clairvoyant one", "image-nodes"),
            _step_table(rows),
            _reading(rows),
            "### Its figures 3 to 7: weight-update times\n",
            picture("Weight-update time of each policy", "image-updates"),
            _update_table(rows),
            _difference(),
            "### What BalanceNet's rule gets to see\n",
            _input_table(rows),
            _accuracy_part(results, rows, accuracy),
        ]
    )


def _find(rows: Sequence[Row], model: str, scenario: str, policy: str) -> Row | None:
    wanted = (model, scenario, policy)
    found = (row for row in rows if (row["model"], row["scenario"], row["policy"]) == wanted)
    return next((row for row in found if row["status"] == "ok"), None)


def _value(row: Row | None, name: str) -> float:
    return math.nan if row is None else number(row, name)


def _missing(rows: Sequence[Row], model: str, scenario: str, policy: str) -> str:
    """What stands in place of a step time: a policy under which a process ended, or none."""
    wanted = (model, scenario, policy, "ended")
    return "ended" if any((r["model"], r["scenario"], r["policy"], r["status"]) == wanted for r in rows) else "-"


def _pairs(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return [(m, s) for s in SCENARIOS for m in MODELS if any((r["model"], r["scenario"]) == (m, s) for r in rows)]


def _ratio(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "-"


def _time(value: float) -> str:
    return seconds(value) if math.isfinite(value) else "-"


def _setting() -> str:
    shares = ", ".join(f"{share:g}x" for share in SHARES["unequal cores"])
    batches = ", ".join(f"{batch} ({MODELS[model]})" for model, batch in BATCHES.items())
    return (
        "The four models of `examples/balancenet` on scikit-learn's digits, one stage on four workers, one parameter "
        "server. Every worker is a process with a control group and a network namespace of its own (which needs root; "
        "elsewhere this experiment is left out, and says so). *Homogeneous*: "
        f"{CORES * SHARES['homogeneous'][0]:.2f} cores each. *Unequal cores*: {shares} of {CORES:g} cores. *Slow "
        "link*: homogeneous, but the last worker's link is limited by tc's token bucket, so that the gradients take "
        f"{TRANSFER_SECONDS:g} s each way. *Small memory*: homogeneous, but the last worker may use only 2 % more "
        f"memory than it does at an even split. Samples of a step, under every policy: {batches}.\n\n"
        "The division is that of the operator's own controller, fed with the workers' figures. Each policy "
        "begins with an even split and knows nothing of the workers; steps are measured once it has settled "
        f"(`minGainPercent: {MIN_GAIN_PERCENT}`). The "
        "*clairvoyant* division is the best by the speeds that all of these phases have shown, each worker's with a "
        "line of its own, and is measured last. Models and scenarios without a row have not been run. The division "
        "counts a worker's computing and its round trip; what else it does in a step, such as reading the new "
        "parameters with its share of a core, is in the step time only.\n"
    )


def _step_table(rows: Sequence[Row]) -> str:
    body = []
    for model, scenario in _pairs(rows):
        found = {policy: _find(rows, model, scenario, policy) for policy in _TITLES}
        times = {policy: _value(row, "step_seconds") for policy, row in found.items()}
        optimal, best = found["optimal"], times[CLAIRVOYANT]
        division = "+".join(str(int(number(optimal, f"batch_{i}"))) for i in range(_WORKERS)) if optimal else "-"
        body.append(
            [
                f"{scenario}, {MODELS[model]}",
                *(
                    _time(value) if found[policy] else _missing(rows, model, scenario, policy)
                    for policy, value in times.items()
                ),
                _ratio(times["optimal"] / best),
                _ratio(times["equal"] / times["optimal"]),
                _ratio(times["equal"] / times["bno"]),
                division,
            ]
        )
    head = [
        "",
        *_TITLES.values(),
        "optimal / clairvoyant",
        "equal / optimal",
        "equal / BalanceNet",
        "optimal's division",
    ]
    return table(head, body, rows, scope=_scope(rows), clock=f"{_CLOCK}; mean")


def _scope(rows: Sequence[Row]) -> str:
    models = [title for model, title in MODELS.items() if any(row["model"] == model for row in rows)]
    return f"{', '.join(models)}; one run, four workers, one seed of `random`"


def step_ratios(rows: Sequence[Row], scenario: str, first: str, second: str) -> str:
    """Step times under a policy divided by those under another one, from the least to the greatest of the models."""
    values = [
        _value(_find(rows, model, scenario, first), "step_seconds")
        / _value(_find(rows, model, scenario, second), "step_seconds")
        for model in MODELS
    ]
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return f"{known[0]:.2f}" if known else "?"
    return f"{min(known):.2f} to {max(known):.2f}"


def _reading(rows: Sequence[Row]) -> str:
    def ratio(scenario: str, first: str, second: str) -> str:
        return step_ratios(rows, scenario, first, second)

    unequal, equal, link = "unequal cores", "homogeneous", "slow link"
    sentences = {
        unequal: f"On unequal cores an even split takes {ratio(unequal, 'equal', 'optimal')} times as long as "
        f"`optimal`, and `optimal` {ratio(unequal, 'optimal', CLAIRVOYANT)} times as long as the clairvoyant division. "
        f"BalanceNet's rule takes {ratio(unequal, 'bno', CLAIRVOYANT)} times as long as that: K is one of three terms, "
        "and its differences shrink to a third.",
        equal: "On equal workers there is nothing to gain, and noise in the measured latency is enough for the rule to "
        f"move samples: it takes {ratio(equal, 'bno', 'equal')} times as long as an even split, `optimal` "
        f"{ratio(equal, 'optimal', 'equal')} times.",
        link: "No division makes a slow link carry fewer gradients. `optimal` looks at computing only, so it leaves "
        f"the batch even ({ratio(link, 'optimal', 'equal')} times an even split's step); the rule takes samples "
        f"from the distant worker ({ratio(link, 'bno', 'equal')} times).",
        "small memory": "A small memory is nothing that a policy looks at; the rule sees the memory that is used, not "
        "what is left.",
    }
    return " ".join(text for name, text in sentences.items() if any(row["scenario"] == name for row in rows)) + "\n"


def _update_table(rows: Sequence[Row]) -> str:
    body = []
    for scenario in ("homogeneous", "unequal cores"):
        for model, title in MODELS.items():
            if _find(rows, model, scenario, CLAIRVOYANT) is None:
                continue
            theirs = paper.BALANCENET_UPDATE_MILLISECONDS[model] if scenario == "homogeneous" else {}
            ours = [_time(_value(_find(rows, model, scenario, policy), "update_seconds")) for policy in POLICIES]
            said = [f"{theirs[policy]:g} ms" if policy in theirs else "-" for policy in ("equal", "random", "bno")]
            body.append([f"{scenario}, {title}", *ours, *said])
    head = ["", *(_TITLES[policy] for policy in POLICIES), "paper: equal", "paper: random", "paper: BalanceNet"]
    return table(head, body, rows, scope=_scope(rows), clock=f"{_CLOCK}; mean of the workers")


def _difference() -> str:
    return (
        "*Weight-update time* is here what a worker spends in a step from the end of its backward pass to the new "
        "parameters: `push`, `wait-commit` and `wait-dense` of [performance.md](performance.md#time-of-a-step), "
        "waiting for slower workers included. The paper measures the communication of PyTorch's DDP between four equal "
        "RTX 2080 Ti, over 2,400 updates. It does not say where the time begins and ends, or how fast its network is. "
        "The convolutions of VGG16 alone have 15 million parameters, 59 MB of gradients; 0.263 ms for them would be "
        "220 GB/s, so it is probably the time of a call that only enqueues. Ours has the transfer, the optimizer and "
        "the wait in it, on a few shared cores. So the sizes cannot be compared, only the order of the policies. The "
        "paper names no reason for its order on equal workers (BalanceNet before random and equal): an even split is "
        "the best that equal workers can do.\n"
    )


def _input_table(rows: Sequence[Row]) -> str:
    body = []
    for model, scenario in _pairs(rows):
        row = _find(rows, model, scenario, "bno")
        if row is None:
            continue

        def listed(name: str, scale: float, digits: int, row: Row = row) -> str:
            return " / ".join(f"{number(row, f'{name}_{i}') / scale:.{digits}f}" for i in range(_WORKERS))

        cells = [listed("operations", 1e9, 2), listed("memory", 2**20, 0), listed("round_trip", 1e-3, 1)]
        body.append([f"{scenario}, {MODELS[model]}", *cells, listed("batch", 1, 0)])
    text = (
        "Of each worker, at the end of the phase: 10^9 operations per second of computing (K), memory in MiB (MW), "
        "milliseconds from the gradients to the server's answer (NCW), and the batch that the rule gave it.\n\n"
    )
    head = ["", "operations", "memory", "round trip", "batch"]
    return text + table(head, body, rows, scope=_scope(rows), clock="the runtime's own metrics")


def _accuracy_part(results: Results, rows: Sequence[Row], accuracy: Sequence[Row]) -> str:
    if not accuracy:
        return ""
    body = []
    for model, title in MODELS.items():
        found = [row for row in accuracy if row["model"] == model]
        if not found:
            continue
        updates, reached = number(found[0], "updates_to_level"), number(found[0], "reached")
        for scenario in ("homogeneous", "unequal cores"):
            if _find(rows, model, scenario, CLAIRVOYANT) is None:
                continue
            times = [updates * _value(_find(rows, model, scenario, policy), "step_seconds") for policy in POLICIES]
            body.append([f"{scenario}, {title}", f"{reached:.3f}", f"{updates:.0f}", *(_time(t) for t in times)])
    head = ["", "accuracy", "updates", *(_TITLES[policy] for policy in POLICIES)]
    return "\n".join(
        [
            f"### Time to {100 * LEVEL:.0f} % of the reached accuracy\n",
            made_by("image-accuracy", results.machine("image-accuracy")),
            "All policies keep the global batch and weigh gradients by its parts, so that the number of updates does "
            "not depend on the division (only ResNet50's statistics do, a little). It is measured in one process on "
            "the batches of the job; the time is this number times the step time above. *Accuracy*: the best on "
            "held-out images.\n",
            table(head, body, rows, scope=_scope(rows), clock=f"{_CLOCK}, times updates"),
        ]
    )


def _draw(results: Results, rows: Sequence[Row]) -> None:
    scenarios = [s for s in SCENARIOS if any(row["scenario"] == s for row in rows)]

    def chart(name: str, title: str, unit: str, shown: Sequence[str], bar: Callable[[str, str, str], Bar]) -> None:
        figure, axes = plots.new_figure(1, len(shown), width=max(6.0, 4.4 * len(shown)), height=4.2)
        for ax, scenario in zip(axes, shown, strict=True):
            models = [m for m in MODELS if _find(rows, m, scenario, CLAIRVOYANT) is not None]
            series: Mapping[str, Sequence[Bar]] = {
                _TITLES[policy]: [bar(model, scenario, policy) for model in models] for policy in POLICIES
            }
            plots.bars(ax, [MODELS[m] for m in models], series, foot=0.0, text=_ratio)
            ax.set_title(scenario, loc="left", fontsize=10)
        axes[0].set_ylabel(unit)
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        plots.legend(figure, axes, columns=4)
        plots.finish(figure, results.images / f"{name}.png")

    def step(model: str, scenario: str, policy: str) -> Bar:
        best = _value(_find(rows, model, scenario, CLAIRVOYANT), "step_seconds")
        return Bar(_value(_find(rows, model, scenario, policy), "step_seconds") / best)

    def update(model: str, scenario: str, policy: str) -> Bar:
        return Bar(_value(_find(rows, model, scenario, policy), "update_seconds"))

    chart("image-nodes", "Step time of four real workers", "times the clairvoyant step", scenarios, step)
    updates = [s for s in scenarios if s in ("homogeneous", "unequal cores")]
    chart("image-updates", "Weight-update time of four real workers", "seconds", updates, update)


SECTIONS = (images_section,)
