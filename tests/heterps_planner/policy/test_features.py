"""What the policy sees of a problem."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import Segments, build_segments
from heterps_planner.policy.features import features_of, reference_throughput
from tests.heterps_planner.helpers.problems import random_problem, with_cuts, with_floor


def without_sending(problem: Problem) -> Segments:
    segments = build_segments(problem)
    return replace(segments, send_seq_LT=0 * segments.send_seq_LT, send_par_LT=0 * segments.send_par_LT)


@pytest.mark.parametrize("seed", range(8))
def test_a_share_is_that_of_the_pods_which_a_stage_needs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    segments = without_sending(with_floor(with_cuts(rng, random_problem(rng, 5, 3, most_pods=20)), 0.5))
    theta = np.array([reference_throughput(segments)])
    pods, features = segments.pods(theta)[0], features_of(segments)
    need = np.ceil(features.share * segments.limit_T - 1e-6)
    # Beyond that, a stage has next to no time beside its sequential part, which the features round.
    exact = np.isfinite(pods) & (features.sequential < 0.98)
    assert exact.sum() >= 5
    assert np.maximum(need[exact], 1).tolist() == pods[exact].tolist()
