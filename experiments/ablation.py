"""The paper's learned scheduler taken apart: what learning finds alone, what search finds alone, and both.

`rl-lstm` learns a policy as algorithm 1 of the paper does, and lets segment moves search from the policy's draws. Each
variant is one of these parts: algorithm 1 as printed, with its errata corrected, learning without moves, moves from an
untrained policy, and both; then learning with one of its changes taken back. "untrained" has neither part.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace

from experiments.framework import Cell, Experiment, Row, Settings
from experiments.literal_rl import VARIANTS, Variant, run
from experiments.trials import solved
from heterps_planner.model.segments import build_segments
from heterps_planner.plans.assignments import Evaluator
from heterps_planner.policy import learning

__all__ = ["EXPERIMENT", "PARTS"]

_SECONDS = 60.0  # of one run
_WHOLE = learning.Settings()
_LEARNING = replace(_WHOLE, starts=0)

#: Variant -> algorithm 1 of the paper with errata corrected, or `rl-lstm` with other settings.
PARTS: Mapping[str, Variant | learning.Settings] = {
    "algorithm 1 as printed": VARIANTS["printed"],
    "algorithm 1 corrected": VARIANTS["best plan"],
    "untrained": replace(_WHOLE, rate=0.0, starts=0, patience=_WHOLE.rounds),
    "learning only": _LEARNING,
    "search only": replace(_WHOLE, rate=0.0),
    "both (rl-lstm)": _WHOLE,
    "learning, only the best replayed": replace(_LEARNING, replayed=1),
    "learning, all draws count": replace(_LEARNING, best_share=1.0),
    "learning, no entropy bonus": replace(_LEARNING, entropy=0.0),
}
_PROBLEMS = (("ctrdnn", "matchnet"), ((2, "loose"), (16, "tight")))


def _cells(settings: Settings) -> list[Cell]:
    models, clusters = (("nce",), ((2, "loose"),)) if settings.quick else _PROBLEMS
    return [
        {"model": model, "pools": t, "limits": limits, "variant": variant, "seed": seed}
        for model in models
        for t, limits in clusters
        for variant in PARTS
        for seed in range(settings.seeds)
    ]


def _run(cell: Cell) -> list[Row]:
    problem, _, optimum, _ = solved(cell)
    variant = PARTS[cell["variant"]]
    began = time.process_time()

    def should_stop() -> bool:
        return time.process_time() - began > _SECONDS

    row: Row = dict(cell)
    if isinstance(variant, Variant):
        literal = run(problem, variant, cell["seed"], should_stop)
        rate = literal.rate
        row |= {"schedules": variant.plans * len(literal.mean_cost), "rounds": len(literal.mean_cost)}
    else:
        evaluator = Evaluator(build_segments(problem))
        record = learning.learn(evaluator, "lstm", cell["seed"], should_stop=should_stop, settings=variant).learned
        assert record is not None
        rate = evaluator.best_rate
        row |= {"schedules": evaluator.num_evaluated, "rounds": record.num_rounds}
        row |= {"found_by": record.found_by, "found_in_round": record.found_in_round}
    row |= {"seconds": time.process_time() - began}
    if not math.isfinite(rate):
        return [row | {"status": "infeasible"}]
    return [row | {"status": "ok", "gap_percent": 100 * (rate / optimum.rate - 1)}]


EXPERIMENT = Experiment(
    name="ablation",
    subject="the learned scheduler taken apart: algorithm 1, learning only, search only, both",
    cells=_cells,
    run=_run,
    seconds=lambda cell: 4.0 if cell["variant"].startswith("algorithm") else 1.0,
    sources=("experiments/ablation.py", "experiments/literal_rl.py", "experiments/trials.py"),
)
