"""Method `pretrained`: a policy trained once on random jobs and clusters plans new ones without further learning.

Its first answer takes about a millisecond (`first_answer`). A few draws follow, then a short repair by segment moves
among the pools that the policy finds most probable, as a policy trained on examples cannot guarantee the best plan. The
amount of work is fixed. docs/learned-methods.md reports the results of both.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from heterps_planner.methods.base import Found, Task, answer
from heterps_planner.model.segments import Segments
from heterps_planner.plans.assignments import Evaluator
from heterps_planner.policy.features import Features, features_of
from heterps_planner.policy.network import Encoded, Network, stack
from heterps_planner.policy.pretrained import Policy, check_range, shipped
from heterps_planner.policy.segment_moves import SegmentMoves, distinct
from heterps_planner.search.points import lowest_throughput

__all__ = ["find", "first_answer"]

_DRAWS = 16
_STARTS = 3  # starts of the repair
_BEAM = 16
_POOLS = 16  # pools that the repair may use


def first_answer(policy: Policy, segments: Segments, features: Features) -> tuple[NDArray[np.intp], Encoded]:
    """Return the most probable schedule, shape (L,), and the encoded problem for draws.

    Args:
        policy: a trained policy.
        segments: the problem.
        features: the problem as the policy's input.
    """
    encoded = Network(policy.parameters).encode(stack([features]))
    theta = np.array([lowest_throughput(segments, segments.floor)])
    room = segments.limit_T.copy()
    room[segments.server_pool] -= min(float(segments.server_need(theta)[0]), segments.server_most)
    return encoded.most_probable(segments.pods(theta)[0], room), encoded


def find(task: Task) -> Found:
    """Find a plan with the shipped policy.

    Raises:
        ProblemError: the problem is outside the policy's training domain.
        DeadlineError: the deadline passed before any plan was found.
    """
    policy, segments = shipped(), task.segments
    features = features_of(segments)
    check_range(policy, task.problem, features)
    first, encoded = first_answer(policy, segments, features)
    kept = _likely_pools(segments, encoded, first)
    evaluator = Evaluator(segments.of_pools(kept))
    start = np.searchsorted(kept, first)[None]
    evaluator.rates(start)
    stopped = task.should_stop()
    if not stopped:
        drawn = encoded.choose(np.zeros(_DRAWS, dtype=np.intp), np.random.default_rng(task.seed))
        drawn = np.searchsorted(kept, drawn[np.isin(drawn, kept).all(axis=1)])
        homogeneous = np.repeat(np.arange(len(kept))[:, None], segments.num_layers, axis=1)
        candidates = distinct(np.concatenate([start, drawn, homogeneous]))
        order = np.argsort(evaluator.scores(candidates), kind="stable")
        task.progress(0.5)
        starts = distinct(np.concatenate([start, candidates[order[:_STARTS]]]))
        SegmentMoves(evaluator, task.should_stop).improve(starts, width=_BEAM)
        stopped = task.should_stop()
    if not stopped:
        task.progress(1.0)
    found = answer(evaluator, stopped=stopped)
    if found.choice is None:
        return found
    stages = tuple((begin, end, int(kept[pool])) for begin, end, pool in found.choice.stages)
    return replace(found, choice=replace(found.choice, stages=stages))


def _likely_pools(segments: Segments, encoded: Encoded, first: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the pools that the first answer uses and those that the policy finds most probable next, in order."""
    probability = encoded.forced(np.zeros(1, dtype=np.intp), first[None]).probability[0].max(axis=0)
    probability[first] = 2
    probability[segments.server_pool] = 2
    return np.sort(np.argsort(-probability, kind="stable")[: max(_POOLS, int((probability == 2).sum()))])
